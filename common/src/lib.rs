//! What user space and the kernel programs must agree on, defined once.
//!
//! - [`layout`]: the maps: names, keys, values, sizes.
//! - [`pick`]: the one function from weights and a draw to a revision, and from a draw to an endpoint.
//! - [`address`]: the one place where addresses and ports change byte order.
//! - [`decide`]: the one function from a connect to its fate.
//! - [`endpoints`]: how the maps hold endpoints.
//! - [`counter`]: the outcomes that the kernel programs count.
//! - [`twin`]: how the tests ask the kernel for a decision.
//!
//! Everything here is `no_std`, free of I/O, clocks and randomness, and compiles for the BPF target.
#![no_std]
#![expect(
    clippy::inline_always,
    reason = "the verifier sees one flat program; calls on the connect path cost and confuse it"
)]

pub mod address;
pub mod counter;
pub mod decide;
pub mod endpoints;
pub mod layout;
pub mod pick;
pub mod twin;
