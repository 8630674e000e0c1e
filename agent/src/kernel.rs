//! The kernel side: tables out of a snapshot, and the programs that read them.

pub mod pinner;

pub use pinner::Pinner;

use crate::snapshot::Snapshot;

/// Puts a snapshot's tables in force. Called by the one owner of the state; may block for an RCU grace period.
pub trait Publish: Send {
    /// Writes what changed since the last call; on an error, the next call writes it again.
    fn publish(&mut self, snapshot: &Snapshot) -> Result<(), KernelError>;
}

/// What went wrong on the way to the kernel.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {}
