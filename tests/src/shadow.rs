//! The kernel's decision in user space, on the tables that the agent would write.

use revgate::{config::FenceMode, kernel::tables::Tables};
use revgate_common::{
    address::Address,
    decide::{self, Caller, Draw, Family},
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
    decide::decide(&Published(tables), &Trying(tables, trial), &trial.to, family).into()
}

struct Published<'a>(&'a Tables);

impl decide::Tables for Published<'_> {
    fn vip(&self, at: &Address) -> Option<&Vip> {
        self.0.vips.get(at)
    }

    fn set(&self, set: u16) -> Option<&SetTable> {
        self.0.sets.get(usize::from(set)).map(|table| &**table)
    }

    fn members<'t>(&'t self) -> Option<impl Fn(&Address) -> Option<&'t Member>> {
        Some(|at: &Address| self.0.members.get(at))
    }

    fn fence(&self) -> u32 {
        self.0.settings.fence
    }
}

struct Trying<'a>(&'a Tables, &'a Trial);

impl Caller for Trying<'_> {
    fn pin(&self) -> Option<&Pin> {
        (self.1.pin.kind != NO_PIN).then_some(&self.1.pin)
    }

    fn source(&self) -> Option<Source> {
        self.0.sources.get(&self.1.cgroup).copied()
    }

    fn lapsed(&self) -> bool {
        self.1.lapsed != 0
    }

    fn draw(&self, of: Draw) -> u32 {
        match of {
            Draw::Revision => self.1.draw_revision,
            Draw::Endpoint => self.1.draw_endpoint,
        }
    }
}
