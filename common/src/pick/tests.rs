//! The pick against its definition in exact fractions, and the promises about decision ids.

extern crate std;

use std::{format, string::String, vec::Vec};

use super::*;
use proptest::prelude::*;

/// The definition in exact fractions: the first rank with `draw * total < cumulative * 2^32`.
fn exact(weights: &[u32], draw: u32) -> usize {
    let total: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    let mut cumulative = 0;
    for (rank, weight) in weights.iter().enumerate() {
        cumulative += u128::from(*weight);
        if u128::from(draw) * total < cumulative << 32 {
            return rank;
        }
    }
    unreachable!("draw is below 2^32")
}

proptest! {
    #[test]
    fn agrees_with_exact_fractions(
        weights in prop::collection::vec(1_u32..=1_000_000, 1..=MAX_REVISIONS),
        draw: u32,
    ) {
        let last = last_draws(&weights).unwrap();
        prop_assert_eq!(rank(&last, draw), exact(&weights, draw));
        // Both sides of every boundary, where an off-by-one would hide.
        for at in last.iter().take(weights.len()) {
            for draw in [*at, at.wrapping_add(1)] {
                prop_assert_eq!(rank(&last, draw), exact(&weights, draw));
            }
        }
    }

    #[test]
    fn every_share_is_exact_to_one_draw_in_all(
        weights in prop::collection::vec(prop_oneof![1_u32..=9, 1_u32..], 1..=MAX_REVISIONS),
    ) {
        let last = last_draws(&weights).unwrap();
        let total: i128 = weights.iter().map(|w| i128::from(*w)).sum();
        let mut before = -1;
        for (weight, last) in weights.iter().zip(last) {
            let draws = i128::from(last) - before;
            let off = draws * total - (i128::from(*weight) << 32);
            prop_assert!(off.abs() < total, "{} draws for {} of {}", draws, weight, total);
            before = i128::from(last);
        }
        prop_assert_eq!(before, i128::from(u32::MAX), "all draws are given out");
    }

    #[test]
    fn an_index_stays_below_its_count(draw: u32, count in 1_u32..) {
        prop_assert!(index(draw, count) < count);
    }

    #[test]
    fn the_logarithm_agrees_with_floats_where_floats_are_good(hash: u64) {
        #[expect(clippy::cast_precision_loss, reason = "compared with a tolerance")]
        let (fixed, float) = (negative_log2(hash) as f64 / f64::from(2_u32).powi(40), 64.0 - ((hash as f64) + 1.0).log2());
        prop_assert!((fixed - float).abs() < 1e-9, "{} {}", fixed, float);
    }
}

#[test]
fn nothing_to_choose_is_none() {
    assert_eq!(last_draws(&[]), None);
    assert_eq!(last_draws(&[3, 0]), None);
    assert_eq!(last_draws(&[1; MAX_REVISIONS + 1]), None);
    assert_eq!(by_decision_id(b"id", [(&b"a"[..], 0)]), None);
}

#[test]
fn every_endpoint_is_reached() {
    let mut hits = [0_u32; 7];
    for draw in (0..=u32::MAX).step_by(1 << 16) {
        hits[index(draw, 7) as usize] += 1;
    }
    assert!(hits.iter().all(|h| (9_300..9_500).contains(h)), "{hits:?}");
}

/// Pinned values: replicas of different versions must agree, so a change here is a breaking change.
#[test]
fn decision_ids_are_stable_across_versions() {
    let revisions = [(&b"5c9d7a1b"[..], 6), (&b"7f00aa12"[..], 4)];
    let picks: [usize; 8] = core::array::from_fn(|i| {
        by_decision_id(&[b'r', b'0' + u8::try_from(i).unwrap()], revisions).unwrap()
    });
    assert_eq!(picks, [0, 0, 0, 0, 1, 0, 1, 0]);
}

/// Enough ids for a share to be known within a percent or so.
const IDS: usize = 20_000;

/// The choice of each of [`IDS`] ids.
fn choices(weights: &[u32]) -> Vec<usize> {
    let names: Vec<_> = (0..weights.len()).map(|i| format!("revision-{i}")).collect();
    let revisions = || names.iter().map(String::as_bytes).zip(weights.iter().copied());
    (0..IDS).map(|id| by_decision_id(format!("request-{id}").as_bytes(), revisions()).unwrap()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "compared with a tolerance")]
