//! From a snapshot to the kernel's tables. Pure.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use revgate_common::{
    address::Address,
    endpoints::Range,
    layout::{
        self, ANY_SLOT, ConnectionKey, FENCE_AUDIT, FENCE_ENFORCE, FENCE_OFF, MAX_ENDPOINTS, MAX_REVISIONS,
        MAX_ROLES, MAX_SETS, MEMBER_BY_PORT, MEMBER_ENDPOINT, Member, SET_UNGATED, SOURCE_LEVELS,
        SOURCE_MEMBER, SetTable, Settings, Slot, Source, Tenant, VIP_ANCHOR, VIP_LEASED, VIP_MEMBERS_ONLY,
        VIP_PROBE, Vip,
    },
    pick::LastDraws,
};

use crate::{
    cluster::{Pod, PodKey},
    config::{AgentGone, FenceMode, GatingMode},
    snapshot::{
        RevisionView, SetView, Snapshot, SourceView,
        slots::{name_hash, set_hash},
    },
};

/// Something for each address. Thousands of addresses are looked up and compared at each change; who may choose them may
/// write Pods, and the seed is random all the same.
pub type ByAddress<T> = HashMap<Address, T, foldhash::fast::RandomState>;

/// What all inner maps hold.
pub struct Tables {
    /// The tables of the sets, by index.
    pub sets: Vec<Box<SetTable>>,
    /// VIPs, anchors and the address of the probe.
    pub vips: ByAddress<Vip>,
    /// Addresses of members.
    pub members: ByAddress<Member>,
    /// Cgroups of local member Pods.
    pub sources: HashMap<u64, Source>,
    /// The settings.
    pub settings: Settings,
    /// Local member Pods that cannot be told by their cgroup, because cgroups lie at more than [`SOURCE_LEVELS`]
    /// different depths. They are treated as unknown processes.
    pub unseen_sources: usize,
}

/// What does not fit into the kernel's tables.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TooLarge {
    /// Too many sets.
    #[error("{0} sets, but the kernel tables hold {MAX_SETS}; split the configuration over several agents")]
    Sets(usize),
    /// Too many roles.
    #[error("set {set} has {count} roles that take traffic, but the kernel tables hold {MAX_ROLES}")]
    Roles {
        /// The set.
        set: String,
        /// How many.
        count: usize,
    },
    /// Too many endpoints.
    #[error(
        "set {set} has {count} endpoints, but the kernel tables hold {MAX_ENDPOINTS}; split the set's scope"
    )]
    Endpoints {
        /// The set.
        set: String,
        /// How many.
        count: usize,
    },
    /// A slot beyond the last.
    #[error("set {set}: revision {revision} has slot {slot}, but there are {MAX_REVISIONS}")]
    Slot {
        /// The set.
        set: String,
        /// The revision.
        revision: String,
        /// Its slot.
        slot: u16,
    },
}

impl Tables {
    /// The tables of a snapshot.
    pub fn of(snapshot: &Snapshot, fence: FenceMode) -> Result<Self, TooLarge> {
        if snapshot.sets.len() > MAX_SETS {
            return Err(TooLarge::Sets(snapshot.sets.len()));
        }
        let all = || snapshot.sets.iter().flat_map(|set| set.revisions.iter().chain(&set.left_out));
        // An endpoint has an entry, and its Pod's address has one.
        let members = all().flat_map(|r| &r.endpoints).map(|of_role| 2 * of_role.len()).sum();
        let mut tables = Self {
            sets: Vec::with_capacity(snapshot.sets.len()),
            vips: ByAddress::from_iter([(layout::PROBE, Vip { set: 0, role: 0, flags: VIP_PROBE })]),
            members: ByAddress::with_capacity_and_hasher(members, RandomState::default()),
            sources: HashMap::new(),
            settings: Settings { source_levels: 0, fence: fence_word(fence) },
            unseen_sources: 0,
        };
        for (index, set) in (0_u8..).zip(&snapshot.sets) {
            tables.sets.push(set_table(set, snapshot.generation)?);
            tables.add_anchors(index, set);
            for revision in &set.revisions {
                tables.add_endpoints(u16::from(index), revision);
            }
        }
        // After all endpoints: where Pods share their node's address, a port is whose endpoint it is, not of those who
        // only declare it.
        for (index, set) in (0_u16..).zip(&snapshot.sets) {
            for revision in set.revisions.iter().chain(&set.left_out) {
                tables.add_addresses(index, revision);
            }
        }
        for vip in &snapshot.vips {
            let flags = vip_flags(vip);
            if let (Ok(set), Ok(role)) = (u16::try_from(vip.set), u16::try_from(vip.role)) {
                tables.vips.insert(vip.address.into(), Vip { set, role, flags });
            }
        }
        tables.add_sources(&snapshot.sources);
        Ok(tables)
    }

