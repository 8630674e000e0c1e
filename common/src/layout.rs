//! The maps between the agent and the kernel programs: names, keys, values, sizes.
//!
//! One rule shapes all of it: a hash or array value can tear while it is updated, so everything that a connect
//! decides on lives in *inner maps* that are written once, frozen, and swapped as a whole by one update of an
//! outer array of maps. A connect looks up each outer map once at most and then sees one whole table.
//!
//! A revision of a set has a *slot* while it has members, and every new tenant of a slot gets a new *epoch*.
//! A pin, a member or a source that names (slot, epoch) is void as soon as the slot has moved on.
//!
//! Any change to this file, or to [`endpoints`](crate::endpoints), that alters a size, an offset or a meaning raises
//! [`VERSION`].

use bytemuck::{Pod, Zeroable};

use crate::{
    address::Address,
    endpoints::{ENDPOINT_WORDS, MAX_WORDS, Range},
    pick::LastDraws,
};

/// The version of this layout; part of the pin directory's name, so two layouts never share a pin.
pub const VERSION: u32 = 5;

/// The directory for pins, below the bpffs mount.
pub const PIN_DIRECTORY: &str = "revgate/v5";

/// Most sets (DisaggregatedSets) on one agent.
pub const MAX_SETS: usize = 64;
/// Most revisions of one set at a time: slots.
pub const MAX_REVISIONS: usize = 64;
/// Most roles of one set that take traffic.
pub const MAX_ROLES: usize = 16;
/// Most endpoints of one set, whatever their addresses.
pub const MAX_ENDPOINTS: usize = ENDPOINT_WORDS / MAX_WORDS;
/// Most endpoints with connection counts at a time.
pub const MAX_CONNECTION_ENTRIES: usize = 65_536;
/// Most TCP sockets whose [`Peer`] is in [`map::PEERS`]; the others have it in socket storage. A power of two.
pub const MAX_PEERS: usize = 16_384;
/// Most cgroup levels at which Pods' cgroups are looked for. The kubelet uses two or three: one for guaranteed Pods
/// and one for the others, below whatever the node itself runs in.
pub const SOURCE_LEVELS: usize = 4;

/// The flags of every inner map: `BPF_F_RDONLY_PROG` (`include/uapi/linux/bpf.h`), the programs' half of
/// immutability. The agent's half is `BPF_MAP_FREEZE`.
pub const TABLE_FLAGS: u32 = 1 << 7;

/// The names of the maps in the kernel object.
pub mod map {
    /// Array of maps, one inner array per set with one [`SetTable`](super::SetTable).
    pub const SETS: &str = "SETS";
    /// Array of one map: inner hash, VIP [`Address`](super::Address) to [`Vip`](super::Vip).
    pub const VIPS: &str = "VIPS";
    /// Array of one map: inner hash, [`Address`](super::Address) to [`Member`](super::Member).
    pub const MEMBERS: &str = "MEMBERS";
    /// Array of one map: inner hash, cgroup id (`u64`) to [`Source`](super::Source).
    pub const SOURCES: &str = "SOURCES";
    /// Socket storage, written by the agent only: [`Pin`](super::Pin).
    pub const PINS: &str = "PINS";
    /// Array of [`Peer`](super::Peer), for TCP sockets, written by the kernel programs only.
    pub const PEERS: &str = "PEERS";
    /// Socket storage, for UDP sockets and where the array is full, written by the kernel programs only:
    /// [`Peer`](super::Peer).
    pub const STORED_PEERS: &str = "STORED_PEERS";
    /// Per-CPU array of `u64`, indexed by [`Counter`](crate::counter::Counter).
    pub const COUNTERS: &str = "COUNTERS";
    /// Per-CPU hash, [`ConnectionKey`](super::ConnectionKey) to [`Connections`](super::Connections).
    pub const CONNECTIONS: &str = "CONNECTIONS";
    /// Array of one [`Settings`](super::Settings).
    pub const SETTINGS: &str = "SETTINGS";
    /// Array of one `u64`: until when the agent's last sign of life counts, in nanoseconds of `CLOCK_MONOTONIC`
    /// (`bpf_ktime_get_ns`). Apart from the settings: it is one word that the agent writes again and again.
    pub const LEASE: &str = "LEASE";
    /// Ring buffer of [`Event`](super::Event).
    pub const EVENTS: &str = "EVENTS";
    /// Per-CPU array of one [`EventAccount`](super::EventAccount).
    pub const EVENT_ACCOUNTS: &str = "EVENT_ACCOUNTS";

