//! From the tables that the kernel has to those that it should have: what to write, in which order. Pure.
//!
//! An address becomes a member before a table steers to it, and stays one until no table does. A Pod is known as a
//! source before its revision takes traffic, so that it is never weighed like a stranger. VIPs come last: once
//! one is known, its table is there.
//!
//! Members, sources and VIPs name sets and roles by index. Where an index comes to stand for another set, or for the
//! same with its roles in another order, its table is taken away first and comes last: until all agree, connects to
//! its VIPs are denied, and none is steered by what the index meant before.

use std::{borrow::Cow, collections::HashMap};

use bytemuck::bytes_of;
use revgate_common::layout::{Member, SetTable, Settings, Source, Vip};

use super::tables::{ByAddress, Tables};

/// One inner map to make and swap in, or one word to set.
pub enum Write<'t> {
    /// The settings.
    Settings(Settings),
    /// Addresses of members.
    Members(Cow<'t, ByAddress<Member>>),
    /// Cgroups of local Pods.
    Sources(&'t HashMap<u64, Source>),
    /// The table of a set.
    Set(u32, &'t SetTable),
    /// A set is gone.
    DropSet(u32),
    /// VIPs and anchors.
    Vips(&'t ByAddress<Vip>),
}

/// What the kernel has.
pub enum Before<'t> {
    /// Something, written by another agent, or by a publication that failed: these indices have a table, of the set
    /// with that hash.
    Unknown(Vec<(u32, u64)>),
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
    let had = match before {
        Before::Unknown(sets) => sets.clone(),
        Before::Tables(old) => (0..).zip(old.sets.iter().map(|table| table.set)).collect(),
    };
    let hash_at =
        |index: u32| usize::try_from(index).ok().and_then(|i| after.sets.get(i)).map(|table| table.set);
    let changed: Vec<u32> =
        had.iter().filter(|(at, hash)| hash_at(*at) != Some(*hash)).map(|(at, _)| *at).collect();
    let renamed = changed.iter().any(|at| hash_at(*at).is_some());
    if renamed {
        writes.extend(changed.iter().map(|at| Write::DropSet(*at)));
    }

    let late_members = members(&mut writes, old, after);
    if old.is_none_or(|old| old.sources != after.sources) {
        writes.push(Write::Sources(&after.sources));
    }
    let vips = old.is_none_or(|old| old.vips != after.vips).then_some(Write::Vips(&after.vips));
    let (early_vips, late_vips) = if renamed { (vips, None) } else { (None, vips) };
    writes.extend(early_vips);
    let mut old_sets = old.map(|old| old.sets.iter());
    for (index, table) in (0..).zip(&after.sets) {
        let old_table = old_sets.as_mut().and_then(Iterator::next);
        if changed.contains(&index) || old_table.is_none_or(|old| !same(old, table)) {
            writes.push(Write::Set(index, table));
        }
    }
    writes.extend(late_vips);
    if !renamed {
        // These sets are gone, and so is every VIP of theirs.
        writes.extend(changed.iter().map(|at| Write::DropSet(*at)));
    }
    writes.extend(late_members);
    writes
}

/// Writes the members that come, and gives the write that takes those away that go.
fn members<'t>(writes: &mut Vec<Write<'t>>, old: Option<&Tables>, after: &'t Tables) -> Option<Write<'t>> {
    let all = Write::Members(Cow::Borrowed(&after.members));
    let Some(old) = old else {
        writes.push(all);
        return None;
    };
    if old.members == after.members {
        return None;
    }
    let gone: Vec<_> = old.members.iter().filter(|(at, _)| !after.members.contains_key(at)).collect();
    if gone.is_empty() {
        writes.push(all);
        return None;
    }
    if after.members.iter().any(|(at, member)| old.members.get(at) != Some(member)) {
        let mut both = after.members.clone();
        both.extend(gone.into_iter().map(|(at, member)| (*at, *member)));
        writes.push(Write::Members(Cow::Owned(both)));
    }
    Some(all)
}

/// Whether two tables are equal but for their generation, which is their first field.
fn same(a: &SetTable, b: &SetTable) -> bool {
    let behind = size_of_val(&a.generation);
    bytes_of(a).get(behind..) == bytes_of(b).get(behind..)
}

#[cfg(test)]
mod tests {
    use bytemuck::zeroed_box;
    use revgate_common::{
        address::Address,
        layout::{Tenant, VIP_ANCHOR},
    };

    use super::*;

    /// Sets with these hashes, a VIP for each, and a member for each name of `members`.
    fn tables(sets: &[u64], members: &[u8]) -> Tables {
        let table = |hash: &u64| {
            let mut table: Box<SetTable> = zeroed_box();
            table.set = *hash;
            table
        };
        let at = |ip: u8| Address::v4(u32::from_ne_bytes([10, 0, 0, ip]), 80_u16.to_be());
        let vip = |set: u16| Vip { set, role: 0, flags: VIP_ANCHOR };
        let member = Member { tenant: Tenant { set: 0, slot: 0, epoch: 1 }, role: 0, flags: 0, zero: 0 };
        Tables {
            sets: sets.iter().map(table).collect(),
            vips: (0..)
                .zip(sets)
                .map(|(set, hash)| (at(200 + u8::try_from(*hash).unwrap()), vip(set)))
                .collect(),
            members: members.iter().map(|ip| (at(*ip), member)).collect(),
            sources: HashMap::new(),
            settings: Settings::default(),
            unseen_sources: 0,
        }
    }

    fn steps(before: &Before<'_>, after: &Tables) -> Vec<String> {
        let step = |write: Write<'_>| match write {
            Write::Settings(_) => "settings".to_owned(),
            Write::Members(members) => format!("members {}", members.len()),
            Write::Sources(_) => "sources".to_owned(),
            Write::Set(at, table) => format!("set {at} is {}", table.set),
            Write::DropSet(at) => format!("drop {at}"),
            Write::Vips(_) => "vips".to_owned(),
        };
        plan(before, after).into_iter().map(step).collect()
    }

    #[test]
    fn nothing_is_written_where_nothing_changed() {
        let same = tables(&[7, 8], &[1]);
        assert_eq!(steps(&Before::Tables(&tables(&[7, 8], &[1])), &same), [""; 0]);
    }

    #[test]
    fn members_come_before_tables_and_go_after_them() {
        let (old, mut new) = (tables(&[7], &[1, 2]), tables(&[7], &[2, 3]));
        new.sets[0].ranks = 1;
        assert_eq!(steps(&Before::Tables(&old), &new), ["members 3", "set 0 is 7", "members 2"]);
    }

    #[test]
    fn a_set_comes_before_its_vip_and_goes_after_it() {
        let (one, two) = (tables(&[7], &[]), tables(&[7, 8], &[]));
        assert_eq!(steps(&Before::Tables(&one), &two), ["set 1 is 8", "vips"]);
        assert_eq!(steps(&Before::Tables(&two), &one), ["vips", "drop 1"]);
    }

    #[test]
    fn an_index_that_means_another_set_steers_nothing_until_all_agree() {
        let (old, new) = (tables(&[7, 8], &[]), tables(&[8, 7], &[]));
        let swap = ["drop 0", "drop 1", "vips", "set 0 is 8", "set 1 is 7"];
        assert_eq!(steps(&Before::Tables(&old), &new), swap);
        // The same after a restart, which knows only what the kernel has.
        let seen = Before::Unknown(vec![(0, 7), (1, 8), (5, 9)]);
        let all = [
            "settings",
            "drop 0",
            "drop 1",
            "drop 5",
            "members 0",
            "sources",
            "vips",
            "set 0 is 8",
            "set 1 is 7",
        ];
        assert_eq!(steps(&seen, &new), all);
    }
}