    fn add_anchors(&mut self, index: u8, set: &SetView) {
        for (role, _) in (0_u8..).zip(set.roles.iter()) {
            let vip = Vip { set: u16::from(index), role: u16::from(role), flags: VIP_ANCHOR };
            self.vips.insert(layout::anchor(index, role), vip);
        }
    }

    /// The endpoints of a revision. One in two sets stays with the first.
    fn add_endpoints(&mut self, set: u16, revision: &RevisionView) {
        let tenant = Tenant { set, slot: revision.slot, epoch: revision.epoch };
        for (role, endpoints) in (0_u16..).zip(&revision.endpoints) {
            let member = Member { tenant, role, flags: MEMBER_ENDPOINT, zero: 0 };
            for endpoint in endpoints {
                self.members.entry(endpoint.address.into()).or_insert(member);
            }
        }
    }

    /// The whole addresses of a revision, and the ports that its Pods on their node's network declare. One in two sets
    /// stays with the first.
    fn add_addresses(&mut self, set: u16, revision: &RevisionView) {
        let tenant = Tenant { set, slot: revision.slot, epoch: revision.epoch };
        let member = Member { tenant, role: u16::MAX, flags: 0, zero: 0 };
        for endpoint in revision.endpoints.iter().flatten() {
            self.add_whole(&endpoint.pod, Address::from(endpoint.address).any_port(), member);
        }
        for pod in &revision.members {
            for ip in &pod.ips {
                self.add_whole(pod, std::net::SocketAddr::new(*ip, 0).into(), member);
                if pod.host_network {
                    for port in &pod.ports {
                        let key = std::net::SocketAddr::new(*ip, port.number).into();
                        self.members.entry(key).or_insert(member);
                    }
                }
            }
        }
    }

    /// The endpoints of every tenant, and of every set with [`ANY_SLOT`].
    #[must_use]
    pub fn endpoints(&self) -> HashSet<ConnectionKey, RandomState> {
        let mut all = HashSet::default();
        for (set, table) in (0_u16..).zip(&self.sets) {
            let tenants = (0_u16..).zip(&table.slots).filter(|(_, slot)| slot.epoch != 0);
            let tenants = tenants.map(|(at, slot)| (at, slot.epoch, &slot.ranges));
            for (slot, epoch, ranges) in tenants.chain([(ANY_SLOT, 0, &table.any)]) {
                let endpoints = ranges.iter().flat_map(|range| table.endpoints(range));
                all.extend(endpoints.map(|endpoint| ConnectionKey {
                    endpoint,
                    zero: 0,
                    tenant: Tenant { set, slot, epoch },
                }));
            }
        }
        all
    }

    /// A Pod's whole address; for a Pod on its node's network only a note that ports of it are members'.
    fn add_whole(&mut self, pod: &Pod, key: Address, member: Member) {
        let shared = Member { tenant: Tenant::default(), role: u16::MAX, flags: MEMBER_BY_PORT, zero: 0 };
        self.members.entry(key).or_insert(if pod.host_network { shared } else { member });
    }

    /// Local Pods, and the levels at which they are: those with the most Pods, when there are too many. A Pod counts
    /// once, however many cgroups it has there.
    fn add_sources(&mut self, sources: &[SourceView]) {
        let mut levels: HashMap<u8, HashSet<&PodKey>> = HashMap::new();
        for source in sources {
            if let Ok(level @ 1..) = u8::try_from(source.cgroup.level) {
                levels.entry(level).or_default().insert(&source.pod);
            }
        }
        let mut levels: Vec<(u8, usize)> =
            levels.into_iter().map(|(level, pods)| (level, pods.len())).collect();
        levels.sort_unstable_by_key(|(level, pods)| (std::cmp::Reverse(*pods), *level));
        let mut seen: Vec<u8> = levels.into_iter().take(SOURCE_LEVELS).map(|(level, _)| level).collect();
        seen.sort_unstable();
        self.settings.source_levels = seen.iter().rev().fold(0, |word, level| word << 8 | u32::from(*level));
        for source in sources {
            let level = u8::try_from(source.cgroup.level).unwrap_or(0);
            match u16::try_from(source.set) {
                Ok(set) if seen.contains(&level) => {
                    let tenant = Tenant { set, slot: source.slot, epoch: source.epoch };
                    let who = Source { tenant, kind: SOURCE_MEMBER, zero: 0 };
                    self.sources.insert(source.cgroup.id, who);
                }
                _ => self.unseen_sources += 1,
            }
        }
    }
}

fn vip_flags(vip: &crate::snapshot::Vip) -> u32 {
    let members_only = if vip.members_only { VIP_MEMBERS_ONLY } else { 0 };
    let leased = if vip.agent_gone == AgentGone::Deny { VIP_LEASED } else { 0 };
    members_only | leased
}

