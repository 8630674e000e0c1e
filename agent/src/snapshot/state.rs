//! The state: Pods in, snapshots out. Pure: no I/O, no clock, no randomness.
//!
//! What a Pod is to each set is worked out once, when the Pod changes; a build then only groups. Rules of identity
//! (C2): a Pod is known by namespace, name and UID; an address belongs to one Pod at a time, the one that became
//! Ready with it last.

use std::{collections::HashMap, mem, net::SocketAddr, sync::Arc};

use super::{
    Endpoint, SetView, Snapshot,
    build::{Owners, SetBuilder},
    slots::{Epochs, Slots, set_hash},
    sources::{self, Departed, Locals},
    vips,
};
use crate::{
    cluster::{
        Change, ObjectName, Pod, PodCgroups, PodKey, Service,
        member::{Member, member},
    },
    config::Config,
    gating::Distribution,
};

/// Something that a person should hear about, once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// A Pod is less than it could be.
    Pod {
        /// Which.
        pod: PodKey,
        /// Why.
        warning: String,
    },
    /// What a set has beyond the limits of its table gets no traffic.
    Crowded {
        /// The set.
        set: Arc<str>,
        /// Revisions with members but no slot.
        revisions: Vec<Arc<str>>,
        /// How many endpoints are left out.
        endpoints: usize,
    },
}

/// The slots of one set as an earlier agent left them in the kernel: (slot, name hash, epoch).
pub type Tenants = Vec<(u16, u64, u32)>;

/// A Pod and what it is to each set.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) pod: Arc<Pod>,
    /// When it became Ready with its present address, as a count of changes.
    pub(super) since: u64,
    /// By set index.
    pub(super) members: Vec<Option<Member>>,
    /// Warnings that were noted already.
    said: Vec<String>,
}

impl Entry {
    /// Notes the warnings that were not noted before.
    fn warn(&mut self, locals: Locals<'_>, notes: &mut Vec<Note>) {
        let members = self.members.iter().flatten();
        let own_kernel = self.pod.own_kernel().filter(|_| self.is_member() && locals.may_have(&self.pod));
        for warning in members.filter_map(|m| m.warning.clone()).chain(own_kernel.map(unfenceable)) {
            if !self.said.contains(&warning) {
                self.said.push(warning.clone());
                notes.push(Note::Pod { pod: self.pod.key.clone(), warning });
            }
        }
    }

    /// Of any set.
    fn is_member(&self) -> bool {
        self.members.iter().any(Option::is_some)
    }
}

/// What is said of a Pod whose connects the hooks never see.
fn unfenceable(class: &str) -> String {
    format!(
        "runtimeClassName {class} has a kernel or network stack of its own: connects of this Pod are neither steered \
         nor fenced"
    )
}

/// An endpoint's identity across snapshots: its Pod's UID, its set, its address.
pub(super) type EndpointKey = (Arc<str>, usize, SocketAddr);

/// All that is known.
#[derive(Debug)]
pub struct State {
    /// As it was given.
    given: Arc<Config>,
    /// With the ports of the pools.
    config: Arc<Config>,
    services: HashMap<ObjectName, Service>,
    pools: HashMap<ObjectName, Vec<u16>>,
    /// By namespace and name, of which the API has one Pod at a time; the UID is in the Pod.
    pods: HashMap<(Arc<str>, Arc<str>), Entry>,
    cgroups: PodCgroups,
    departed: Departed,
    /// By the hash of the set.
    slots: HashMap<u64, Slots>,
    epochs: Epochs,
    endpoints: HashMap<EndpointKey, Arc<Endpoint>>,
    notes: Vec<Note>,
    /// The last `Crowded` note of each set, so that each is said once.
    crowded: HashMap<Arc<str>, Note>,
    changes: u64,
    generation: u64,
    synced: bool,
    /// Something has changed since the last build.
    dirty: bool,
}

