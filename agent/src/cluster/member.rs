//! What a Pod is to a set: its revision, its role, whether it counts, and its endpoints.

use std::{net::SocketAddr, sync::Arc};

use super::Pod;
use crate::config::SetConfig;

/// A Pod seen by one set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The revision label's value, not empty.
    pub revision: Arc<str>,
    /// The role label's value, not empty.
    pub role: Arc<str>,
    /// It counts for (revision, role): Ready, and matched by every strict selector.
    pub counts: bool,
    /// Where it takes requests: empty unless it counts, and for followers of a LeaderWorkerSet group.
    pub endpoints: Vec<SocketAddr>,
    /// What was wrong with it and made it less than it could be; said once per Pod.
    pub warning: Option<String>,
}

/// What `pod` is to `set`, or `None` when it is no member: out of scope, or without one of the two labels.
#[must_use]
pub fn member(_pod: &Pod, _set: &SetConfig) -> Option<Member> {
    None
}
