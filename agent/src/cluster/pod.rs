//! A Pod, reduced to the fields that decide anything.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

/// Labels by key.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// The identity of a Pod: namespace, name and UID.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PodKey {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// UID; a source without UIDs (the short form of the file source) derives a stable one.
    pub uid: Arc<str>,
}

/// A named container port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContainerPort {
    /// The port's name, where it has one.
    pub name: Option<Arc<str>>,
    /// The port's number.
    pub number: u16,
}

/// A Pod's cgroup on this node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cgroup {
    /// The cgroup id: the inode of its directory in cgroup2.
    pub id: u64,
    /// How many directories below the cgroup2 root it is; 1 for a child of the root.
    pub level: u32,
}

/// A Pod as its source showed it last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pod {
    /// Who it is.
    pub key: PodKey,
    /// Its addresses, the primary one first; empty while it has none.
    pub ips: Vec<IpAddr>,
    /// The node that it runs on, once scheduled.
    pub node: Option<Arc<str>>,
    /// Labels.
    pub labels: Labels,
    /// The raw value of the active-ports annotation, where set.
    pub active_ports: Option<Arc<str>>,
    /// Condition `Ready` is `True`.
    pub ready: bool,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// The Pod uses its node's network, so its address is not its own.
    pub host_network: bool,
    /// `metadata.creationTimestamp` in seconds since the epoch, 0 where unknown. Breaks ties of ownership.
    pub created: i64,
    /// Declared container ports, in order.
    pub ports: Vec<ContainerPort>,
    /// Its cgroup, where it runs on this node and the cgroup is known.
    pub cgroup: Option<Cgroup>,
}

impl Pod {
    /// Ready as the gating counts it: condition `Ready`, and not terminating.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready && !self.terminating
    }
}
