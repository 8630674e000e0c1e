//! Kubernetes label selectors, the whole grammar.

use crate::cluster::pod::Labels;

/// A parsed label selector.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selector {}

impl Selector {
    /// Whether the labels satisfy every requirement.
    #[must_use]
    pub fn matches(&self, _labels: &Labels) -> bool {
        false
    }
}
