//! One listener on one worker: what all its requests share.

use std::{cell::RefCell, net::IpAddr, rc::Rc, sync::Arc};

use super::{
    accept::Opened, metrics::ListenerMetrics, pair::Pair, picker::Picker, table::RoleTable, target::Target,
    worker::Worker,
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
    /// What an endpoint picker has besides.
    pub(super) picker: Option<Picker>,
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
    /// The role of a pair's prefill legs, whether they are run here or only named.
    pub(super) prefill: Option<Arc<str>>,
}

impl Plan {
    /// Every listener of a configuration.
    pub(super) fn all(config: &Config) -> Vec<Self> {
        let plan = |listener: &ListenerConfig| {
            let set = config.sets.get(listener.set)?;
            let (role, prefill) = match &listener.serves {
                Serves::Role(role) => (*role, None),
                Serves::Pair(pair) => (pair.decode, Some(pair.prefill)),
                Serves::Picker(picker) => (picker.decode, picker.prefill),
            };
            let name = |role: usize| set.roles.get(role).cloned();
            Some(Self {
                config: listener.clone(),
                set: Arc::clone(&set.name),
                role: name(role)?,
                prefill: prefill.and_then(name),
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
        let picker = Picker::of(plan, &metrics);
        let (id, name) = (*id, Arc::clone(&plan.config.name));
        Self { id, name, table: RefCell::new(table), pair, picker, metrics, worker }
    }

    /// Every table that it has.
    pub(super) fn tables(&self) -> impl Iterator<Item = &RefCell<RoleTable>> {
        let prefills = self.picker.as_ref().and_then(|picker| picker.prefills.as_ref());
        std::iter::once(&self.table).chain(self.pair.as_ref().map(|pair| &pair.table)).chain(prefills)
    }

    /// Whether the routing headers of a client at this address are believed (H3). A role listener's clients are
    /// coordinators.
    pub(super) fn trusts(&self, client: IpAddr) -> bool {
        match (&self.pair, &self.picker) {
            (Some(pair), _) => pair.config.trust.includes(client),
            (_, Some(picker)) => picker.config.trust.includes(client),
            (None, None) => true,
        }
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
