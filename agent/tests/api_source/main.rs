//! The Kubernetes API as the source of Pods (C1 to C10), against an API server that does what it is told, faults
//! included.
#![cfg(test)]

mod cases;
mod faults;
mod frontends;
mod process;
mod rig;
mod scale;
mod server;
