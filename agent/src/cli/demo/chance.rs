//! Is an observed share off beyond chance? The exact binomial tails, no approximation.

/// The probability that a run with nothing wrong fails any of its tests.
pub(super) const FAMILY_ERROR: f64 = 1e-6;

/// Whether `hits` of `draws` is less likely, in its own tail, than half of `error` under a share of
/// `part` in `whole`. A share of 0 or 1 allows no exception at all.
pub(super) fn beyond(hits: u64, draws: u64, part: u64, whole: u64, error: f64) -> bool {
    if draws == 0 {
        return false;
    }
    if part == 0 || whole == 0 {
        return hits > 0;
    }
    if part >= whole {
        return hits < draws;
    }
    let share = float(part) / float(whole);
    // Only the tail that does not hold the expected value can be small.
    let tail = if float(hits) < float(draws) * share {
        lower_tail(hits, draws, share)
    } else {
        lower_tail(draws.saturating_sub(hits), draws, 1.0 - share)
    };
    tail < error / 2.0
}

/// P(X <= hits) for X binomial and `hits` not above the mean: from the largest term downwards.
fn lower_tail(hits: u64, draws: u64, share: f64) -> f64 {
    let mut term = probability(hits, draws, share);
    let mut sum = 0.0;
    for at in (0..=hits).rev() {
        sum += term;
        // P(at - 1) from P(at).
        term *= float(at) / float(draws - at + 1) * (1.0 - share) / share;
        if term < sum * f64::EPSILON {
            break;
        }
    }
    sum
}

/// P(X = hits).
fn probability(hits: u64, draws: u64, share: f64) -> f64 {
    let choose = ln_factorial(draws) - ln_factorial(hits) - ln_factorial(draws - hits);
    (choose + float(hits) * share.ln() + float(draws - hits) * (1.0 - share).ln()).exp()
}

fn ln_factorial(n: u64) -> f64 {
    (2..=n).map(|i| float(i).ln()).sum()
}

#[expect(clippy::cast_precision_loss, reason = "the counts of one demo stay far below 2^52")]
pub(super) fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_those_of_the_tables() {
        // Binomial(10, 1/2): P(X <= 2) = 56 / 1024.
        assert!((lower_tail(2, 10, 0.5) - 56.0 / 1024.0).abs() < 1e-12);
        // Binomial(20, 3/10): P(X <= 3) = 0.10708680...
        assert!((lower_tail(3, 20, 0.3) - 0.107_086_804_5).abs() < 1e-9);
        assert!((lower_tail(0, 4, 0.25) - 0.75_f64.powi(4)).abs() < 1e-12);
    }

    #[test]
    fn a_share_of_nothing_or_all_allows_no_exception() {
        assert!(!beyond(0, 1000, 0, 10, 1e-9) && beyond(1, 1000, 0, 10, 1e-9));
        assert!(!beyond(1000, 1000, 10, 10, 1e-9) && beyond(999, 1000, 10, 10, 1e-9));
        assert!(beyond(1, 1, 0, 0, 1e-9));
    }

    #[test]
    fn what_chance_does_passes_and_a_wrong_weight_does_not() {
        for hits in [330, 400, 470] {
            assert!(!beyond(hits, 1000, 2, 5, 1e-6 / 22.0), "{hits}");
        }
        // As if only some Pods of B counted, or as if both revisions weighed the same.
        for hits in [300, 310, 490, 500] {
            assert!(beyond(hits, 1000, 2, 5, 1e-6 / 22.0), "{hits}");
        }
    }

    #[test]
    fn both_sides_are_tested_alike_and_nothing_drawn_proves_nothing() {
        for hits in 0..=200 {
            assert_eq!(beyond(hits, 200, 1, 4, 1e-4), beyond(200 - hits, 200, 3, 4, 1e-4), "{hits}");
        }
        assert!(!beyond(0, 0, 1, 1, 1e-6));
    }
}
