//! Load and health of one endpoint: the only state that requests share, all of it atomic.
//!
//! The breaker (H7) has three states in one word, `retry_at`:
//!
//! ```text
//! closed (0) ──`failures` in a row──> open (t) ──t passed, one request claims the probe──> open (t + open)
//!    ^                                   ^                                                      │
//!    └──────────── the probe is answered with anything below 500 ──────────────────────────────┤
//!                                        └───────────────── the probe fails ───────────────────┘
//! ```
//!
//! Claiming a probe moves `retry_at` on, so that a probe which never ends (its client left) holds nothing: the next
//! one is due by the clock. An answer's head closes the breaker, and only an answer's clean end forgets the failures,
//! so an endpoint that breaks every stream does not stay closed by its good heads. Ordering is relaxed throughout:
//! every word stands for itself, and a request that sees an old value is one request early or late.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Load and health of one endpoint. Lives as long as the endpoint's (Pod, address) does, across snapshots.
#[derive(Debug, Default)]
pub struct Vitals {
    /// Requests in flight from this agent.
    pub outstanding: AtomicU32,
    /// Failures in a row (transport errors and 5xx).
    pub failures: AtomicU32,
    /// 0: the breaker is closed. Else the time, in milliseconds of the caller's clock, of the next probe.
    retry_at: AtomicU64,
}

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breaker {
    /// Failures in a row that open it; 0: never.
    pub failures: u32,
    /// How long it stays open before one request probes the endpoint.
    pub open: Duration,
}

/// What a breaker says of one more request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Closed.
    Closed,
    /// Open, and a probe is due: whoever wants to be it calls [`Vitals::claim_probe`].
    ProbeDue,
    /// Open.
    Open,
}

impl Vitals {
    /// What the breaker says at `now`, in milliseconds.
    #[must_use]
    pub fn admission(&self, now: u64) -> Admission {
        match self.retry_at.load(Relaxed) {
            0 => Admission::Closed,
            at if now >= at => Admission::ProbeDue,
            _ => Admission::Open,
        }
    }

    /// Claims the probe that is due; `false` when another request was first.
    #[must_use]
    pub fn claim_probe(&self, now: u64, breaker: Breaker) -> bool {
        let at = self.retry_at.load(Relaxed);
        at != 0
            && now >= at
            && self.retry_at.compare_exchange(at, next_probe(now, breaker), Relaxed, Relaxed).is_ok()
    }

    /// Gives back the probe that was claimed at `now`, for another request to be it: nothing was asked of the endpoint.
    /// Does nothing if more has happened to it since, but for a failure in the same millisecond.
    pub fn unclaim_probe(&self, now: u64, breaker: Breaker) {
        let _ = self.retry_at.compare_exchange(next_probe(now, breaker), now.max(1), Relaxed, Relaxed);
    }

    /// The endpoint answered a request with a status below 500.
    pub fn answered(&self) {
        // Almost always closed already: a plain load keeps the cache line shared between workers.
        if self.retry_at.load(Relaxed) != 0 {
            self.retry_at.store(0, Relaxed);
        }
    }

    /// Such an answer came to its end.
    pub fn completed(&self) {
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// A transport error, or a status of 500 and above. True when this opened a closed breaker.
    pub fn failed(&self, now: u64, breaker: Breaker) -> bool {
        let before = self.failures.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_add(1)));
        let failures = before.unwrap_or_else(|n| n).saturating_add(1);
        if breaker.failures == 0 || failures < breaker.failures {
            return false;
        }
        self.retry_at.swap(next_probe(now, breaker), Relaxed) == 0
    }

    /// Whether the breaker is open (a probe may be due).
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.retry_at.load(Relaxed) != 0
    }
}

/// The time of the next probe; never 0, which stands for closed.
fn next_probe(now: u64, breaker: Breaker) -> u64 {
    let open = u64::try_from(breaker.open.as_millis()).unwrap_or(u64::MAX);
    now.saturating_add(open).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BREAKER: Breaker = Breaker { failures: 3, open: Duration::from_millis(100) };

    fn opened() -> Vitals {
        let vitals = Vitals::default();
        assert!(!vitals.failed(0, BREAKER));
        assert!(!vitals.failed(0, BREAKER));
        assert!(vitals.failed(0, BREAKER));
        vitals
    }

    #[test]
    fn failures_in_a_row_open_it_and_it_stays_open_until_a_probe_is_due() {
        let vitals = opened();
        assert_eq!(vitals.admission(0), Admission::Open);
        assert_eq!(vitals.admission(99), Admission::Open);
        assert_eq!(vitals.admission(100), Admission::ProbeDue);
    }

    #[test]
    fn a_completed_answer_in_between_starts_the_row_again() {
        let vitals = Vitals::default();
        for _ in 0..10 {
            vitals.failed(0, BREAKER);
            vitals.failed(0, BREAKER);
            vitals.completed();
        }
        assert_eq!(vitals.admission(0), Admission::Closed);
    }

    #[test]
    fn one_request_probes_and_a_lost_probe_is_followed_by_the_next() {
        let vitals = opened();
        assert!(vitals.claim_probe(100, BREAKER));
        assert!(!vitals.claim_probe(100, BREAKER));
        assert_eq!(vitals.admission(199), Admission::Open);
        assert!(vitals.claim_probe(200, BREAKER));
    }

    #[test]
    fn a_probe_that_is_given_back_is_due_at_once_unless_something_came_between() {
        let vitals = opened();
        assert!(vitals.claim_probe(100, BREAKER));
        vitals.unclaim_probe(100, BREAKER);
        assert!(vitals.claim_probe(100, BREAKER));
        vitals.failed(150, BREAKER);
        vitals.unclaim_probe(100, BREAKER);
        assert_eq!(vitals.admission(249), Admission::Open);
        vitals.answered();
        vitals.unclaim_probe(100, BREAKER);
        assert_eq!(vitals.admission(250), Admission::Closed);
    }

    #[test]
    fn an_answered_probe_closes_it_and_a_failed_one_keeps_it_open() {
        let vitals = opened();
        assert!(vitals.claim_probe(100, BREAKER));
        assert!(!vitals.failed(150, BREAKER), "it was open already");
        assert_eq!(vitals.admission(249), Admission::Open);
        assert!(vitals.claim_probe(250, BREAKER));
        vitals.answered();
        assert_eq!(vitals.admission(250), Admission::Closed);
    }

    #[test]
    fn good_heads_of_broken_streams_do_not_keep_it_closed() {
        let vitals = Vitals::default();
        for _ in 0..3 {
            vitals.answered();
            vitals.failed(7, BREAKER);
        }
        assert!(vitals.is_open());
    }

    #[test]
    fn without_a_limit_it_never_opens() {
        let vitals = Vitals::default();
        let never = Breaker { failures: 0, ..BREAKER };
        for _ in 0..100 {
            assert!(!vitals.failed(0, never));
        }
        assert_eq!(vitals.admission(0), Admission::Closed);
    }
}
