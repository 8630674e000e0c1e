//! `revgate config print`: the whole effective configuration, defaults included.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use crate::config::{self, ConfigError};

/// Show the whole effective configuration, every default included.
///
/// The output is itself a configuration file, and reading it gives the same configuration.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", default_value = "/etc/revgate/revgate.yaml")]
    pub config: PathBuf,
    /// The name of this node, where the file does not say it.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
pub enum PrintError {
    /// The file is bad (exit code 64).
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration cannot be written as YAML.
    #[error("cannot write the configuration as YAML: {0}")]
    Yaml(#[from] serde_saphyr::SerializeError),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// Writes the configuration to `out` and the warnings about its file to `messages`.
pub fn run(args: &Args, out: &mut dyn Write, messages: &mut dyn Write) -> Result<(), PrintError> {
    let loaded = config::load(&args.config, args.node_name.as_deref())?;
    for warning in &loaded.warnings {
        writeln!(messages, "warning: {}: {warning}", args.config.display())?;
    }
    out.write_all(config::print(&loaded.config)?.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(name: &str) -> Args {
        let config = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config").join(name);
        Args { config, node_name: Some("node-1".to_owned()) }
    }

    #[test]
    fn the_output_is_the_configuration_and_warnings_go_elsewhere() {
        let (mut out, mut messages) = (Vec::new(), Vec::new());
        run(&args("present.yaml"), &mut out, &mut messages).unwrap();
        let again = config::parse(&PathBuf::from("out"), &out, None).unwrap();
        let first = config::load(&args("present.yaml").config, Some("node-1")).unwrap();
        assert_eq!(again.config, first.config);
        assert!(String::from_utf8(messages).unwrap().contains("warning: "));
    }

    #[test]
    fn a_bad_file_writes_nothing_and_is_an_error() {
        let (mut out, mut messages) = (Vec::new(), Vec::new());
        let error = run(&args("bad.yaml"), &mut out, &mut messages).unwrap_err();
        assert!(matches!(error, PrintError::Config(ConfigError::Invalid { .. })));
        assert!(out.is_empty());
    }
}
