//! Carries out a plan: makes inner maps, fills and freezes them, and swaps them in.

use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use bytemuck::Pod;
use revgate_common::{
    address::Address,
    layout::{MEMBER_ENDPOINT, Member, SetTable, TABLE_FLAGS, map},
};

use super::{
    KernelError,
    pins::Pins,
    plan::{Before, Write, plan},
    reader::Shared,
    sys,
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
    sets: OwnedFd,
    vips: OwnedFd,
    members: OwnedFd,
    sources: OwnedFd,
    settings: OwnedFd,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, fence: FenceMode) -> Result<Self, KernelError> {
        let pins = &shared.pins;
        let outer = Outer {
            sets: pins.open_map(map::SETS)?,
            vips: pins.open_map(map::VIPS)?,
            members: pins.open_map(map::MEMBERS)?,
            sources: pins.open_map(map::SOURCES)?,
            settings: pins.open_map(map::SETTINGS)?,
        };
        Ok(Self { shared, fence, current: None, outer })
    }

    fn execute(&self, write: Write<'_>) -> Result<(), KernelError> {
        let Self { outer, .. } = self;
        let pins = &self.shared.pins;
        match write {
            Write::Settings(settings) => {
                sys::map_update(outer.settings.as_fd(), &0_u32, &settings).map_err(failed(map::SETTINGS))
            }
            Write::Members(members) => swap_hash(pins, &outer.members, map::MEMBERS, "members", &members),
            Write::Sources(sources) => swap_hash(pins, &outer.sources, map::SOURCES, "sources", sources),
            Write::Vips(vips) => swap_hash(pins, &outer.vips, map::VIPS, "vips", vips),
            Write::Set(index, table) => swap_set(pins, &outer.sets, index, table),
            Write::DropSet(index) => {
                sys::map_delete(outer.sets.as_fd(), &index).map_err(failed(map::SETS))?;
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

fn swap_hash<K: Pod, V: Pod>(
    pins: &Pins,
    outer: &OwnedFd,
    table: &'static str,
    name: &str,
    entries: &HashMap<K, V>,
) -> Result<(), KernelError> {
    let (keys, values): (Vec<K>, Vec<V>) = entries.iter().unzip();
    let inner =
        sys::map_create::<K, V>(sys::HASH, keys.len().max(1), TABLE_FLAGS, name).map_err(failed(table))?;
    sys::map_fill(inner.as_fd(), &keys, &values).map_err(failed(table))?;
    swap(pins, outer, 0, table, name, &inner)
}

fn swap_set(pins: &Pins, outer: &OwnedFd, index: u32, content: &SetTable) -> Result<(), KernelError> {
    let name = set_name(index);
    let inner =
        sys::map_create::<u32, SetTable>(sys::ARRAY, 1, TABLE_FLAGS, &name).map_err(failed(map::SETS))?;
    sys::map_update(inner.as_fd(), &0_u32, content).map_err(failed(map::SETS))?;
    swap(pins, outer, index, map::SETS, &name, &inner)
}

/// Freezes a filled inner map, pins it and swaps it in. On return no program sees the one before.
fn swap(
    pins: &Pins,
    outer: &OwnedFd,
    index: u32,
    table: &'static str,
    name: &str,
    inner: &OwnedFd,
) -> Result<(), KernelError> {
    sys::map_freeze(inner.as_fd()).map_err(failed(table))?;
    pins.keep_table(name, inner.as_fd())?;
    sys::map_swap(outer.as_fd(), index, inner.as_fd()).map_err(failed(table))
}
