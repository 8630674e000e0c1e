//! Eligibility, the dominant role, weights and shares (G2 to G5).

use std::sync::Arc;

use revgate_common::{
    layout::MAX_REVISIONS,
    pick::{self, LastDraws},
};

use super::Census;
use crate::config::GatingMode;

/// How one set is gated. Required roles are the first role indices of the census.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gating {
    /// The mode.
    pub mode: GatingMode,
    /// How many of the roles are required: indices `0..required`, in the order that breaks ties.
    pub required: usize,
}

/// One revision's part of the traffic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RevisionShare {
    /// Its name.
    pub name: Arc<str>,
    /// Ready Pods by role index.
    pub ready: Vec<u32>,
    /// It has a Ready Pod and an endpoint in every required role. With `disabled`: it has an endpoint at all.
    pub eligible: bool,
    /// Its weight; 0 when it is not eligible, and for every revision with `disabled`.
    pub weight: u32,
}

/// How the traffic of one set is shared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Distribution {
    /// Every known revision, sorted by name.
    pub revisions: Vec<RevisionShare>,
    /// The index of the dominant role, see [`Distribution::of`]; `None` while nothing is eligible.
    pub dominant: Option<usize>,
    /// The weighted choice over `ranked`; `None` while nothing can be chosen.
    pub last: Option<Box<LastDraws>>,
    /// Indices into `revisions` of those with a weight: rank to revision.
    pub ranked: Vec<usize>,
}

impl Distribution {
    /// Weighs a census.
    ///
    /// The dominant role is computed in every mode but `disabled` (it is shown, and only max-role uses it): the
    /// required role with the largest sum over the eligible revisions, the first listed on a tie.
    ///
    /// At most [`MAX_REVISIONS`] revisions get a weight, the first by name; more do not fit the kernel's table, and
    /// draws and decision ids must agree on who takes part.
    #[must_use]
    pub fn of(census: &Census, gating: Gating) -> Self {
        let mut revisions: Vec<RevisionShare> = census
            .iter()
            .map(|(name, tally)| RevisionShare {
                name: Arc::clone(name),
                ready: tally.ready.clone(),
                eligible: match gating.mode {
                    GatingMode::Disabled => tally.endpoints.iter().any(|n| *n > 0),
                    GatingMode::MaxRole | GatingMode::Sum => {
                        let complete = |n: &[u32]| n.iter().take(gating.required).all(|n| *n > 0);
                        complete(&tally.ready) && complete(&tally.endpoints)
                    }
                },
                weight: 0,
            })
            .collect();
        if gating.mode == GatingMode::Disabled {
            return Self { revisions, ..Self::default() };
        }
        let dominant = dominant(&revisions, gating.required);
        for revision in revisions.iter_mut().filter(|r| r.eligible).take(MAX_REVISIONS) {
            let required = revision.ready.iter().take(gating.required);
            revision.weight = match (gating.mode, dominant) {
                (GatingMode::MaxRole, Some(role)) => revision.ready.get(role).copied().unwrap_or(0),
                _ => required.fold(0, |sum, n| sum.saturating_add(*n)),
            };
        }
        Self::ranked(revisions, dominant)
    }

    /// The weighted choice over those with a weight.
    fn ranked(revisions: Vec<RevisionShare>, dominant: Option<usize>) -> Self {
        let ranked: Vec<usize> =
            revisions.iter().enumerate().filter(|(_, r)| r.weight > 0).map(|(index, _)| index).collect();
        let weights: Vec<u32> = ranked.iter().filter_map(|i| revisions.get(*i)).map(|r| r.weight).collect();
        let last = pick::last_draws(&weights).map(Box::new);
        Self { revisions, dominant, last, ranked }
    }

    /// The same without the revisions that may not be chosen: their part goes to the others by weight.
    #[must_use]
    pub fn only(&self, may: impl Fn(&RevisionShare) -> bool) -> Self {
        let mut revisions = self.revisions.clone();
        for revision in &mut revisions {
            if !may(revision) {
                (revision.eligible, revision.weight) = (false, 0);
            }
        }
        Self::ranked(revisions, self.dominant)
    }

    /// The revision on which a draw falls.
    #[must_use]
    pub fn by_draw(&self, draw: u32) -> Option<&RevisionShare> {
        let rank = pick::rank(self.last.as_deref()?, draw);
        self.revisions.get(*self.ranked.get(rank)?)
    }

    /// The revision of a decision id (G9).
    #[must_use]
    pub fn by_decision_id(&self, id: &[u8]) -> Option<&RevisionShare> {
        let at = pick::by_decision_id(id, self.revisions.iter().map(|r| (r.name.as_bytes(), r.weight)))?;
        self.revisions.get(at)
    }

    /// The revision of that name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<&RevisionShare> {
        let at = self.revisions.binary_search_by(|r| r.name.as_ref().cmp(name)).ok()?;
        self.revisions.get(at)
    }

    /// The sum of all weights, the denominator of every share.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.revisions.iter().map(|r| u64::from(r.weight)).sum()
    }
}

/// The required role with the largest sum over the eligible revisions; the first listed on a tie.
fn dominant(revisions: &[RevisionShare], required: usize) -> Option<usize> {
    if !revisions.iter().any(|r| r.eligible) {
        return None;
    }
    let sum = |role: usize| -> u64 {
        revisions.iter().filter(|r| r.eligible).filter_map(|r| r.ready.get(role)).map(|n| u64::from(*n)).sum()
    };
    // `max_by_key` keeps the last of equals; going backwards makes that the first listed.
    (0..required).rev().max_by_key(|role| sum(*role))
}
