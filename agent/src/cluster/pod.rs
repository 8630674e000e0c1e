//! A Pod, reduced to the fields that decide anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

/// Labels by key. A sorted slice: most Pods have few, and there are many Pods.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Labels(Box<[(Arc<str>, Arc<str>)]>);

impl Labels {
    /// The value of a label.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        let at = self.0.binary_search_by(|(known, _)| known.as_ref().cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// Each key with its value.
    pub fn iter(&self) -> impl Iterator<Item = &(Arc<str>, Arc<str>)> {
        self.0.iter()
    }

    /// Every string, to be replaced by an equal one.
    pub(super) fn strings(&mut self) -> impl Iterator<Item = &mut Arc<str>> {
        self.0.iter_mut().flat_map(|(key, value)| [key, value])
    }
}

/// Of labels with one key the last counts.
impl FromIterator<(Arc<str>, Arc<str>)> for Labels {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Arc<str>)>>(labels: I) -> Self {
        Self(labels.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
    }
}

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

/// Runtime classes with one of these in their name run Pods in a virtual machine or on gVisor.
const OWN_KERNEL: [&str; 5] = ["kata", "gvisor", "runsc", "firecracker", "kuasar"];

/// A Pod's cgroup on this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cgroup {
    /// The cgroup id: the inode of its directory in cgroup2.
    pub id: u64,
    /// How many directories below the cgroup2 root it is; 1 for a child of the root.
    pub level: u32,
}

/// The cgroups of Pods, by the UID by which the kubelet knows them. One each, but for layouts that have more.
pub type PodCgroups = BTreeMap<Arc<str>, BTreeSet<Cgroup>>;

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
    /// Its cgroup, where the source names it.
    pub cgroup: Option<Cgroup>,
    /// The UID by which the kubelet knows it, where that is another: of a static Pod, which the API shows as a mirror.
    pub static_uid: Option<Arc<str>>,
    /// `spec.runtimeClassName`, where set.
    pub runtime_class: Option<Arc<str>>,
}

impl Pod {
    /// One of which nothing but its identity is known.
    #[must_use]
    pub fn new(key: PodKey) -> Self {
        Self {
            key,
            ips: Vec::new(),
            node: None,
            labels: Labels::default(),
            active_ports: None,
            ready: false,
            terminating: false,
            host_network: false,
            created: 0,
            ports: Vec::new(),
            cgroup: None,
            static_uid: None,
            runtime_class: None,
        }
    }

    /// Ready as the gating counts it: condition `Ready`, and not terminating.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready && !self.terminating
    }

    /// The UID in the name of its cgroup.
    #[must_use]
    pub fn cgroup_uid(&self) -> &str {
        self.static_uid.as_ref().unwrap_or(&self.key.uid)
    }

    /// The runtime class by whose name the Pod has a kernel or a network stack of its own, so that its connects never
    /// reach the hooks (K10). What a class really runs stands in an object that the agent has no right to read.
    #[must_use]
    pub fn own_kernel(&self) -> Option<&str> {
        let class = self.runtime_class.as_deref()?;
        OWN_KERNEL.iter().any(|part| class.contains(part)).then_some(class)
    }
}
