//! A rollout as data: the Ready counts of an old and a new revision, step by step.
//!
//! This is how the demo and `revgate simulate` play a DisaggregatedSet's rolling update without its controller. Each
//! stage first drains the old revision, then grows the new one, as far as the limits allow; all roles move in
//! proportion, so that the ratio of Prefill to Decode holds. Pure: counts in, counts out.

use std::cmp::{max, min};

/// How far a role may deviate from its size during the rollout, in Pods, for each role alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Pods that may be missing.
    pub max_unavailable: u32,
    /// Pods that may be there in excess. Where both are 0, one: nothing could move otherwise.
    pub max_surge: u32,
}

/// The Ready counts of both revisions after a step, by role in the plan's order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Of the revision that goes.
    pub old: Vec<u32>,
    /// Of the revision that comes.
    pub new: Vec<u32>,
}

/// The most Pods of one role in a plan.
pub const MAX_REPLICAS: u32 = 10_000;

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// The two revisions do not list the same roles, or list none.
    #[error("the old revision has {old} roles and the new one {new}; a plan needs the same, at least one")]
    Roles {
        /// Roles of the old revision.
        old: usize,
        /// Roles of the new one.
        new: usize,
    },
    /// Too many Pods.
    #[error("{0} Pods in one role; at most {MAX_REPLICAS}")]
    TooMany(u32),
    /// A text such as `2p10d` that does not read so.
    #[error(
        "`{0}` is no size: write a count and a letter for each role, `p` prefill, `d` decode or `e` encode, as in `2p10d`"
    )]
    Size(String),
}

/// Reads sizes such as `2p10d`: each role's name and count, in the order written.
pub fn parse_sizes(text: &str) -> Result<Vec<(&'static str, u32)>, PlanError> {
    let bad = || PlanError::Size(text.to_owned());
    let mut sizes: Vec<(&'static str, u32)> = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.find(|c: char| !c.is_ascii_digit()) {
        let (count, tail) = rest.split_at(letter);
        let mut tail = tail.chars();
        let role = match tail.next() {
            Some('p' | 'P') => "prefill",
            Some('d' | 'D') => "decode",
            Some('e' | 'E') => "encode",
            _ => return Err(bad()),
        };
        if sizes.iter().any(|(known, _)| *known == role) {
            return Err(bad());
        }
        sizes.push((role, count.parse().map_err(|_| bad())?));
        rest = tail.as_str();
    }
    if sizes.is_empty() || !rest.is_empty() { Err(bad()) } else { Ok(sizes) }
}

/// All steps from `old` alone to `new` alone, the first one included; counts by role.
///
/// Rules: a role never has fewer Pods than the smaller of its two sizes less `max_unavailable`, nor more than the
/// larger plus `max_surge`; and the old revision's roles reach 0 together, for a revision without one of its roles
/// serves nobody.
pub fn plan(old: &[u32], new: &[u32], limits: Limits) -> Result<Vec<Step>, PlanError> {
    if old.len() != new.len() || old.is_empty() {
        return Err(PlanError::Roles { old: old.len(), new: new.len() });
    }
    let largest = old.iter().chain(new).copied().max().unwrap_or(0);
    if largest > MAX_REPLICAS {
        return Err(PlanError::TooMany(largest));
    }
    let unavailable = limits.max_unavailable;
    let surge = if unavailable == 0 { max(limits.max_surge, 1) } else { limits.max_surge };
    let stages = largest.div_ceil(unavailable.saturating_add(surge)).max(1);

    let mut at = Step { old: old.to_vec(), new: vec![0; new.len()] };
    let mut steps = vec![at.clone()];
    let mut stage = 0;
    // Every stage moves something until the goal is reached, so this ends; the bound is for the reader.
    for _ in 0..=largest.saturating_mul(4) {
        stage = min(stage + 1, stages);
        let drained = drain(&at, old, new, unavailable, (stages - stage, stages));
        advance(&mut at.old, drained, &at.new, &mut steps, |old, new| Step { old, new });
        let grown = grow(&at, old, new, surge, (stage, stages));
        advance(&mut at.new, grown, &at.old, &mut steps, |new, old| Step { old, new });
        if at.new == new && at.old.iter().all(|count| *count == 0) {
            break;
        }
    }
    Ok(steps)
}

/// Takes over new counts of one side, as a step if anything changed.
fn advance(
    side: &mut Vec<u32>,
    counts: Vec<u32>,
    other: &[u32],
    steps: &mut Vec<Step>,
    step: impl FnOnce(Vec<u32>, Vec<u32>) -> Step,
) {
    if *side != counts {
        side.clone_from(&counts);
        steps.push(step(counts, other.to_vec()));
    }
}

