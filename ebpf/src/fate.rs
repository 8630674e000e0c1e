//! What is done when a connect is decided: written down, counted, told.
//!
//! The verifier walks the body of a global function once, for any arguments, and takes a call of it as one instruction
//! that returns an unknown number. So the many ways in which a decision comes about are not many ways through what
//! follows. Global to the verifier is what the object exports and does not inline.

use aya_ebpf::{bindings::bpf_sock_addr, helpers::bpf_set_retval, programs::SockAddrContext};
use revgate_common::{
    address::Address,
    counter::Counter,
    decide::{self, Family},
    endpoints::{Locator, Range},
    layout::{PEER_HIDDEN, SetTable},
};

use crate::{
    connect::{FAIL, GO},
    events, maps, peers, trace,
};

/// Counts how a connect was steered, and remembers where. When the kernel is out of memory the connect goes on: the
/// socket then shows its true peer and is not counted. Goes on always: a global function has to return a number.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn steered(
    ctx: *mut bpf_sock_addr,
    vip: *const Address,
    endpoint: *const Address,
    tenant: u64,
    how: u32,
) -> i32 {
    maps::count(trace::decided(vip, how));
    // SAFETY: the caller hands over its own addresses; the verifier asks for the check.
    let (Some(vip), Some(endpoint)) = (unsafe { (vip.as_ref(), endpoint.as_ref()) }) else { return GO };
    let Some((peer, until)) = peers::take(ctx) else { return GO };
    put(&mut peer.vip, vip);
    put(&mut peer.endpoint, endpoint);
    peer.tenant = bytemuck::cast(tenant);
    peer.state = if decide::hides(how) { until | PEER_HIDDEN } else { until };
    GO
}

/// Copies an address word by word: as a whole it would be a call of `memcpy`.
#[inline(always)]
fn put(to: &mut Address, from: &Address) {
    to.ip[0] = from.ip[0];
    to.ip[1] = from.ip[1];
    to.ip[2] = from.ip[2];
    to.ip[3] = from.ip[3];
    to.port = from.port;
    to.zero = from.zero;
}

/// Tells and counts a connect that the decision is against, and returns what the hook is to return.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn refused(ctx: *mut bpf_sock_addr, to: *const Address, outcome: u32) -> i32 {
    let ctx = SockAddrContext::new(ctx);
    // SAFETY: the caller hands over its own address; the verifier asks for the check.
    if let Some(to) = unsafe { to.as_ref() } {
        events::tell(&ctx, to, outcome);
    }
    maps::count(trace::decided(to, outcome));
    if outcome == Counter::AuditedFence as u32 {
        return GO;
    }
    // SAFETY: a helper without memory arguments. It fails only for values that are no error numbers.
    let _ = unsafe { bpf_set_retval(-decide::errno(outcome)) };
    FAIL
}

/// [`Caller::pick`](decide::Caller::pick) by functions of their own for the verifier.
#[inline(always)]
pub(crate) fn pick(
    table: &SetTable,
    range: Range,
    to: &Address,
    family: Family,
    draw: u32,
) -> Option<Address> {
    let v6 = u32::from(family == Family::V6);
    let locator = locate(bytemuck::cast(range.runs), bytemuck::cast(range.form), to, v6, draw);
    (locator != NONE).then(|| table.endpoint(Locator::from_bits(locator), family))
}

/// What [`locate`] returns where there is no endpoint.
const NONE: u64 = u64::MAX;

/// A locator of a range, for a socket of IPv6 or of IPv4.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn locate(runs: u64, form: u64, to: *const Address, v6: u32, draw: u32) -> u64 {
    let range = Range { runs: bytemuck::cast(runs), form: bytemuck::cast(form) };
    let family = if v6 == 0 { Family::V4 } else { Family::V6 };
    // SAFETY: the caller hands over its own address; the verifier asks for the check.
    let Some(to) = (unsafe { to.as_ref() }) else { return NONE };
    decide::locate(range, to, family, draw).map_or(NONE, Locator::to_bits)
}
