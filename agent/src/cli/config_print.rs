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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn fixture(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config").join(name)
    }

    fn print(name: &str, to: &Path) -> Result<Exit, Failure> {
        let file = ConfigFile { path: fixture(name), node: Some("node-1".to_owned()) };
        let mut out = Output::to(std::fs::File::create(to).unwrap());
        run(&Args { command: Command::Print { file } }, &mut out)
    }

    #[test]
    fn f3_the_output_is_a_file_of_the_same_configuration() {
        let out = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(print("present.yaml", out.path()).unwrap(), Exit::Done);
        let shown = config::load(out.path(), None).unwrap().config;
        assert_eq!(shown, config::load(&fixture("present.yaml"), Some("node-1")).unwrap().config);
    }

    #[test]
    fn f4_a_bad_file_ends_with_64_every_error_and_no_output() {
        let out = tempfile::NamedTempFile::new().unwrap();
        let failure = print("bad.yaml", out.path()).unwrap_err();
        assert_eq!(failure.exit as u8, 64);
        assert!(failure.message.lines().count() > 15, "{}", failure.message);
        assert_eq!(std::fs::read(out.path()).unwrap(), b"");
    }
}
