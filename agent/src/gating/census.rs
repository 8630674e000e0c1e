//! Who is Ready: counts per revision and role (G1).

use std::{collections::BTreeMap, sync::Arc};

/// What is known of one revision. Role indices are those of the set's configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Ready Pods by role index.
    pub ready: Vec<u32>,
    /// Endpoints by role index. Fewer than Pods where followers of a group take no requests (C4), more where a Pod
    /// has several ports.
    pub endpoints: Vec<u32>,
}

/// Ready Pods and endpoints of one set, by revision (sorted by name) and role index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Census {
    roles: usize,
    tallies: BTreeMap<Arc<str>, Tally>,
}

impl Census {
    /// An empty census over that many roles.
    #[must_use]
    pub fn new(roles: usize) -> Self {
        Self { roles, tallies: BTreeMap::new() }
    }

    /// Makes a revision known, even with nothing Ready: it then appears in the distribution with share 0.
    pub fn mention(&mut self, revision: &Arc<str>) {
        self.tally(revision);
    }

    /// Counts one Ready Pod with that many endpoints.
    pub fn count(&mut self, revision: &Arc<str>, role: usize, endpoints: u32) {
        self.add(revision, role, 1, endpoints);
    }

    /// Counts so many Ready Pods, and so many endpoints in all. A role that the set does not have is left out.
    pub fn add(&mut self, revision: &Arc<str>, role: usize, pods: u32, endpoints: u32) {
        let tally = self.tally(revision);
        if let (Some(ready), Some(of_role)) = (tally.ready.get_mut(role), tally.endpoints.get_mut(role)) {
            *ready = ready.saturating_add(pods);
            *of_role = of_role.saturating_add(endpoints);
        }
    }

    /// Every known revision with its counts, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Tally)> {
        self.tallies.iter()
    }

    fn tally(&mut self, revision: &Arc<str>) -> &mut Tally {
        let roles = self.roles;
        self.tallies
            .entry(Arc::clone(revision))
            .or_insert_with(|| Tally { ready: vec![0; roles], endpoints: vec![0; roles] })
    }
}
