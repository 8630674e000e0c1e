//! The pick: from integer weights and a draw to a revision, and from a draw to an endpoint.
//!
//! The kernel programs, the agent and the tests call these same functions, so they cannot disagree. No float
//! decides anything. Revisions come sorted by name; position in that order is the *rank*.

use crate::layout::MAX_REVISIONS;

/// For each rank the last draw that falls on it: `draw <= last[rank]` and above the rank before.
///
/// The draw space is all of `u32`. Rank `i` owns the draws `d` with `d / 2^32 < cumulative_i / total`, so the
/// share of each rank is exact to 1 in 2^32. Ranks beyond the last weight hold `u32::MAX`.
pub type LastDraws = [u32; MAX_REVISIONS];

/// Turns positive weights, in rank order, into [`LastDraws`].
///
/// `None` when there is nothing to choose (no weight), when a weight is 0 (such a revision has no rank), or when
/// there are more than [`MAX_REVISIONS`] weights.
#[must_use]
pub fn last_draws(weights: &[u32]) -> Option<LastDraws> {
    let total: u128 = weights.iter().map(|w| u128::from(*w)).sum();
    if total == 0 || weights.contains(&0) || weights.len() > MAX_REVISIONS {
        return None;
    }
    let mut last = [u32::MAX; MAX_REVISIONS];
    let mut cumulative = 0_u128;
    for (last, weight) in last.iter_mut().zip(weights) {
        cumulative += u128::from(*weight);
        // The first draw that is no longer below the cumulative share, less one.
        let end = (cumulative << 32).div_ceil(total);
        *last = u32::try_from(end - 1).unwrap_or(u32::MAX);
    }
    Some(last)
}

/// The rank that `draw` falls on: the first whose last draw is not below it.
///
/// Six comparisons, whatever the number of revisions; no branch depends on how many are in use.
#[inline(always)]
#[must_use]
#[expect(
    clippy::indexing_slicing,
    reason = "the steps 32 + 16 + .. + 1 bound the index to 62; the verifier proves it too"
)]
pub fn rank(last: &LastDraws, draw: u32) -> usize {
    let mut base = 0;
    base += 32 * below(last[base + 31], draw);
    base += 16 * below(last[base + 15], draw);
    base += 8 * below(last[base + 7], draw);
    base += 4 * below(last[base + 3], draw);
    base += 2 * below(last[base + 1], draw);
    base += below(last[base], draw);
    base
}

/// 1 where `last < draw`, else 0: the borrow of the subtraction. Without a branch, so the verifier follows one path
/// through [`rank`] and not 64; `black_box` keeps the compiler from making a branch of it again. A mask of the upper
/// half does so too, in 24 instructions less, but with two capabilities the verifier then walked four tenths more of
/// `connect4`.
#[inline(always)]
fn below(last: u32, draw: u32) -> usize {
    (core::hint::black_box(u64::from(last).wrapping_sub(u64::from(draw))) >> 63) as usize
}

/// An index below `count`, uniform over the draws: one multiply, no division.
///
/// `count` 0 gives 0; the caller checks for emptiness first.
#[inline(always)]
#[must_use]
pub const fn index(draw: u32, count: u32) -> u32 {
    ((draw as u64 * count as u64) >> 32) as u32
}

/// The choice for a decision id: the same on every replica that sees the same weights, with no shared store.
///
/// Weighted rendezvous hashing: every revision draws its own uniform number from a hash of the id and its name,
/// and the smallest `-log2(u) / weight` wins. A revision wins with a probability of exactly its share. When
/// weights change, an id moves only towards a revision whose share grew relative to its own, which moves as few
/// ids as any scheme without memory can (the bound `2d / (1 + d)` for shares at total variation distance `d`;
/// exactly `d` when one weight changes or two revisions share).
///
/// `revisions` yields names and weights in rank order; weight 0 never wins. Returns the position in that order.
#[must_use]
pub fn by_decision_id<'a>(id: &[u8], revisions: impl IntoIterator<Item = (&'a [u8], u32)>) -> Option<usize> {
    let seed = xxhash_rust::xxh64::xxh64(id, 0);
    let mut best: Option<(usize, u64, u32)> = None;
    for (position, (name, weight)) in revisions.into_iter().enumerate() {
        if weight == 0 {
            continue;
        }
        let cost = negative_log2(xxhash_rust::xxh64::xxh64(name, seed));
        let wins = match best {
            None => true,
            // cost / weight < best_cost / best_weight, without division. A tie stays with the lower rank.
            Some((_, best_cost, best_weight)) => {
                u128::from(cost) * u128::from(best_weight) < u128::from(best_cost) * u128::from(weight)
            }
        };
        if wins {
            best = Some((position, cost, weight));
        }
    }
    best.map(|(position, _, _)| position)
}

/// Fraction bits of [`negative_log2`].
const LOG_FRACTION_BITS: u32 = 40;

/// `-log2((hash + 1) / 2^64)` in fixed point with [`LOG_FRACTION_BITS`] fraction bits, rounded up, at least 1.
///
/// By repeated squaring of the mantissa: integers only, so every machine gets the same bits.
fn negative_log2(hash: u64) -> u64 {
    let Some(value) = hash.checked_add(1) else { return 1 };
    let exponent = value.ilog2();
    // The mantissa in [1, 2), with 63 fraction bits.
    let mut mantissa = value << (63 - exponent);
    let mut log = u64::from(exponent);
    for _ in 0..LOG_FRACTION_BITS {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        let carry = square >> 64;
        log = (log << 1) | u64::try_from(carry).unwrap_or(1);
        mantissa = u64::try_from(square >> carry).unwrap_or(u64::MAX);
    }
    ((64_u64 << LOG_FRACTION_BITS) - log).max(1)
}

#[cfg(test)]
mod tests;
