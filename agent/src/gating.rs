//! The pure core: from Ready counts to eligibility, weights, and a choice. No I/O, no clock, no randomness.
//!
//! [`census`] counts, [`distribution`] weighs, [`choice`] chooses; the pick itself is `revgate_common::pick`, the
//! same function that the kernel programs run.

pub mod census;
pub mod choice;
pub mod distribution;

pub use census::Census;
pub use choice::{Ask, Refusal, choose};
pub use distribution::{Distribution, Gating, RevisionShare};
