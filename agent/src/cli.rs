//! The commands, one file each.
//!
//! A command gets its arguments and an [`Output`], and gives an [`Exit`] or a [`Failure`]; only this file talks to
//! the process. Results go to stdout, everything else to stderr, so every command can stand in a pipe.

pub mod check;
pub mod completions;
pub mod config_file;
pub mod config_print;
#[cfg(feature = "demo")]
pub mod demo;
pub mod detach;
pub mod explain;
pub mod fetch;
pub mod outcome;
pub mod output;
pub mod run;
pub mod simulate;
pub mod status;
pub mod table;

use std::{ffi::OsString, io, process::ExitCode};

use clap::{Parser, Subcommand};

use outcome::{Exit, Failure};
use output::Output;

/// Keeps both phases of every disaggregated LLM request on one revision.
///
/// revgate is a node-local router agent. While a DisaggregatedSet rolls out, it sends new requests to each revision
/// by its share of Ready Pods, and lets no connection cross from one revision to another.
#[derive(Debug, Parser)]
#[command(
    name = "revgate",
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 failed, 64 wrong usage or configuration."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Check(check::Args),
    Status(status::Args),
    Explain(explain::Args),
    Simulate(simulate::Args),
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    Config(config_print::Args),
    Detach(detach::Args),
    Completions(completions::Args),
}

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    run(std::env::args_os(), &mut Output::stdout()).into()
}

/// Runs a command line. Messages go to stderr, results to `out`.
pub fn run(arguments: impl IntoIterator<Item = OsString>, out: &mut Output) -> Exit {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help that was asked for goes to stdout and is no error. A closed pipe is nobody's problem.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Done };
        }
    };
    match cli.command.run(out) {
        Ok(exit) => exit,
        // The reader of a pipe has seen enough.
        Err(Failure { source: Some(source), .. }) if source.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(failure) => {
            failure.print();
            failure.exit
        }
    }
}

impl Command {
    fn run(self, out: &mut Output) -> Result<Exit, Failure> {
        match self {
            Self::Run(args) => run::run(&args, out),
            Self::Config(args) => config_print::run(&args, out),
            Self::Check(args) => check::run(&args, out),
            Self::Status(args) => status::run(&args, out),
            Self::Explain(args) => explain::run(&args, out),
            Self::Simulate(args) => simulate::run(&args, out),
            Self::Detach(args) => detach::run(&args, out),
            #[cfg(feature = "demo")]
            Self::Demo(args) => demo::run(&args, out),
            Self::Completions(args) => completions::run(&args, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_of_the_commands_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_does() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
        }
    }
}
