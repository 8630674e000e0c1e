//! `revgate simulate`: what gating makes of counts or of a whole rollout, with no cluster and no agent.
//!
//! The shares and the draws come from [`gating`](crate::gating), the code that the agent runs.

mod cases;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use clap::ValueEnum;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use super::{
    outcome::{Exit, Failure},
    output::{self, Form, Output, Styles},
    table::{self, Cell},
};
use crate::{
    config::GatingMode,
    gating::{Ask, Census, Distribution, Gating, choose},
    observe::report::{decimal_share, exact_share},
    rollout::MAX_REPLICAS,
};
use cases::Case;

/// Compute eligibility, weights, shares and traffic from counts or a rollout plan.
///
/// Needs no cluster and no running agent. The shares are exact; the traffic is drawn from a seeded generator, so a
/// run can be repeated.
#[derive(Debug, clap::Args)]
#[command(
    group(clap::ArgGroup::new("input").required(true).args(["counts", "rollout", "file"])),
    after_help = "Examples:\n  \
        revgate simulate --counts A:prefill=2,decode=6 --counts B:prefill=1,decode=4\n  \
        revgate simulate --rollout 2p10d --max-unavailable 2\n  \
        revgate simulate --file cases.yaml -o json"
)]
pub struct Args {
    /// Ready Pods of a revision, as NAME:ROLE=COUNT,ROLE=COUNT; once for each revision.
    #[arg(long, value_name = "COUNTS", value_parser = cases::parse_counts)]
    counts: Vec<cases::Counts>,
    /// A rollout from SIZE to SIZE or to NEW, as in 2p10d or 2p10d:3p12d; every step is shown.
    #[arg(long, value_name = "SIZE[:NEW]")]
    rollout: Option<String>,
    /// A YAML or JSON file with one case (`counts`, and `requiredRoles`, `mode`, `name` where wanted) or many (`cases`).
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Pods of a role that may be missing during the rollout.
    #[arg(long, value_name = "PODS", default_value_t = 1, requires = "rollout")]
    max_unavailable: u32,
    /// Pods of a role that may be in excess during the rollout.
    #[arg(long, value_name = "PODS", default_value_t = 0, requires = "rollout")]
    max_surge: u32,
    /// The roles that a revision needs, in the order that breaks ties [default: prefill,decode, or what the input says].
    #[arg(long, value_name = "ROLES", value_delimiter = ',')]
    required: Vec<String>,
    /// How revisions share [default: max-role, or what the file says].
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Requests to draw for each case.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    requests: u64,
    /// The seed of the draws.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How to write it.
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    output: Form,
}

/// The words for the gating modes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By Ready Pods in the dominant role.
    #[default]
    MaxRole,
    /// By Ready Pods over all required roles.
    Sum,
    /// Not at all.
    Disabled,
}

impl From<Mode> for GatingMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::MaxRole => Self::MaxRole,
            Mode::Sum => Self::Sum,
            Mode::Disabled => Self::Disabled,
        }
    }
}

/// What gating makes of one case.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    name: String,
    mode: Mode,
    required_roles: Vec<String>,
    dominant_role: Option<String>,
    /// Requests drawn.
    requests: u64,
    /// Of those, refused with 503: no revision is eligible.
    refused: u64,
    revisions: Vec<Revision>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Revision {
    name: String,
    ready: BTreeMap<String, u32>,
    eligible: bool,
    weight: u32,
    /// Exact; `null` with mode `disabled`.
    share: Option<String>,
    share_decimal: Option<f64>,
    /// Requests that the draws gave it; `null` with mode `disabled`, where there is no weighted choice.
    requests: Option<u64>,
}

/// Simulates and shows.
pub fn run(args: &Args, out: &mut Output) -> Result<Exit, Failure> {
    let cases = cases::read(args)?;
    let mut generator = StdRng::seed_from_u64(args.seed);
    let outcomes: Vec<Outcome> =
        cases.iter().map(|case| simulate(case, args.requests, || generator.random())).collect();
    let text = match args.output {
        Form::Json => output::json(&Document { cases: &outcomes })?,
        Form::Yaml => output::yaml(&Document { cases: &outcomes })?,
        Form::Table => render(&outcomes, false, &out.styles),
        Form::Wide => render(&outcomes, true, &out.styles),
    };
    out.write(&text)?;
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Document<'a> {
    cases: &'a [Outcome],
}

