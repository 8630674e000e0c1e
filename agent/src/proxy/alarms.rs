//! hyper's timers, looked at by the worker's sweep.
//!
//! hyper's keepalive of an HTTP/2 connection wants a timer for as long as the connection lasts. One of the runtime's
//! would give every wait for the next request a timeout (`beat` says what that costs); these are looked at when
//! the worker looks around anyway. hyper also demands that any thread may poll them, so they are shared as things are
//! among threads: what each request does to one is atomic, and a lock is taken only by a new connection and the sweep.
//!
//! The time is that of the last sweep. So an alarm goes off up to one sweep late, and what is counted from the moment of
//! a request may seem up to one sweep older than it is. A ping too early is answered, and the time for its answer counts
//! from the sweep that led to it.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::task::AtomicWaker;
use hyper::rt::{Sleep, Timer};

use super::clock::{Clock, millis};

/// The alarms of one worker.
#[derive(Clone, Debug)]
pub(super) struct Alarms(Arc<Set>);

#[derive(Debug)]
struct Set {
    clock: Clock,
    /// The time of the last sweep, in milliseconds of the clock.
    now: AtomicU64,
    /// Those that were there at the last sweep, and new ones.
    all: Mutex<Vec<Weak<State>>>,
}

#[derive(Debug)]
struct State {
    /// When it goes off.
    at: AtomicU64,
    /// Whoever polled it last.
    waker: AtomicWaker,
}

impl Alarms {
    /// None yet.
    pub(super) fn new(clock: Clock, now: u64) -> Self {
        Self(Arc::new(Set { clock, now: now.into(), all: Mutex::default() }))
    }

    /// Wakes whoever waits for one whose time has come, and forgets those that are dropped.
    pub(super) fn sweep(&self, now: u64) {
        self.0.now.store(now, SeqCst);
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner).retain(|state| {
            let Some(state) = state.upgrade() else { return false };
            if state.at.load(SeqCst) <= now {
                state.waker.wake();
            }
            true
        });
    }

    fn set(&self, at: u64) -> Pin<Box<dyn Sleep>> {
        let state = Arc::new(State { at: at.into(), waker: AtomicWaker::new() });
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&state));
        Box::pin(Alarm { state, of: Arc::clone(&self.0) })
    }
}

impl Timer for Alarms {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.set(self.0.now.load(SeqCst).saturating_add(millis(duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.set(self.0.clock.at(deadline))
    }

    fn now(&self) -> Instant {
        self.0.clock.moment(self.0.now.load(SeqCst))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        if let Some(alarm) = sleep.as_mut().downcast_mut_pin::<Alarm>() {
            alarm.state.at.store(self.0.clock.at(new_deadline), SeqCst);
        } else {
            *sleep = self.sleep_until(new_deadline);
        }
    }
}

/// One of them. It may be polled again when it has gone off, and goes off again when its time is reset.
#[derive(Debug)]
struct Alarm {
    state: Arc<State>,
    of: Arc<Set>,
}

impl Sleep for Alarm {}

impl Future for Alarm {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // First, so that no sweep comes between.
        self.state.waker.register(cx.waker());
        if self.state.at.load(SeqCst) <= self.of.now.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests;
