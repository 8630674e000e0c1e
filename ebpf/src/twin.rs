//! The decision without a socket, for tests: never attached, run by `BPF_PROG_TEST_RUN`.

use aya_ebpf::{macros::classifier, programs::TcContext};
use revgate_common::{
    address::Address,
    decide::{self, Draw, Family, Tables, Verdict},
    layout::{FENCE_OFF, Member, Pin, SetTable, Source, Vip},
    twin::{AUDIT, Answer, DENY, NO_PIN, PASS, Trial},
};

use crate::maps;

/// The run worked (`TC_ACT_OK`); the packet holds the answer.
const WORKED: i32 = 0;
/// The packet was too short (`TC_ACT_SHOT`).
const TOO_SHORT: i32 = 2;

#[classifier]
fn decide(ctx: TcContext) -> i32 {
    let Ok(trial) = ctx.load::<Trial>(0) else { return TOO_SHORT };
    let family = if trial.family == 4 { Family::V4 } else { Family::V6 };
    match answer(&ctx, decide::decide(&Trying(&trial), &trial.to, family)) {
        Ok(()) => WORKED,
        Err(_) => TOO_SHORT,
    }
}

/// An answer without anything in it.
static NOTHING: [u8; size_of::<Answer>()] = [0; size_of::<Answer>()];

/// Writes the answer over the trial: what is not said from [`NOTHING`], for the reason given in `count`.
#[inline(always)]
fn answer(ctx: &TcContext, verdict: Verdict) -> Result<(), i64> {
    ctx.store(0, &NOTHING, 0)?;
    match verdict {
        Verdict::Pass => ctx.store(0, &PASS, 0),
        Verdict::Audit => ctx.store(0, &AUDIT, 0),
        Verdict::Deny(counter) => ctx.store(0, &[DENY, counter as u32], 0),
        Verdict::Steer(_) => ctx.store(0, &Answer::from(verdict), 0),
    }
}

/// The published tables, for the caller that the packet describes.
struct Trying<'a>(&'a Trial);

impl Tables for Trying<'_> {
    #[inline(always)]
    fn vip(&self, at: &Address) -> Option<&Vip> {
        maps::vip(at)
    }

    #[inline(always)]
    fn set(&self, set: u16) -> Option<&SetTable> {
        maps::set(set)
    }

    #[inline(always)]
    fn members<'t>(&'t self) -> Option<impl Fn(&Address) -> Option<&'t Member>> {
        maps::members()
    }

    #[inline(always)]
    fn pin(&self) -> Option<&Pin> {
        (self.0.pin.kind != NO_PIN).then_some(&self.0.pin)
    }

    #[inline(always)]
    fn source(&self) -> Option<&Source> {
        maps::source(self.0.cgroup)
    }

    #[inline(always)]
    fn fence(&self) -> u32 {
        maps::settings().map_or(FENCE_OFF, |settings| settings.fence)
    }

    #[inline(always)]
    fn lapsed(&self) -> bool {
        self.0.lapsed != 0
    }

    #[inline(always)]
    fn draw(&self, of: Draw) -> u32 {
        match of {
            Draw::Revision => self.0.draw_revision,
            Draw::Endpoint => self.0.draw_endpoint,
        }
    }
}
