//! `revgate detach`: takes everything out of the kernel that an agent left there.

use std::fmt::Write as _;

use super::{
    config_file::ConfigFile,
    outcome::{Exit, Failure},
    output::Output,
};
use crate::kernel;

/// Remove the kernel programs, links and tables that an agent left in force.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "From then on VIPs lead nowhere and nothing is fenced on this node. Stop the agent first.\n\n\
    Exit codes: 0 nothing is left, 1 an agent runs or something could not be removed, 64 the configuration is wrong."
)]
pub struct Args {
    #[command(flatten)]
    file: ConfigFile,
}

/// Removes it all, and says what that was.
pub fn run(args: &Args, out: &mut Output) -> Result<Exit, Failure> {
    let config = args.file.load()?.config.agent.kernel;
    let removed = kernel::detach(&config).map_err(Failure::failed)?;
    let mut text = String::new();
    // Writing to a string does not fail.
    for path in &removed {
        let _ = writeln!(text, "removed {}", path.display());
    }
    if removed.is_empty() {
        let _ = writeln!(text, "nothing of revgate is pinned below {}", config.bpffs.display());
    }
    out.write(&text)?;
    Ok(Exit::Done)
}
