//! One log line per rollout step (O4): what changed between two snapshots, as events, and the events as lines.
//!
//! The comparison is pure. The owner of the state calls it with each snapshot that it publishes. What a rollout does
//! not consist of (a Pod more in a role that does not decide) is not a step and gives no line.

use std::{collections::BTreeMap, fmt, sync::Arc};

use tracing::info;

use super::report::{exact_share, lacks};
use crate::{
    config::GatingMode,
    gating::RevisionShare,
    snapshot::{SetView, Snapshot},
};

/// A step of a rollout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The set.
    pub set: Arc<str>,
    /// What happened in it.
    pub step: Step,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// The first Pod of a revision, Ready or not.
    Appeared {
        /// The revision.
        revision: Arc<str>,
        /// What it lacks to be eligible; empty: it is eligible at once.
        lacks: Vec<String>,
    },
    /// It may get requests.
    Eligible {
        /// The revision.
        revision: Arc<str>,
    },
    /// It gets no new requests; what is open goes on.
    Drains {
        /// The revision.
        revision: Arc<str>,
        /// What it lacks to be eligible.
        lacks: Vec<String>,
    },
    /// Its last Pod is gone.
    Gone {
        /// The revision.
        revision: Arc<str>,
    },
    /// New requests are shared in another way.
    Shares {
        /// The exact share of every eligible revision, sorted by name.
        shares: Vec<(Arc<str>, String)>,
    },
    /// Nothing is eligible any more: everything is refused.
    Paused,
    /// Something is eligible again.
    Resumed,
}

/// The steps from one snapshot to the next, in the order of the sets, and within a set: revisions by name, then
/// shares, then pause.
#[must_use]
pub fn steps(old: &Snapshot, new: &Snapshot) -> Vec<Event> {
    // Before the first list nothing was known, so everything is new.
    let known = if old.synced { old.sets.as_slice() } else { &[] };
    let before: BTreeMap<&str, &SetView> = known.iter().map(|set| (set.name.as_ref(), set)).collect();
    let mut events = Vec::new();
    for set in &new.sets {
        let event = |step| Event { set: Arc::clone(&set.name), step };
        events.extend(steps_of_set(before.get(set.name.as_ref()).copied(), set).into_iter().map(event));
    }
    events
}

/// Writes the steps to the log, one line each.
pub fn log(events: &[Event]) {
    for Event { set, step } in events {
        info!(target: "revgate::rollout", %set, step = step.word(), "{step}");
    }
}

fn steps_of_set(old: Option<&SetView>, new: &SetView) -> Vec<Step> {
    let was = |name: &str| old.and_then(|set| set.distribution.by_name(name));
    let mut steps = Vec::new();
    for revision in &new.distribution.revisions {
        let name = || Arc::clone(&revision.name);
        let lacking = || lacks(new, revision, new.revision(&revision.name));
        match (was(&revision.name).map(|was| was.eligible), revision.eligible) {
            (None, _) => steps.push(Step::Appeared { revision: name(), lacks: lacking() }),
            (Some(false), true) => steps.push(Step::Eligible { revision: name() }),
            (Some(true), false) => steps.push(Step::Drains { revision: name(), lacks: lacking() }),
            (Some(true), true) | (Some(false), false) => {}
        }
    }
    for revision in old.iter().flat_map(|set| &set.distribution.revisions) {
        if new.distribution.by_name(&revision.name).is_none() {
            steps.push(Step::Gone { revision: Arc::clone(&revision.name) });
        }
    }
    let (before, after) = (old.map(shares).unwrap_or_default(), shares(new));
    if before != after && !after.is_empty() {
        steps.push(Step::Shares { shares: after });
    }
    // A set that is new starts with its revisions; only a set that served can pause.
    if let Some(old) = old {
        match (serves(old), serves(new)) {
            (true, false) => steps.push(Step::Paused),
            (false, true) => steps.push(Step::Resumed),
            _ => {}
        }
    }
    steps
}

fn serves(set: &SetView) -> bool {
    set.distribution.revisions.iter().any(|revision| revision.eligible)
}

fn shares(set: &SetView) -> Vec<(Arc<str>, String)> {
    if set.mode == GatingMode::Disabled {
        return Vec::new();
    }
    let total = set.distribution.total();
    let share = |r: &RevisionShare| (Arc::clone(&r.name), exact_share(r.weight, total));
    set.distribution.revisions.iter().filter(|r| r.eligible).map(share).collect()
}

