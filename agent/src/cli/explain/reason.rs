//! The explanation itself. Pure: a report and a question in, an explanation out.

use std::net::SocketAddr;

use revgate_common::pick;
use serde::Serialize;

use crate::{
    config::DECISION_HEADER,
    gating::{Ask, Distribution, Refusal, RevisionShare, choose},
    observe::report::{Report, RevisionReport, SetReport},
    proxy::Reason,
};

/// What a request says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Question<'a> {
    /// The set that it is for; not needed where there is only one.
    pub set: Option<&'a str>,
    /// The revision that its header names.
    pub revision: Option<String>,
    /// Its decision id.
    pub decision_id: Option<String>,
    /// The role whose endpoints are wanted; all by default.
    pub role: Option<&'a str>,
}

/// Why there is no explanation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExplainError {
    /// The set is not there.
    #[error("the agent has no set `{set}`; it has {}", sets.join(", "))]
    NoSuchSet {
        /// The set that was asked for.
        set: String,
        /// The sets that there are.
        sets: Vec<String>,
    },
    /// There is no set yet.
    #[error("the agent shows no set yet; `revgate status` says what it waits for")]
    NoSets,
    /// It is not clear which set is meant.
    #[error("the agent has several sets, name one with --set: {}", sets.join(", "))]
    WhichSet {
        /// The sets that there are.
        sets: Vec<String>,
    },
    /// The role is not there.
    #[error("set {set} has no role `{role}` that takes traffic; it has {}", roles.join(", "))]
    Role {
        /// The set.
        set: String,
        /// The role that was asked for.
        role: String,
        /// The roles that there are.
        roles: Vec<String>,
    },
}

/// What a request gets, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The set.
    pub set: String,
    /// How it is gated.
    pub mode: String,
    /// The role that weighs.
    pub dominant_role: Option<String>,
    /// The snapshot that this was computed from.
    pub generation: u64,
    /// What the request says, in words.
    pub asked: String,
    /// What it gets.
    pub answer: Answer,
    /// Why.
    pub because: String,
    /// Which draws fall on which revision, for requests that draw.
    pub draws: Vec<Draws>,
    /// Where it can go, by role.
    pub endpoints: Vec<Endpoints>,
}

/// What a request gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Answer {
    /// This revision.
    Revision {
        /// Its name.
        name: String,
    },
    /// A revision by a weighted draw.
    Weighted,
    /// Any revision: gating is disabled.
    Any,
    /// Nothing.
    Refused {
        /// The HTTP status.
        status: u16,
        /// Why, in a word.
        reason: &'static str,
    },
}

impl Answer {
    /// As the proxy refuses.
    fn refused(reason: Reason) -> Self {
        Self::Refused { status: reason.status().as_u16(), reason: reason.word() }
    }
}

/// The draws that fall on a revision.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Draws {
    /// The revision.
    pub revision: String,
    /// Its share, exactly.
    pub share: String,
    /// The first draw that falls on it.
    pub first: Option<u32>,
    /// The last one.
    pub last: Option<u32>,
    /// What it lacks, where none does.
    pub lacks: Vec<String>,
}

/// The endpoints of a revision in a role.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoints {
    /// The revision.
    pub revision: String,
    /// The role.
    pub role: String,
    /// Where.
    pub addresses: Vec<SocketAddr>,
}

