//! The writer as the agent has it: what comes with a publication besides the tables.
//!
//! After the first one the programs go into links that an agent of another layout left: see
//! [`takeover`](super::takeover).
//!
//! The lease is a moment in the kernel until which the tables count as current. Each publication and each sign of
//! life moves it on; once it has passed, VIPs that are set so deny. It is a word in a pinned map, so it runs out
//! whichever way the agent ends, and an agent that restarts within it changes nothing.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use revgate_common::layout::map;
use rustix::time::{ClockId, clock_gettime};

use super::{KernelError, Publish, reader::Shared, sys::Map, takeover::Takeover, writer::Writer};
use crate::snapshot::Snapshot;

/// A lease outlasts two renewals that come late or fail.
const RENEWALS_PER_LEASE: u32 = 3;

/// Publishes and keeps the lease.
pub(super) struct Keeper {
    writer: Writer,
    shared: Arc<Shared>,
    map: Map<u32, u64>,
    lease: Duration,
    /// What is still to be done once the tables are in force.
    takeover: Option<Arc<Takeover>>,
    /// The tables in the kernel are this agent's.
    published: bool,
}

impl Keeper {
    pub(super) fn new(
        writer: Writer,
        shared: Arc<Shared>,
        lease: Duration,
        takeover: Option<Arc<Takeover>>,
    ) -> Result<Self, KernelError> {
        let map = shared.pins.map_of(map::LEASE)?;
        Ok(Self { writer, shared, map, lease, takeover, published: false })
    }
}

impl Publish for Keeper {
    fn publish(&mut self, snapshot: &Snapshot) -> Result<(), KernelError> {
        self.writer.publish(snapshot)?;
        self.published = true;
        // First, so that no VIP denies when the programs come.
        self.renew()?;
        if let Some(takeover) = &self.takeover {
            takeover.run()?;
            tracing::info!("the programs of the agent before are replaced, and its tables removed");
            self.takeover = None;
            self.shared.takeover_pending.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    fn renew(&mut self) -> Result<(), KernelError> {
        if !self.published {
            return Ok(());
        }
        self.map
            .update(&0, &end_of(self.lease))
            .map_err(|source| KernelError::Write { table: map::LEASE, source })
    }

    fn renew_every(&self) -> Duration {
        self.lease / RENEWALS_PER_LEASE
    }
}

/// The end of a lease that begins now, by the clock that the programs read.
fn end_of(lease: Duration) -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    u64::try_from((now + lease).as_nanos()).unwrap_or(u64::MAX)
}
