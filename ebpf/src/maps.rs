//! The maps, and how the programs read them.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{Array, ArrayOfMaps, HashMap, PerCpuArray, PerCpuHashMap, RingBuf, SkStorage},
    macros::btf_map,
    programs::SockAddrContext,
};
use revgate_common::{
    address::Address,
    counter::Counter,
    decide::Tables,
    layout::{
        ConnectionKey, Connections, EVENT_BYTES, Event, EventAccount, FENCE_OFF, MAX_CONNECTION_ENTRIES,
        MAX_PEERS, MAX_SETS, Member, Peer, Pin, SetTable, Settings, Source, TABLE_FLAGS, Vip,
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
static PINS: SkStorage<Pin> = SkStorage::new();
#[btf_map]
pub(crate) static PEERS: Array<Peer, MAX_PEERS> = Array::new();
#[btf_map]
pub(crate) static STORED_PEERS: SkStorage<Peer> = SkStorage::new();
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
#[btf_map]
static LEASE: Array<u64, 1> = Array::new();
#[btf_map]
pub(crate) static EVENTS: RingBuf<Event, EVENT_BYTES> = RingBuf::new();
#[btf_map]
static EVENT_ACCOUNTS: PerCpuArray<EventAccount, 1> = PerCpuArray::new();

/// What is published, as a decision asks for it.
pub(crate) struct Published;

impl Tables for Published {
    #[inline(always)]
    fn vip(&self, at: &Address) -> Option<&Vip> {
        // SAFETY: inner tables are written once, before they are published, so no element behind a reference changes.
        unsafe { VIPS.get(0)?.get(at) }
    }

    #[inline(always)]
    fn set(&self, set: u16) -> Option<&SetTable> {
        SETS.get_value(u32::from(set), &0)
    }

    #[inline(always)]
    fn members<'t>(&'t self) -> Option<impl Fn(&Address) -> Option<&'t Member>> {
        let table = MEMBERS.get(0)?;
        // SAFETY: as for `vip`.
        Some(move |at: &Address| unsafe { table.get(at) })
    }

    #[inline(always)]
    fn fence(&self) -> u32 {
        settings().map_or(FENCE_OFF, |settings| settings.fence)
    }
}

/// Who runs in a cgroup: one table for every question.
#[inline(always)]
pub(crate) fn sources<'a>() -> Option<impl Fn(u64) -> Option<&'a Source>> {
    let table = SOURCES.get(0)?;
    // SAFETY: as for [`Published`].
    Some(move |cgroup: u64| unsafe { table.get(cgroup) })
}

/// The settings; `None` cannot happen, an array of one has its element.
#[inline(always)]
pub(crate) fn settings<'a>() -> Option<&'a Settings> {
    SETTINGS.get(0)
}

/// Until when the agent's last sign of life counts; 0, long ago, cannot happen for want of the element.
#[inline(always)]
pub(crate) fn lease() -> u64 {
    LEASE.get(0).copied().unwrap_or(0)
}

/// Counts an outcome, by the index of its [`Counter`].
#[inline(always)]
pub(crate) fn count(outcome: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(outcome) {
        // SAFETY: this CPU's own element, and programs on one CPU do not preempt each other between load and store
        // often enough to matter for a count; the pointer is valid for the run.
        unsafe { *counter += 1 }
    }
}

/// This CPU's account of events; `None` cannot happen.
#[inline(always)]
pub(crate) fn event_account<'a>() -> Option<&'a mut EventAccount> {
    // SAFETY: this CPU's own element, as for `count`; the pointer is valid for the run.
    unsafe { EVENT_ACCOUNTS.get_ptr_mut(0)?.as_mut() }
}

/// The pin of the socket.
#[inline(always)]
pub(crate) fn pin<'a>(ctx: &SockAddrContext) -> Option<&'a Pin> {
    // SAFETY: the socket is the context's own. The agent does not write a pin while its socket connects.
    unsafe { PINS.get_ptr_mut(ctx).as_ref() }
}
