//! The judgement of each step and of the whole: pure, from scores and reports.

use std::sync::Arc;

use super::{
    board::Score,
    chance::{self, FAMILY_ERROR},
    child::Kernel,
    stage::{REVISIONS, ROLES},
};
use crate::{
    config::GatingMode,
    gating::{Census, Distribution, Gating},
    observe::report::{SetReport, exact_share},
    rollout::Step,
};

/// What gating says of a step.
pub(super) fn distribution(step: &Step) -> Distribution {
    let mut census = Census::new(ROLES.len());
    for (name, counts) in REVISIONS.iter().zip([&step.old, &step.new]) {
        let name: Arc<str> = Arc::from(*name);
        census.mention(&name);
        for (role, count) in counts.iter().enumerate() {
            for _ in 0..*count {
                census.count(&name, role, 1);
            }
        }
    }
    Distribution::of(&census, Gating { mode: GatingMode::MaxRole, required: ROLES.len() })
}

/// The weight of each revision, in the demo's order, and their sum.
pub(super) fn weights(distribution: &Distribution) -> (Vec<u64>, u64) {
    let weight = |name: &&str| distribution.by_name(name).map_or(0, |revision| u64::from(revision.weight));
    (REVISIONS.iter().map(weight).collect(), distribution.total())
}

/// How many shares of a plan are left to chance, over `lanes` kinds of traffic.
pub(super) fn tests(steps: &[Step], lanes: usize) -> usize {
    let open = |step: &Step| {
        let (weights, total) = weights(&distribution(step));
        weights.into_iter().filter(|weight| *weight > 0 && *weight < total).count()
    };
    steps.iter().map(open).sum::<usize>() * lanes
}

/// A step that has been played.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Played {
    /// Its number, from 0.
    pub(super) number: usize,
    /// How many steps the plan has, without the one before the first change.
    pub(super) last: usize,
    /// The Ready counts.
    pub(super) step: Step,
    /// What came of its requests.
    pub(super) score: Score,
    /// What the kernel did for them.
    pub(super) kernel: Kernel,
}

impl Played {
    /// Everything that is wrong with it, in words. `tests` is the number of tests of the whole run.
    pub(super) fn faults(&self, tests: usize) -> Vec<String> {
        let score = &self.score;
        let mut faults = Vec::new();
        if score.mixed > 0 {
            faults.push(format!("{} requests on two revisions", score.mixed));
        }
        if score.failed > 0 {
            faults.push(format!("{} requests failed", score.failed));
        }
        let (weights, total) = weights(&distribution(&self.step));
        let error = FAMILY_ERROR / chance::float(u64::try_from(tests.max(1)).unwrap_or(u64::MAX));
        for (lane, served) in [("pairs", &score.pairs), ("VIP connections", &score.vip)] {
            let draws: u64 = served.iter().sum();
            for ((name, weight), hits) in REVISIONS.iter().zip(&weights).zip(served) {
                if chance::beyond(*hits, draws, *weight, total, error) {
                    faults.push(format!(
                        "{hits} of {draws} {lane} on {name}, expected {weight} of {total}: beyond chance"
                    ));
                }
            }
        }
        faults
    }
}

/// What the agent reports of a set and gating does not say.
pub(super) fn disagreements(step: &Step, set: &SetReport) -> Vec<String> {
    let (weights, total) = weights(&distribution(step));
    let mut faults = Vec::new();
    for (name, weight) in REVISIONS.iter().zip(weights) {
        let expected = exact_share(u32::try_from(weight).unwrap_or(u32::MAX), total);
        let reported = set.revisions.iter().find(|revision| revision.name == *name);
        // A revision without any Pod is no longer reported.
        let reported = reported.and_then(|revision| revision.share.as_deref()).unwrap_or("0");
        if reported != expected {
            faults.push(format!("the agent gives {name} the share {reported}, expected {expected}"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::{Limits, plan};

    fn golden_plan() -> Vec<Step> {
        plan(&[2, 10], &[2, 10], Limits { max_unavailable: 2, max_surge: 0 }).unwrap()
    }

    fn played(pairs: [u64; 2], vip: [u64; 2]) -> Played {
        let score = Score { pairs: pairs.into(), vip: vip.into(), ..Score::default() };
        // Step 4: A 1+6, B 1+4.
        let step = golden_plan().swap_remove(4);
        Played { number: 4, last: 10, step, score, kernel: Kernel::default() }
    }

    #[test]
    fn the_expected_shares_of_the_plan_are_the_golden_ones() {
        let golden: serde_json::Value =
            serde_json::from_str(include_str!("../../../../tests/cases/gating.json")).unwrap();
        let golden = golden["rollout_2p10d_max_unavailable_2"].as_array().unwrap().clone();
        let plan = golden_plan();
        assert_eq!(plan.len(), golden.len());
        for (step, golden) in plan.iter().zip(golden) {
            let (weights, total) = weights(&distribution(step));
            let share = |index: usize| exact_share(u32::try_from(weights[index]).unwrap(), total);
            assert_eq!(golden["shares"]["old"], share(0));
            assert_eq!(golden["shares"]["new"], share(1));
        }
        // Steps 4 to 8 leave two shares each to chance.
        assert_eq!((tests(&plan, 1), tests(&plan, 2)), (10, 20));
    }

    #[test]
    fn shares_within_chance_pass_and_one_beyond_it_is_named() {
        assert_eq!(played([600, 400], [588, 412]).faults(20), Vec::<String>::new());
        assert_eq!(played([600, 400], [0, 0]).faults(20), Vec::<String>::new());
        let faults = played([500, 500], [600, 400]).faults(20);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("500 of 1000 pairs on A, expected 6 of 10"), "{faults:?}");
    }

    #[test]
    fn one_mixed_or_failed_request_is_a_fault() {
        let mut step = played([600, 400], [600, 400]);
        step.score.mixed = 1;
        step.score.failed = 2;
        assert_eq!(step.faults(20), ["1 requests on two revisions", "2 requests failed"]);
    }
}
