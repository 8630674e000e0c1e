//! The one task that owns the state.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Snapshot;

/// The current snapshot, for readers: `published.load()` is one atomic load and no lock.
pub type Published = Arc<ArcSwap<Snapshot>>;
