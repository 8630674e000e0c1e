//! `revgate config print`: the whole effective configuration, defaults included.

use clap::Subcommand;

use super::{
    config_file::ConfigFile,
    outcome::{Exit, Failure},
    output::Output,
};
use crate::config;

/// Work with configuration files.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the whole effective configuration, every default included.
    ///
    /// The output is itself a configuration file, and reading it gives the same configuration.
    Print {
        #[command(flatten)]
        file: ConfigFile,
    },
}

/// Writes the configuration; warnings about its file go to stderr.
pub fn run(args: &Args, out: &mut Output) -> Result<Exit, Failure> {
    let Command::Print { file } = &args.command;
    let loaded = file.load()?;
    for warning in &loaded.warnings {
        out.warn(&format!("{}: {warning}", file.path.display()));
    }
    out.write(&config::print(&loaded.config).map_err(Failure::failed)?)?;
    Ok(Exit::Done)
}
