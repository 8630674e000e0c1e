//! `revgate status`: what a running agent sees and does.

mod render;

use std::{thread, time::Duration};

use super::{
    fetch::{self, Agent},
    outcome::{Exit, Failure},
    output::{self, Form, Output, Styles},
};
use crate::observe::Report;

pub use render::render;

/// Show revisions, roles, shares, kernel tables and connections of a running agent.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 shown, 1 no agent answers.")]
pub struct Args {
    #[command(flatten)]
    agent: Agent,
    /// How to write it.
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
    /// Show it again every second until interrupted.
    #[arg(short, long)]
    watch: bool,
}

/// Between two looks of `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);
/// To the top left, and clear everything.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows the status, once or again and again.
pub fn run(args: &Args, out: &mut Output) -> Result<Exit, Failure> {
    if !args.watch {
        let text = text(&fetch::report(&args.agent)?, args.output, &out.styles)?;
        out.write(&text)?;
        return Ok(Exit::Done);
    }
    // An agent that restarts is part of what is watched; one that was never there is a mistake.
    let mut report = fetch::report(&args.agent)?;
    loop {
        let clear = if out.terminal { CLEAR } else { "" };
        out.write(&(clear.to_owned() + &text(&report, args.output, &out.styles)?))?;
        report = loop {
            thread::sleep(INTERVAL);
            match fetch::report(&args.agent) {
                Ok(report) => break report,
                Err(error) => Failure::failed(error).print(),
            }
        };
    }
}

fn text(report: &Report, form: Form, styles: &Styles) -> Result<String, Failure> {
    match form {
        Form::Json => output::json(report),
        Form::Yaml => output::yaml(report),
        Form::Table => Ok(render(report, false, styles)),
        Form::Wide => Ok(render(report, true, styles)),
    }
}
