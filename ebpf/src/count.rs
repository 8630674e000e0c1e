//! Opened and closed connections of every endpoint, so that what still runs on a draining revision is known.

use aya_ebpf::{
    bindings::{
        BPF_NOEXIST, BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG,
        BPF_TCP_CLOSE, bpf_sock_ops,
    },
    helpers::generated::bpf_sk_storage_get,
    macros::sock_ops,
    programs::SockOpsContext,
};
use revgate_common::layout::{ConnectionKey, Connections, PEER_COUNTED, Peer};

use crate::maps::{CONNECTIONS, PEERS};

/// The only answer that matters: this program asks nothing of TCP.
const GO: u32 = 1;
/// What an endpoint starts with. Not a value on the stack: zeroing one is a call of `memset`, which steps over it with
/// a variable index, and the verifier takes that only from a loader with CAP_PERFMON.
static NONE: Connections = Connections { opened: 0, closed: 0 };

#[sock_ops]
fn count(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => opened(&ctx),
        BPF_SOCK_OPS_STATE_CB if ctx.arg(1) == BPF_TCP_CLOSE => closed(&ctx),
        _ => {}
    }
    GO
}

/// A steered connect has reached its endpoint: count it, and ask to be told of its end.
#[inline(always)]
fn opened(ctx: &SockOpsContext) {
    let Some(peer) = peer(ctx.ops) else { return };
    let flags = ctx.cb_flags() | BPF_SOCK_OPS_STATE_CB_FLAG;
    if ctx.set_cb_flags(flags.cast_signed()).is_err() {
        // Without its end a count would never come down again.
        return;
    }
    peer.flags |= PEER_COUNTED;
    add(peer, 1, 0);
}

#[inline(always)]
fn closed(ctx: &SockOpsContext) {
    let Some(peer) = peer(ctx.ops) else { return };
    if peer.flags & PEER_COUNTED == 0 {
        return;
    }
    peer.flags &= !PEER_COUNTED;
    add(peer, 0, 1);
}

#[inline(always)]
fn add(peer: &Peer, opened: u64, closed: u64) {
    let key = ConnectionKey { endpoint: peer.endpoint, set: peer.set, slot: peer.slot, epoch: peer.epoch };
    if CONNECTIONS.get_ptr_mut(key).is_none() {
        // Another CPU may have been faster, or the table is full; the lookup below tells.
        let _ = CONNECTIONS.insert(key, &NONE, u64::from(BPF_NOEXIST));
    }
    if let Some(counts) = CONNECTIONS.get_ptr_mut(key) {
        // SAFETY: this CPU's own element, valid for the run.
        let counts = unsafe { &mut *counts };
        counts.opened += opened;
        counts.closed += closed;
    }
}

/// Where the socket was steered, if it was.
#[inline(always)]
fn peer<'a>(ops: *mut bpf_sock_ops) -> Option<&'a mut Peer> {
    // SAFETY: the socket is the context's own and checked, and the storage is checked; state changes of one socket
    // come one at a time.
    unsafe {
        let socket = (*ops).__bindgen_anon_2.sk;
        if socket.is_null() {
            return None;
        }
        let map = core::ptr::from_ref(&PEERS).cast_mut();
        bpf_sk_storage_get(map.cast(), socket.cast(), core::ptr::null_mut(), 0).cast::<Peer>().as_mut()
    }
}
