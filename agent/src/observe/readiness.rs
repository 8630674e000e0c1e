//! Readiness as values that are held and dropped.
//!
//! Whoever must finish something before the agent may be called ready holds a [`Gate`] with its name, and drops it
//! when done. An error path that forgets about readiness drops nothing early: the gate lives in the task that does
//! the work, so the agent stays unready exactly as long as the work is unfinished.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Whether the agent is ready, and why not. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// In the order they were asked for; a released gate stays, so that verbose output can show it.
    gates: Vec<(String, bool)>,
    draining: Option<String>,
}

/// Keeps the agent unready until it is dropped.
#[must_use = "dropping a gate at once says that its work is done"]
pub struct Gate {
    readiness: Readiness,
    index: usize,
}

impl Readiness {
    /// A new gate. `name` says what is awaited, as in "first Pod list".
    pub fn gate(&self, name: impl Into<String>) -> Gate {
        let mut state = self.state();
        state.gates.push((name.into(), false));
        Gate { readiness: self.clone(), index: state.gates.len() - 1 }
    }

    /// From now on unready, for this reason, for good.
    pub fn drain(&self, reason: impl Into<String>) {
        self.state().draining = Some(reason.into());
    }

    /// Every gate is released, and nothing drains.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let state = self.state();
        state.draining.is_none() && state.gates.iter().all(|(_, passed)| *passed)
    }

    /// Why the agent is not ready; empty when it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let state = self.state();
        let draining = state.draining.iter().map(|reason| format!("draining: {reason}"));
        let waiting = state.gates.iter().filter(|(_, passed)| !passed);
        draining.chain(waiting.map(|(name, _)| format!("waiting for: {name}"))).collect()
    }

    /// Every gate with whether it has been passed, in the order they were asked for.
    #[must_use]
    pub fn gates(&self) -> Vec<(String, bool)> {
        self.state().gates.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Some((_, passed)) = self.readiness.state().gates.get_mut(self.index) {
            *passed = true;
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("index", &self.index).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ready_when_every_gate_is_dropped() {
        let readiness = Readiness::default();
        let pods = readiness.gate("first Pod list");
        let tables = readiness.gate("kernel tables");
        assert_eq!(readiness.reasons(), ["waiting for: first Pod list", "waiting for: kernel tables"]);
        drop(pods);
        assert!(!readiness.is_ready());
        assert_eq!(readiness.reasons(), ["waiting for: kernel tables"]);
        drop(tables);
        assert!(readiness.is_ready());
        assert!(readiness.reasons().is_empty());
        assert_eq!(readiness.gates(), [("first Pod list".into(), true), ("kernel tables".into(), true)]);
    }

    #[test]
    fn a_draining_agent_is_unready_with_its_reason() {
        let readiness = Readiness::default();
        assert!(readiness.is_ready(), "with no gate there is nothing to wait for");
        readiness.clone().drain("SIGTERM");
        assert!(!readiness.is_ready());
        assert_eq!(readiness.reasons(), ["draining: SIGTERM"]);
    }
}
