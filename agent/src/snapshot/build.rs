//! One set's view, out of the Pods that are its members (pure).

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use revgate_common::layout::MAX_ENDPOINTS;

use super::{
    Endpoint, RevisionView, SourceView, Vitals,
    slots::{Epochs, Slots, Tenancy},
    sources::Locals,
    state::{EndpointKey, Entry},
};
use crate::{
    cluster::{Cgroup, Pod, PodKey, member, member::Member},
    config::SetConfig,
    gating::{Census, Gating},
};

/// Who owns each address: the Pod that became Ready with it last (C2).
///
/// A Pod on its node's network owns its endpoints only, not the node's address.
pub(super) struct Owners<'s> {
    by_ip: HashMap<IpAddr, &'s Entry>,
    by_endpoint: HashMap<SocketAddr, &'s Entry>,
}

impl<'s> Owners<'s> {
    pub(super) fn of(entries: impl Iterator<Item = &'s Entry>) -> Self {
        let mut owners =
            Self { by_ip: HashMap::with_capacity(entries.size_hint().0), by_endpoint: HashMap::new() };
        for entry in entries {
            if entry.pod.host_network {
                for endpoint in entry.members.iter().flatten().flat_map(|m| &m.endpoints) {
                    claim(owners.by_endpoint.entry(*endpoint), entry);
                }
            } else {
                for ip in &entry.pod.ips {
                    claim(owners.by_ip.entry(*ip), entry);
                }
            }
        }
        owners
    }

    fn owns(&self, entry: &Entry, endpoint: SocketAddr) -> bool {
        let owner = if entry.pod.host_network {
            self.by_endpoint.get(&endpoint)
        } else {
            self.by_ip.get(&endpoint.ip())
        };
        owner.is_some_and(|owner| owner.pod.key == entry.pod.key)
    }

    /// Its addresses are its own (for a Pod on its node's network there is nothing to own).
    fn owns_addresses(&self, entry: &Entry) -> bool {
        entry.pod.host_network
            || entry
                .pod
                .ips
                .iter()
                .all(|ip| self.by_ip.get(ip).is_some_and(|owner| owner.pod.key == entry.pod.key))
    }
}

fn claim<'s, K>(place: std::collections::hash_map::Entry<'_, K, &'s Entry>, claimant: &'s Entry) {
    place
        .and_modify(|owner| {
            if precedence(claimant, owner) == Ordering::Greater {
                *owner = claimant;
            }
        })
        .or_insert(claimant);
}

/// Ready before not Ready, then who became so last; the creation time and the identity decide in a first list.
fn precedence(a: &Entry, b: &Entry) -> Ordering {
    let rank = |e: &Entry| (e.pod.is_ready(), e.since, e.pod.created);
    rank(a).cmp(&rank(b)).then_with(|| a.pod.key.cmp(&b.pod.key))
}

/// What a set's Pods come to.
pub(super) struct BuiltSet {
    pub(super) census: Census,
    pub(super) gating: Gating,
    pub(super) revisions: Vec<RevisionView>,
    pub(super) sources: Vec<SourceView>,
    pub(super) left_out: Vec<RevisionView>,
    pub(super) endpoints_left_out: usize,
}

/// Nobody's tenancy.
const NONE: Tenancy = Tenancy { slot: 0, epoch: 0 };

#[derive(Default)]
struct Group {
    endpoints: Vec<Vec<(EndpointKey, Arc<Endpoint>)>>,
    members: Vec<Arc<Pod>>,
    /// Role index and number of endpoints of each Pod that counts.
    counted: Vec<(usize, u32)>,
    /// Of the Pods that run here. Whose an address is does not matter: a process is known by where it runs.
    sources: Vec<(PodKey, Cgroup)>,
}

/// Collects one set's members.
pub(super) struct SetBuilder<'s> {
    index: usize,
    set: &'s SetConfig,
    locals: Locals<'s>,
    before: &'s HashMap<EndpointKey, Arc<Endpoint>>,
    groups: BTreeMap<Arc<str>, Group>,
    /// Revision, Pod and cgroup of those that left.
    departed: Vec<(Arc<str>, PodKey, Cgroup)>,
}

impl<'s> SetBuilder<'s> {
    pub(super) fn new(
        index: usize,
        set: &'s SetConfig,
        locals: Locals<'s>,
        before: &'s HashMap<EndpointKey, Arc<Endpoint>>,
    ) -> Self {
        Self { index, set, locals, before, groups: BTreeMap::new(), departed: Vec::new() }
    }