    /// Every map of the object.
    pub const ALL: [&str; 13] = [
        SETS,
        VIPS,
        MEMBERS,
        SOURCES,
        PINS,
        PEERS,
        STORED_PEERS,
        COUNTERS,
        CONNECTIONS,
        SETTINGS,
        LEASE,
        EVENTS,
        EVENT_ACCOUNTS,
    ];
}

/// One revision's place in a [`SetTable`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct Slot {
    /// XXH64 (seed 0) of the revision's name: a restarted agent recognises the tenant by it.
    pub revision: u64,
    /// The tenant's epoch; 0: the slot is free.
    pub epoch: u32,
    /// Always 0.
    pub zero: u32,
    /// Endpoints by role. Also those of a revision that is not eligible: its own connections still find them.
    pub ranges: [Range; MAX_ROLES],
}

/// A tenant of a slot of a set: a revision, as long as it has members. One word, read and compared at once.
#[repr(C, align(8))]
#[derive(Clone, Copy, Eq, Debug, Default, Pod, Zeroable)]
pub struct Tenant {
    /// Index into `SETS`.
    pub set: u16,
    /// The revision's slot; [`ANY_SLOT`]: no revision's.
    pub slot: u16,
    /// The revision's epoch; 0: it has no slot, or with [`ANY_SLOT`].
    pub epoch: u32,
}

impl Tenant {
    /// In one number, never `u64::MAX`: there are fewer than `u16::MAX` sets.
    #[inline(always)]
    #[must_use]
    pub fn bits(self) -> u64 {
        bytemuck::cast(self)
    }
}

impl PartialEq for Tenant {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}

impl core::hash::Hash for Tenant {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

/// [`SetTable::flags`]: gating is `disabled`; a connect with no revision takes any endpoint of the role.
pub const SET_UNGATED: u32 = 1;

/// Everything about one set that a connect needs, in one value: the whole snapshot of that set.
///
/// About 270 KiB, most of it endpoints. A fixed size keeps the read path to plain loads with constant bounds, and
/// a swap to one system call.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub struct SetTable {
    /// Counts up with every published snapshot of the agent.
    pub generation: u64,
    /// XXH64 (seed 0) of the set's name and its roles, each behind a NUL byte, in the order of their indices.
    pub set: u64,
    /// Eligible revisions with a weight, the used part of `last` and `slot_of_rank`. 0: deny all weighted connects.
    pub ranks: u32,
    /// [`SET_UNGATED`] or 0.
    pub flags: u32,
    /// The weighted choice, see [`crate::pick::rank`].
    pub last: LastDraws,
    /// The slot of each rank.
    pub slot_of_rank: [u8; MAX_REVISIONS],
    /// The slots.
    pub slots: [Slot; MAX_REVISIONS],
    /// The endpoints of each role, of all revisions together; used with [`SET_UNGATED`].
    pub any: [Range; MAX_ROLES],
    /// The endpoints, sorted by (role, family, slot), so that every range is one run: see [`endpoints`](crate::endpoints).
    pub endpoints: [u32; ENDPOINT_WORDS + MAX_WORDS - 1],
}

/// [`Vip::flags`]: only member Pods and pinned sockets are steered; others are denied.
pub const VIP_MEMBERS_ONLY: u32 = 1;
/// [`Vip::flags`]: an anchor, an address by which the agent's pinned sockets dial a role; others are denied.
pub const VIP_ANCHOR: u32 = 2;
/// [`Vip::flags`]: nobody is steered once the agent's lease has run out.
pub const VIP_LEASED: u32 = 4;
/// [`Vip::flags`]: the address of the agent's probe: everybody is denied, by a counter of its own. Nothing else in such
/// an entry means anything.
pub const VIP_PROBE: u32 = 8;

/// What a VIP stands for.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct Vip {
    /// Index into `SETS`.
    pub set: u16,
    /// Index into [`Slot::ranges`].
    pub role: u16,
    /// Any of [`VIP_MEMBERS_ONLY`], [`VIP_ANCHOR`], [`VIP_LEASED`] and [`VIP_PROBE`].
    pub flags: u32,
}

