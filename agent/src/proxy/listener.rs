//! One listener on one worker: what all its requests share.

use std::{cell::RefCell, net::IpAddr, rc::Rc, sync::Arc};

use super::{
    accept::Opened, metrics::ListenerMetrics, pair::Pair, table::RoleTable, target::Target, worker::Worker,
};
use crate::config::{Config, ListenerConfig, Serves};

/// A listener's part of a worker.
pub(super) struct Listener {
    /// Distinguishes it from an earlier one of the same name.
    pub(super) id: u64,
    /// Its name.
    pub(super) name: Arc<str>,
    /// Endpoints of its role; of a pair listener, those of the decode role.
    pub(super) table: RefCell<RoleTable>,
    /// What a pair listener has besides.
    pub(super) pair: Option<Pair>,
    /// Its counters.
    pub(super) metrics: Rc<ListenerMetrics>,
    /// Whose it is.
    pub(super) worker: Rc<Worker>,
}

/// A listener's configuration with the names that its indices stand for: a snapshot of an older or newer
/// configuration may have other indices.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Plan {
    pub(super) config: ListenerConfig,
    pub(super) set: Arc<str>,
    role: Arc<str>,
    /// The role of a pair listener's prefill legs.
    pub(super) prefill: Option<Arc<str>>,
}

impl Plan {
    /// Every listener of a configuration.
    pub(super) fn all(config: &Config) -> Vec<Self> {
        let plan = |listener: &ListenerConfig| {
            let set = config.sets.get(listener.set)?;
            let (role, prefill) = match &listener.serves {
                Serves::Role(role) => (*role, None),
                Serves::Pair(pair) => (pair.decode, Some(Arc::clone(set.roles.get(pair.prefill)?))),
            };
            Some(Self {
                config: listener.clone(),
                set: Arc::clone(&set.name),
                role: Arc::clone(set.roles.get(role)?),
                prefill,
            })
        };
        config.agent.listeners.iter().filter_map(plan).collect()
    }
}

impl Listener {
    /// Of one that is bound.
    pub(super) fn new(opened: &Opened, worker: Rc<Worker>) -> Self {
        let Opened { id, plan, alive, .. } = opened;
        let metrics = Rc::new(worker.shared.metrics.listener(&plan.config.name, &plan.set, alive.clone()));
        let table = RoleTable::new(Arc::clone(&plan.set), Arc::clone(&plan.role), Rc::clone(&metrics));
        let pair = Pair::of(plan, &metrics, &worker);
        let (id, name) = (*id, Arc::clone(&plan.config.name));
        Self { id, name, table: RefCell::new(table), pair, metrics, worker }
    }

    /// Every table that it has.
    pub(super) fn tables(&self) -> impl Iterator<Item = &RefCell<RoleTable>> {
        std::iter::once(&self.table).chain(self.pair.as_ref().map(|pair| &pair.table))
    }

    /// Whether the routing headers of a client at this address are believed (H3). A role listener's clients are
    /// coordinators.
    pub(super) fn trusts(&self, client: IpAddr) -> bool {
        self.pair.as_ref().is_none_or(|pair| pair.config.trust.includes(client))
    }

    /// An endpoint failed: a transport error or a status of 500 and above.
    pub(super) fn failed(&self, target: &Target) {
        if !target.is_live() {
            return;
        }
        let worker = &self.worker;
        if target.endpoint.vitals.failed(worker.shared.clock.millis(), worker.breaker()) {
            self.metrics.breaker_opens.inc();
            tracing::warn!(
                endpoint = %target.endpoint.address,
                pod = %target.endpoint.pod.key.name,
                revision = %target.endpoint.revision,
                "endpoint failed repeatedly and is rested"
            );
        }
    }
}
