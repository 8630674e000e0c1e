//! Who a process on this node is: of which Pod, of which revision (K2, K10). Pure.
//!
//! A Pod that leaves the API may run on: `kubectl delete --force` and the garbage collector of Pods ask no kubelet. Its
//! processes stay members for as long as its cgroup is there, or they would be strangers, whom no fence holds back.

use std::{collections::BTreeMap, sync::Arc};

use super::SourceView;
use crate::cluster::{Cgroup, Pod, PodCgroups};

/// Where the Pods of this node are (K10).
#[derive(Clone, Copy)]
pub(super) struct Locals<'s> {
    /// The agent's own node, where it was told.
    pub(super) node: Option<&'s Arc<str>>,
    /// The cgroups that this machine has.
    pub(super) cgroups: &'s PodCgroups,
}

impl<'s> Locals<'s> {
    /// Whether a Pod may be one of this node's: no node is known to be another. A mirror is of the node that it says,
    /// where that is this one: its UID is only written in it.
    pub(super) fn may_have(&self, pod: &Pod) -> bool {
        if pod.static_uid.is_some() {
            return self.node.is_some() && self.node == pod.node.as_ref();
        }
        self.node.is_none() || pod.node.is_none() || self.node == pod.node.as_ref()
    }

    /// The cgroups of a Pod, if it is here: that which its source names, or those that carry its UID.
    pub(super) fn of(&self, pod: &'s Pod) -> impl Iterator<Item = Cgroup> + use<'s> {
        let known = self.may_have(pod).then(|| self.cgroups.get(pod.cgroup_uid())).flatten();
        pod.cgroup.into_iter().chain(known.filter(|_| pod.cgroup.is_none()).into_iter().flatten().copied())
    }
}

/// Pods that left the API before their cgroups went, by the UID in those and their own: that of a static Pod may have
/// had several mirrors.
#[derive(Debug, Default)]
pub(super) struct Departed(BTreeMap<(Arc<str>, Arc<str>), Arc<Pod>>);

impl Departed {
    /// A Pod has left. One whose cgroup its source named is not kept: nobody would tell when that is gone.
    pub(super) fn leave(&mut self, pod: Arc<Pod>, locals: Locals<'_>) {
        let is_here = locals.may_have(&pod) && locals.cgroups.contains_key(pod.cgroup_uid());
        if is_here && pod.cgroup.is_none() {
            self.0.insert(name_of(&pod), pod);
        }
    }

    /// A Pod is there, again perhaps.
    pub(super) fn come(&mut self, pod: &Pod) {
        if !self.0.is_empty() {
            self.0.remove(&name_of(pod));
        }
    }

    /// Forgets those whose cgroups are gone.
    pub(super) fn keep(&mut self, cgroups: &PodCgroups) {
        self.0.retain(|(uid, _), _| cgroups.contains_key(uid));
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.0.values()
    }
}

fn name_of(pod: &Pod) -> (Arc<str>, Arc<str>) {
    (pod.cgroup_uid().into(), Arc::clone(&pod.key.uid))
}

/// One source per cgroup. A Pod that is a member of two sets dials as a member of the first. Of two Pods that claim one
/// cgroup as different revisions, at most one tells the truth: the process is of neither.
pub(super) fn unique(mut sources: Vec<SourceView>) -> Vec<SourceView> {
    sources.sort_by(|a, b| (a.cgroup.id, a.set, &a.pod).cmp(&(b.cgroup.id, b.set, &b.pod)));
    sources.dedup_by(|next, first| {
        let same = next.cgroup.id == first.cgroup.id;
        let tenant = |source: &SourceView| (source.set, source.slot, source.epoch);
        if same && next.pod != first.pod && tenant(next) != tenant(first) {
            first.epoch = 0;
        }
        same
    });
    sources
}
