//! What the agent says of its own work: a log line per rollout step, and readiness when the first tables are in force.

use std::sync::Arc;

use tracing::{error, info, warn};

use crate::{
    kernel::KernelError,
    observe::{Gate, Readiness, rollout_log, vip_log},
    snapshot::{Snapshot, owner::Observer, state::Note},
};

/// Lives on the owner's thread.
pub(super) struct Teller {
    /// Held until the first snapshot is published.
    pods: Option<Gate>,
    /// Held until the first tables are in force and seen to act.
    tables: Option<Gate>,
    /// The last write failed, and that was said.
    failing: bool,
}

impl Teller {
    pub(super) fn new(readiness: &Readiness, kernel: bool) -> Self {
        let pods = Some(readiness.gate("first Pod list"));
        let tables = kernel.then(|| readiness.gate("kernel tables"));
        Self { pods, tables, failing: false }
    }
}

impl Observer for Teller {
    fn published(
        &mut self,
        before: &Snapshot,
        now: &Arc<Snapshot>,
        kernel: Option<&Result<(), KernelError>>,
    ) {
        rollout_log::log(&rollout_log::steps(before, now));
        vip_log::log(&vip_log::changes(before, now));
        match kernel {
            Some(Ok(())) => {
                if std::mem::take(&mut self.failing) {
                    info!(generation = now.generation, "the kernel tables are in step again");
                }
                self.tables = None;
            }
            Some(Err(error)) if !self.failing => {
                self.failing = true;
                error!(%error, generation = now.generation, "the kernel is behind; trying again");
            }
            Some(Err(_)) | None => {}
        }
        self.pods = None;
    }

    fn noted(&mut self, note: Note) {
        match note {
            Note::Pod { pod, warning } => {
                warn!(namespace = %pod.namespace, pod = %pod.name, uid = %pod.uid, "{warning}");
            }
            Note::Crowded { set, revisions, endpoints } => error!(
                %set,
                revisions = %revisions.join(", "),
                endpoints,
                "beyond the limits of a set's table: these revisions and that many endpoints get no traffic"
            ),
        }
    }
}
