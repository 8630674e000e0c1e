//! What holds for every census (G2 to G10, C4), not only for the golden ones.
#![cfg(test)]

use std::sync::Arc;

use proptest::prelude::*;
use revgate::{
    config::GatingMode,
    gating::{Ask, Census, Distribution, Gating, Refusal, choose},
};

/// Required roles first, one more that is not required.
const ROLES: usize = 3;
const REQUIRED: usize = 2;

/// Ready Pods and endpoints by role, for each revision.
type Counts = Vec<[(u32, u32); ROLES]>;

fn name(revision: usize) -> Arc<str> {
    format!("revision-{revision:03}").into()
}

fn census(counts: &Counts) -> Census {
    let mut census = Census::new(ROLES);
    for (revision, roles) in counts.iter().enumerate() {
        census.mention(&name(revision));
        for (role, (pods, endpoints)) in roles.iter().enumerate() {
            census.add(&name(revision), role, *pods, *endpoints);
        }
    }
    census
}

fn weigh(counts: &Counts, mode: GatingMode) -> Distribution {
    Distribution::of(&census(counts), Gating { mode, required: REQUIRED })
}

fn complete(roles: &[(u32, u32); ROLES]) -> bool {
    roles.iter().take(REQUIRED).all(|(pods, endpoints)| *pods > 0 && *endpoints > 0)
}

/// Up to eight revisions, with gaps; now and then as many Pods as can be counted.
fn counts() -> impl Strategy<Value = Counts> {
    let number = || prop_oneof![4 => 0_u32..4, 1 => 0_u32..2_000, 1 => Just(u32::MAX)];
    let role = || (number(), number());
    prop::collection::vec([role(), role(), role()], 0..8)
}

fn weighted() -> impl Strategy<Value = GatingMode> {
    prop_oneof![Just(GatingMode::MaxRole), Just(GatingMode::Sum)]
}

/// What each of these draws and ids chooses.
fn chosen(distribution: &Distribution, draws: &[u32]) -> Vec<Result<Arc<str>, Refusal>> {
    let ids: Vec<[u8; 4]> = draws.iter().map(|draw| draw.to_le_bytes()).collect();
    let asks =
        draws.iter().map(|draw| (Ask::Any, *draw)).chain(ids.iter().map(|id| (Ask::DecisionId(id), 0)));
    asks.map(|(ask, draw)| {
        let revision = choose(distribution, true, ask, draw)?;
        Ok(Arc::clone(&revision.expect("a weighted choice has a result").name))
    })
    .collect()
}

