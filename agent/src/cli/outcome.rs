//! How a command ends.

use std::{
    fmt::Display,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::builder::styling::{AnsiColor, Style};

use crate::observe::log::colour;

/// The exit codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Exit {
    /// 0.
    Done = 0,
    /// 1: it was tried and did not work, or a check did not pass.
    Failed = 1,
    /// 64 (`EX_USAGE` of sysexits.h): wrong arguments or a bad configuration; trying again is no use.
    Usage = 64,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do its work, and what to do about it.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What happened.
    pub message: String,
    /// What to do, a line each.
    pub hints: Vec<String>,
    /// The error of the output, where that is what failed.
    pub source: Option<io::Error>,
}

impl Failure {
    /// Something did not work.
    pub fn failed(message: impl Display) -> Self {
        Self { exit: Exit::Failed, message: message.to_string(), hints: Vec::new(), source: None }
    }

    /// The arguments or the configuration are wrong.
    pub fn usage(message: impl Display) -> Self {
        Self { exit: Exit::Usage, ..Self::failed(message) }
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Says it on stderr.
    pub fn print(&self) {
        let mut stderr = io::stderr();
        let mut style = Style::new();
        if colour(stderr.is_terminal()) {
            style = style.bold().fg_color(Some(AnsiColor::Red.into()));
        }
        let mut text = format!("{style}error:{style:#} {}\n", self.message);
        for hint in &self.hints {
            text.push_str("  ");
            text.push_str(hint);
            text.push('\n');
        }
        // There is nowhere left to say that stderr is closed.
        let _ = stderr.write_all(text.as_bytes());
    }
}

impl From<io::Error> for Failure {
    fn from(source: io::Error) -> Self {
        Self { source: Some(source), ..Self::failed("cannot write the output") }
    }
}
