//! The kernel's decision in user space, on the tables that the agent would write.

use revgate::{config::FenceMode, kernel::tables::Tables};
use revgate_common::{
    address::Address,
    decide::{self, Draw, Family},
    layout::{Member, Pin, SetTable, Source, Vip},
    twin::{Answer, NO_PIN, Trial},
};

use crate::world::World;

/// The tables of a world, with the fence enforced.
///
/// # Panics
///
/// When they are too large.
#[must_use]
pub fn tables(world: &World) -> Tables {
    Tables::of(&world.snapshot(1), FenceMode::Enforce).expect("tables that fit")
}

/// Decides one connect as the kernel would.
#[must_use]
pub fn decide(tables: &Tables, trial: &Trial) -> Answer {
    let family = if trial.family == 4 { Family::V4 } else { Family::V6 };
    decide::decide(&Shadow { tables, trial }, &trial.to, family).into()
}

struct Shadow<'a> {
    tables: &'a Tables,
    trial: &'a Trial,
}

impl decide::Tables for Shadow<'_> {
    fn vip(&self, at: &Address) -> Option<&Vip> {
        self.tables.vips.get(at)
    }

    fn set(&self, set: u16) -> Option<&SetTable> {
        self.tables.sets.get(usize::from(set)).map(|table| &**table)
    }

    fn members<'t>(&'t self) -> Option<impl Fn(&Address) -> Option<&'t Member>> {
        Some(|at: &Address| self.tables.members.get(at))
    }

    fn pin(&self) -> Option<&Pin> {
        (self.trial.pin.kind != NO_PIN).then_some(&self.trial.pin)
    }

    fn source(&self) -> Option<Source> {
        self.tables.sources.get(&self.trial.cgroup).copied()
    }

    fn fence(&self) -> u32 {
        self.tables.settings.fence
    }

    fn lapsed(&self) -> bool {
        self.trial.lapsed != 0
    }

    fn draw(&self, of: Draw) -> u32 {
        match of {
            Draw::Revision => self.trial.draw_revision,
            Draw::Endpoint => self.trial.draw_endpoint,
        }
    }
}