/// Explains what a request gets from the agent that made the report.
pub fn explain(report: &Report, question: &Question<'_>) -> Result<Explanation, ExplainError> {
    let set = find_set(report, question.set)?;
    check_role(set, question.role)?;
    let distribution = distribution(set);
    let gated = set.mode != "disabled";
    let (ask, asked) = match (&question.revision, &question.decision_id) {
        (Some(name), _) => (Ask::Named(name), format!("with {}: {name}", set.revision_header)),
        (None, Some(id)) => (Ask::DecisionId(id.as_bytes()), format!("with {DECISION_HEADER}: {id}")),
        (None, None) => (Ask::Any, format!("without {}", set.revision_header)),
    };
    // A draw of 0 stands for any: whether something is chosen does not depend on it.
    let choice = choose(&distribution, gated, ask, 0);
    let (mut answer, mut because) = match (choice, ask) {
        (Err(refusal), _) => refused(report, set, refusal, question.revision.as_deref()),
        (Ok(None), _) => {
            (Answer::Any, "gating is disabled, the least busy endpoint of the role is taken".to_owned())
        }
        (Ok(Some(_)), Ask::Any) => {
            (Answer::Weighted, "a number of 32 bits is drawn for each request, and falls on".to_owned())
        }
        (Ok(Some(revision)), Ask::Named(_)) => (
            Answer::Revision { name: revision.name.to_string() },
            "its header names it, and it is eligible; it is never substituted".to_owned(),
        ),
        (Ok(Some(revision)), Ask::DecisionId(_)) => (
            Answer::Revision { name: revision.name.to_string() },
            "the hash of the id draws it by the present weights, on every replica alike".to_owned(),
        ),
    };
    let wanted = |revision: &&RevisionReport| match &answer {
        Answer::Revision { name } => revision.name == *name,
        Answer::Weighted | Answer::Any => revision.eligible,
        Answer::Refused { .. } => false,
    };
    let endpoints: Vec<Endpoints> =
        set.revisions.iter().filter(wanted).flat_map(|revision| endpoints(revision, question.role)).collect();
    // A role that is not required may be empty in an eligible revision.
    let nowhere = endpoints.iter().all(|role| role.addresses.is_empty());
    if let (Some(role), true, false) = (question.role, nowhere, matches!(answer, Answer::Refused { .. })) {
        answer = Answer::refused(Reason::NoEndpoint);
        because = format!("it has no endpoint in role {role}");
    }
    Ok(Explanation {
        set: set.name.clone(),
        mode: set.mode.clone(),
        dominant_role: set.dominant_role.clone(),
        generation: report.generation,
        asked,
        draws: if answer == Answer::Weighted { draws(set, &distribution) } else { Vec::new() },
        answer,
        because,
        endpoints,
    })
}

fn find_set<'r>(report: &'r Report, asked: Option<&str>) -> Result<&'r SetReport, ExplainError> {
    let sets = || report.sets.iter().map(|set| set.name.clone()).collect();
    match (asked, report.sets.as_slice()) {
        (_, []) => Err(ExplainError::NoSets),
        (Some(name), known) => known
            .iter()
            .find(|set| set.name == name)
            .ok_or_else(|| ExplainError::NoSuchSet { set: name.to_owned(), sets: sets() }),
        (None, [only]) => Ok(only),
        (None, _) => Err(ExplainError::WhichSet { sets: sets() }),
    }
}

fn check_role(set: &SetReport, role: Option<&str>) -> Result<(), ExplainError> {
    let (Some(role), Some(revision)) = (role, set.revisions.first()) else { return Ok(()) };
    if revision.roles.iter().any(|known| known.name == role) {
        return Ok(());
    }
    let roles = revision.roles.iter().map(|known| known.name.clone()).collect();
    Err(ExplainError::Role { set: set.name.clone(), role: role.to_owned(), roles })
}

/// The distribution that the report shows, for the functions that choose by it.
fn distribution(set: &SetReport) -> Distribution {
    let revisions: Vec<RevisionShare> = set
        .revisions
        .iter()
        .map(|revision| RevisionShare {
            name: revision.name.as_str().into(),
            ready: revision.roles.iter().map(|role| role.ready).collect(),
            eligible: revision.eligible,
            weight: revision.weight,
        })
        .collect();
    let ranked: Vec<usize> = revisions
        .iter()
        .enumerate()
        .filter(|(_, revision)| revision.weight > 0)
        .map(|(index, _)| index)
        .collect();
    let weights: Vec<u32> =
        revisions.iter().map(|revision| revision.weight).filter(|weight| *weight > 0).collect();
    Distribution { last: pick::last_draws(&weights).map(Box::new), dominant: None, ranked, revisions }
}

