//! One listener on one worker: what all its requests share.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use super::{accept::Opened, metrics::ListenerMetrics, table::RoleTable, target::Target, worker::Worker};
use crate::config::{Config, ListenerConfig};

/// A role listener's part of a worker.
pub(super) struct Listener {
    /// Distinguishes it from an earlier one of the same name.
    pub(super) id: u64,
    /// Its name.
    pub(super) name: Arc<str>,
    /// Endpoints of its role.
    pub(super) table: RefCell<RoleTable>,
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
    set: Arc<str>,
    role: Arc<str>,
}

impl Plan {
    /// Every listener of a configuration.
    pub(super) fn all(config: &Config) -> Vec<Self> {
        let plan = |listener: &ListenerConfig| {
            let set = config.sets.get(listener.set)?;
            Some(Self {
                config: listener.clone(),
                set: Arc::clone(&set.name),
                role: Arc::clone(set.roles.get(listener.role)?),
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
        Self { id: *id, name: Arc::clone(&plan.config.name), table: RefCell::new(table), metrics, worker }
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
