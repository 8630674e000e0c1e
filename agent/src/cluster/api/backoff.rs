//! How long to wait before the next try. Pure: the draw is an argument.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(200);
/// The longest wait, but for the draw on what a server asks for.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// Twice as long after each failure, up to a bound, and between half of that and the whole of it: agents that lost one
/// server at one moment come back to it at different ones.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It works.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The time after one more failure; `draw` is from 0 to 1. A server that says when to come back is heard.
    pub(super) fn next(&mut self, draw: f64, retry_after: Option<Duration>) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let wait = longest.mul_f64(0.5 + draw / 2.0);
        wait.max(retry_after.unwrap_or_default().min(LONGEST).mul_f64(1.0 + draw / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_a_bound_and_starts_again() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..10).map(|_| backoff.next(1.0, None).as_millis()).collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        backoff.reset();
        assert_eq!(backoff.next(0.0, None), Duration::from_millis(100));
    }

    #[test]
    fn a_server_that_says_when_is_heard_within_the_bound() {
        let wait = |seconds| Backoff::default().next(0.0, Some(Duration::from_secs(seconds)));
        assert_eq!([wait(5), wait(3600)], [Duration::from_secs(5), LONGEST]);
    }
}