fn draws(set: &SetReport, distribution: &Distribution) -> Vec<Draws> {
    let last = distribution.last.as_deref();
    let last_of = |rank: usize| last.and_then(|last| last.get(rank)).copied();
    let rank_of = |index: usize| distribution.ranked.iter().position(|ranked| *ranked == index);
    let draws = set.revisions.iter().enumerate().map(|(index, revision)| {
        let rank = rank_of(index);
        Draws {
            revision: revision.name.clone(),
            share: revision.share.clone().unwrap_or_default(),
            first: rank.and_then(|rank| match rank.checked_sub(1) {
                Some(before) => last_of(before)?.checked_add(1),
                None => Some(0),
            }),
            last: rank.and_then(last_of),
            lacks: revision.lacks.clone(),
        }
    });
    draws.collect()
}

fn refused(report: &Report, set: &SetReport, refusal: Refusal, named: Option<&str>) -> (Answer, String) {
    let (reason, because) = match refusal {
        _ if !report.synced => (Reason::NotSynced, "the first Pod list has not been read".to_owned()),
        Refusal::NoneEligible => (Reason::NoEligibleRevision, "no revision is eligible".to_owned()),
        Refusal::NamedNotEligible => {
            let name = named.unwrap_or_default();
            let because = match set.revisions.iter().find(|revision| revision.name == name) {
                Some(revision) => {
                    format!("{name} lacks {}; another is never substituted", revision.lacks.join(" and "))
                }
                None => format!("no Pod of the set has revision {name}; another is never substituted"),
            };
            (Reason::RevisionNotEligible, because)
        }
    };
    (Answer::refused(reason), because)
}

