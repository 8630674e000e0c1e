//! The `revgate` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    revgate::cli::main()
}