fn simulate(case: &Case, requests: u64, mut draw: impl FnMut() -> u32) -> Outcome {
    let mut roles = case.required.clone();
    for role in case.counts.values().flat_map(BTreeMap::keys) {
        if !roles.contains(role) {
            roles.push(role.clone());
        }
    }
    let mut census = Census::new(roles.len());
    for (revision, counts) in &case.counts {
        let revision: Arc<str> = Arc::from(revision.as_str());
        census.mention(&revision);
        for (index, role) in roles.iter().enumerate() {
            for _ in 0..counts.get(role).copied().unwrap_or(0).min(MAX_REPLICAS) {
                census.count(&revision, index, 1);
            }
        }
    }
    let gated = case.mode != Mode::Disabled;
    let distribution =
        Distribution::of(&census, Gating { mode: case.mode.into(), required: case.required.len() });

    let mut drawn: BTreeMap<&str, u64> = BTreeMap::new();
    let mut refused = 0;
    for _ in 0..requests {
        match choose(&distribution, gated, Ask::Any, draw()) {
            Ok(Some(revision)) => *drawn.entry(&revision.name).or_default() += 1,
            Ok(None) => {}
            Err(_) => refused += 1,
        }
    }

    let total = distribution.total();
    let revisions = distribution
        .revisions
        .iter()
        .map(|revision| Revision {
            name: revision.name.to_string(),
            ready: roles.iter().cloned().zip(revision.ready.iter().copied()).collect(),
            eligible: revision.eligible,
            weight: revision.weight,
            share: gated.then(|| exact_share(revision.weight, total)),
            share_decimal: gated.then(|| decimal_share(revision.weight, total)),
            requests: gated.then(|| drawn.get(&*revision.name).copied().unwrap_or(0)),
        })
        .collect();
    Outcome {
        name: case.name.clone(),
        mode: case.mode,
        required_roles: case.required.clone(),
        dominant_role: distribution.dominant.and_then(|role| roles.get(role).cloned()),
        requests,
        refused,
        revisions,
    }
}

/// One table for all cases; `wide` adds what was expected of the draws.
fn render(outcomes: &[Outcome], wide: bool, styles: &Styles) -> String {
    let mut roles: Vec<&str> = Vec::new();
    for outcome in outcomes {
        let others = outcome.revisions.iter().flat_map(|revision| revision.ready.keys());
        for role in outcome.required_roles.iter().chain(others) {
            if !roles.contains(&role.as_str()) {
                roles.push(role);
            }
        }
    }
    let mut heading = vec![Cell::text("CASE"), Cell::text("REVISION")];
    heading.extend(roles.iter().map(|role| Cell::number(role.to_uppercase())));
    heading.extend(["ELIGIBLE", "DOMINANT"].map(Cell::text));
    heading.extend(["WEIGHT", "SHARE", "PERCENT", "REQUESTS"].map(Cell::number));
    if wide {
        heading.push(Cell::number("EXPECTED"));
    }
    let heading = heading.into_iter().map(|cell| cell.styled(styles.heading)).collect();

    let mut rows = Vec::new();
    for outcome in outcomes {
        for (index, revision) in outcome.revisions.iter().enumerate() {
            let mut row = vec![
                Cell::text(if index == 0 { outcome.name.as_str() } else { "" }),
                Cell::text(revision.name.as_str()),
            ];
            row.extend(
                roles.iter().map(|role| Cell::number(revision.ready.get(*role).copied().unwrap_or(0))),
            );
            let (eligible, style) =
                if revision.eligible { ("yes", styles.good) } else { ("no", styles.notable) };
            row.push(Cell::text(eligible).styled(style));
            row.push(Cell::text(match &outcome.dominant_role {
                Some(role) if index == 0 => role.as_str(),
                _ => "",
            }));
            let dash = || "-".to_owned();
            row.push(Cell::number(revision.weight));
            row.push(Cell::number(revision.share.clone().unwrap_or_else(dash)));
            row.push(Cell::number(
                revision.share_decimal.map_or_else(dash, |share| format!("{:.2}", share * 100.0)),
            ));
            row.push(Cell::number(revision.requests.map_or_else(dash, |requests| requests.to_string())));
            if wide {
                let expected = |share: f64| format!("{:.1}", share * approximate(outcome.requests));
                row.push(Cell::number(revision.share_decimal.map_or_else(dash, expected)));
            }
            rows.push(row);
        }
        if outcome.refused > 0 {
            let refused =
                format!("{} of {} requests refused: no eligible revision", outcome.refused, outcome.requests);
            let name = if outcome.revisions.is_empty() { outcome.name.as_str() } else { "" };
            rows.push(vec![Cell::text(name), Cell::text(refused).styled(styles.bad)]);
        }
    }
    table::render(heading, rows)
}

