//! What the end-to-end tests share.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "this crate is part of tests: what fails here fails the test, and says where"
)]

pub mod agent;
pub mod cluster;
pub mod dial;
pub mod echo;
pub mod envoy;
pub mod foreign;
pub mod kubelet;
pub mod load;
pub mod node;
pub mod random;
pub mod require;
pub mod shadow;
pub mod wait;
pub mod world;
