//! The kernel object that `build.rs` made, and what must be in it.

use revgate_common::{
    address::Address,
    counter::Counter,
    layout::{
        self, ConnectionKey, Connections, EVENT_BYTES, EventAccount, MAX_CONNECTION_ENTRIES, MAX_PEERS,
        MAX_SETS, Member, Peer, Pin, SetTable, Settings, Source, Vip,
    },
};

use super::sys;

/// The object, empty when the build machine had no tools for it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/revgate.bpf.o"));
/// The same programs, which also write a line for every decision.
static TRACE_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/revgate-trace.bpf.o"));

/// The object, if this agent has it.
pub(super) fn bytes() -> Option<&'static [u8]> {
    (!OBJECT.is_empty()).then_some(OBJECT)
}

/// The object for diagnosis, if this agent has it.
pub(super) fn trace_bytes() -> Option<&'static [u8]> {
    (!TRACE_OBJECT.is_empty()).then_some(TRACE_OBJECT)
}

/// A program, where it hooks in, and the `enum bpf_attach_type` of that hook (`include/uapi/linux/bpf.h`).
pub(super) struct Hook {
    /// The program's name in the object, and of its pins.
    pub(super) program: &'static str,
    /// The attach type.
    pub(super) attach_type: u32,
}

/// The program that hears of the ends of connections.
pub(super) const COUNT: &str = "count";

/// Every program that is attached. `getpeername` and counting first: a connect that is steered is then hidden and
/// counted from the start.
pub(super) const HOOKS: [Hook; 5] = [
    Hook { program: "getpeername4", attach_type: 29 },
    Hook { program: "getpeername6", attach_type: 30 },
    Hook { program: COUNT, attach_type: 3 },
    Hook { program: "connect4", attach_type: 10 },
    Hook { program: "connect6", attach_type: 11 },
];

/// What a map must be to be used: aya opens a pin without looking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// `enum bpf_map_type`.
    pub(super) map_type: u32,
    /// Bytes of a key.
    pub(super) key: usize,
    /// Bytes of a value.
    pub(super) value: usize,
    /// Most elements.
    pub(super) entries: usize,
    /// `BPF_F_` flags.
    pub(super) flags: u32,
}

/// `BPF_F_NO_PREALLOC`.
const NO_PREALLOC: u32 = 1;

/// The shape of a map of the object.
pub(super) fn shape(map: &str) -> Option<Shape> {
    use layout::map::{
        CONNECTIONS, COUNTERS, EVENT_ACCOUNTS, EVENTS, LEASE, MEMBERS, PEERS, PINS, SETS, SETTINGS, SOURCES,
        STORED_PEERS, VIPS,
    };
    let (map_type, key, value, entries, flags) = match map {
        SETS => (12, 4, 4, MAX_SETS, 0),
        VIPS | MEMBERS | SOURCES => (12, 4, 4, 1, 0),
        PINS => (24, 4, size_of::<Pin>(), 0, NO_PREALLOC),
        PEERS => (2, 4, size_of::<Peer>(), MAX_PEERS, 0),
        STORED_PEERS => (24, 4, size_of::<Peer>(), 0, NO_PREALLOC),
        COUNTERS => (6, 4, size_of::<u64>(), Counter::ALL.len(), 0),
        CONNECTIONS => {
            (5, size_of::<ConnectionKey>(), size_of::<Connections>(), MAX_CONNECTION_ENTRIES, NO_PREALLOC)
        }
        SETTINGS => (2, 4, size_of::<Settings>(), 1, 0),
        LEASE => (2, 4, size_of::<u64>(), 1, 0),
        EVENTS => (27, 0, 0, EVENT_BYTES, 0),
        EVENT_ACCOUNTS => (6, 4, size_of::<EventAccount>(), 1, 0),
        _ => return None,
    };
    Some(Shape { map_type, key, value, entries, flags })
}

/// The shape of an inner map, by its pin's name; its number of elements does not matter.
pub(super) fn table_shape(table: &str) -> Option<Shape> {
    let (map_type, key, value) = match table {
        "vips" => (sys::HASH, size_of::<Address>(), size_of::<Vip>()),
        "members" => (sys::HASH, size_of::<Address>(), size_of::<Member>()),
        "sources" => (sys::HASH, size_of::<u64>(), size_of::<Source>()),
        _ if table.starts_with("set-") => (sys::ARRAY, 4, size_of::<SetTable>()),
        _ => return None,
    };
    Some(Shape { map_type, key, value, entries: 0, flags: layout::TABLE_FLAGS })
}
