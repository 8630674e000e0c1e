//! A real Kubernetes for tests: etcd and an API server on loopback, or a whole node in namespaces of its own.
//!
//! The programs are those that `tests/cluster/build` makes. Every process is a child of the test, ended and waited for
//! by its pid.

pub mod control_plane;
pub mod http;
pub mod kubectl;
pub mod node;
pub mod process;
pub mod tools;
