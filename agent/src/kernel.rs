//! The kernel side: tables out of a snapshot, and the programs that read them.
//!
//! ```text
//! Snapshot ─> tables ─> plan ─> writer ─> inner maps, frozen and swapped ─> connect hooks (crate revgate-ebpf)
//!            (pure)    (pure)                                          reader <─ counters, connections, tenants
//! worker ─> pinner ─> socket storage ─────────────────────────────────────────> connect hooks
//! ```
//!
//! Everything in the kernel is pinned below `revgate/v1` in bpffs and survives the agent: a stopped, killed or
//! upgraded agent changes nothing for traffic. The next one opens the pins, checks that they are of its layout, and
//! puts its programs into the live links. [`detach`] removes everything.

pub mod cgroup;
mod error;
mod load;
mod object;
pub mod pinner;
mod pins;
pub mod plan;
pub mod preflight;
mod probe;
pub mod reader;
mod sys;
pub mod tables;
pub mod twin;
mod writer;

use std::{path::PathBuf, sync::Arc};

pub use error::KernelError;
pub use pinner::Pinner;
pub use reader::{Reader, SetTenants, Tenant};

use self::{
    pins::{Lock, Pins},
    reader::Shared,
    writer::Writer,
};
use crate::{
    config::{KernelConfig, KernelMode},
    snapshot::Snapshot,
};

/// Takes snapshots into force. One owner calls it, on its own thread: it blocks for some milliseconds per table.
pub trait Publish: Send {
    /// Writes what changed, and returns when no program sees what was before. Snapshots come in order.
    ///
    /// After an error the kernel may have a part of it; the next call writes everything anew.
    fn publish(&mut self, snapshot: &Snapshot) -> Result<(), KernelError>;
}

/// The kernel part of an agent: while it lives, no other agent runs on the same pins.
#[derive(Debug)]
pub struct Kernel {
    config: KernelConfig,
    shared: Arc<Shared>,
    _lock: Lock,
}

/// How an agent gates.
#[derive(Debug)]
pub enum Gate {
    /// With the kernel.
    Kernel(Kernel),
    /// In user space only (K12), and why: for the log, status and metrics.
    UserSpace {
        /// In words.
        reason: String,
    },
}

impl Gate {
    /// The kernel part as it is configured: `off` and, where it does not work, `auto` gate in user space.
    pub fn open(config: &KernelConfig) -> Result<Self, KernelError> {
        match config.mode {
            KernelMode::Off => Ok(Self::UserSpace { reason: "kernel.mode is off".into() }),
            KernelMode::Required => Kernel::start(config).map(Self::Kernel),
            KernelMode::Auto => Ok(match Kernel::start(config) {
                Ok(kernel) => Self::Kernel(kernel),
                // The other one will end, and then this one can have it all: no reason to do with less for good.
                Err(error @ KernelError::Locked { .. }) => return Err(error),
                Err(error) => Self::UserSpace { reason: without(config, &error) },
            }),
        }
    }
}

/// Why there are no programs of this agent, and that those of an earlier one go on, if they do.
fn without(config: &KernelConfig, error: &KernelError) -> String {
    if pins::anything_attached(&config.bpffs) {
        format!(
            "{error}; programs of an earlier agent still steer with its last tables (`revgate detach` removes them)"
        )
    } else {
        error.to_string()
    }
}

impl Kernel {
    /// Loads the programs and attaches them, over what an agent before left pinned.
    ///
    /// Until the first [`Publish::publish`] the tables are those of the agent before; on a fresh machine there are
    /// none, and every connect passes.
    pub fn start(config: &KernelConfig) -> Result<Self, KernelError> {
        if object::bytes().is_none() {
            return Err(KernelError::NotBuilt);
        }
        let cgroup = cgroup::find(config.cgroup.as_deref())?;
        if let Some(partial) = cgroup::partial(&cgroup) {
            tracing::warn!("{partial}");
        }
        let (pins, lock) = Pins::open(&config.bpffs)?;
        if let Some(wrong) = pins.unusable()? {
            tracing::warn!(wrong, "pinned maps are not of this layout; making new ones");
            pins.drop_maps()?;
        }
        let mut ebpf = load::load(&pins)?;
        load::attach(&mut ebpf, &pins, &cgroup)?;
        let shared = Arc::new(Shared::open(pins, cgroup)?);
        Ok(Self { config: config.clone(), shared, _lock: lock })
    }

    /// The writer of the tables. There is to be one.
    pub fn writer(&self) -> Result<Box<dyn Publish>, KernelError> {
        Ok(Box::new(Writer::new(Arc::clone(&self.shared), self.config.fence)?))
    }

    /// Pins sockets.
    pub fn pinner(&self) -> Result<Pinner, KernelError> {
        Pinner::new(self.shared.pins.open_map(revgate_common::layout::map::PINS)?)
    }

    /// Reads counters, connections, tenants and memory.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.shared))
    }

    /// Proves that a connect of this process meets the programs (K9). After the first publication with a set.
    pub fn probe(&self) -> Result<(), KernelError> {
        probe::probe(&self.shared.cgroup)
    }
}

/// Removes programs, links and maps from the kernel, and returns the pins that were removed. No agent may run.
pub fn detach(config: &KernelConfig) -> Result<Vec<PathBuf>, KernelError> {
    let (pins, _lock) = Pins::open(&config.bpffs)?;
    pins.remove()
}