impl State {
    /// Nothing known yet. `left` is what an earlier agent left in the kernel, by the hash of the set.
    #[must_use]
    pub fn new(config: Arc<Config>, left: HashMap<u64, Tenants>, last_generation: u64) -> Self {
        let mut epochs = Epochs::default();
        let slots =
            left.into_iter().map(|(set, tenants)| (set, Slots::restore(tenants, &mut epochs))).collect();
        let mut state = Self {
            given: Arc::clone(&config),
            config,
            services: HashMap::new(),
            pools: HashMap::new(),
            pods: HashMap::new(),
            cgroups: PodCgroups::new(),
            departed: Departed::default(),
            slots,
            epochs,
            endpoints: HashMap::new(),
            notes: Vec::new(),
            crowded: HashMap::new(),
            changes: 0,
            generation: last_generation,
            synced: false,
            dirty: false,
        };
        state.fill_ports();
        state
    }

    /// The configuration with the ports that the pools say.
    fn fill_ports(&mut self) {
        self.config = Arc::clone(&self.given);
        if self.given.sets.iter().all(|set| set.pool.is_none()) {
            return;
        }
        for set in &mut Arc::make_mut(&mut self.config).sets {
            let ports = set.pool.as_ref().and_then(|pool| self.pools.get(pool));
            *set = set.with_pool_ports(ports.map(Vec::as_slice).unwrap_or_default());
        }
    }

    /// Works out anew what every Pod is to the sets.
    fn reconsider(&mut self) {
        self.fill_ports();
        self.dirty = true;
        let locals = Locals { node: self.config.agent.node.as_ref(), cgroups: &self.cgroups };
        for entry in self.pods.values_mut() {
            entry.members = self.config.sets.iter().map(|set| member(&entry.pod, set)).collect();
            entry.warn(locals, &mut self.notes);
        }
    }

    /// Applies one change.
    pub fn apply(&mut self, change: Change) {
        self.changes += 1;
        match change {
            Change::Replace(pods) => {
                let mut old = mem::replace(&mut self.pods, HashMap::with_capacity(pods.len()));
                for pod in pods {
                    let before = old.remove(&name_of(&pod.key));
                    self.put(pod, before);
                }
                self.dirty |= !self.synced || !old.is_empty();
                for entry in old.into_values() {
                    self.leave(entry);
                }
                self.synced = true;
            }
            Change::Upsert(pod) => {
                let before = self.pods.remove(&name_of(&pod.key));
                self.put(pod, before);
            }
            Change::Remove(key) => {
                let name = name_of(&key);
                if self.pods.get(&name).is_some_and(|entry| entry.pod.key.uid == key.uid)
                    && let Some(entry) = self.pods.remove(&name)
                {
                    self.leave(entry);
                    self.dirty = true;
                }
            }
            Change::Service(name, service) => {
                let before = match service.clone() {
                    Some(now) => self.services.insert(name, now),
                    None => self.services.remove(&name),
                };
                self.dirty |= before != service;
            }
            Change::Pool(name, ports) => {
                let before = match ports.clone() {
                    Some(now) => self.pools.insert(name, now),
                    None => self.pools.remove(&name),
                };
                if before != ports {
                    self.reconsider();
                }
            }
            Change::Cgroups(cgroups) => {
                // Most are of Pods that are no members: they are no news.
                let differs = |uid: &str| self.cgroups.get(uid) != cgroups.get(uid);
                let mut members = self.pods.values().filter(|entry| entry.is_member());
                self.dirty |= members.any(|entry| differs(entry.pod.cgroup_uid()));
                let is_member = |pod: &Pod| self.config.sets.iter().any(|set| member(pod, set).is_some());
                self.dirty |= self.departed.pods().any(|pod| differs(pod.cgroup_uid()) && is_member(pod));
                self.departed.keep(&cgroups);
                self.cgroups = cgroups;
            }
            Change::Config(config) => {
                self.given = config;
                self.reconsider();
            }
            Change::Together(changes) => changes.into_iter().for_each(|change| self.apply(change)),
        }
    }