fn drain(at: &Step, old: &[u32], new: &[u32], unavailable: u32, left: (u32, u32)) -> Vec<u32> {
    let mut counts: Vec<u32> = sizes(old, new)
        .zip(at.old.iter().zip(&at.new))
        .map(|((old, new), (old_now, new_now))| {
            let least = min(old, new).saturating_sub(unavailable).saturating_sub(*new_now);
            min(*old_now, max(portion(old, left), least))
        })
        .collect();
    if counts.iter().any(|count| *count > 0) {
        for (count, now) in counts.iter_mut().zip(&at.old) {
            *count = max(*count, min(*now, 1));
        }
    }
    counts
}

fn grow(at: &Step, old: &[u32], new: &[u32], surge: u32, done: (u32, u32)) -> Vec<u32> {
    sizes(old, new)
        .zip(at.old.iter().zip(&at.new))
        .map(|((old, new), (old_now, new_now))| {
            let most = max(old, new).saturating_add(surge).saturating_sub(*old_now);
            max(*new_now, min(portion(new, done), most))
        })
        .collect()
}

fn sizes<'a>(old: &'a [u32], new: &'a [u32]) -> impl Iterator<Item = (u32, u32)> + 'a {
    old.iter().copied().zip(new.iter().copied())
}

/// `size * part / whole`, rounded half up.
fn portion(size: u32, (part, whole): (u32, u32)) -> u32 {
    let (size, part, whole) = (u64::from(size), u64::from(part), u64::from(whole));
    u32::try_from((2 * size * part + whole) / (2 * whole)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    const GOLDEN: &str = include_str!("../../tests/cases/gating.json");

    #[test]
    fn the_golden_rollout_is_the_plan_of_2p10d_with_two_unavailable() {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        let count = |step: &Value, revision: &str, role: &str| {
            u32::try_from(step["counts"][revision][role].as_u64().unwrap()).unwrap()
        };
        let expected: Vec<Step> = golden["rollout_2p10d_max_unavailable_2"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| Step {
                old: ["prefill", "decode"].map(|role| count(step, "old", role)).to_vec(),
                new: ["prefill", "decode"].map(|role| count(step, "new", role)).to_vec(),
            })
            .collect();
        let limits = Limits { max_unavailable: 2, max_surge: 0 };
        assert_eq!(plan(&[2, 10], &[2, 10], limits).unwrap(), expected);
    }

    #[test]
    fn sizes_read_as_they_are_written() {
        assert_eq!(parse_sizes("2p10d").unwrap(), [("prefill", 2), ("decode", 10)]);
        assert_eq!(parse_sizes("1E2P3D").unwrap(), [("encode", 1), ("prefill", 2), ("decode", 3)]);
        for bad in ["", "p", "2", "2p10", "2p3p", "2x", "2p-1d", "99999999999d", "2é"] {
            assert!(matches!(parse_sizes(bad), Err(PlanError::Size(_))), "{bad}");
        }
    }

    #[test]
    fn wrong_plans_are_errors() {
        let limits = Limits { max_unavailable: 1, max_surge: 0 };
        assert_eq!(plan(&[1], &[1, 2], limits), Err(PlanError::Roles { old: 1, new: 2 }));
        assert_eq!(plan(&[], &[], limits), Err(PlanError::Roles { old: 0, new: 0 }));
        assert_eq!(plan(&[1], &[MAX_REPLICAS + 1], limits), Err(PlanError::TooMany(MAX_REPLICAS + 1)));
    }

    proptest! {
        #[test]
        fn every_plan_arrives_within_its_limits(
            sizes in prop::collection::vec((0_u32..30, 0_u32..30), 1..4),
            max_unavailable in 0_u32..5,
            max_surge in 0_u32..5,
        ) {
            let (old, new): (Vec<u32>, Vec<u32>) = sizes.iter().copied().unzip();
            let steps = plan(&old, &new, Limits { max_unavailable, max_surge }).unwrap();
            let surge = if max_unavailable == 0 { max_surge.max(1) } else { max_surge };
            prop_assert_eq!(&steps[0].old, &old);
            let last = steps.last().unwrap();
            prop_assert_eq!(&last.new, &new);
            prop_assert!(last.old.iter().all(|count| *count == 0));
            for pair in steps.windows(2) {
                prop_assert!(pair[0] != pair[1]);
                prop_assert!(pair[0].old.iter().zip(&pair[1].old).all(|(before, after)| after <= before));
                prop_assert!(pair[0].new.iter().zip(&pair[1].new).all(|(before, after)| after >= before));
            }
            for step in &steps {
                for (role, (old, new)) in sizes.iter().enumerate() {
                    let total = step.old[role] + step.new[role];
                    prop_assert!(total + max_unavailable >= *old.min(new), "{:?}", step);
                    prop_assert!(total <= old.max(new) + surge, "{:?}", step);
                }
                // Together: a role that had Pods is at 0 only when all are.
                let gone = step.old.iter().zip(&old).filter(|(now, size)| **size > 0 && **now == 0).count();
                let had = old.iter().filter(|size| **size > 0).count();
                prop_assert!(gone == 0 || gone == had, "{:?}", step);
            }
        }
    }
}
