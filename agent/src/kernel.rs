//! The kernel side: tables out of a snapshot, and the programs that read them.

pub mod pinner;

pub use pinner::Pinner;
