//! A real Kubernetes for tests: etcd and an API server on loopback, or a whole node in namespaces of its own.
//!
//! The programs are those that `tests/cluster/build` makes. Every process is a child of the test, ended and waited for
//! by its pid.

pub mod api;
pub mod control_plane;
pub mod deployed;
pub mod http;
pub mod kubectl;
pub mod node;
pub mod pods;
pub mod process;
pub mod relay;
pub mod tools;
pub mod watcher;
pub mod workload;

use std::path::PathBuf;

/// Where `make image` puts images.
#[must_use]
pub fn images() -> PathBuf {
    tools::repository().join("target/images")
}