const fn fence_word(fence: FenceMode) -> u32 {
    match fence {
        FenceMode::Off => FENCE_OFF,
        FenceMode::Audit => FENCE_AUDIT,
        FenceMode::Enforce => FENCE_ENFORCE,
    }
}

/// The table of one set.
fn set_table(set: &SetView, generation: u64) -> Result<Box<SetTable>, TooLarge> {
    let name = || set.name.to_string();
    if set.roles.len() > MAX_ROLES {
        return Err(TooLarge::Roles { set: name(), count: set.roles.len() });
    }
    let count = set.revisions.iter().flat_map(|r| &r.endpoints).map(Vec::len).sum();
    if count > MAX_ENDPOINTS {
        return Err(TooLarge::Endpoints { set: name(), count });
    }
    let mut table: Box<SetTable> = bytemuck::zeroed_box();
    table.generation = generation;
    table.set = set_hash(&set.name, &set.roles);
    table.flags = if set.mode == GatingMode::Disabled { SET_UNGATED } else { 0 };
    for revision in &set.revisions {
        let too_far =
            || TooLarge::Slot { set: name(), revision: revision.name.to_string(), slot: revision.slot };
        let slot = table.slots.get_mut(usize::from(revision.slot)).ok_or_else(too_far)?;
        slot.revision = name_hash(&revision.name);
        slot.epoch = revision.epoch;
    }
    lay_out(&mut table, set);
    rank(&mut table, set);
    Ok(table)
}

/// Puts the endpoints in, sorted by (role, family, revision), and the ranges that point to them.
///
/// They fit: their number was checked, so every index does too.
fn lay_out(table: &mut SetTable, set: &SetView) {
    let SetTable { endpoints, any, slots, .. } = table;
    // The first is the word before the first address.
    let mut free = endpoints.iter_mut().skip(1);
    let mut used = 0_u16;
    for (role, any) in any.iter_mut().enumerate() {
        for v4 in [true, false] {
            let port = common_port(set.revisions.iter().flat_map(|revision| addresses(revision, role, v4)));
            let (all, mut of_all) = (used, 0);
            for revision in &set.revisions {
                let (start, mut count) = (used, 0);
                for Address { ip: [a, b, c, d], port: own, .. } in addresses(revision, role, v4) {
                    let own = (port == 0).then_some(u32::from(own));
                    let rest: &[u32] = if v4 { &[] } else { &[a, b, c] };
                    for (word, place) in own.into_iter().chain([d]).chain(rest.iter().copied()).zip(&mut free)
                    {
                        *place = word;
                        used += 1;
                    }
                    count += 1;
                }
                of_all += count;
                let slot = slots.get_mut(usize::from(revision.slot));
                if let Some(range) = slot.and_then(|slot: &mut Slot| slot.ranges.get_mut(role)) {
                    set_run(range, v4, start, count, port);
                }
            }
            set_run(any, v4, all, of_all, port);
        }
    }
}

/// Of a revision's endpoints in a role, those of one family.
fn addresses(revision: &RevisionView, role: usize, v4: bool) -> impl Iterator<Item = Address> {
    let endpoints = revision.endpoints.get(role).into_iter().flatten();
    endpoints.map(|e| Address::from(e.address)).filter(move |address| address.is_v4() == v4)
}

/// The port of all, or 0.
fn common_port(mut addresses: impl Iterator<Item = Address>) -> u16 {
    let first = addresses.next().map_or(0, |address| address.port);
    if addresses.all(|address| address.port == first) { first } else { 0 }
}

/// Endpoints behind so many used words, with this port or their own.
const fn set_run(range: &mut Range, v4: bool, used: u16, count: u16, port: u16) {
    let Range { runs, form } = range;
    let own_port = (port == 0) as u16;
    // Too much only for an empty run in a full table.
    let before = used.saturating_add(own_port);
    if v4 {
        (runs.v4_before, runs.v4_count) = (before, count);
        (form.v4_words, form.v4_port) = (1 + own_port, port);
    } else {
        (runs.v6_before, runs.v6_count) = (before, count);
        (form.v6_words, form.v6_port) = (4 + own_port, port);
    }
}

/// Puts the weighted choice in.
fn rank(table: &mut SetTable, set: &SetView) {
    table.last = [u32::MAX; MAX_REVISIONS];
    let Some(last): Option<&LastDraws> = set.distribution.last.as_deref() else { return };
    table.last = *last;
    let revisions = set.distribution.ranked.iter().filter_map(|at| set.revisions.get(*at));
    for (place, revision) in table.slot_of_rank.iter_mut().zip(revisions) {
        // Below 64: its slot was found in the table.
        *place = u8::try_from(revision.slot).unwrap_or(u8::MAX);
        table.ranks += 1;
    }
}
