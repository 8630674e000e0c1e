//! Load and health of one endpoint: the only state that requests share, all of it atomic.

use std::sync::atomic::AtomicU32;

/// Load and health of one endpoint. Lives as long as the endpoint's (Pod, address) does, across snapshots.
#[derive(Debug, Default)]
pub struct Vitals {
    /// Requests in flight from this agent.
    pub outstanding: AtomicU32,
    /// Failures in a row (transport errors and 5xx).
    pub failures: AtomicU32,
}
