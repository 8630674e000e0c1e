//! What pinned maps hold, as an agent that starts and one that reports read it: any bytes in the shape of the layout,
//! which is looked at before (see [`Pins::unusable`](super::pins::Pins::unusable)).

#![allow(clippy::missing_panics_doc, reason = "to panic is how a target fails")]

use std::{
    collections::HashMap,
    mem::offset_of,
    net::SocketAddr,
    sync::{Arc, LazyLock},
};

use bytemuck::{bytes_of_mut, zeroed_box};
use revgate_common::{
    address::Address,
    layout::{ConnectionKey, Connections, Event, EventAccount, MAX_REVISIONS, SetTable},
};

use super::{
    plan::{Before, Write, plan},
    reader::{SetTenants, account, connections},
    writer::{set_index, set_name},
};
use crate::{
    cluster::{Change, Pod, list},
    fuzz::{WORLD, publish},
    observe::{KernelReading, denied_log::Denied, kernel::EndpointConnections, report::open_connections},
    snapshot::{
        Snapshot,
        slots::{name_hash, set_hash},
    },
};

/// Two revisions, which a table may know already.
const PODS: &str = "
- {name: a-p, namespace: llm, ip: 10.0.0.1, labels: {app: llm, size: '4', rev: a, role: prefill}, ports: [8000]}
- {name: a-d, namespace: llm, ip: 10.0.0.2, labels: {app: llm, size: '4', rev: a, role: decode}}
- {name: b-p, namespace: llm, ip: 10.0.0.3, labels: {app: llm, size: '4', rev: b, role: prefill}}
- {name: b-d, namespace: llm, ip: 10.0.0.4, labels: {app: llm, size: '4', rev: b, role: decode}}
";

static REVISIONS: LazyLock<Vec<Arc<Pod>>> = LazyLock::new(|| {
    let pods = list::parse(PODS).unwrap_or_else(|error| unreachable!("{error}"));
    pods.into_iter().map(|listed| listed.pod).collect()
});

/// The first line is the name of a table's pin, and the rest what a map holds. An agent adopts of it what its state can
/// use, and replaces all else.
pub fn kernel_tables(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let (name, bytes) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let index = str::from_utf8(name).ok().and_then(set_index);
    if let Some(index) = index {
        assert_eq!(set_name(index).as_bytes(), name, "an index that another name has, too");
    }
    let snapshot = adopt(index.unwrap_or(0), bytes);
    sum(bytes, &snapshot);
    if let Some(event) = first::<Event>(bytes) {
        for outcome in [event.outcome, event.outcome % 16] {
            let denied = Denied::of(&Event { outcome, ..event }, &snapshot);
            assert!(denied.is_none_or(|denied| !denied.to_string().is_empty()));
        }
    }
    if let Some(address) = first::<Address>(bytes) {
        let at = SocketAddr::from(address);
        assert_eq!(SocketAddr::from(Address::from(at)), at);
    }
}

/// The bytes as a value, zeros after their end.
fn first<T: bytemuck::Pod>(bytes: &[u8]) -> Option<T> {
    (!bytes.is_empty()).then(|| {
        let mut value = T::zeroed();
        lay(bytes, bytes_of_mut(&mut value));
        value
    })
}

/// The bytes over the start of a value.
fn lay(bytes: &[u8], value: &mut [u8]) {
    for (to, from) in value.iter_mut().zip(bytes) {
        *to = *from;
    }
}

/// Starts on a set's table of these bytes, and publishes: whoever is known keeps slot and epoch, and no table stays
/// that is not this agent's.
fn adopt(index: u32, bytes: &[u8]) -> Snapshot {
    let mut table: Box<SetTable> = zeroed_box();
    let head = offset_of!(SetTable, endpoints);
    lay(bytes, bytes_of_mut(&mut *table).get_mut(..head).unwrap_or_default());
    // Hashes that nobody guesses: small numbers stand for those that are known.
    let known = |hash: u64| [None, Some("a"), Some("b")].get(usize::try_from(hash).ok()?).copied().flatten();
    let set = WORLD.sets.iter().map(|set| set_hash(&set.name, &set.roles)).next().unwrap_or_default();
    if table.set == 1 {
        table.set = set;
    }
    for slot in &mut table.slots {
        slot.revision = known(slot.revision).map_or(slot.revision, name_hash);
    }
    let SetTenants { tenants, generation, .. } = SetTenants::of(index, &table);
    let of_set = (table.set == set).then_some(&tenants);
    let left = tenants.iter().map(|tenant| (tenant.slot, tenant.revision, tenant.epoch)).collect();
    let pods = Change::Replace(REVISIONS.clone());
    let (snapshot, tables) = publish(HashMap::from([(table.set, left)]), generation, vec![pods]);

    assert_ne!(snapshot.generation, 0, "which is before the first");
    let mut slots = Vec::new();
    for revision in snapshot.sets.iter().flat_map(|set| &set.revisions) {
        assert!(usize::from(revision.slot) < MAX_REVISIONS && revision.epoch != 0, "{revision:?}");
        assert!(!slots.contains(&revision.slot), "a slot with two tenants");
        slots.push(revision.slot);
        let before = of_set.into_iter().flatten().find(|tenant| tenant.revision == name_hash(&revision.name));
        let same = before.is_none_or(|before| (before.slot, before.epoch) == (revision.slot, revision.epoch));
        assert!(same, "{revision:?} was {before:?}");
    }
    let writes = plan(&Before::Unknown(vec![(index, table.set)]), &tables);
    let drops =
        |at: u32| writes.iter().any(|write| matches!(write, Write::DropSet(dropped) if *dropped == at));
    assert!(writes.iter().any(|write| matches!(write, Write::Set(0, _))), "its own table is written");
    assert_eq!(drops(index), index != 0 || table.set != set, "another's is dropped");
    snapshot
}

/// Adds up counts of two CPUs, all of the first revision: whatever they are, there is a sum.
fn sum(bytes: &[u8], snapshot: &Snapshot) {
    let cpus = bytes.chunks(size_of::<[Connections; 2]>()).filter_map(first::<[Connections; 2]>);
    let view = snapshot.sets.iter().flat_map(|set| &set.revisions).next();
    let (slot, epoch) = view.map_or((0, 0), |view| (view.slot, view.epoch));
    let key = first::<ConnectionKey>(bytes).map_or(SocketAddr::from(([0; 4], 0)), |key| key.endpoint.into());
    let of_endpoint = |of_cpus: [Connections; 2]| {
        let Connections { opened, closed } = connections(&of_cpus);
        assert!(of_cpus.iter().all(|of_cpu| opened >= of_cpu.opened && closed >= of_cpu.closed));
        EndpointConnections { endpoint: key, set: 0, slot, epoch, opened, closed }
    };
    let reading = KernelReading {
        active: true,
        connections: cpus.map(of_endpoint).collect(),
        ..KernelReading::default()
    };
    if let Some(view) = view {
        let open = open_connections(&reading, 0, view).unwrap_or_default();
        assert!(reading.connections.iter().all(|of| open >= of.opened.saturating_sub(of.closed)));
    }
    if let Some(of_cpu) = first::<EventAccount>(bytes) {
        let EventAccount { sent, skipped, lost, .. } = account(&[of_cpu, of_cpu]);
        assert!(sent >= of_cpu.sent && skipped >= of_cpu.skipped && lost >= of_cpu.lost);
    }
}
