//! What is to be seen and is not in a snapshot: how reloads of the configuration went.
//!
//! The reloader writes, scrapes and reports read. None is on a request's path, so a mutex will do.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::report::{ConfigReport, ReloadResult};

/// How reloads of the configuration went (F5).
#[derive(Debug)]
pub struct ReloadHealth {
    path: String,
    state: Mutex<ReloadState>,
}

#[derive(Debug)]
struct ReloadState {
    in_force_since: SystemTime,
    successes: u64,
    failures: u64,
    error: Option<String>,
}

impl ReloadHealth {
    /// The configuration of `path` came into force at `now`.
    #[must_use]
    pub fn new(path: impl Into<String>, now: SystemTime) -> Self {
        let state = ReloadState { in_force_since: now, successes: 0, failures: 0, error: None };
        Self { path: path.into(), state: Mutex::new(state) }
    }

    /// A changed file came into force.
    pub fn succeeded(&self, now: SystemTime) {
        let mut state = lock(&self.state);
        state.successes = state.successes.saturating_add(1);
        state.in_force_since = now;
        state.error = None;
    }

    /// A changed file was refused; the old configuration stays.
    pub fn failed(&self, error: impl Into<String>) {
        let mut state = lock(&self.state);
        state.failures = state.failures.saturating_add(1);
        state.error = Some(error.into());
    }

    /// The file says again what is in force: nothing is wrong any more.
    pub fn undone(&self) {
        lock(&self.state).error = None;
    }

    pub(super) fn report(&self) -> ConfigReport {
        let state = lock(&self.state);
        ConfigReport {
            path: self.path.clone(),
            last_reload: match (&state.error, state.successes) {
                (Some(_), _) => ReloadResult::Failed,
                (None, 0) => ReloadResult::None,
                (None, _) => ReloadResult::Succeeded,
            },
            error: state.error.clone(),
            in_force_since: unix_seconds(state.in_force_since),
            reloads_succeeded: state.successes,
            reloads_failed: state.failures,
        }
    }
}

/// Seconds since 1970, 0 for a clock before that.
pub(super) fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_reload_shows_until_a_good_one() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let reload = ReloadHealth::new("/config.yaml", at(100));
        assert_eq!(reload.report().last_reload, ReloadResult::None);
        reload.failed("line 1: unknown field");
        reload.undone();
        assert_eq!(reload.report().last_reload, ReloadResult::None, "the bad change was taken back");
        reload.failed("line 1: unknown field");
        let report = reload.report();
        assert_eq!(report.last_reload, ReloadResult::Failed);
        assert!((report.in_force_since - 100.0).abs() < f64::EPSILON, "the old one is still in force");
        reload.succeeded(at(200));
        let report = reload.report();
        assert_eq!((report.last_reload, report.error), (ReloadResult::Succeeded, None));
        assert_eq!((report.reloads_succeeded, report.reloads_failed), (1, 2));
        assert!((report.in_force_since - 200.0).abs() < f64::EPSILON);
    }
}
