//! The kernel side of a running agent, or the words for why there is none (K12).

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use tracing::{info, warn};

use crate::{
    cluster::cgroups::CgroupWatch,
    config::{FenceMode, KernelConfig},
    kernel::{self, Kernel, KernelError, Pinner, Publish, cgroup},
    observe::{
        KernelReader, KernelReading,
        kernel::{EndpointConnections, Events, Lease, UserSpace},
    },
    snapshot::{Snapshot, state::Tenants},
};

/// With programs or without.
pub(super) enum Side {
    /// With.
    Kernel {
        /// The programs and tables.
        kernel: Arc<Kernel>,
        /// What an earlier agent left in force.
        left: Vec<kernel::SetTenants>,
        /// The fence, in a word.
        fence: &'static str,
        /// The lease, as configured.
        lease: Duration,
        /// The lines of `kernel.trace`.
        trace: Option<kernel::Trace>,
    },
    /// Without.
    UserSpace {
        /// Why.
        because: String,
    },
}

impl Side {
    /// Opens what the configuration asks for. An error only with `kernel.mode: required`.
    pub(super) fn open(config: &KernelConfig) -> Result<Self, KernelError> {
        match kernel::Gate::open(config)? {
            kernel::Gate::Kernel(mut kernel) => {
                let trace = kernel.trace();
                let left = kernel.reader().tenants()?;
                info!(cgroup = %kernel.reader().cgroup().display(), sets = left.len(), "kernel programs attached");
                Ok(Self::Kernel {
                    kernel: Arc::new(kernel),
                    left,
                    fence: word(config.fence),
                    lease: config.lease,
                    trace,
                })
            }
            kernel::Gate::UserSpace { reason } => {
                warn!(%reason, "no kernel programs: revisions are kept apart by the HTTP layer alone");
                Ok(Self::UserSpace { because: reason })
            }
        }
    }

    /// What an earlier agent left, by the hash of the set's name.
    pub(super) fn tenants(&self) -> HashMap<u64, Tenants> {
        let Self::Kernel { left, .. } = self else { return HashMap::new() };
        left.iter()
            .map(|set| (set.set, set.tenants.iter().map(|t| (t.slot, t.revision, t.epoch)).collect()))
            .collect()
    }

    /// The newest generation that an earlier agent left: the next one counts on from it.
    pub(super) fn last_generation(&self) -> u64 {
        let Self::Kernel { left, .. } = self else { return 0 };
        left.iter().map(|set| set.generation).max().unwrap_or(0)
    }

    pub(super) fn has_programs(&self) -> bool {
        matches!(self, Self::Kernel { .. })
    }

    pub(super) fn writer(&self) -> Result<Option<Box<dyn Publish>>, KernelError> {
        let Self::Kernel { kernel, .. } = self else { return Ok(None) };
        let writer = kernel.writer()?;
        Ok(Some(Box::new(Proving { writer, kernel: Arc::clone(kernel), done: false })))
    }

    pub(super) fn pinner(&self) -> Result<Pinner, KernelError> {
        match self {
            Self::Kernel { kernel, .. } => kernel.pinner(),
            Self::UserSpace { .. } => Ok(Pinner::user_space()),
        }
    }

    /// Hears of denied connects.
    pub(super) fn events(&self) -> Result<Option<kernel::Events>, KernelError> {
        match self {
            Self::Kernel { kernel, .. } => kernel.events().map(Some),
            Self::UserSpace { .. } => Ok(None),
        }
    }

    /// Follows the cgroups of this machine's Pods, for whom a Pod's own connects are its own.
    pub(super) fn cgroups(&self) -> Option<CgroupWatch> {
        let Self::Kernel { .. } = self else { return None };
        // Levels count from the real root, wherever the programs are attached.
        let root = cgroup::find(None).inspect_err(
            |why| warn!(%why, "no cgroups of Pods are known: their connects are steered by weight"),
        );
        root.ok().map(CgroupWatch::new)
    }

    /// The lines of `kernel.trace`; once.
    pub(super) fn trace(&mut self) -> Option<kernel::Trace> {
        if let Self::Kernel { trace, .. } = self { trace.take() } else { None }
    }

    pub(super) fn reader(&self) -> Box<dyn KernelReader> {
        match self {
            Self::Kernel { kernel, fence, lease, .. } => {
                Box::new(Reader { kernel: kernel.reader(), fence, lease: *lease })
            }
            Self::UserSpace { because } => Box::new(UserSpace { because: because.clone() }),
        }
    }
}

/// A writer whose first tables must also be seen to act (K9): where they do not, pinned dials would reach nobody. The
/// owner tries again, as after any failed write.
struct Proving {
    writer: Box<dyn Publish>,
    kernel: Arc<Kernel>,
    done: bool,
}

impl Publish for Proving {
    fn publish(&mut self, snapshot: &Snapshot) -> Result<(), KernelError> {
        self.writer.publish(snapshot)?;
        if !self.done {
            let proof = self.kernel.probe()?;
            info!(%proof, "the kernel programs act");
            self.done = true;
        }
        Ok(())
    }

    fn renew(&mut self) -> Result<(), KernelError> {
        self.writer.renew()
    }

    fn renew_every(&self) -> Duration {
        self.writer.renew_every()
    }
}

/// Where Pods' cgroups lie on this machine, with kernel programs or without.
pub(super) fn cgroup_root(config: &KernelConfig) -> Option<PathBuf> {
    cgroup::find(None).ok().or_else(|| config.cgroup.clone())
}

/// Puts the kernel's numbers into the observer's form.
#[derive(Debug)]
struct Reader {
    kernel: kernel::Reader,
    fence: &'static str,
    lease: Duration,
}

impl Reader {
    fn try_read(&self) -> Result<KernelReading, KernelError> {
        let tenants = self.kernel.tenants()?;
        let sets = tenants.iter().map(|set| set.index + 1).max().unwrap_or(0);
        let tables = (0..sets).map(|at| tenants.iter().find(|set| set.index == at).map(|set| set.generation));
        let connections = self.kernel.connections()?;
        let events = self.kernel.events()?;
        Ok(KernelReading {
            active: true,
            inactive_because: None,
            fence: self.fence.to_owned(),
            acknowledged: self.kernel.generation(),
            tables: tables.collect(),
            counters: self.kernel.counters()?,
            events: Events { sent: events.sent, skipped: events.skipped, lost: events.lost },
            connections: connections
                .into_iter()
                .map(|(key, counts)| EndpointConnections {
                    endpoint: key.endpoint.into(),
                    set: key.tenant.set.into(),
                    slot: key.tenant.slot,
                    epoch: key.tenant.epoch,
                    opened: counts.opened,
                    closed: counts.closed,
                })
                .collect(),
            memory: self.kernel.memory()?,
            lease: Some(Lease { length: self.lease, left: self.kernel.lease_left()? }),
            takeover_pending: self.kernel.takeover_pending(),
            error: None,
        })
    }
}

impl KernelReader for Reader {
    fn read(&self) -> KernelReading {
        self.try_read().unwrap_or_else(|error| KernelReading {
            active: true,
            fence: self.fence.to_owned(),
            acknowledged: self.kernel.generation(),
            error: Some(error.to_string()),
            ..KernelReading::default()
        })
    }
}

const fn word(fence: FenceMode) -> &'static str {
    match fence {
        FenceMode::Off => "off",
        FenceMode::Audit => "audit",
        FenceMode::Enforce => "enforce",
    }
}
