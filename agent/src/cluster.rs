//! Where Pods come from: a source turns what it reads into [`Change`]s, and never looks back.
//!
//! [`pod`] is a Pod reduced to the fields that decide anything, [`manifest`] the Kubernetes object that it is made
//! from; [`member`] says what it is to a set (a pure function). [`mod@file`] is the embedded source: it reads what
//! [`list`] parses whenever [`files`] says that the file changed. [`api`] watches the Kubernetes API. [`cgroups`] finds
//! the cgroups of local Pods, which [`identity`] tells by their paths. What Pods have in common both sources keep once,
//! by `intern`.

pub mod api;
pub mod cgroups;
pub mod file;
pub mod files;
pub mod identity;
mod intern;
pub mod list;
pub mod manifest;
pub mod member;
pub mod pod;
pub mod service;

use std::sync::Arc;

pub use pod::{Cgroup, Pod, PodCgroups, PodKey};
pub use service::{ObjectName, Service, ServicePort};

use crate::config::Config;

/// What a source says to the owner of the state.
#[derive(Clone, Debug)]
pub enum Change {
    /// A whole list: after it the state equals the list exactly. The first one ends "no Pod list yet".
    Replace(Vec<Arc<Pod>>),
    /// One Pod appeared or changed.
    Upsert(Arc<Pod>),
    /// One Pod is gone. The UID decides: a late delete does not touch a successor of the same name.
    Remove(PodKey),
    /// A Service that a VIP names, as it is now; none: there is no such Service.
    Service(ObjectName, Option<Service>),
    /// The target ports of an InferencePool that a set names; none: there is no such pool.
    Pool(ObjectName, Option<Vec<u16>>),
    /// The cgroups of every Pod that has one on this machine.
    Cgroups(PodCgroups),
    /// From now on this is the configuration. It comes from the source, which alone knows when the Pods are those of it.
    Config(Arc<Config>),
    /// All of these at one moment: nothing is published in between.
    Together(Vec<Change>),
}
