//! `revgate explain`: why a request goes where it goes.
//!
//! The answer is computed from the agent's report by the same functions that choose for real requests
//! (`gating::choose`, `revgate_common::pick`), so it cannot tell another story than the agent.

mod reason;

use super::{
    fetch::{self, Agent},
    outcome::{Exit, Failure},
    output::{self, Form, Output, Styles},
};
pub use reason::{Answer, Draws, Explanation, Question, explain};

/// Explain why a request goes to the revision and endpoints that it goes to, or is refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    revgate explain                          what a request without a header gets\n  \
    revgate explain --revision 5c9d7a1b      what a request with that revision in its header gets\n  \
    revgate explain --decision-id chat-42    what a request with that x-llm-d-revision-decision-id gets\n\n\
    Exit codes: 0 explained, 1 no agent answers, or no such set or role.")]
pub struct Args {
    #[command(flatten)]
    agent: Agent,
    /// The set; needed where the agent has several.
    #[arg(long, value_name = "NAME")]
    set: Option<String>,
    /// The revision that the request's header names.
    #[arg(long, value_name = "REVISION", conflicts_with = "decision_id")]
    revision: Option<String>,
    /// The decision id that the request carries.
    #[arg(long, value_name = "ID")]
    decision_id: Option<String>,
    /// Show the endpoints of this role only.
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// How to write it; wide is the same as table.
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
}

/// Explains one request.
pub fn run(args: &Args, out: &mut Output) -> Result<Exit, Failure> {
    let report = fetch::report(&args.agent)?;
    // An empty value counts as absent (G6).
    let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    let question = Question {
        set: args.set.as_deref(),
        revision: given(&args.revision),
        decision_id: given(&args.decision_id),
        role: args.role.as_deref(),
    };
    let explanation = explain(&report, &question).map_err(Failure::failed)?;
    let text = match args.output {
        Form::Json => output::json(&explanation)?,
        Form::Yaml => output::yaml(&explanation)?,
        Form::Table | Form::Wide => render(&explanation, &out.styles),
    };
    out.write(&text)?;
    Ok(Exit::Done)
}

/// An explanation for people.
#[must_use]
pub fn render(explanation: &Explanation, styles: &Styles) -> String {
    let (heading, good, bad) = (styles.heading, styles.good, styles.bad);
    let mut lines = vec![format!(
        "{heading}{}{heading:#}: {}{}, snapshot {}",
        explanation.set,
        explanation.mode,
        explanation.dominant_role.as_ref().map(|role| format!(" by {role}")).unwrap_or_default(),
        explanation.generation
    )];
    lines.push(format!("request {}", explanation.asked));
    lines.push(match &explanation.answer {
        Answer::Revision { name } => format!("{good}gets revision {name}{good:#}: {}", explanation.because),
        Answer::Weighted => format!("{good}gets a revision by its draw{good:#}: {}", explanation.because),
        Answer::Any => format!("{good}gets any revision{good:#}: {}", explanation.because),
        Answer::Refused { status, reason } => {
            format!("{bad}is refused with {status} ({reason}){bad:#}: {}", explanation.because)
        }
    });
    for draws in &explanation.draws {
        let range = match (draws.first, draws.last) {
            (Some(first), Some(last)) => format!("draws {first} to {last}"),
            _ => format!("no draw, it lacks {}", draws.lacks.join(" and ")),
        };
        lines.push(format!("  {}  {:>5}  {range}", draws.revision, draws.share));
    }
    for role in &explanation.endpoints {
        let addresses: Vec<String> = role.addresses.iter().map(ToString::to_string).collect();
        let addresses = if addresses.is_empty() { "none".to_owned() } else { addresses.join(" ") };
        lines.push(format!("{} endpoints of {}: {addresses}", role.role, role.revision));
    }
    lines.push(String::new());
    lines.join("\n")
}
