//! Carries out a plan: makes inner maps, fills and freezes them, and swaps them in.

use std::{collections::HashMap, os::fd::AsFd, sync::Arc};

use bytemuck::Pod;
use revgate_common::{
    address::Address,
    layout::{MAX_SETS, MEMBER_ENDPOINT, Member, SetTable, Settings, TABLE_FLAGS, map},
};

use super::{
    KernelError,
    pins::Pins,
    plan::{Before, Write, plan},
    reader::Shared,
    sys::{self, Map},
    tables::Tables,
};
use crate::{config::FenceMode, snapshot::Snapshot};

/// The one writer of the kernel's tables.
pub(super) struct Writer {
    shared: Arc<Shared>,
    fence: FenceMode,
    /// What the kernel has; `None` when that is not known: at the start, and after a failure.
    current: Option<Tables>,
    outer: Outer,
}

/// The maps that are written.
struct Outer {
    sets: Map<u32, u32>,
    vips: Map<u32, u32>,
    members: Map<u32, u32>,
    sources: Map<u32, u32>,
    settings: Map<u32, Settings>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, fence: FenceMode) -> Result<Self, KernelError> {
        let pins = &shared.pins;
        let outer = Outer {
            sets: pins.map_of(map::SETS)?,
            vips: pins.map_of(map::VIPS)?,
            members: pins.map_of(map::MEMBERS)?,
            sources: pins.map_of(map::SOURCES)?,
            settings: pins.map_of(map::SETTINGS)?,
        };
        Ok(Self { shared, fence, current: None, outer })
    }

    fn execute(&self, write: Write<'_>) -> Result<(), KernelError> {
        let Self { outer, .. } = self;
        let pins = &self.shared.pins;
        match write {
            Write::Settings(settings) => outer.settings.update(&0, &settings).map_err(failed(map::SETTINGS)),
            Write::Members(members) => swap_hash(pins, &outer.members, map::MEMBERS, "members", &members),
            Write::Sources(sources) => swap_hash(pins, &outer.sources, map::SOURCES, "sources", sources),
            Write::Vips(vips) => swap_hash(pins, &outer.vips, map::VIPS, "vips", vips),
            Write::Set(index, table) => swap_set(pins, &outer.sets, index, table),
            Write::DropSet(index) => {
                outer.sets.delete(&index).map_err(failed(map::SETS))?;
                pins.drop_table(&set_name(index))
            }
        }
    }

    /// See [`Publish::publish`](super::Publish::publish).
    pub(super) fn publish(&mut self, snapshot: &Snapshot) -> Result<(), KernelError> {
        let tables = Tables::of(snapshot, self.fence)?;
        // Unknown until all is written: what a failure leaves behind is written again.
        let current = self.current.take();
        let before = match &current {
            Some(tables) => Before::Tables(tables),
            None => Before::Unknown(self.shared.set_hashes()?),
        };
        for write in plan(&before, &tables) {
            self.execute(write)?;
        }
        if current.is_none_or(|before| anything_left(&before, &tables)) {
            self.shared.forget_closed(&tables)?;
        }
        self.shared.acknowledge(snapshot.generation, tables.unseen_sources);
        self.current = Some(tables);
        Ok(())
    }
}

/// Whether a revision left its slot, or an endpoint its revision: connection counts may then go.
fn anything_left(before: &Tables, after: &Tables) -> bool {
    let endpoint_left = |(at, member): (&Address, &Member)| {
        member.flags & MEMBER_ENDPOINT != 0 && after.members.get(at) != Some(member)
    };
    before.members.iter().any(endpoint_left)
        || before.sets.len() > after.sets.len()
        || before.sets.iter().zip(&after.sets).any(|(before, after)| {
            before.slots.iter().zip(&after.slots).any(|(old, new)| old.epoch != 0 && old.epoch != new.epoch)
        })
}

fn failed(table: &'static str) -> impl Fn(std::io::Error) -> KernelError {
    move |source| KernelError::Write { table, source }
}

/// The pin's name of a set's table.
pub(super) fn set_name(index: u32) -> String {
    format!("set-{index}")
}

/// The index of the set whose table has this pin's name. Other names are no table's, whatever they begin with.
pub(super) fn set_index(name: &str) -> Option<u32> {
    let index = name.strip_prefix("set-")?.parse().ok()?;
    let is_one = usize::try_from(index).is_ok_and(|index| index < MAX_SETS) && set_name(index) == name;
    is_one.then_some(index)
}

fn swap_hash<K: Pod, V: Pod, S>(
    pins: &Pins,
    outer: &Map<u32, u32>,
    table: &'static str,
    name: &str,
    entries: &HashMap<K, V, S>,
) -> Result<(), KernelError> {
    let (keys, values): (Vec<K>, Vec<V>) = entries.iter().unzip();
    let inner =
        Map::<K, V>::create(sys::HASH, keys.len().max(1), TABLE_FLAGS, name).map_err(failed(table))?;
    inner.fill(&keys, &values).map_err(failed(table))?;
    swap(pins, outer, 0, table, name, &inner)
}

fn swap_set(pins: &Pins, outer: &Map<u32, u32>, index: u32, content: &SetTable) -> Result<(), KernelError> {
    let name = set_name(index);
    let inner = Map::<u32, SetTable>::create(sys::ARRAY, 1, TABLE_FLAGS, &name).map_err(failed(map::SETS))?;
    inner.update(&0, content).map_err(failed(map::SETS))?;
    swap(pins, outer, index, map::SETS, &name, &inner)
}

/// Freezes a filled inner map, pins it and swaps it in. On return no program sees the one before.
fn swap<K: Pod, V: Pod>(
    pins: &Pins,
    outer: &Map<u32, u32>,
    index: u32,
    table: &'static str,
    name: &str,
    inner: &Map<K, V>,
) -> Result<(), KernelError> {
    inner.freeze().map_err(failed(table))?;
    pins.keep_table(name, inner.as_fd())?;
    outer.swap(index, inner.as_fd()).map_err(failed(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_a_sets_by_its_whole_name_alone() {
        for index in [0, 7, 63] {
            assert_eq!(set_index(&set_name(index)), Some(index));
        }
        for name in ["set-", "set-64", "set-4294967295", "set-007", "set-+7", "set-0-next", "vips", "set-x"] {
            assert_eq!(set_index(name), None, "{name}");
        }
    }
}
