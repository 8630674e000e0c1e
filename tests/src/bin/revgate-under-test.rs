//! The agent, as a program that the tests of this package can start and kill.

use std::process::ExitCode;

fn main() -> ExitCode {
    revgate::cli::main()
}
