//! What an engine counts, and how a test waits for a count without sleeping.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

/// One counted thing; the index of its cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tick {
    Requests,
    Prefill,
    Decode,
    Local,
    Other,
    Mixed,
    Misplaced,
    Faulted,
    Completed,
    Cancelled,
    Connections,
    ClosedConnections,
    BytesIn,
    BytesOut,
}

const TICKS: usize = Tick::BytesOut as usize + 1;

/// What an engine has counted since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Requests whose head was read: the sum of the four kinds below once their bodies are read, plus those that
    /// broke off or were malformed.
    pub requests: u64,
    /// Prefill legs: inference requests that ask for KV to be handed on.
    pub prefill: u64,
    /// Decode legs: inference requests that have their KV from elsewhere, the refused ones included.
    pub decode: u64,
    /// Inference requests without KV transfer: those that find none in a shared storage too.
    pub local: u64,
    /// Everything else: health, models, metrics, unknown paths.
    pub other: u64,
    /// Decodes refused because their KV is of another revision.
    pub mixed: u64,
    /// Prefill legs on an engine of role `decode`, and decode legs on one of role `prefill`.
    pub misplaced: u64,
    /// Requests that met an injected fault.
    pub faulted: u64,
    /// Responses written to the end.
    pub completed: u64,
    /// Requests whose client left, or whose connection broke, before the end.
    pub cancelled: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Of those, the ones that are over.
    pub closed_connections: u64,
    /// Bytes read from connections.
    pub bytes_in: u64,
    /// Bytes written to connections.
    pub bytes_out: u64,
}

impl Counters {
    /// Connections open now.
    #[must_use]
    pub const fn open_connections(&self) -> u64 {
        self.connections.saturating_sub(self.closed_connections)
    }

    /// Requests not yet answered to the end.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.requests.saturating_sub(self.completed.saturating_add(self.cancelled))
    }
}

/// The live cells behind [`Counters`].
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    cells: [AtomicU64; TICKS],
    changed: Notify,
}

impl Tallies {
    pub(crate) fn add(&self, tick: Tick, count: u64) {
        if let Some(cell) = self.cells.get(tick as usize) {
            cell.fetch_add(count, Relaxed);
        }
        // Bytes come with every packet and nobody waits for them.
        if !matches!(tick, Tick::BytesIn | Tick::BytesOut) {
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn read(&self) -> Counters {
        let of = |tick: Tick| self.cells.get(tick as usize).map_or(0, |cell| cell.load(Relaxed));
        Counters {
            requests: of(Tick::Requests),
            prefill: of(Tick::Prefill),
            decode: of(Tick::Decode),
            local: of(Tick::Local),
            other: of(Tick::Other),
            mixed: of(Tick::Mixed),
            misplaced: of(Tick::Misplaced),
            faulted: of(Tick::Faulted),
            completed: of(Tick::Completed),
            cancelled: of(Tick::Cancelled),
            connections: of(Tick::Connections),
            closed_connections: of(Tick::ClosedConnections),
            bytes_in: of(Tick::BytesIn),
            bytes_out: of(Tick::BytesOut),
        }
    }

    pub(crate) async fn wait_until(&self, mut holds: impl FnMut(&Counters) -> bool) -> Counters {
        loop {
            // Listen before looking, so that a change between the two is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let counters = self.read();
            if holds(&counters) {
                return counters;
            }
            changed.await;
        }
    }
}
