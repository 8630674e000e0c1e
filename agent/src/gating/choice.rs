//! The choice of a revision for one request (G5 to G9).

use super::{Distribution, RevisionShare};

/// What a request says about its revision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask<'a> {
    /// The header names a revision (not empty).
    Named(&'a str),
    /// A decision id (not empty).
    DecisionId(&'a [u8]),
    /// Nothing.
    Any,
}

/// Why no revision was chosen. Each is a 503 (H11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No revision is eligible (or, with gating disabled and nothing named, none has an endpoint).
    NoneEligible,
    /// The named revision is not eligible, or not known.
    NamedNotEligible,
}

/// Chooses for one request. `draw` decides only where nothing else does.
///
/// A named revision always wins over a decision id, and is never substituted. With gating `disabled` there is no
/// weighted choice: `Ok(None)` means any revision will do.
pub fn choose<'d>(
    distribution: &'d Distribution,
    gated: bool,
    ask: Ask<'_>,
    draw: u32,
) -> Result<Option<&'d RevisionShare>, Refusal> {
    match ask {
        Ask::Named(name) => match distribution.by_name(name) {
            Some(revision) if revision.eligible => Ok(Some(revision)),
            _ => Err(Refusal::NamedNotEligible),
        },
        _ if !gated => {
            if distribution.revisions.iter().any(|r| r.eligible) {
                Ok(None)
            } else {
                Err(Refusal::NoneEligible)
            }
        }
        Ask::DecisionId(id) => distribution.by_decision_id(id).map(Some).ok_or(Refusal::NoneEligible),
        Ask::Any => distribution.by_draw(draw).map(Some).ok_or(Refusal::NoneEligible),
    }
}
