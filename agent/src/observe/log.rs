//! Logs: tracing to stderr, as text or JSON (O4).

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, filter::ParseError, util::TryInitError};

use crate::config::{LogConfig, LogFormat};

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is no filter.
    #[error(
        "log.filter `{filter}` is not a tracing filter: {source}; use a level (error, warn, info, debug, trace) or \
         directives such as `info,revgate::proxy=debug`"
    )]
    Filter {
        /// What was configured.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// Something else in this process already receives the logs.
    #[error("logs were set up twice in this process: {0}")]
    Twice(#[from] TryInitError),
}

/// Goes before the configured directives, which may say otherwise: each failed request is a line there, and the source
/// says once what it comes to.
const QUIET: &str = "kube_client=off,";

/// Checks a filter without starting anything.
pub fn filter(config: &LogConfig) -> Result<EnvFilter, LogError> {
    EnvFilter::try_new(format!("{QUIET}{}", config.filter))
        .map_err(|source| LogError::Filter { filter: config.filter.clone(), source })
}

/// From now on this process's logs go to stderr. Call once.
pub fn init(config: &LogConfig) -> Result<(), LogError> {
    use tracing_subscriber::util::SubscriberInitExt as _;

    let builder = tracing_subscriber::fmt().with_env_filter(filter(config)?).with_writer(io::stderr);
    match config.format {
        LogFormat::Text => builder.with_ansi(colour(io::stderr().is_terminal())).finish().try_init()?,
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).finish().try_init()?,
    }
    Ok(())
}

/// Whether to colour what goes to a stream: on a terminal, unless `NO_COLOR` says otherwise (<https://no-color.org>).
#[must_use]
pub fn colour(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_an_error_that_says_what_to_write() {
        let config = |filter: &str| LogConfig { format: LogFormat::Text, filter: filter.to_owned() };
        assert!(filter(&config("info,revgate::proxy=debug")).is_ok());
        let shown = |directives: &str| filter(&config(directives)).unwrap().to_string();
        assert!(shown("info").contains("kube_client=off"), "{}", shown("info"));
        assert!(!shown("info,kube_client=debug").contains("kube_client=off"), "a later directive wins");
        let error = filter(&config("revgate=loud")).unwrap_err().to_string();
        assert!(error.contains("`revgate=loud`") && error.contains("use a level"), "{error}");
    }

    #[test]
    fn what_is_no_terminal_is_not_coloured() {
        assert!(!colour(false));
    }
}
