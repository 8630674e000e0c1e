//! One owner of the state, and the immutable snapshots that it publishes.
//!
//! [`state`] applies changes and builds snapshots (pure); [`slots`] gives revisions their slots and epochs (pure);
//! `sources` says who a local process is (pure); [`vips`] finds where VIPs are (pure). [`owner`] is the one task that
//! runs them, hands the kernel its tables and publishes. Readers load the current snapshot once per request and never
//! lock.

mod build;
pub mod owner;
pub mod slots;
mod sources;
pub mod state;
pub mod vips;
pub mod vitals;

use std::{net::SocketAddr, sync::Arc};

use http::HeaderName;

use crate::{
    cluster::{Cgroup, Pod, PodKey},
    config::{GatingMode, HeaderSelector},
    gating::Distribution,
};
pub use vips::{MissingVip, Vip};
pub use vitals::{Breaker, Vitals};

/// Everything that a reader needs, at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// Counts up with every publication; the kernel tables carry it too.
    pub generation: u64,
    /// The first list has been applied. Until then everything is refused.
    pub synced: bool,
    /// The sets, by index.
    pub sets: Vec<SetView>,
    /// The VIPs to steer.
    pub vips: Vec<Vip>,
    /// Those that are nowhere at present.
    pub missing_vips: Vec<MissingVip>,
    /// Local Pods known by their cgroup; those that left the API too, for as long as their cgroups are there.
    pub sources: Vec<SourceView>,
}

/// A local member Pod, known by its cgroup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceView {
    /// Its cgroup.
    pub cgroup: Cgroup,
    /// The Pod.
    pub pod: PodKey,
    /// Index of its set.
    pub set: usize,
    /// Its revision's slot.
    pub slot: u16,
    /// Its revision's epoch; 0, which is nobody's, where there is none: it is a member that reaches no member.
    pub epoch: u32,
}

/// One set at one moment.
#[derive(Debug)]
pub struct SetView {
    /// Its name.
    pub name: Arc<str>,
    /// How it is gated.
    pub mode: GatingMode,
    /// The header that names a revision.
    pub revision_header: HeaderName,
    /// Selectors other than the revision's.
    pub selectors: Arc<[HeaderSelector]>,
    /// The roles, by index.
    pub roles: Arc<[Arc<str>]>,
    /// How many of them are required: the first ones.
    pub required: usize,
    /// Eligibility, weights, shares.
    pub distribution: Distribution,
    /// Every revision with a member, sorted by name: the same order as `distribution.revisions`.
    pub revisions: Vec<RevisionView>,
    /// Revisions for which no slot was left: no traffic, no endpoints, and their epoch is 0, which is nobody's. Their
    /// members are known so that the fence keeps them apart.
    pub left_out: Vec<RevisionView>,
}

/// One revision of a set at one moment.
#[derive(Debug)]
pub struct RevisionView {
    /// Its name.
    pub name: Arc<str>,
    /// Its slot in the kernel tables.
    pub slot: u16,
    /// The epoch of its tenancy of that slot.
    pub epoch: u32,
    /// Its endpoints by role index, each sorted by address.
    pub endpoints: Vec<Vec<Arc<Endpoint>>>,
    /// Its members that are not endpoints of a role (not Ready, followers, other roles) and those that are:
    /// every address of the revision, for the fence.
    pub members: Vec<Arc<Pod>>,
}

/// A place that takes requests.
#[derive(Debug)]
pub struct Endpoint {
    /// Where.
    pub address: SocketAddr,
    /// Its Pod.
    pub pod: Arc<Pod>,
    /// Its revision.
    pub revision: Arc<str>,
    /// Its role's index.
    pub role: usize,
    /// On this agent's node.
    pub local: bool,
    /// Load and health, shared by every snapshot in which this endpoint stands.
    pub vitals: Arc<Vitals>,
}

impl SetView {
    /// The revision of that name, if it has a member.
    #[must_use]
    pub fn revision(&self, name: &str) -> Option<&RevisionView> {
        let at = self.revisions.binary_search_by(|r| r.name.as_ref().cmp(name)).ok()?;
        self.revisions.get(at)
    }
}