impl Step {
    /// The word for it, to filter by.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Appeared { .. } => "appeared",
            Self::Eligible { .. } => "eligible",
            Self::Drains { .. } => "drains",
            Self::Gone { .. } => "gone",
            Self::Shares { .. } => "shares",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Appeared { revision, lacks } if lacks.is_empty() => {
                write!(f, "revision {revision} appeared and is eligible")
            }
            Self::Appeared { revision, lacks } => {
                write!(f, "revision {revision} appeared, not eligible: it lacks {}", lacks.join(" and "))
            }
            Self::Eligible { revision } => write!(f, "revision {revision} is eligible"),
            Self::Drains { revision, lacks } => {
                write!(f, "revision {revision} drains, no new requests: it lacks {}", lacks.join(" and "))
            }
            Self::Gone { revision } => write!(f, "revision {revision} is gone"),
            Self::Shares { shares } => {
                let each: Vec<String> =
                    shares.iter().map(|(name, share)| format!("{name} {share}")).collect();
                write!(f, "shares are now {}", each.join(", "))
            }
            Self::Paused => f.write_str("paused: no revision is eligible, every request is refused with 503"),
            Self::Resumed => f.write_str("resumed: a revision is eligible again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::testing::{SetBuilder, snapshot};

    type Counts = [(&'static str, [u32; 2])];

    fn chat(revisions: &Counts) -> Snapshot {
        let set =
            revisions.iter().fold(SetBuilder::new("chat"), |set, (name, ready)| set.revision(name, *ready));
        snapshot(1, vec![set.build()])
    }

    fn lines(old: &Counts, new: &Counts) -> Vec<String> {
        steps(&chat(old), &chat(new)).iter().map(|event| format!("{}: {}", event.set, event.step)).collect()
    }

    #[test]
    fn a_rollout_is_told_step_by_step() {
        assert_eq!(
            lines(&[("a", [1, 2])], &[("a", [1, 2]), ("b", [0, 1])]),
            ["chat: revision b appeared, not eligible: it lacks a Ready prefill Pod"]
        );
        assert_eq!(
            lines(&[("a", [1, 2]), ("b", [0, 1])], &[("a", [1, 2]), ("b", [1, 1])]),
            ["chat: revision b is eligible", "chat: shares are now a 2/3, b 1/3"]
        );
        assert_eq!(
            lines(&[("a", [1, 2]), ("b", [1, 1])], &[("a", [1, 1]), ("b", [1, 2])]),
            ["chat: shares are now a 1/3, b 2/3"]
        );
        assert_eq!(
            lines(&[("a", [1, 1]), ("b", [1, 2])], &[("a", [0, 1]), ("b", [1, 2])]),
            [
                "chat: revision a drains, no new requests: it lacks a Ready prefill Pod",
                "chat: shares are now b 1"
            ]
        );
        assert_eq!(lines(&[("a", [0, 1]), ("b", [1, 2])], &[("b", [1, 2])]), ["chat: revision a is gone"]);
    }

    #[test]
    fn nothing_is_said_when_no_step_was_taken() {
        assert!(lines(&[("a", [1, 2])], &[("a", [1, 2])]).is_empty());
        assert!(lines(&[("a", [1, 2])], &[("a", [2, 4])]).is_empty(), "more Pods, the same shares");
    }

    #[test]
    fn pause_and_resume_are_said_once() {
        assert_eq!(
            lines(&[("a", [1, 1])], &[]),
            [
                "chat: revision a is gone",
                "chat: paused: no revision is eligible, every request is refused with 503"
            ]
        );
        assert!(lines(&[], &[]).is_empty());
        assert_eq!(
            lines(&[], &[("a", [1, 1])]),
            [
                "chat: revision a appeared and is eligible",
                "chat: shares are now a 1",
                "chat: resumed: a revision is eligible again"
            ]
        );
    }

    #[test]
    fn sets_are_matched_by_name_not_by_index() {
        let set = |name| SetBuilder::new(name).revision("a", [1, 1]).build();
        let old = snapshot(1, vec![set("one"), set("two")]);
        let new = snapshot(2, vec![set("two"), set("one")]);
        assert!(steps(&old, &new).is_empty());
        let words: Vec<_> =
            steps(&snapshot(1, vec![]), &old).iter().map(|e| (e.set.to_string(), e.step.word())).collect();
        assert_eq!(
            words,
            ["one", "two"]
                .iter()
                .flat_map(|s| ["appeared", "shares"].map(|w| ((*s).to_owned(), w)))
                .collect::<Vec<_>>()
        );
    }
}
