//! Slots and epochs: small numbers that stand for revisions in the kernel tables (pure).
//!
//! A revision keeps its slot for as long as it has a member, and gets it back when it returns before another
//! revision needed it (a rollback). A new tenant of a slot gets an epoch that no tenant of any set had before, so
//! whatever still names the old tenant (a pin, a table) is void, even if sets changed places in the configuration. A
//! restarted agent restores tenants from the kernel tables and recognises them by the hash of the revision's name, so
//! that nothing changes for traffic.

use std::sync::Arc;

use revgate_common::layout::MAX_REVISIONS;
use xxhash_rust::xxh64::xxh64;

/// A slot and the epoch of its present tenancy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenancy {
    /// The slot, below [`MAX_REVISIONS`].
    pub slot: u16,
    /// The epoch, never 0.
    pub epoch: u32,
}

/// The source of epochs, one for all sets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Epochs {
    last: u32,
}

impl Epochs {
    /// Never gives an epoch up to this one again.
    pub fn skip(&mut self, epoch: u32) {
        self.last = self.last.max(epoch);
    }

    /// A new epoch. Wrapping takes 2^32 new revisions, and skips 0.
    fn next(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(1);
        self.last
    }
}

/// The hash by which the kernel tables name a revision.
#[must_use]
pub fn name_hash(name: &str) -> u64 {
    xxh64(name.as_bytes(), 0)
}

/// The hash by which the kernel tables name a set: its name, and its roles in the order of their indices. Where the
/// order changes, indices mean something else, and the set counts as another one.
#[must_use]
pub fn set_hash(name: &str, roles: &[Arc<str>]) -> u64 {
    let mut text = name.to_owned();
    for role in roles {
        text.push('\0');
        text.push_str(role);
    }
    xxh64(text.as_bytes(), 0)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tenant {
    hash: u64,
    epoch: u32,
    /// `None` while the revision has members; else when it lost the last one, as a count of retirements.
    retired: Option<u64>,
}

/// The slots of one set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Slots {
    tenants: Vec<Tenant>,
    retirements: u64,
}

impl Slots {
    /// Starts from what an earlier agent left in the kernel: (slot, name hash, epoch), epoch 0 for a free slot.
    #[must_use]
    pub fn restore(tenants: impl IntoIterator<Item = (u16, u64, u32)>, epochs: &mut Epochs) -> Self {
        let mut slots = Self::default();
        for (slot, hash, epoch) in tenants {
            let slot = usize::from(slot);
            if slot >= MAX_REVISIONS || epoch == 0 {
                continue;
            }
            // Free slots below a restored one count as retired before all others: epoch 0 matches nothing.
            while slots.tenants.len() <= slot {
                slots.tenants.push(Tenant { hash: 0, epoch: 0, retired: Some(0) });
            }
            if let Some(tenant) = slots.tenants.get_mut(slot) {
                *tenant = Tenant { hash, epoch, retired: Some(1) };
            }
            epochs.skip(epoch);
            slots.retirements = 1;
        }
        slots
    }

    /// The tenancy of a revision that has members, taking a slot if it has none yet.
    ///
    /// Prefers a slot that nobody had, then the one whose tenant left first. `None` when [`MAX_REVISIONS`] other
    /// revisions have members.
    pub fn hold(&mut self, revision: &str, epochs: &mut Epochs) -> Option<Tenancy> {
        let known = self.position(revision);
        let slot = known.or_else(|| self.free_slot())?;
        let tenant = self.tenants.get_mut(slot)?;
        if known.is_none() {
            *tenant = Tenant { hash: name_hash(revision), epoch: epochs.next(), retired: None };
        }
        tenant.retired = None;
        self.last(revision)
    }

    /// The tenancy that a revision has, or had last if nobody had the slot since: no table names that one, so it
    /// reaches nothing, and it is the same again should the revision return.
    #[must_use]
    pub fn last(&self, revision: &str) -> Option<Tenancy> {
        let slot = self.position(revision)?;
        Some(Tenancy { slot: u16::try_from(slot).ok()?, epoch: self.tenants.get(slot)?.epoch })
    }

    fn position(&self, revision: &str) -> Option<usize> {
        let hash = name_hash(revision);
        self.tenants.iter().position(|t| t.hash == hash && t.epoch != 0)
    }