fn endpoints<'r>(
    revision: &'r RevisionReport,
    role: Option<&'r str>,
) -> impl Iterator<Item = Endpoints> + 'r {
    revision.roles.iter().filter(move |known| role.is_none_or(|role| known.name == role)).map(|role| {
        Endpoints {
            revision: revision.name.clone(),
            role: role.name.clone(),
            addresses: role.endpoints.iter().map(|endpoint| endpoint.address).collect(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::{explain::render, output::Styles},
        config::GatingMode,
        observe::testing::{self, SetBuilder, reading},
        snapshot::SetView,
    };

    fn report(sets: Vec<SetView>) -> Report {
        testing::report(&testing::snapshot(7, sets), &reading(7))
    }

    fn named(name: &str) -> Question<'_> {
        Question { revision: Some(name.to_owned()), ..Question::default() }
    }

    #[test]
    fn without_a_header_the_draw_decides_and_its_ranges_are_shown() {
        let report = report(vec![SetBuilder::rollout().build()]);
        let question = Question { role: Some("prefill"), ..Question::default() };
        let text = render(&explain(&report, &question).unwrap(), &Styles::default());
        assert_eq!(
            text,
            "chat: max-role by decode, snapshot 7\n\
             request without x-llm-d-disagg-revision\n\
             gets a revision by its draw: a number of 32 bits is drawn for each request, and falls on\n  \
               5c9d7a1b    3/5  draws 0 to 2576980377\n  \
               7f00aa12    2/5  draws 2576980378 to 4294967295\n  \
               9e11bb23      0  no draw, it lacks a Ready prefill Pod\n\
             prefill endpoints of 5c9d7a1b: 127.1.0.1:8000 127.1.0.2:8000\n\
             prefill endpoints of 7f00aa12: 127.2.0.1:8000\n"
        );
    }

    #[test]
    fn the_ranges_are_those_of_the_agents_own_choice() {
        let set = SetBuilder::rollout().build();
        let chosen = set.distribution.clone();
        for draws in explain(&report(vec![set]), &Question::default()).unwrap().draws {
            for draw in [draws.first, draws.last].into_iter().flatten() {
                assert_eq!(*chosen.by_draw(draw).unwrap().name, *draws.revision);
            }
        }
    }

    #[test]
    fn a_named_revision_is_taken_or_refused_never_substituted() {
        let report = report(vec![SetBuilder::rollout().build()]);
        let explanation = explain(&report, &named("7f00aa12")).unwrap();
        assert_eq!(explanation.answer, Answer::Revision { name: "7f00aa12".to_owned() });
        assert_eq!(explanation.endpoints.len(), 2);
        for (name, because) in [
            ("9e11bb23", "9e11bb23 lacks a Ready prefill Pod; another is never substituted"),
            ("nosuch", "no Pod of the set has revision nosuch; another is never substituted"),
        ] {
            let explanation = explain(&report, &named(name)).unwrap();
            assert_eq!(explanation.answer, Answer::Refused { status: 503, reason: "revision-not-eligible" });
            assert_eq!(explanation.because, because);
            assert!(explanation.endpoints.is_empty());
        }
    }

    #[test]
    fn a_decision_id_gets_what_the_agent_would_choose() {
        let set = SetBuilder::rollout().build();
        let distribution = set.distribution.clone();
        let report = report(vec![set]);
        for id in ["r0", "r4", "r6", "chat-42"] {
            let question = Question { decision_id: Some(id.to_owned()), ..Question::default() };
            let name = distribution.by_decision_id(id.as_bytes()).unwrap().name.to_string();
            assert_eq!(explain(&report, &question).unwrap().answer, Answer::Revision { name });
        }
    }

    #[test]
    fn a_paused_or_unsynced_set_refuses() {
        let paused = SetBuilder::new("chat").revision("a", [0, 1]).build();
        let mut report = report(vec![paused]);
        let refused = |reason| Answer::Refused { status: 503, reason };
        assert_eq!(explain(&report, &Question::default()).unwrap().answer, refused("no-eligible-revision"));
        report.synced = false;
        assert_eq!(explain(&report, &Question::default()).unwrap().answer, refused("not-synced"));
    }

    #[test]
    fn a_revision_without_an_endpoint_in_the_role_is_refused() {
        let set = SetBuilder::new("chat").mode(GatingMode::Disabled).revision("a", [0, 1]).build();
        let question = Question { role: Some("prefill"), ..named("a") };
        let explanation = explain(&report(vec![set]), &question).unwrap();
        assert_eq!(explanation.answer, Answer::Refused { status: 503, reason: "no-endpoint" });
    }

    #[test]
    fn with_gating_disabled_any_revision_will_do() {
        let set = SetBuilder::new("chat").mode(GatingMode::Disabled).revision("a", [0, 1]).build();
        assert_eq!(explain(&report(vec![set]), &Question::default()).unwrap().answer, Answer::Any);
    }

    #[test]
    fn a_set_or_role_that_is_not_there_is_named_with_those_that_are() {
        let sets = || vec![SetBuilder::rollout().build(), SetBuilder::new("code").build()];
        let error = |question| explain(&report(sets()), &question).unwrap_err().to_string();
        assert_eq!(error(Question::default()), "the agent has several sets, name one with --set: chat, code");
        assert_eq!(
            explain(&report(vec![]), &Question::default()).unwrap_err(),
            ExplainError::NoSets,
            "before the first list"
        );
        let question = Question { set: Some("chta"), ..Question::default() };
        assert_eq!(error(question), "the agent has no set `chta`; it has chat, code");
        let question = Question { set: Some("chat"), role: Some("encode"), ..Question::default() };
        assert_eq!(
            error(question),
            "set chat has no role `encode` that takes traffic; it has prefill, decode"
        );
    }
}
