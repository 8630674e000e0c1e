//! Where results go. Unlike `println!`, a closed pipe is an error that can be handled, not a panic.

use std::{
    fmt::Debug,
    io::{self, IsTerminal, Write},
};

use clap::{
    ValueEnum,
    builder::styling::{AnsiColor, Style},
};

use super::outcome::Failure;
use crate::observe::log::colour;

/// Where results go, and whether a person reads them there.
pub struct Output {
    writer: Box<dyn Write>,
    /// It is a terminal.
    pub terminal: bool,
    /// The styles to use.
    pub styles: Styles,
}

impl Output {
    /// Standard output.
    #[must_use]
    pub fn stdout() -> Self {
        let terminal = io::stdout().is_terminal();
        let styles = if colour(terminal) { Styles::colourful() } else { Styles::default() };
        Self { writer: Box::new(io::stdout()), terminal, styles }
    }

    /// Any writer; no terminal.
    #[must_use]
    pub fn to(writer: impl Write + 'static) -> Self {
        Self { writer: Box::new(writer), terminal: false, styles: Styles::default() }
    }

    /// Writes and flushes a whole text.
    pub fn write(&mut self, text: &str) -> io::Result<()> {
        self.writer.write_all(text.as_bytes())?;
        self.writer.flush()
    }
}

impl Output {
    /// Writes a warning to stderr.
    pub fn warn(&self, message: &str) {
        // There is nowhere left to say that stderr is closed.
        let _ = writeln!(io::stderr(), "warning: {message}");
    }
}

impl Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("terminal", &self.terminal).finish_non_exhaustive()
    }
}

/// Styles by meaning; plain by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Styles {
    /// Headings.
    pub heading: Style,
    /// As it should be.
    pub good: Style,
    /// On the way, or worth a look.
    pub notable: Style,
    /// Wrong.
    pub bad: Style,
}

impl Styles {
    fn colourful() -> Self {
        let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
        Self {
            heading: Style::new().bold(),
            good: colour(AnsiColor::Green),
            notable: colour(AnsiColor::Yellow),
            bad: colour(AnsiColor::Red),
        }
    }
}

/// How data are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Form {
    /// JSON, on one line.
    Json,
    /// YAML.
    Yaml,
    /// For people.
    Table,
    /// For people, with everything.
    Wide,
}

/// Data as one line of JSON.
pub fn json(data: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(data).map_err(Failure::failed)?;
    Ok(text + "\n")
}

/// Data as YAML.
pub fn yaml(data: &impl serde::Serialize) -> Result<String, Failure> {
    serde_saphyr::to_string(data).map_err(Failure::failed)
}
