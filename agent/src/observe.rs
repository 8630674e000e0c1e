//! What people and machines see: the report, metrics, the admin server, logs.
//!
//! Everything is derived when it is asked for: a [`Scene`] holds the published snapshot and the few facts that are
//! not in it, and [`Report`] and the metrics are views of it at one moment. So nothing has to be kept in step, and
//! what has vanished from the snapshot has vanished from every view.

pub mod admin;
pub mod denied_log;
pub mod exposition;
pub mod facts;
pub mod kernel;
pub mod log;
pub mod metrics;
pub mod process;
pub mod readiness;
pub mod report;
pub mod rollout_log;
pub mod scene;
pub mod source;
#[cfg(test)]
pub(crate) mod testing;
pub mod vip_log;

pub use kernel::{KernelReader, KernelReading};
pub use readiness::{Gate, Readiness};
pub use report::Report;
pub use scene::Scene;
pub use source::SourceHealth;