    pub(super) fn add(&mut self, entry: &'s Entry, owners: &Owners<'_>) {
        let Some(member) = entry.members.get(self.index).and_then(Option::as_ref) else { return };
        let role = self.set.roles.iter().position(|role| *role == member.role);
        let endpoints: Vec<_> = role
            .into_iter()
            .flat_map(|role| member.endpoints.iter().map(move |address| (role, *address)))
            .filter(|(_, address)| owners.owns(entry, *address))
            .map(|(role, address)| self.endpoint(entry, member, role, address))
            .collect();
        let roles = self.set.roles.len();
        let group = self.groups.entry(Arc::clone(&member.revision)).or_default();
        group.endpoints.resize_with(roles, Vec::new);
        if let (Some(role), true) = (role, member.counts) {
            group.counted.push((role, u32::try_from(endpoints.len()).unwrap_or(u32::MAX)));
        }
        if let Some(of_role) = role.and_then(|role| group.endpoints.get_mut(role)) {
            of_role.extend(endpoints);
        }
        group.sources.extend(self.locals.of(&entry.pod).map(|cgroup| (entry.pod.key.clone(), cgroup)));
        if owners.owns_addresses(entry) {
            group.members.push(Arc::clone(&entry.pod));
        }
    }

    /// A Pod that left, of which only the processes are here.
    pub(super) fn add_departed(&mut self, pod: &'s Pod) {
        let Some(Member { revision, .. }) = member::member(pod, self.set) else { return };
        let source = |cgroup| (Arc::clone(&revision), pod.key.clone(), cgroup);
        self.departed.extend(self.locals.of(pod).map(source));
    }

    pub(super) fn finish(
        self,
        slots: &mut Slots,
        epochs: &mut Epochs,
        endpoints: &mut HashMap<EndpointKey, Arc<Endpoint>>,
    ) -> BuiltSet {
        let gating = Gating { mode: self.set.mode, required: self.set.required_roles.len() };
        let mut built = BuiltSet {
            census: Census::new(self.set.roles.len()),
            gating,
            revisions: Vec::with_capacity(self.groups.len()),
            sources: Vec::new(),
            left_out: Vec::new(),
            endpoints_left_out: 0,
        };
        slots.retire_absent(self.groups.keys().map(AsRef::as_ref));
        let mut room = MAX_ENDPOINTS;
        for (name, mut group) in self.groups {
            let tenancy = slots.hold(&name, epochs);
            let Tenancy { slot, epoch } = tenancy.unwrap_or(NONE);
            group.members.sort_by(|a, b| a.key.cmp(&b.key));
            let source = |(pod, cgroup)| SourceView { cgroup, pod, set: self.index, slot, epoch };
            built.sources.extend(group.sources.into_iter().map(source));
            if tenancy.is_none() {
                let members = group.members;
                built.left_out.push(RevisionView { name, slot, epoch, endpoints: Vec::new(), members });
                continue;
            }
            built.census.mention(&name);
            for (role, endpoints) in group.counted {
                built.census.count(&name, role, endpoints);
            }
            let by_role = group.endpoints.into_iter().map(|mut of_role| {
                of_role.sort_by_key(|(_, endpoint)| endpoint.address);
                let kept = of_role.len().min(room);
                built.endpoints_left_out += of_role.len() - kept;
                room -= kept;
                of_role.truncate(kept);
                let list = of_role.iter().map(|(_, endpoint)| Arc::clone(endpoint)).collect();
                endpoints.extend(of_role);
                list
            });
            built.revisions.push(RevisionView {
                name,
                slot,
                epoch,
                endpoints: by_role.collect(),
                members: group.members,
            });
        }
        // After the others, which may have taken the slot of a revision without Pods.
        built.sources.extend(self.departed.into_iter().map(|(revision, pod, cgroup)| {
            let Tenancy { slot, epoch } = slots.last(&revision).unwrap_or(NONE);
            SourceView { cgroup, pod, set: self.index, slot, epoch }
        }));
        built
    }

    /// The endpoint as it stood in the last snapshot if nothing about it changed, else a new one that keeps its
    /// load and health.
    fn endpoint(
        &self,
        entry: &Entry,
        member: &Member,
        role: usize,
        address: SocketAddr,
    ) -> (EndpointKey, Arc<Endpoint>) {
        let key = (Arc::clone(&entry.pod.key.uid), self.index, address);
        let local = self.locals.node.is_some() && entry.pod.node.as_ref() == self.locals.node;
        let before = self.before.get(&key);
        if let Some(same) = before.filter(|e| {
            Arc::ptr_eq(&e.pod, &entry.pod)
                && e.revision == member.revision
                && e.role == role
                && e.local == local
        }) {
            let same = Arc::clone(same);
            return (key, same);
        }
        let endpoint = Endpoint {
            address,
            pod: Arc::clone(&entry.pod),
            revision: Arc::clone(&member.revision),
            role,
            local,
            vitals: before.map_or_else(|| Arc::new(Vitals::default()), |e| Arc::clone(&e.vitals)),
        };
        (key, Arc::new(endpoint))
    }
}
