//! Tells what the owner of the state does: rollout steps to the log (O4), and readiness (C9).
//!
//! The agent is ready once the first list has been applied and the kernel tables of it are in force. It stays so
//! when a later write fails: the tables before it are still in force, and the failure is said, once.

use std::sync::Arc;

use tracing::{info, warn};

use super::{Gate, Readiness, rollout_log};
use crate::{
    kernel::KernelError,
    snapshot::{Snapshot, owner::Observer, state::Note},
};

/// Hears of every publication.
#[derive(Debug)]
pub struct Narrator {
    first_list: Option<Gate>,
    first_tables: Option<Gate>,
    kernel_trouble: Option<String>,
}

impl Narrator {
    /// Holds readiness until the first list, and with a kernel until its tables.
    #[must_use]
    pub fn new(readiness: &Readiness, kernel: bool) -> Self {
        Self {
            first_list: Some(readiness.gate("the first Pod list")),
            first_tables: kernel.then(|| readiness.gate("the kernel tables")),
            kernel_trouble: None,
        }
    }

    fn kernel(&mut self, generation: u64, written: &Result<(), KernelError>) {
        match written {
            Ok(()) => {
                self.first_tables = None;
                if self.kernel_trouble.take().is_some() {
                    info!(generation, "the kernel tables are written again");
                }
            }
            Err(error) => {
                let error = error.to_string();
                // Every retry fails alike; one line for each kind of failure is enough.
                if self.kernel_trouble.as_ref() != Some(&error) {
                    warn!(generation, %error, "cannot write the kernel tables; those before stay in force; trying again");
                    self.kernel_trouble = Some(error);
                }
            }
        }
    }
}

impl Observer for Narrator {
    fn published(
        &mut self,
        before: &Snapshot,
        now: &Arc<Snapshot>,
        kernel: Option<&Result<(), KernelError>>,
    ) {
        rollout_log::log(&rollout_log::steps(before, now));
        if let Some(written) = kernel {
            self.kernel(now.generation, written);
        }
        if now.synced {
            self.first_list = None;
        }
    }

    fn noted(&mut self, note: Note) {
        match note {
            Note::Pod { pod, warning } => {
                warn!(pod = format!("{}/{}", pod.namespace, pod.name), "{warning}");
            }
            Note::Crowded { set, revisions, endpoints } => warn!(
                %set,
                revisions = revisions.join(", "),
                endpoints,
                "the set has more than its table can hold; these revisions and this many endpoints get no traffic"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::testing::snapshot;

    fn unsynced() -> Snapshot {
        Snapshot { synced: false, ..snapshot(0, vec![]) }
    }

    #[test]
    fn with_a_kernel_the_agent_is_ready_once_list_and_tables_are_in_force() {
        let readiness = Readiness::default();
        let mut narrator = Narrator::new(&readiness, true);
        assert_eq!(
            readiness.reasons(),
            ["waiting for: the first Pod list", "waiting for: the kernel tables"]
        );
        narrator.published(&unsynced(), &Arc::new(snapshot(1, vec![])), Some(&Ok(())));
        assert!(readiness.is_ready());
    }

    #[test]
    fn in_user_space_the_first_list_is_enough_and_nothing_less() {
        let readiness = Readiness::default();
        let mut narrator = Narrator::new(&readiness, false);
        narrator.published(&unsynced(), &Arc::new(unsynced()), None);
        assert_eq!(readiness.reasons(), ["waiting for: the first Pod list"]);
        narrator.published(&unsynced(), &Arc::new(snapshot(1, vec![])), None);
        assert!(readiness.is_ready());
    }
}