    /// Ends the tenancy of every revision that `present` does not hold; their slots may be taken from now on, and those
    /// of the others, restored ones too, may not.
    pub fn retire_absent<'a>(&mut self, present: impl IntoIterator<Item = &'a str>) {
        let present: Vec<u64> = present.into_iter().map(name_hash).collect();
        for tenant in &mut self.tenants {
            if present.contains(&tenant.hash) && tenant.epoch != 0 {
                tenant.retired = None;
            } else if tenant.retired.is_none() {
                self.retirements += 1;
                tenant.retired = Some(self.retirements);
            }
        }
    }

    fn free_slot(&mut self) -> Option<usize> {
        if self.tenants.len() < MAX_REVISIONS {
            self.tenants.push(Tenant { hash: 0, epoch: 0, retired: Some(0) });
            return Some(self.tenants.len() - 1);
        }
        let (slot, _) = self
            .tenants
            .iter()
            .enumerate()
            .filter_map(|(slot, t)| t.retired.map(|since| (slot, since)))
            .min_by_key(|(_, since)| *since)?;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Case {
        slots: Slots,
        epochs: Epochs,
    }

    impl Case {
        fn hold(&mut self, revision: &str) -> Option<Tenancy> {
            self.slots.hold(revision, &mut self.epochs)
        }
    }

    #[test]
    fn a_revision_keeps_its_slot_and_epoch_while_others_come_and_go() {
        let mut case = Case::default();
        let a = case.hold("a");
        case.hold("b");
        case.slots.retire_absent(["a"]);
        case.hold("c");
        assert_eq!(case.hold("a"), a);
    }

    #[test]
    fn a_returning_revision_gets_its_tenancy_back() {
        let mut case = Case::default();
        let a = case.hold("a");
        case.slots.retire_absent([]);
        case.hold("b");
        assert_eq!(case.slots.last("a"), a, "meanwhile too");
        assert_eq!(case.hold("a"), a);
    }

    #[test]
    fn a_slot_is_reused_only_when_none_is_fresh_and_with_a_new_epoch() {
        let mut case = Case::default();
        let all: Vec<String> = (0..MAX_REVISIONS).map(|i| format!("r{i}")).collect();
        let first: Vec<Tenancy> = all.iter().map(|r| case.hold(r).unwrap()).collect();
        assert_eq!(case.hold("one too many"), None);

        // r7 leaves before r3: its slot goes first.
        case.slots.retire_absent(all.iter().map(String::as_str).filter(|r| *r != "r7"));
        case.slots.retire_absent(all.iter().map(String::as_str).filter(|r| !["r3", "r7"].contains(r)));
        let late = case.hold("late").unwrap();
        assert_eq!(late.slot, first[7].slot);
        assert!(first.iter().all(|t| t.epoch != late.epoch));
        assert_eq!(case.hold("later").unwrap().slot, first[3].slot);
        assert_eq!(case.slots.last("r7"), None);
        assert_eq!(case.hold("r7"), None, "its tenancy is over and nothing is free");
    }

    #[test]
    fn epochs_are_never_shared_between_sets() {
        let mut epochs = Epochs::default();
        let a = Slots::default().hold("a", &mut epochs).unwrap();
        let b = Slots::default().hold("a", &mut epochs).unwrap();
        assert_eq!(a.slot, b.slot);
        assert_ne!(a.epoch, b.epoch);
    }

    #[test]
    fn a_restored_agent_recognises_tenants_and_never_repeats_an_epoch() {
        let mut epochs = Epochs::default();
        let mut slots =
            Slots::restore([(2, name_hash("a"), 9), (0, name_hash("b"), 4), (1, 0, 0)], &mut epochs);
        assert_eq!(slots.hold("a", &mut epochs), Some(Tenancy { slot: 2, epoch: 9 }));
        assert_eq!(slots.hold("b", &mut epochs), Some(Tenancy { slot: 0, epoch: 4 }));
        assert_eq!(slots.hold("c", &mut epochs), Some(Tenancy { slot: 3, epoch: 10 }));
    }

    #[test]
    fn a_newcomer_takes_no_slot_of_a_revision_that_outlived_the_agent() {
        let mut epochs = Epochs::default();
        let names: Vec<String> = (0..64).map(|at| format!("r{at:02}")).collect();
        let left = (0..).zip(&names).map(|(slot, name)| (slot, name_hash(name), u32::from(slot) + 1));
        let mut slots = Slots::restore(left, &mut epochs);
        // r63 left while no agent ran, and a new one comes before all others.
        let present = || std::iter::once("new").chain(names.iter().take(63).map(String::as_str));
        slots.retire_absent(present());
        let held: Vec<_> = present().map(|name| slots.hold(name, &mut epochs).unwrap().slot).collect();
        let kept: Vec<u16> = std::iter::once(63).chain(0..63).collect();
        assert_eq!(held, kept);
    }

    #[test]
    fn a_malformed_restore_is_ignored() {
        let mut epochs = Epochs::default();
        let mut slots = Slots::restore([(9_999, 1, 1)], &mut epochs);
        assert_eq!(slots.hold("a", &mut epochs), Some(Tenancy { slot: 0, epoch: 1 }));
    }
}