/// The anchor of a role: a loopback address on which nobody listens, by which the agent's pinned sockets dial it.
///
/// Loopback, so that a dial that no program steers is refused on this machine and reaches nobody.
#[inline(always)]
#[must_use]
pub const fn anchor(set: u8, role: u8) -> Address {
    Address::v4(u32::from_ne_bytes([127, 127, set, role]), 9_u16.to_be())
}

/// What the agent dials to see that the programs act (K9): a loopback address on which nobody listens, and no anchor. A
/// connect that no program meets is refused there by TCP, and one that does is denied as unreachable.
pub const PROBE: Address = Address::v4(u32::from_ne_bytes([127, 127, 255, 255]), 9_u16.to_be());

/// [`Member::flags`]: the address and port of an endpoint, not only a fenced address.
pub const MEMBER_ENDPOINT: u16 = 1;
/// [`Member::flags`]: only some ports of this address belong to members (hostNetwork Pods share their node's
/// address), so look again with the port. Nothing else in such an entry means anything.
pub const MEMBER_BY_PORT: u16 = 2;

/// Whose address this is. Keyed by the whole address (port 0), and once more by each endpoint's port.
///
/// A connect asks for the whole address first, so that one lookup settles all but the addresses of nodes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct Member {
    /// Of which revision.
    pub tenant: Tenant,
    /// The role, for endpoints; `u16::MAX` for a member whose role takes no traffic.
    pub role: u16,
    /// [`MEMBER_ENDPOINT`], [`MEMBER_BY_PORT`] or 0.
    pub flags: u16,
    /// Always 0.
    pub zero: u32,
}

/// [`Source::kind`]: a member Pod of a set.
pub const SOURCE_MEMBER: u32 = 1;

/// Who runs in a cgroup. Keyed by the cgroup id of the Pod's own cgroup.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct Source {
    /// Of which revision.
    pub tenant: Tenant,
    /// [`SOURCE_MEMBER`]; any other is as if the process were not known.
    pub kind: u32,
    /// Always 0.
    pub zero: u32,
}

/// [`Pin::kind`]: the socket is the agent's, and pinned to a revision.
pub const PIN_REVISION: u32 = 1;
/// [`Pin::kind`]: the socket is the agent's, without a pin, for health checks and scrapes: the fence lets it through, and
/// no VIP does. Nothing in the agent dials so yet.
pub const PIN_AGENT: u32 = 2;

/// The revision chosen for one socket, written through its file descriptor before `connect`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct Pin {
    /// The endpoint chosen by the agent; port 0: any of the revision and the VIP's role.
    pub endpoint: Address,
    /// [`PIN_REVISION`] or [`PIN_AGENT`].
    pub kind: u32,
    /// To which revision.
    pub tenant: Tenant,
}

/// [`Tenant::slot`] of a connection that was steered with [`SET_UNGATED`], to any revision.
pub const ANY_SLOT: u16 = u16::MAX;

/// [`Peer::state`]: `getpeername` answers the VIP (an ordinary client), not the endpoint (a pinned socket).
pub const PEER_HIDDEN: u64 = 1;
/// [`Peer::state`]: the connection was counted as opened.
pub const PEER_COUNTED: u64 = 2;
/// Where in [`Peer::state`] the time begins until which the place is nobody else's, in units of two to the power of
/// [`PEER_CLOCK_SHIFT`] nanoseconds of `CLOCK_MONOTONIC_COARSE`.
pub const PEER_UNTIL_SHIFT: u32 = 32;
/// A unit is 1.07 s.
pub const PEER_CLOCK_SHIFT: u32 = 30;
/// [`Peer::state`]: until the end of the connection, which TCP tells.
pub const PEER_UNTIL_END: u64 = 0xffff_ffff << PEER_UNTIL_SHIFT;
/// Units for which a place is kept for a connect of which TCP has not told: 4.6 minutes. TCP begins at once, or the
/// connect fails; only `TCP_FASTOPEN_CONNECT` lets it wait for the first write.
pub const PEER_WAITS: u64 = 256;

