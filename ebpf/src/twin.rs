//! The decision without a socket, for tests: never attached, run by `BPF_PROG_TEST_RUN`.

use aya_ebpf::{macros::classifier, programs::TcContext};
use revgate_common::{
    address::Address,
    decide::{self, Caller, Draw, Family, Verdict},
    endpoints::Range,
    layout::{Pin, SetTable, Source},
    twin::{AUDIT, Answer, DENY, NO_PIN, PASS, Trial},
};

use crate::{
    fate,
    maps::{self, Published},
};

/// The run worked (`TC_ACT_OK`); the packet holds the answer.
const WORKED: i32 = 0;
/// The packet was too short (`TC_ACT_SHOT`).
const TOO_SHORT: i32 = 2;

#[classifier]
fn decide(ctx: TcContext) -> i32 {
    let Ok(trial) = ctx.load::<Trial>(0) else { return TOO_SHORT };
    let family = if trial.family == 4 { Family::V4 } else { Family::V6 };
    // Before the decision: a call between it and its arms makes the compiler load what only one of them has.
    if ctx.store(0, &NOTHING, 0).is_err() {
        return TOO_SHORT;
    }
    let told = match decide::decide(&Published, &Trying(&trial), &trial.to, family) {
        Verdict::Pass => ctx.store(0, &PASS, 0),
        Verdict::Audit => ctx.store(0, &AUDIT, 0),
        Verdict::Deny(counter) => ctx.store(0, &[DENY, counter as u32], 0),
        Verdict::Steer(steer) => ctx.store(0, &Answer::from(Verdict::Steer(steer)), 0),
    };
    if told.is_ok() { WORKED } else { TOO_SHORT }
}

/// An answer without anything in it: what an arm does not say. Static for the reason given in `count`.
static NOTHING: [u8; size_of::<Answer>()] = [0; size_of::<Answer>()];

/// The caller that the packet describes.
struct Trying<'a>(&'a Trial);

impl Caller for Trying<'_> {
    #[inline(always)]
    fn pin(&self) -> Option<&Pin> {
        (self.0.pin.kind != NO_PIN).then_some(&self.0.pin)
    }

    #[inline(always)]
    fn source(&self) -> Option<Source> {
        maps::sources().and_then(|whose| whose(self.0.cgroup).copied())
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

    #[inline(always)]
    fn pick(&self, table: &SetTable, range: Range, to: &Address, family: Family) -> Option<Address> {
        fate::pick(table, range, to, family, self.draw(Draw::Endpoint))
    }
}
