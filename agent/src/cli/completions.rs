//! `revgate completions`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use super::{
    Cli,
    outcome::{Exit, Failure},
    output::Output,
};

/// Write a shell's completion script to stdout.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: revgate completions bash > /etc/bash_completion.d/revgate")]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Writes the script.
pub fn run(args: &Args, out: &mut Output) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "revgate", &mut script);
    out.write(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
