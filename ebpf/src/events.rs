//! Tells the agent of connects that were denied, or would have been: some of them, and without waiting for anybody.
//!
//! Nothing depends on it: with a full ring, or no agent that reads it, an event is counted as lost and the connect has
//! the same fate.

use aya_ebpf::{
    helpers::{bpf_get_current_cgroup_id, bpf_ktime_get_ns},
    programs::SockAddrContext,
};
use revgate_common::{
    address::Address,
    layout::{
        CALLER_AGENT, CALLER_PINNED, CALLER_PROCESS, EVENT_WINDOW_SHIFT, EVENTS_PER_WINDOW, EventAccount,
        PIN_REVISION, Pin, Tenant,
    },
};

use crate::{
    caller,
    maps::{self, EVENTS},
};

/// Tells of one connect, if it is its turn.
#[inline(always)]
pub(crate) fn tell(ctx: &SockAddrContext, to: &Address, outcome: u32) {
    let Some(account) = maps::event_account() else { return };
    if sampled(account) {
        send(account, ctx, to, outcome);
    } else {
        account.skipped += 1;
    }
}

#[inline(always)]
fn send(account: &mut EventAccount, ctx: &SockAddrContext, to: &Address, outcome: u32) {
    let (caller, pin) = match maps::pin(ctx) {
        Some(pin) => (if pin.kind == PIN_REVISION { CALLER_PINNED } else { CALLER_AGENT }, *pin),
        None => (CALLER_PROCESS, NO_PIN),
    };
    // SAFETY: the kernel hands every run a valid context.
    let protocol = unsafe { (*ctx.sock_addr).protocol };
    let ancestors = caller::ancestors();
    // SAFETY: a helper without arguments.
    let cgroup = unsafe { bpf_get_current_cgroup_id() };
    let Some(mut entry) = EVENTS.reserve(0) else {
        account.lost += 1;
        return;
    };
    let event = entry.as_mut_ptr();
    // SAFETY: the entry is ours until it is submitted, of the size of an event, and aligned to 8 bytes. Field by
    // field, and all of them.
    unsafe {
        (*event).cgroup = cgroup;
        (*event).ancestors = ancestors;
        (*event).to = *to;
        (*event).outcome = outcome;
        (*event).caller = caller;
        (*event).tenant = pin.tenant;
        (*event).protocol = protocol;
    }
    account.sent += 1;
    entry.submit(0);
}

/// What stands for the pin of a socket that has none.
const NO_PIN: Pin = Pin {
    endpoint: Address { ip: [0; 4], port: 0, zero: 0 },
    kind: 0,
    tenant: Tenant { set: 0, slot: 0, epoch: 0 },
};

/// Whether this window has room for one more.
#[inline(always)]
fn sampled(account: &mut EventAccount) -> bool {
    // SAFETY: a helper without arguments.
    let window = unsafe { bpf_ktime_get_ns() } >> EVENT_WINDOW_SHIFT;
    if account.window != window {
        account.window = window;
        account.in_window = 0;
    }
    account.in_window += 1;
    account.in_window <= EVENTS_PER_WINDOW
}
