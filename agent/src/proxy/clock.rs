//! The proxy's clock: milliseconds since it started, the same for all workers, read here and nowhere else.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

/// Time since the proxy started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at 1, so that 0 can stand for never.
    #[expect(clippy::disallowed_methods, reason = "the proxy is an edge, and this is its one clock")]
    pub(super) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Milliseconds.
    pub(super) fn millis(self) -> u64 {
        self.micros() / 1000 + 1
    }

    /// The moment of a time in milliseconds.
    pub(super) fn moment(self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis.saturating_sub(1))
    }

    /// A moment in milliseconds, never too early.
    pub(super) fn at(self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.start).as_nanos();
        u64::try_from(since.div_ceil(1_000_000)).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// Microseconds.
    pub(super) fn micros(self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A limit, in the clock's milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A worker's coarse time in milliseconds, moved on by each of its sweeps and requests: good enough for idle times,
/// at the price of a load.
#[derive(Clone, Debug, Default)]
pub(super) struct Ticker(Rc<Cell<u64>>);

impl Ticker {
    /// The time of the last sweep or request.
    pub(super) fn now(&self) -> u64 {
        self.0.get()
    }

    /// Moves it on.
    pub(super) fn set(&self, now: u64) {
        self.0.set(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_that_of_its_moment_and_no_moment_is_before_its_time() {
        let clock = Clock::start();
        for millis in [1, 2, 500, u64::from(u32::MAX)] {
            assert_eq!(clock.at(clock.moment(millis)), millis);
            assert_eq!(clock.at(clock.moment(millis) + Duration::from_nanos(1)), millis + 1);
        }
        assert_eq!(clock.at(clock.moment(1).checked_sub(Duration::from_millis(1)).unwrap()), 1);
    }
}