/// What a steered socket dialled and where it went.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct Peer {
    /// The socket's cookie, in [`map::PEERS`]. The kernel gives none twice.
    pub cookie: u64,
    /// [`PEER_HIDDEN`], [`PEER_COUNTED`] and until when: one word, which changes at once. 0: nobody's.
    pub state: u64,
    /// Of which revision.
    pub tenant: Tenant,
    /// The endpoint that it was steered to.
    pub endpoint: Address,
    /// The VIP that the socket dialled.
    pub vip: Address,
}

/// An endpoint as a tenant of its slot: the key of its connection counts.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Pod, Zeroable)]
pub struct ConnectionKey {
    /// The endpoint.
    pub endpoint: Address,
    /// Always 0.
    pub zero: u32,
    /// Of which revision.
    pub tenant: Tenant,
}

/// Steered TCP connections of one endpoint, on one CPU. Sum over the CPUs; the difference is what is open.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
pub struct Connections {
    /// Reached the established state.
    pub opened: u64,
    /// Left it.
    pub closed: u64,
}

/// What the programs ask besides the tables. Each field changes alone and is one aligned word.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
pub struct Settings {
    /// The levels below the cgroup root at which Pods' cgroups are: up to [`SOURCE_LEVELS`], one byte each, the
    /// lowest byte first; 0 ends them.
    pub source_levels: u32,
    /// [`FENCE_OFF`], [`FENCE_AUDIT`] or [`FENCE_ENFORCE`].
    pub fence: u32,
}

/// [`Settings::fence`]: nothing is fenced.
pub const FENCE_OFF: u32 = 0;
/// [`Settings::fence`]: what would be denied is counted and allowed.
pub const FENCE_AUDIT: u32 = 1;
/// [`Settings::fence`]: connects across revisions are denied.
pub const FENCE_ENFORCE: u32 = 2;

/// Bytes of the ring of events: about a thousand. A power of two, and a multiple of every page size.
pub const EVENT_BYTES: usize = 64 * 1024;
/// Most events of one CPU in a window; what is beyond is only counted. So a storm of denied connects costs little,
/// and the first of a quiet time is always told.
pub const EVENTS_PER_WINDOW: u64 = 32;
/// A window is as many nanoseconds as two to this power: 134 ms.
pub const EVENT_WINDOW_SHIFT: u32 = 27;

/// [`Event::caller`]: no socket of the agent; whose process it is, its cgroups tell.
pub const CALLER_PROCESS: u32 = 0;
/// [`Event::caller`]: a socket of the agent, pinned to (set, slot, epoch).
pub const CALLER_PINNED: u32 = 1;
/// [`Event::caller`]: a socket of the agent without a pin.
pub const CALLER_AGENT: u32 = 2;

/// A connect that was denied, or would have been: what a person needs to know of it. Nothing depends on events.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct Event {
    /// The caller's cgroup.
    pub cgroup: u64,
    /// The cgroups above it (or itself) at each of [`Settings::source_levels`]; one is its Pod's, if it is a Pod's.
    pub ancestors: [u64; SOURCE_LEVELS],
    /// What it dialled.
    pub to: Address,
    /// The [`Counter`](crate::counter::Counter) that was counted.
    pub outcome: u32,
    /// One of the `CALLER_` values.
    pub caller: u32,
    /// The protocol, `IPPROTO_`.
    pub protocol: u32,
    /// Of the pin, with [`CALLER_PINNED`].
    pub tenant: Tenant,
}

/// What became of the events of one CPU.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
pub struct EventAccount {
    /// The window that is counted now.
    pub window: u64,
    /// Events in it.
    pub in_window: u64,
    /// Put into the ring.
    pub sent: u64,
    /// Left out, because the window was full.
    pub skipped: u64,
    /// Left out, because the ring was full.
    pub lost: u64,
}

const _: () = {
    assert!(size_of::<Address>() == 20);
    assert!(
        matches!(PIN_DIRECTORY.as_bytes(), [.., b'/', b'v', digit] if *digit as u32 == b'0' as u32 + VERSION),
        "the directory's name has the version"
    );
    assert!(size_of::<SetTable>().is_multiple_of(8));
    assert!(size_of::<Peer>() == 64, "as large as a cache line");
    assert!(MAX_PEERS.is_power_of_two());
    assert!(size_of::<SetTable>() < 300 * 1024);
    assert!(MAX_SETS < 255, "no anchor is at the address of the probe");
    assert!(MAX_REVISIONS == 64, "pick::rank takes exactly six steps");
};
