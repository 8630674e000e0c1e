//! revgate: keeps both phases of every disaggregated LLM request on one revision.
//!
//! The modules follow the flow of the data:
//!
//! ```text
//! config ─┐
//! cluster ┴─> snapshot (one owner, applies changes, asks gating) ──┬──> kernel   eBPF maps, swapped as one
//!                                                                  ├──> proxy    role listeners
//!                                                                  └──> observe  status, metrics
//! ```
//!
//! [`gating`] is the pure core. [`cli`] has one file per command.

pub mod cli;
pub mod cluster;
pub mod config;
pub mod extproc;
pub mod fatal;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod gathered;
pub mod gating;
pub mod kernel;
pub mod observe;
pub mod proxy;
pub mod rollout;
pub mod snapshot;