proptest! {
    #[test]
    fn shares_sum_to_one_over_the_eligible(counts in counts(), mode in weighted()) {
        let distribution = weigh(&counts, mode);
        let eligible = counts.iter().filter(|roles| complete(roles)).count();
        prop_assert_eq!(distribution.ranked.len(), eligible);
        prop_assert_eq!(distribution.last.is_some(), eligible > 0);
        prop_assert_eq!(distribution.dominant.is_some(), eligible > 0);
        let sum: u64 = distribution.revisions.iter().filter(|r| r.eligible).map(|r| u64::from(r.weight)).sum();
        prop_assert_eq!(sum, distribution.total());
        for (revision, roles) in distribution.revisions.iter().zip(&counts) {
            prop_assert_eq!(revision.eligible, complete(roles));
            prop_assert_eq!(revision.weight > 0, revision.eligible);
        }
    }

    #[test]
    fn an_ineligible_revision_is_never_chosen(counts in counts(), mode in weighted(), draws: Vec<u32>) {
        let distribution = weigh(&counts, mode);
        let extremes = [0, u32::MAX];
        for choice in chosen(&distribution, &[&draws[..], &extremes].concat()) {
            match choice {
                Ok(chosen) => prop_assert!(distribution.by_name(&chosen).unwrap().eligible),
                Err(refusal) => {
                    prop_assert_eq!(refusal, Refusal::NoneEligible);
                    prop_assert!(!counts.iter().any(complete));
                }
            }
        }
    }

    #[test]
    fn more_pods_of_an_ineligible_revision_change_nothing(
        counts in counts(), mode in weighted(), more in [0_u32..1_000, 0_u32..1_000, 0_u32..1_000], draws: Vec<u32>,
    ) {
        let mut grown = counts.clone();
        for roles in grown.iter_mut().filter(|roles| !complete(roles)) {
            let before = *roles;
            for ((pods, endpoints), more) in roles.iter_mut().zip(more) {
                *pods = pods.saturating_add(more);
                *endpoints = endpoints.saturating_add(more);
            }
            if complete(roles) {
                // Where it would become eligible, the Pods of one role stay away.
                let missing = before.iter().position(|(pods, endpoints)| *pods == 0 || *endpoints == 0).unwrap();
                roles[missing] = before[missing];
            }
            prop_assert!(!complete(roles));
        }
        let (before, after) = (weigh(&counts, mode), weigh(&grown, mode));
        prop_assert_eq!(before.dominant, after.dominant);
        prop_assert_eq!(&before.last, &after.last);
        prop_assert_eq!(chosen(&before, &draws), chosen(&after, &draws));
    }

    #[test]
    fn the_weight_is_the_count_in_one_dominant_role(counts in counts()) {
        let distribution = weigh(&counts, GatingMode::MaxRole);
        let sum = |role: usize| -> u64 {
            counts.iter().filter(|roles| complete(roles)).map(|roles| u64::from(roles[role].0)).sum()
        };
        if let Some(dominant) = distribution.dominant {
            prop_assert_eq!(dominant, usize::from(sum(1) > sum(0)), "the first listed on a tie");
            for (revision, roles) in distribution.revisions.iter().zip(&counts).filter(|(r, _)| r.eligible) {
                prop_assert_eq!(revision.weight, roles[dominant].0);
            }
        }
    }

    #[test]
    fn replicas_agree_in_whatever_order_they_saw_the_pods(
        (counts, order) in counts().prop_flat_map(|counts| {
            let order: Vec<usize> = (0..counts.len()).collect();
            (Just(counts), Just(order).prop_shuffle())
        }),
        mode in weighted(), draws: Vec<u32>,
    ) {
        let mut other = Census::new(ROLES);
        for revision in order {
            for (role, (pods, endpoints)) in counts[revision].iter().enumerate().rev() {
                other.add(&name(revision), role, *pods, *endpoints);
            }
        }
        let other = Distribution::of(&other, Gating { mode, required: REQUIRED });
        let here = weigh(&counts, mode);
        prop_assert_eq!(&here, &other);
        prop_assert_eq!(chosen(&here, &draws), chosen(&other, &draws));
    }

    #[test]
    fn a_named_revision_is_given_or_refused_and_never_substituted(counts in counts(), mode in weighted(), draw: u32) {
        let distribution = weigh(&counts, mode);
        for (index, roles) in counts.iter().enumerate() {
            let named = choose(&distribution, true, Ask::Named(&name(index)), draw);
            match named {
                Ok(revision) => prop_assert_eq!(&revision.unwrap().name, &name(index)),
                Err(refusal) => prop_assert_eq!(refusal, Refusal::NamedNotEligible),
            }
            prop_assert_eq!(named.is_ok(), complete(roles));
        }
        prop_assert_eq!(choose(&distribution, true, Ask::Named("unknown"), draw), Err(Refusal::NamedNotEligible));
    }

    #[test]
    fn with_gating_disabled_the_header_is_honoured_and_nothing_is_weighted(counts in counts(), draw: u32) {
        let distribution = weigh(&counts, GatingMode::Disabled);
        prop_assert_eq!((distribution.total(), distribution.dominant, distribution.last.is_none()), (0, None, true));
        let serves = |roles: &[(u32, u32); ROLES]| roles.iter().any(|(_, endpoints)| *endpoints > 0);
        for (index, roles) in counts.iter().enumerate() {
            match choose(&distribution, false, Ask::Named(&name(index)), draw) {
                Ok(revision) => prop_assert_eq!(&revision.unwrap().name, &name(index)),
                Err(refusal) => prop_assert!(refusal == Refusal::NamedNotEligible && !serves(roles)),
            }
        }
        let expected = if counts.iter().any(serves) { Ok(None) } else { Err(Refusal::NoneEligible) };
        prop_assert_eq!(choose(&distribution, false, Ask::Any, draw), expected);
        prop_assert_eq!(choose(&distribution, false, Ask::DecisionId(b"id"), draw), expected);
    }
}

#[test]
fn a_revision_of_followers_only_in_a_role_is_not_eligible() {
    let led = [(2, 1), (2, 1), (0, 0)];
    let followers = [(2, 1), (2, 0), (0, 0)];
    for mode in [GatingMode::MaxRole, GatingMode::Sum] {
        let distribution = weigh(&vec![led, followers], mode);
        let eligible: Vec<bool> = distribution.revisions.iter().map(|r| r.eligible).collect();
        assert_eq!(eligible, [true, false]);
        assert_eq!(
            distribution.revisions[0].weight,
            if mode == GatingMode::Sum { 4 } else { 2 },
            "followers count"
        );
    }
}

#[test]
fn draws_and_ids_agree_on_who_takes_part_when_there_are_too_many_revisions() {
    let counts: Counts = vec![[(1, 1), (1, 1), (0, 0)]; 70];
    let distribution = weigh(&counts, GatingMode::MaxRole);
    assert_eq!((distribution.ranked.len(), distribution.total()), (64, 64));
    for id in 0..2_000_u32 {
        let chosen = distribution.by_decision_id(&id.to_le_bytes()).unwrap();
        assert!(*chosen.name <= *name(63), "{}", chosen.name);
    }
    assert_eq!(distribution.by_draw(u32::MAX).unwrap().name, name(63));
}

#[test]
fn counts_beyond_u32_do_not_wrap() {
    let huge = [(u32::MAX, 1), (u32::MAX, 1), (0, 0)];
    let small = [(1, 1), (2, 1), (0, 0)];
    let sum = weigh(&vec![huge, small], GatingMode::Sum);
    assert_eq!(sum.revisions.iter().map(|r| r.weight).collect::<Vec<_>>(), [u32::MAX, 3]);
    // 2^32 + 0 Pods in the first role and 2^32 + 1 in the second: only a wide sum tells them apart.
    let max = weigh(&vec![huge, small], GatingMode::MaxRole);
    assert_eq!(max.dominant, Some(1));
    let mut census = Census::new(1);
    census.add(&name(0), 0, u32::MAX, u32::MAX);
    census.count(&name(0), 0, 1);
    assert_eq!(census.iter().next().unwrap().1.ready, [u32::MAX]);
}
