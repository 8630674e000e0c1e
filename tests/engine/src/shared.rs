//! What an engine's handle, its accept task and its connections share: identity, behaviour, faults to come, counts.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use tokio::sync::watch;

use crate::{
    Behaviour, Connector, Fault,
    counters::{Tallies, Tick},
    handover::Leg,
    meeting::Rooms,
};

/// Most requests kept for [`Engine::recorded`](crate::Engine::recorded).
const MAX_RECORDED: usize = 1024;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Method.
    pub method: Method,
    /// Target.
    pub uri: Uri,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

/// Faults to come.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) next: VecDeque<(u32, Fault)>,
    /// The part of a fault that the rate owes: the rate is met exactly, not by chance.
    owed: f64,
}

/// What an engine's handle, its accept task and its connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) revision: String,
    pub(crate) address: SocketAddr,
    pub(crate) tallies: Arc<Tallies>,
    pub(crate) role: String,
    pub(crate) connector: Connector,
    /// Where its bootstrap server listens, if it has one.
    pub(crate) bootstrap: Option<SocketAddr>,
    pub(crate) rooms: Rooms,
    pub(crate) behaviour: watch::Sender<Arc<Behaviour>>,
    pub(crate) faults: Mutex<Faults>,
    pub(crate) recorded: Mutex<VecDeque<Recorded>>,
    pub(crate) sequence: AtomicU64,
}

impl Shared {
    pub(crate) fn behaviour(&self) -> Arc<Behaviour> {
        Arc::clone(&self.behaviour.borrow())
    }

    pub(crate) fn behaviours(&self) -> watch::Receiver<Arc<Behaviour>> {
        self.behaviour.subscribe()
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Relaxed)
    }

    pub(crate) fn record(&self, keep: usize, request: impl FnOnce() -> Recorded) {
        if keep > 0 {
            let mut recorded = lock(&self.recorded);
            recorded.push_back(request());
            while recorded.len() > keep.min(MAX_RECORDED) {
                recorded.pop_front();
            }
        }
    }

    pub(crate) fn count_leg(&self, leg: &Leg) {
        let (tick, misplaced) = match leg {
            Leg::Prefill => (Tick::Prefill, self.role == "decode"),
            Leg::Decode(_) => (Tick::Decode, self.role == "prefill"),
            Leg::Local => (Tick::Local, false),
        };
        self.tallies.add(tick, 1);
        if misplaced {
            self.tallies.add(Tick::Misplaced, 1);
        }
    }

    pub(crate) fn next_fault(&self, behaviour: &Behaviour) -> Option<Fault> {
        let mut faults = lock(&self.faults);
        let fault = if let Some((left, fault)) = faults.next.front_mut() {
            let fault = *fault;
            *left = left.saturating_sub(1);
            if *left == 0 {
                faults.next.pop_front();
            }
            Some(fault)
        } else {
            faults.owed += behaviour.fault_rate.clamp(0.0, 1.0);
            // Sums of tenths fall short of 1 by a rounding error.
            (faults.owed >= 1.0 - 1e-9).then(|| {
                faults.owed -= 1.0;
                behaviour.rate_fault
            })
        };
        drop(faults);
        if fault.is_some() {
            self.tallies.add(Tick::Faulted, 1);
        }
        fault
    }

    pub(crate) fn metrics(&self) -> String {
        let counters = self.tallies.read();
        let mut text = String::new();
        for (name, value) in [
            ("requests_total", counters.requests),
            ("prefill_total", counters.prefill),
            ("decode_total", counters.decode),
            ("local_total", counters.local),
            ("kv_revision_mismatch_total", counters.mixed),
            ("misplaced_total", counters.misplaced),
            ("faulted_total", counters.faulted),
            ("cancelled_total", counters.cancelled),
            ("connections_total", counters.connections),
        ] {
            // Writing to a string does not fail.
            let _ = writeln!(text, "# TYPE engine_{name} counter\nengine_{name} {value}");
        }
        text
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks; a poisoned one is still whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
