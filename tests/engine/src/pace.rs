//! Turns, dealt out evenly in time to whoever waits for one: how the engines of a benchmark make their tokens.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use crate::EngineError;

/// The clock that all processes of the machine have in common, nanoseconds.
#[must_use]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)).unwrap_or(0)
}

/// Deals out so many turns a second in all, in the order in which they are asked for: with more streams each has fewer
/// tokens, and a proxy before them as much to do.
#[derive(Clone, Debug)]
pub struct Pace {
    asked: mpsc::Sender<oneshot::Sender<()>>,
}

impl Pace {
    /// Begins. It ends with the last clone.
    pub fn new(rate: u32) -> Result<Self, EngineError> {
        let (asked, queue) = mpsc::channel();
        let step = Duration::from_secs(1) / rate.max(1);
        // A thread, because the timers of a runtime tick in milliseconds.
        drop(
            thread::Builder::new()
                .name("pace".to_owned())
                .spawn(move || deal(&queue, step))
                .map_err(EngineError::Thread)?,
        );
        Ok(Self { asked })
    }

    /// Waits for a turn. One that is no longer waited for goes to the next.
    pub(crate) async fn turn(&self) {
        let (deal, dealt) = oneshot::channel();
        // The thread lives as long as this does.
        let _ = self.asked.send(deal);
        let _ = dealt.await;
    }
}

#[expect(clippy::disallowed_methods, reason = "this is a clock")]
fn deal(queue: &mpsc::Receiver<oneshot::Sender<()>>, step: Duration) {
    let mut next = Instant::now();
    for asked in queue {
        if asked.is_closed() {
            continue;
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
        if asked.send(()).is_ok() {
            // What was late is made up for, but never by two at a time.
            next = (next + step).max(Instant::now() + step / 2);
        }
    }
}
