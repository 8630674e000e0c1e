//! Opened and closed connections of every endpoint, so that what still runs on a draining revision is known.

use aya_ebpf::{
    bindings::{
        BPF_NOEXIST, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG,
        BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_TCP_CLOSE,
    },
    macros::sock_ops,
    programs::SockOpsContext,
};
use revgate_common::layout::{ConnectionKey, Connections, PEER_COUNTED, PEER_UNTIL_END, Peer};

use crate::{maps::CONNECTIONS, peers};

/// The only answer that matters: this program asks nothing of TCP.
const GO: u32 = 1;
/// What an endpoint starts with. Not a value on the stack: zeroing one is a call of `memset`, which steps over it with
/// a variable index, and the verifier takes that only from a loader with CAP_PERFMON.
static NONE: Connections = Connections { opened: 0, closed: 0 };

#[sock_ops]
fn count(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => begun(&ctx),
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => opened(&ctx),
        BPF_SOCK_OPS_STATE_CB if ctx.arg(1) == BPF_TCP_CLOSE => closed(&ctx),
        _ => {}
    }
    GO
}

/// A steered connect begins: ask to be told of its end, which comes however it goes on.
#[inline(always)]
fn begun(ctx: &SockOpsContext) {
    let Some(peer) = peers::of_tcp(ctx.ops) else { return };
    if tell_end(ctx) {
        peer.state |= PEER_UNTIL_END;
    }
}

/// It has reached its endpoint.
#[inline(always)]
fn opened(ctx: &SockOpsContext) {
    let Some(peer) = peers::of_tcp(ctx.ops) else { return };
    // Once more: a program of somebody else may have set flags of its own meanwhile, and ours are gone.
    if tell_end(ctx) {
        peer.state |= PEER_COUNTED;
        add(peer, 1, 0);
    }
}

/// Asks TCP to tell of changes of the socket's state.
#[inline(always)]
fn tell_end(ctx: &SockOpsContext) -> bool {
    let flags = ctx.cb_flags();
    flags & BPF_SOCK_OPS_STATE_CB_FLAG != 0
        || ctx.set_cb_flags((flags | BPF_SOCK_OPS_STATE_CB_FLAG).cast_signed()).is_ok()
}

#[inline(always)]
fn closed(ctx: &SockOpsContext) {
    let Some(peer) = peers::of_tcp(ctx.ops) else { return };
    if peer.state & PEER_COUNTED != 0 {
        add(peer, 0, 1);
    }
    peers::free(peer);
}

#[inline(always)]
fn add(peer: &Peer, opened: u64, closed: u64) {
    let key = ConnectionKey { endpoint: peer.endpoint, zero: 0, tenant: peer.tenant };
    let counts = CONNECTIONS.get_ptr_mut(key).or_else(|| {
        // Another CPU may have been faster, or the table is full; the lookup tells.
        let _ = CONNECTIONS.insert(key, &NONE, u64::from(BPF_NOEXIST));
        CONNECTIONS.get_ptr_mut(key)
    });
    if let Some(counts) = counts {
        // SAFETY: this CPU's own element, valid for the run.
        let counts = unsafe { &mut *counts };
        counts.opened += opened;
        counts.closed += closed;
    }
}