    /// Whether a build would show readers anything new: the first list is in, and something changed since the last.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.synced && self.dirty
    }

    /// What a person should hear about since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        mem::take(&mut self.notes)
    }

    /// The next snapshot.
    pub fn build(&mut self) -> Snapshot {
        // Counts on from what stood in a pinned table, which may be anything. 0 is before the first.
        self.generation = self.generation.wrapping_add(1).max(1);
        self.dirty = false;
        let config = Arc::clone(&self.config);
        let owners = Owners::of(self.pods.values());
        let locals = Locals { node: config.agent.node.as_ref(), cgroups: &self.cgroups };
        let mut sets = Vec::with_capacity(config.sets.len());
        let mut sources = Vec::new();
        let mut endpoints = HashMap::with_capacity(self.endpoints.len());
        for (index, set) in config.sets.iter().enumerate() {
            let mut builder = SetBuilder::new(index, set, locals, &self.endpoints);
            for entry in self.pods.values() {
                builder.add(entry, &owners);
            }
            self.departed.pods().for_each(|pod| builder.add_departed(pod));
            let slots = self.slots.entry(set_hash(&set.name, &set.roles)).or_default();
            let built = builder.finish(slots, &mut self.epochs, &mut endpoints);
            let left_out = built.left_out.iter().map(|revision| Arc::clone(&revision.name)).collect();
            self.notes.extend(crowding(&mut self.crowded, &set.name, left_out, built.endpoints_left_out));
            sources.extend(built.sources);
            sets.push(SetView {
                name: Arc::clone(&set.name),
                mode: set.mode,
                revision_header: set.revision_header.clone(),
                selectors: set.selectors.clone().into(),
                roles: set.roles.clone().into(),
                required: built.gating.required,
                distribution: Distribution::of(&built.census, built.gating),
                revisions: built.revisions,
                left_out: built.left_out,
            });
        }
        self.endpoints = endpoints;
        // A set that is gone, or whose roles changed places, starts anew with epochs of its own when it comes back.
        let present: Vec<u64> = config.sets.iter().map(|set| set_hash(&set.name, &set.roles)).collect();
        self.slots.retain(|hash, _| present.contains(hash));
        let (vips, missing_vips) = vips::find(&config.agent.vips, &self.services);
        Snapshot {
            generation: self.generation,
            synced: self.synced,
            sets,
            vips,
            missing_vips,
            sources: sources::unique(sources),
        }
    }

    fn leave(&mut self, entry: Entry) {
        let locals = Locals { node: self.config.agent.node.as_ref(), cgroups: &self.cgroups };
        self.departed.leave(entry.pod, locals);
    }

    fn put(&mut self, pod: Arc<Pod>, before: Option<Entry>) {
        let before = match before {
            Some(entry) if entry.pod == pod => {
                // The one that its source holds, which may have begun anew.
                self.pods.insert(name_of(&pod.key), Entry { pod, ..entry });
                return;
            }
            Some(entry) if entry.pod.key.uid != pod.key.uid => {
                self.leave(entry);
                None
            }
            before => before,
        };
        self.dirty = true;
        let members: Vec<Option<Member>> = self.config.sets.iter().map(|set| member(&pod, set)).collect();
        let since = match &before {
            Some(entry) if entry.pod.is_ready() == pod.is_ready() && entry.pod.ips == pod.ips => entry.since,
            _ => self.changes,
        };
        let said = before.map(|entry| entry.said).unwrap_or_default();
        let mut entry = Entry { pod, since, members, said };
        let locals = Locals { node: self.config.agent.node.as_ref(), cgroups: &self.cgroups };
        self.departed.come(&entry.pod);
        entry.warn(locals, &mut self.notes);
        self.pods.insert(name_of(&entry.pod.key), entry);
    }
}

fn name_of(key: &PodKey) -> (Arc<str>, Arc<str>) {
    (Arc::clone(&key.namespace), Arc::clone(&key.name))
}

/// A `Crowded` note when what is left out has changed.
fn crowding(
    said: &mut HashMap<Arc<str>, Note>,
    set: &Arc<str>,
    revisions: Vec<Arc<str>>,
    endpoints: usize,
) -> Option<Note> {
    if revisions.is_empty() && endpoints == 0 {
        said.remove(set);
        return None;
    }
    let note = Note::Crowded { set: Arc::clone(set), revisions, endpoints };
    (said.insert(Arc::clone(set), note.clone()).as_ref() != Some(&note)).then_some(note)
}
