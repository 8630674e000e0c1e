//! The one task that owns the state: drains what is queued, builds one snapshot, hands it to the kernel, publishes.
//!
//! It runs on a thread of its own, because a kernel swap waits for an RCU grace period (about 8 ms). The first
//! change after a quiet time is published at once; in a burst one publication serves all that came in
//! [`COALESCE`]. The kernel is written before readers see a snapshot, so that what they choose is already allowed.
//! Nothing at all is published before the first list: an agent that starts leaves the tables of the one before it.

use std::{io, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::{sync::mpsc, time::Instant};

use super::{
    Snapshot,
    state::{Note, State},
};
use crate::{
    cluster::Change,
    kernel::{KernelError, Publish},
};

/// The current snapshot, for readers: `published.load()` is one atomic load and no lock.
pub type Published = Arc<ArcSwap<Snapshot>>;

/// The shortest time between two publications.
pub const COALESCE: Duration = Duration::from_millis(50);

/// How long after a failed kernel write the next try comes.
const KERNEL_RETRY: Duration = Duration::from_secs(1);

/// Most changes applied between two looks at the clock, so that a flood cannot hold back a publication.
const BATCH: usize = 4096;

/// What the owner tells of its work; called on its thread, between publications.
pub trait Observer: Send {
    /// A snapshot was published after `before`. `kernel` is how its tables were written, where there is a kernel.
    fn published(&mut self, before: &Snapshot, now: &Arc<Snapshot>, kernel: Option<&Result<(), KernelError>>);
    /// Something that a person should hear about.
    fn noted(&mut self, note: Note);
}

/// The owner's inputs and outputs.
pub struct Owner {
    /// The state, as restored.
    pub state: State,
    /// Where snapshots go.
    pub published: Published,
    /// Where tables go; `None` in user space (K12).
    pub kernel: Option<Box<dyn Publish>>,
    /// Who hears of it.
    pub observer: Box<dyn Observer>,
    /// Pods, and the configurations that they are to be seen by.
    pub changes: mpsc::Receiver<Change>,
}

impl Owner {
    /// [`Owner::run`] on the calling thread. The only error is a runtime that cannot be made.
    pub fn run_blocking(self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        runtime.block_on(self.run());
        Ok(())
    }

    /// Runs until its input is closed.
    pub async fn run(mut self) {
        let mut not_before = Instant::now();
        let mut kernel_behind = false;
        // Never due without a kernel.
        let renew_every = self.kernel.as_ref().map_or(KERNEL_RETRY, |kernel| kernel.renew_every());
        let mut renew_at = Instant::now() + renew_every;
        loop {
            let due = self.state.has_news() || kernel_behind;
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(not_before), if due => {
                    // Counted from the start: what comes in meanwhile waits for the rest of it, not for more.
                    let start = Instant::now();
                    kernel_behind = !self.publish();
                    not_before = start + if kernel_behind { KERNEL_RETRY } else { COALESCE };
                }
                () = tokio::time::sleep_until(renew_at), if self.kernel.is_some() => {
                    self.renew();
                    renew_at = Instant::now() + renew_every;
                }
                change = self.changes.recv() => {
                    let Some(change) = change else { break };
                    self.take(change);
                    if kernel_behind && self.state.has_news() {
                        // News does not wait for the retry of an older failure.
                        not_before = not_before.min(Instant::now() + COALESCE);
                    }
                }
            }
        }
        // The last news, once: nobody is left to wait for a kernel that refuses it.
        if self.state.has_news() {
            self.publish();
        }
    }

    /// Applies a change and those that wait behind it.
    fn take(&mut self, change: Change) {
        self.state.apply(change);
        for _ in 1..BATCH {
            let Ok(change) = self.changes.try_recv() else { break };
            self.state.apply(change);
        }
    }

    /// Tells the kernel that the agent lives, from the thread that keeps its tables: one that hangs gives no sign.
    fn renew(&mut self) {
        if let Some(Err(error)) = self.kernel.as_mut().map(|kernel| kernel.renew()) {
            tracing::warn!(%error, "the lease of the kernel tables was not renewed");
        }
    }

    /// Builds, writes, publishes. `false` when the kernel tables could not be written.
    fn publish(&mut self) -> bool {
        let snapshot = Arc::new(self.state.build());
        let written = self.kernel.as_mut().map(|kernel| kernel.publish(&snapshot));
        let before = self.published.swap(Arc::clone(&snapshot));
        for note in self.state.take_notes() {
            self.observer.noted(note);
        }
        self.observer.published(&before, &snapshot, written.as_ref());
        written.is_none_or(|result| result.is_ok())
    }
}