fn fraction(part: usize) -> f64 {
    part as f64 / IDS as f64
}

fn share(weights: &[u32], of: usize) -> f64 {
    f64::from(weights[of]) / weights.iter().map(|w| f64::from(*w)).sum::<f64>()
}

/// Six standard deviations of a fraction of [`IDS`] that is expected to be `p`.
fn noise(p: f64) -> f64 {
    6.0 * (p * (1.0 - p) / fraction(1).recip()).sqrt() + fraction(3)
}

fn moved(before: &[usize], after: &[usize]) -> Vec<(usize, usize)> {
    before.iter().zip(after).map(|(b, a)| (*b, *a)).filter(|(b, a)| b != a).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn decision_ids_are_spread_by_share(weights in prop::collection::vec(1_u32..=20, 1..=6)) {
        let chosen = choices(&weights);
        for revision in 0..weights.len() {
            let share = share(&weights, revision);
            let got = fraction(chosen.iter().filter(|c| **c == revision).count());
            prop_assert!((got - share).abs() <= noise(share), "{:?}: {} gets {}", weights, revision, got);
        }
    }

    #[test]
    fn between_two_revisions_exactly_the_difference_moves_and_only_one_way(
        before in [1_u32..=20, 1_u32..=20],
        after in [1_u32..=20, 1_u32..=20],
    ) {
        let grown = usize::from(share(&after, 1) > share(&before, 1));
        let moved = moved(&choices(&before), &choices(&after));
        prop_assert!(moved.iter().all(|(_, to)| *to == grown));
        let difference = (share(&after, 0) - share(&before, 0)).abs();
        prop_assert!((fraction(moved.len()) - difference).abs() <= noise(difference));
    }

    #[test]
    fn a_changed_weight_moves_ids_only_to_or_from_its_revision(
        before in prop::collection::vec(1_u32..=20, 2..=6),
        which: prop::sample::Index,
        weight in 0_u32..=40,
    ) {
        let which = which.index(before.len());
        let mut after = before.clone();
        after[which] = weight;
        let moved = moved(&choices(&before), &choices(&after));
        let grown = weight > before[which];
        let mut ends = moved.iter().map(|(from, to)| if grown { to } else { from });
        prop_assert!(ends.all(|end| *end == which));
        let difference = (share(&after, which) - share(&before, which)).abs();
        prop_assert!((fraction(moved.len()) - difference).abs() <= noise(difference));
    }

    #[test]
    fn any_change_moves_few_ids(
        (before, after) in (2_usize..=6).prop_flat_map(|n| {
            let weights = || prop::collection::vec(1_u32..=20, n);
            (weights(), weights())
        }),
    ) {
        let distance: f64 =
            (0..before.len()).map(|i| (share(&before, i) - share(&after, i)).abs()).sum::<f64>() / 2.0;
        let bound = 2.0 * distance / (1.0 + distance);
        let moved = moved(&choices(&before), &choices(&after));
        prop_assert!(fraction(moved.len()) <= bound + noise(bound), "{} of {}", moved.len(), bound);
        // An id never goes to a revision whose weight shrank relative to the one that it leaves.
        for (from, to) in moved {
            let (from, to) = ([before[from], after[from]], [before[to], after[to]]);
            prop_assert!(u64::from(to[1]) * u64::from(from[0]) > u64::from(to[0]) * u64::from(from[1]));
        }
    }

    #[test]
    fn only_the_ratio_of_weights_matters(weights in prop::collection::vec(1_u32..=20, 1..=6), times in 2_u32..=1_000) {
        let scaled: Vec<u32> = weights.iter().map(|w| w * times).collect();
        prop_assert_eq!(choices(&weights), choices(&scaled));
    }
}

#[test]
fn the_largest_weights_do_not_overflow() {
    let weights = [u32::MAX; MAX_REVISIONS];
    let last = last_draws(&weights).unwrap();
    assert_eq!((last[0], rank(&last, u32::MAX)), ((1 << 26) - 1, MAX_REVISIONS - 1));
    let lopsided = last_draws(&[1, u32::MAX, 1]).unwrap();
    assert_eq!([rank(&lopsided, 0), rank(&lopsided, 1), rank(&lopsided, u32::MAX - 1)], [0, 1, 1]);
    let names = [&b"a"[..], b"b"];
    assert!(by_decision_id(b"id", names.into_iter().map(|name| (name, u32::MAX))).is_some());
}