#[expect(clippy::cast_precision_loss, reason = "shown; at most 10 million")]
fn approximate(requests: u64) -> f64 {
    requests as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../../tests/cases/gating.json");

    /// The shares of a golden case in its own words.
    fn golden_shares(index: usize, mode: &str) -> BTreeMap<String, String> {
        let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        serde_json::from_value(golden["cases"][index]["shares"][mode].clone()).unwrap()
    }

    #[test]
    fn every_golden_case_comes_out_with_its_shares() {
        for (mode, word) in [(Mode::MaxRole, "max-role"), (Mode::Sum, "sum")] {
            let cases = cases::parse_file(GOLDEN, &[], Some(mode)).unwrap();
            assert!(cases.len() >= 16);
            for (index, case) in cases.iter().enumerate() {
                let outcome = simulate(case, 0, || 0);
                let shares: BTreeMap<String, String> =
                    outcome.revisions.into_iter().map(|r| (r.name, r.share.unwrap())).collect();
                assert_eq!(shares, golden_shares(index, word), "{} {word}", case.name);
            }
        }
    }

    fn seed_example(mode: Mode) -> Case {
        let counts = ["A:prefill=2,decode=6", "B:prefill=1,decode=4", "C:decode=9"];
        Case {
            name: "example".to_owned(),
            mode,
            required: vec!["prefill".to_owned(), "decode".to_owned()],
            counts: counts.map(|counts| cases::parse_counts(counts).unwrap()).into(),
        }
    }

    #[test]
    fn draws_fall_by_weight_and_never_on_an_ineligible_revision() {
        // Evenly spaced draws meet the shares exactly.
        let mut next = 0_u32;
        let outcome = simulate(&seed_example(Mode::MaxRole), 1000, || {
            let draw = next;
            next = next.wrapping_add(u32::MAX / 1000 + 1);
            draw
        });
        let requests: Vec<_> = outcome.revisions.iter().map(|r| r.requests.unwrap()).collect();
        assert_eq!((requests, outcome.refused), (vec![600, 400, 0], 0));
        assert_eq!(outcome.dominant_role.as_deref(), Some("decode"));
    }

    #[test]
    fn without_gating_there_are_no_shares_and_no_draws() {
        let outcome = simulate(&seed_example(Mode::Disabled), 10, || 0);
        assert!(outcome.revisions.iter().all(|r| r.eligible && r.share.is_none() && r.requests.is_none()));
        assert_eq!(outcome.refused, 0);
    }

    #[test]
    fn a_paused_set_refuses_every_request_and_says_so() {
        let case = Case {
            counts: [cases::parse_counts("A:prefill=1").unwrap()].into(),
            ..seed_example(Mode::MaxRole)
        };
        let outcome = simulate(&case, 10, || 0);
        assert_eq!(outcome.refused, 10);
        let table = render(&[outcome], true, &Styles::default());
        assert!(table.contains("10 of 10 requests refused"), "{table}");
    }

    #[test]
    fn the_table_lines_up_roles_shares_and_requests() {
        let table = render(&[simulate(&seed_example(Mode::MaxRole), 0, || 0)], false, &Styles::default());
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["example", "A", "2", "6", "yes", "decode", "6", "3/5", "60.00", "0"]);
        assert_eq!(lines[3], ["C", "0", "9", "no", "0", "0", "0.00", "0"]);
    }
}
