//! `revgate check`: would an agent with this configuration work on this machine?
//!
//! All faults of the configuration are shown at once, or else every precondition of the machine with what was found
//! and how to mend it. Nothing is changed, and a running agent is not disturbed.

mod api;
mod node;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    config_file::ConfigFile,
    outcome::{Exit, Failure},
    output::{self, Form, Output, Styles},
    table::{self, Cell},
};
use crate::config::{self, ConfigError, Loaded, Problem};

/// Check a configuration and this machine's preconditions, without changing anything.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 all is well, 1 a precondition fails, 64 the configuration is wrong.")]
pub struct Args {
    #[command(flatten)]
    file: ConfigFile,
    /// How to write it; wide is the same as table.
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
}

/// How a precondition stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// The agent runs, with less.
    Warn,
    /// The agent does not run, or not rightly.
    Fail,
}

/// Something that must hold for the agent to work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Precondition {
    /// What is asked for.
    pub name: String,
    /// How it stands.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// How to mend it.
    pub fix: Option<String>,
}

impl Precondition {
    /// One that holds.
    pub fn pass(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), verdict: Verdict::Pass, detail: detail.into(), fix: None }
    }

    /// One that does not hold, and the agent runs with less.
    pub fn warn(name: impl Into<String>, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, fix: Some(fix.into()), ..Self::pass(name, detail) }
    }

    /// One that does not hold.
    pub fn fail(name: impl Into<String>, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fail, ..Self::warn(name, detail, fix) }
    }
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Findings {
    /// Nothing fails.
    pub ok: bool,
    /// The configuration file.
    pub config: PathBuf,
    /// What is wrong with the configuration; then no precondition is looked at.
    pub faults: Vec<Fault>,
    /// The preconditions.
    pub preconditions: Vec<Precondition>,
}

/// One thing that is wrong with the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// The line, from 1; 0 where the file could not be read.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// The path of the field.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What is allowed there.
    pub allowed: Option<String>,
    /// What was probably meant.
    pub suggestion: Option<String>,
}

/// Checks the configuration, then the machine.
pub fn run(args: &Args, out: &mut Output) -> Result<Exit, Failure> {
    let loaded = match config::load(&args.file.path, args.file.node.as_deref()) {
        Ok(loaded) => loaded,
        Err(error) => return bad_config(args, &error, out),
    };
    let mut preconditions = of_configuration(&loaded);
    preconditions.extend(node::preconditions(&loaded.config));
    let ok = preconditions.iter().all(|precondition| precondition.verdict != Verdict::Fail);
    let findings = Findings { ok, config: args.file.path.clone(), faults: Vec::new(), preconditions };
    write(args.output, &findings, out)?;
    Ok(if ok { Exit::Done } else { Exit::Failed })
}

/// A bad configuration is an error like any other for people, and data like any other for machines.
fn bad_config(args: &Args, error: &ConfigError, out: &mut Output) -> Result<Exit, Failure> {
    if matches!(args.output, Form::Table | Form::Wide) {
        return Err(Failure::usage(error));
    }
    let faults = match error {
        ConfigError::Read { source, .. } => vec![Fault::unreadable(&args.file.path, source)],
        ConfigError::Invalid { problems, .. } => problems.iter().map(Fault::from).collect(),
    };
    let findings = Findings { ok: false, config: args.file.path.clone(), faults, preconditions: Vec::new() };
    write(args.output, &findings, out)?;
    Ok(Exit::Usage)
}

fn write(form: Form, findings: &Findings, out: &mut Output) -> Result<(), Failure> {
    let text = match form {
        Form::Json => output::json(findings)?,
        Form::Yaml => output::yaml(findings)?,
        Form::Table | Form::Wide => render(findings, &out.styles),
    };
    Ok(out.write(&text)?)
}

fn of_configuration(loaded: &Loaded) -> Vec<Precondition> {
    let agent = &loaded.config.agent;
    let (sets, listeners, vips) = (loaded.config.sets.len(), agent.listeners.len(), agent.vips.len());
    let name = "configuration";
    let mut found = vec![Precondition::pass(
        name,
        format!("{}, {}, {}", many(sets, "set"), many(listeners, "listener"), many(vips, "VIP")),
    )];
    if !loaded.ignored_plugins.is_empty() {
        let ignored = format!("left alone, other plugins: {}", loaded.ignored_plugins.join(", "));
        found.push(Precondition::pass(name, ignored));
    }
    found.extend(
        loaded
            .warnings
            .iter()
            .map(|warning| Precondition::warn(name, warning.clone(), "look whether this is meant")),
    );
    found
}

fn many(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Findings for people.
#[must_use]
pub fn render(findings: &Findings, styles: &Styles) -> String {
    let heading =
        ["RESULT", "PRECONDITION", "FOUND"].map(|name| Cell::text(name).styled(styles.heading)).into();
    let rows = findings.preconditions.iter().map(|precondition| {
        let (word, style) = match precondition.verdict {
            Verdict::Pass => ("pass", styles.good),
            Verdict::Warn => ("warn", styles.notable),
            Verdict::Fail => ("FAIL", styles.bad),
        };
        vec![Cell::text(word).styled(style), Cell::text(&precondition.name), Cell::text(&precondition.detail)]
    });
    let mut out = table::render(heading, rows.collect());
    let mut fixes = findings.preconditions.iter().filter_map(|p| Some((&p.name, p.fix.as_ref()?))).peekable();
    if fixes.peek().is_some() {
        out.push_str("\nTo do:\n");
    }
    for (name, fix) in fixes {
        for part in ["  ", name, ": ", fix, "\n"] {
            out.push_str(part);
        }
    }
    out
}

impl Fault {
    fn unreadable(file: &Path, source: &std::io::Error) -> Self {
        Self {
            line: 0,
            column: 0,
            path: String::new(),
            message: format!("cannot read {}: {source}", file.display()),
            allowed: None,
            suggestion: None,
        }
    }
}

impl From<&Problem> for Fault {
    fn from(problem: &Problem) -> Self {
        Self {
            line: problem.at.line,
            column: problem.at.column,
            path: problem.path.clone(),
            message: problem.message.clone(),
            allowed: problem.allowed.clone(),
            suggestion: problem.suggestion.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_precondition_is_a_line_and_what_is_to_be_done_comes_last() {
        let findings = Findings {
            ok: false,
            config: "config.yaml".into(),
            faults: Vec::new(),
            preconditions: vec![
                Precondition::pass("configuration", "1 set"),
                Precondition::warn("bpffs", "not mounted", "mount -t bpf bpf /sys/fs/bpf"),
                Precondition::fail("listener decode", "address in use", "free it"),
            ],
        };
        assert_eq!(
            render(&findings, &Styles::default()),
            "RESULT  PRECONDITION     FOUND\n\
             pass    configuration    1 set\n\
             warn    bpffs            not mounted\n\
             FAIL    listener decode  address in use\n\n\
             To do:\n  bpffs: mount -t bpf bpf /sys/fs/bpf\n  listener decode: free it\n"
        );
    }

    #[test]
    fn counts_have_the_right_number() {
        assert_eq!([0, 1, 2].map(|n| many(n, "set")), ["0 sets", "1 set", "2 sets"]);
    }
}
