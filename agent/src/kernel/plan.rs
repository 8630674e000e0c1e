//! From the tables that the kernel has to those that it should have: what to write, in which order. Pure.
//!
//! An address becomes a member before a table steers to it, and stays one until no table does. A Pod is known as a
//! source before its revision takes traffic, so that it is never weighed like a stranger. VIPs come last: once
//! one is known, its table is there.

use std::{borrow::Cow, collections::HashMap};

use bytemuck::bytes_of;
use revgate_common::{
    address::Address,
    layout::{Member, SetTable, Settings, Source, Vip},
};

use super::tables::Tables;

/// One inner map to make and swap in, or one word to set.
pub enum Write<'t> {
    /// The settings.
    Settings(Settings),
    /// Addresses of members.
    Members(Cow<'t, HashMap<Address, Member>>),
    /// Cgroups of local Pods.
    Sources(&'t HashMap<u64, Source>),
    /// The table of a set.
    Set(u32, &'t SetTable),
    /// A set is gone.
    DropSet(u32),
    /// VIPs and anchors.
    Vips(&'t HashMap<Address, Vip>),
}

/// What the kernel has.
pub enum Before<'t> {
    /// Something, written by another agent, or by a publication that failed: these sets have a table.
    Unknown(Vec<u32>),
    /// These tables.
    Tables(&'t Tables),
}

/// What to write, in order. Nothing where nothing changed; a set's generation alone is no change.
#[must_use]
pub fn plan<'t>(before: &Before<'_>, after: &'t Tables) -> Vec<Write<'t>> {
    let mut writes = Vec::new();
    let old = match before {
        Before::Tables(old) => Some(*old),
        Before::Unknown(_) => None,
    };
    if old.is_none_or(|old| old.settings != after.settings) {
        writes.push(Write::Settings(after.settings));
    }
    let mut remove_members = false;
    match old {
        None => writes.push(Write::Members(Cow::Borrowed(&after.members))),
        Some(old) if old.members != after.members => {
            let gone: Vec<_> = old.members.iter().filter(|(at, _)| !after.members.contains_key(at)).collect();
            if gone.is_empty() {
                writes.push(Write::Members(Cow::Borrowed(&after.members)));
            } else {
                remove_members = true;
                let stays = after.members.iter().all(|(at, member)| old.members.get(at) == Some(member));
                if !stays {
                    let mut both = after.members.clone();
                    both.extend(gone.into_iter().map(|(at, member)| (*at, *member)));
                    writes.push(Write::Members(Cow::Owned(both)));
                }
            }
        }
        Some(_) => {}
    }
    if old.is_none_or(|old| old.sources != after.sources) {
        writes.push(Write::Sources(&after.sources));
    }
    let mut old_sets = old.map(|old| old.sets.iter());
    for (index, table) in (0..).zip(&after.sets) {
        let old_table = old_sets.as_mut().and_then(Iterator::next);
        if old_table.is_none_or(|old| !same(old, table)) {
            writes.push(Write::Set(index, table));
        }
    }
    let kept = |index: u32| usize::try_from(index).is_ok_and(|index| index < after.sets.len());
    match before {
        Before::Unknown(sets) => {
            writes.extend(sets.iter().filter(|set| !kept(**set)).map(|set| Write::DropSet(*set)));
        }
        Before::Tables(old) => {
            let sets = (0..).zip(&old.sets).map(|(index, _)| index);
            writes.extend(sets.filter(|set| !kept(*set)).map(Write::DropSet));
        }
    }
    if old.is_none_or(|old| old.vips != after.vips) {
        writes.push(Write::Vips(&after.vips));
    }
    if remove_members {
        writes.push(Write::Members(Cow::Borrowed(&after.members)));
    }
    writes
}

/// Whether two tables are equal but for their generation, which is their first field.
fn same(a: &SetTable, b: &SetTable) -> bool {
    let behind = size_of_val(&a.generation);
    bytes_of(a).get(behind..) == bytes_of(b).get(behind..)
}
