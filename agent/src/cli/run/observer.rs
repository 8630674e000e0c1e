//! What the agent says of its own work: a log line per rollout step, and readiness when the first tables are in force.

use std::sync::Arc;

use tracing::{error, info, warn};

use crate::{
    kernel::{Kernel, KernelError},
    observe::{Gate, Readiness, rollout_log},
    snapshot::{Snapshot, owner::Observer, state::Note},
};

/// Lives on the owner's thread.
pub(super) struct Teller {
    /// Held until the first snapshot is published.
    pods: Option<Gate>,
    /// Held until the first tables are in force and seen to act.
    tables: Option<Gate>,
    kernel: Option<Arc<Kernel>>,
    /// The last write failed, and that was said.
    failing: bool,
}

impl Teller {
    pub(super) fn new(readiness: &Readiness, kernel: Option<Arc<Kernel>>) -> Self {
        let pods = Some(readiness.gate("first Pod list"));
        let tables = kernel.is_some().then(|| readiness.gate("kernel tables"));
        Self { pods, tables, kernel, failing: false }
    }

    /// The first tables are written: they must also act on this process, or its pinned dials would reach nobody.
    fn prove(&mut self) {
        let (Some(kernel), true) = (&self.kernel, self.tables.is_some()) else { return };
        match kernel.probe() {
            Ok(()) => self.tables = None,
            Err(error) => error!(%error, "not ready: the kernel programs do not act"),
        }
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
        match kernel {
            Some(Ok(())) => {
                if std::mem::take(&mut self.failing) {
                    info!(generation = now.generation, "the kernel tables are in step again");
                }
                self.prove();
            }
            Some(Err(error)) if !self.failing => {
                self.failing = true;
                error!(%error, generation = now.generation, "the kernel keeps its last tables; trying again");
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
