//! The maps, and how the programs read them.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{Array, ArrayOfMaps, HashMap, PerCpuArray, PerCpuHashMap, SkStorage},
    macros::btf_map,
    programs::SockAddrContext,
};
use revgate_common::{
    address::Address,
    counter::Counter,
    decide::Steer,
    layout::{
        ConnectionKey, Connections, MAX_CONNECTION_ENTRIES, MAX_SETS, Member, PEER_HIDDEN, Peer, Pin,
        SetTable, Settings, Source, TABLE_FLAGS, Vip,
    },
};

/// [`TABLE_FLAGS`] as the type of a map wants it.
const TABLE: usize = TABLE_FLAGS as usize;
/// A table of this size in the program, of any size in the agent: the kernel does not compare the sizes of hashes.
type Table<K, V> = HashMap<K, V, 1, TABLE>;

#[btf_map]
static SETS: ArrayOfMaps<Array<SetTable, 1, TABLE>, MAX_SETS> = ArrayOfMaps::new();
#[btf_map]
static VIPS: ArrayOfMaps<Table<Address, Vip>, 1> = ArrayOfMaps::new();
#[btf_map]
static MEMBERS: ArrayOfMaps<Table<Address, Member>, 1> = ArrayOfMaps::new();
#[btf_map]
static SOURCES: ArrayOfMaps<Table<u64, Source>, 1> = ArrayOfMaps::new();
#[btf_map]
pub(crate) static PINS: SkStorage<Pin> = SkStorage::new();
#[btf_map]
pub(crate) static PEERS: SkStorage<Peer> = SkStorage::new();
#[btf_map]
static COUNTERS: PerCpuArray<u64, { Counter::ALL.len() }> = PerCpuArray::new();
#[btf_map]
pub(crate) static CONNECTIONS: PerCpuHashMap<
    ConnectionKey,
    Connections,
    MAX_CONNECTION_ENTRIES,
    { BPF_F_NO_PREALLOC as usize },
> = PerCpuHashMap::new();
#[btf_map]
static SETTINGS: Array<Settings, 1> = Array::new();

/// The table of a set.
#[inline(always)]
pub(crate) fn set<'a>(set: u16) -> Option<&'a SetTable> {
    SETS.get_value(u32::from(set), &0)
}

/// What a VIP stands for.
#[inline(always)]
pub(crate) fn vip<'a>(at: &Address) -> Option<&'a Vip> {
    // SAFETY: inner tables are written once, before they are published, so no element behind a reference changes.
    unsafe { VIPS.get(0)?.get(at) }
}

/// Whose an address is: one table for every question.
#[inline(always)]
pub(crate) fn members<'a>() -> Option<impl Fn(&Address) -> Option<&'a Member>> {
    let table = MEMBERS.get(0)?;
    // SAFETY: as for `vip`.
    Some(move |at: &Address| unsafe { table.get(at) })
}

/// Who runs in a cgroup.
#[inline(always)]
pub(crate) fn source<'a>(cgroup: u64) -> Option<&'a Source> {
    // SAFETY: as for `vip`.
    unsafe { SOURCES.get(0)?.get(cgroup) }
}

/// The settings; `None` cannot happen, an array of one has its element.
#[inline(always)]
pub(crate) fn settings<'a>() -> Option<&'a Settings> {
    SETTINGS.get(0)
}

/// Counts an outcome.
#[inline(always)]
pub(crate) fn count(outcome: Counter) {
    if let Some(counter) = COUNTERS.get_ptr_mut(outcome as u32) {
        // SAFETY: this CPU's own element, and programs on one CPU do not preempt each other between load and store
        // often enough to matter for a count; the pointer is valid for the run.
        unsafe { *counter += 1 }
    }
}

/// Remembers where a socket was steered. When the kernel is out of memory the connect goes on: the socket then
/// shows its true peer and is not counted.
///
/// Field by field: a copy of the whole would be a loop over its bytes.
#[inline(always)]
pub(crate) fn remember_peer(ctx: &SockAddrContext, vip: &Address, steer: &Steer) {
    // SAFETY: the socket is the context's own, and the pointer is checked; only a connect writes it, and a socket
    // connects in one place at a time.
    let Some(peer) = (unsafe { PEERS.get_or_insert_ptr_mut(ctx, None).as_mut() }) else { return };
    peer.vip = *vip;
    peer.endpoint = steer.endpoint;
    peer.set = steer.set;
    peer.slot = steer.slot;
    peer.epoch = steer.epoch;
    peer.flags = if steer.hidden { PEER_HIDDEN } else { 0 };
}

/// Forgets where a socket was steered before, if it was.
#[inline(always)]
pub(crate) fn forget_peer(ctx: &SockAddrContext) {
    // SAFETY: the socket is the context's own. Deleting what is not there fails, and that is as good.
    let _ = unsafe { PEERS.delete((*ctx.sock_addr).__bindgen_anon_1.sk) };
}
