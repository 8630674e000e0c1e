//! The kernel side: tables out of a snapshot, and the programs that read them.
//!
//! ```text
//! Snapshot ─> tables ─> plan ─> writer ─> inner maps, frozen and swapped ─> connect hooks (crate revgate-ebpf)
//!            (pure)    (pure)                                          reader <─ counters, connections, tenants
//! worker ─> pinner ─> socket storage ─────────────────────────────────────────> connect hooks
//! ```
//!
//! Everything in the kernel is pinned below `revgate/v5` in bpffs and survives the agent: a stopped, killed or
//! upgraded agent changes nothing for traffic. The next one opens the pins, checks that they are of its layout, and
//! puts its programs into the live links: at once, or, where they are of another layout, after its first
//! publication. [`detach`] removes everything.

pub mod cgroup;
mod elsewhere;
mod error;
mod events;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod keeper;
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
mod takeover;
mod trace;
pub mod twin;
mod writer;

use std::{
    fs::File,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use error::KernelError;
pub use events::{Events, Incoming};
pub use pinner::Pinner;
pub use probe::Proof;
pub use reader::{Reader, SetTenants, Tenant};
pub use trace::Trace;

use self::{
    keeper::Keeper,
    object::Hook,
    pins::{Lock, Pins},
    reader::Shared,
    takeover::{Left, Takeover},
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

    /// A sign of life: the tables count as current for another lease. Nothing before the first publication, when
    /// they are those of an agent before.
    fn renew(&mut self) -> Result<(), KernelError>;

    /// The time from one [`Publish::renew`] to the next.
    fn renew_every(&self) -> Duration;
}

/// The kernel part of an agent: while it lives, no other agent runs on the same pins.
#[derive(Debug)]
pub struct Kernel {
    config: KernelConfig,
    shared: Arc<Shared>,
    /// What waits for the first publication.
    takeover: Option<Arc<Takeover>>,
    trace: Option<Trace>,
    _locks: [Lock; 2],
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
        let object = if config.trace { object::trace_bytes() } else { object() };
        Self::start_with(config, object.ok_or(KernelError::NotBuilt)?)
    }

    /// As [`Kernel::start`], with the programs of another build of the same layout: how an upgrade looks from the
    /// other side, for tests.
    pub fn start_with(config: &KernelConfig, object: &[u8]) -> Result<Self, KernelError> {
        let cgroup = cgroup::find(config.cgroup.as_deref())?;
        if let Some(partial) = cgroup::partial(&cgroup) {
            tracing::warn!("{partial}");
        }
        let (pins, lock) = Pins::open(&config.bpffs)?;
        // Agents with pins in different places exclude each other too.
        let locks = [lock, Lock::take(&cgroup)?];
        if let Some(wrong) = pins.unusable()? {
            tracing::warn!(
                wrong,
                "pins are damaged or not of this layout: they go once new tables are in force"
            );
            pins.set_aside()?;
        }
        load::forget_unheard(&pins, &cgroup)?;
        let mut ebpf = load::load(object, &pins)?;
        let takeover = load::attach(&mut ebpf, &pins, &cgroup)?.map(Arc::new);
        let trace = config.trace.then(|| Trace::open(&mut ebpf)).transpose()?;
        let shared = Arc::new(Shared::open(pins, cgroup, takeover.is_some())?);
        Ok(Self { config: config.clone(), shared, takeover, trace, _locks: locks })
    }

    /// The writer of the tables. There is to be one.
    pub fn writer(&self) -> Result<Box<dyn Publish>, KernelError> {
        let writer = Writer::new(Arc::clone(&self.shared), self.config.fence)?;
        Ok(Box::new(Keeper::new(writer, Arc::clone(&self.shared), self.config.lease, self.takeover.clone())?))
    }

    /// Pins sockets.
    pub fn pinner(&self) -> Result<Pinner, KernelError> {
        self.shared.pins.map_of(revgate_common::layout::map::PINS).map(Pinner::new)
    }

    /// Reads counters, connections, tenants and memory.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader::new(Arc::clone(&self.shared))
    }

    /// Hears of denied connects. There is to be one that does.
    pub fn events(&self) -> Result<Events, KernelError> {
        Events::open(&self.shared.pins)
    }

    /// The lines that the programs write, with `kernel.trace`; once.
    pub fn trace(&mut self) -> Option<Trace> {
        self.trace.take()
    }

    /// Proves that connects meet the programs, this process's and others' (K9). After the first publication.
    pub fn probe(&self) -> Result<Proof, KernelError> {
        probe::probe(&self.shared.cgroup, &self.shared.pins)
    }
}

/// The kernel object that this agent was built with, if it was.
#[must_use]
pub fn object() -> Option<&'static [u8]> {
    object::bytes()
}

/// The ids of the programs on each hook of a cgroup, revgate's and others', by the name of revgate's program there.
pub fn hooks(cgroup: &Path) -> Result<Vec<(&'static str, Vec<u32>)>, KernelError> {
    let failed =
        |program| move |source| KernelError::Attach { program, cgroup: cgroup.to_path_buf(), source };
    let directory = File::open(cgroup).map_err(failed("programs"))?;
    object::HOOKS
        .into_iter()
        .map(|Hook { program, attach_type }| {
            let attached = sys::attached(directory.as_fd(), attach_type).map_err(failed(program))?;
            Ok((program, attached.programs))
        })
        .collect()
}

/// Removes programs, links and maps from the kernel, those of other layouts too, and returns the pins that were
/// removed. No agent may run.
pub fn detach(config: &KernelConfig) -> Result<Vec<PathBuf>, KernelError> {
    let (pins, _lock) = Pins::open(&config.bpffs)?;
    let mut removed = pins.remove()?;
    // A cgroup that is gone has nothing attached.
    let cgroup = cgroup::find(config.cgroup.as_deref()).ok();
    let _cgroup_lock = cgroup.as_deref().map(Lock::take).transpose()?;
    let id = cgroup.as_deref().map(cgroup::id).transpose()?.unwrap_or(0);
    removed.extend(Left::find(&pins, id)?.remove()?);
    pins.remove_above()?;
    Ok(removed)
}
