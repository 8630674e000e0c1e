//! What is done when a connect is decided: written down, counted, told.
//!
//! The verifier walks the body of a global function once, for any arguments, and takes a call of it as one instruction
//! that returns an unknown number. So the many ways in which a decision comes about are not many ways through what
//! follows. Global to the verifier is what the object exports and does not inline.

use aya_ebpf::{
    bindings::bpf_sock_addr,
    helpers::{bpf_get_prandom_u32, bpf_set_retval},
    programs::SockAddrContext,
};
use revgate_common::{
    address::Address,
    counter::Counter,
    decide::{self, Family},
    layout::PEER_HIDDEN,
};

use crate::{
    connect::{FAIL, GO},
    events, maps, peers, trace,
};

/// A tenant of a slot in one number.
#[inline(always)]
pub(crate) fn tenant(set: u16, slot: u16, epoch: u32) -> u64 {
    u64::from(set) | u64::from(slot) << 16 | u64::from(epoch) << 32
}

/// Counts how a connect was steered, and remembers where. When the kernel is out of memory the connect goes on: the
/// socket then shows its true peer and is not counted. Goes on always: a global function has to return a number.
#[inline(never)]
#[unsafe(no_mangle)]
#[expect(clippy::cast_possible_truncation, reason = "the parts of a tenant")]
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
    peer.set = tenant as u16;
    peer.slot = (tenant >> 16) as u16;
    peer.epoch = (tenant >> 32) as u32;
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

/// What [`index`] returns where there is nothing to pick.
pub(crate) const NONE: u32 = u32::MAX;

/// An index within a range, for a socket of IPv6 or of IPv4.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn index(range: u64, to: *const Address, v6: u32) -> u32 {
    let family = if v6 == 0 { Family::V4 } else { Family::V6 };
    // SAFETY: helpers without memory arguments; the caller hands over its own address, and the verifier asks for the
    // check.
    unsafe {
        let Some(to) = to.as_ref() else { return NONE };
        decide::index(bytemuck::cast(range), to, family, bpf_get_prandom_u32()).unwrap_or(NONE)
    }
}
