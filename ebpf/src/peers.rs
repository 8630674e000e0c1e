//! What a steered socket dialled and where it went, for as long as somebody may ask: `getpeername`, and the counts.
//!
//! Making socket storage costs the kernel more than everything else in a connect, so a TCP socket has a place in an
//! array, found by its cookie. TCP tells of its end, which frees the place. The rest has storage: UDP sockets, which
//! nobody tells the end of, and TCP sockets that find their places taken.
//!
//! ```text
//! connect hook: taken for minutes ─┬─ the SYN goes out: until the end ── established: counted ── TCP_CLOSE: free
//!                                  └─ it never does: until the socket connects again, or then another needs the place
//! ```
//!
//! All of this happens under the lock of the one socket, but for taking a place: that is one compare-and-exchange of
//! [`Peer::state`].

use core::arch::asm;

use aya_ebpf::{
    bindings::{BPF_SK_STORAGE_GET_F_CREATE, bpf_sock, bpf_sock_addr, bpf_sock_ops},
    helpers::{bpf_get_socket_cookie, bpf_ktime_get_coarse_ns, generated::bpf_sk_storage_get},
};
use revgate_common::layout::{
    MAX_PEERS, PEER_CLOCK_SHIFT, PEER_UNTIL_END, PEER_UNTIL_SHIFT, PEER_WAITS, Peer,
};

use crate::{
    connect::TCP,
    maps::{PEERS, STORED_PEERS},
};

/// Where the socket of a socket-address hook was steered, if it was; a [`Peer`] with nothing in it, if that is forgotten.
#[inline(always)]
pub(crate) fn of<'a>(ctx: *mut bpf_sock_addr) -> Option<&'a mut Peer> {
    // SAFETY: the kernel hands every run a valid context.
    let (protocol, socket) = unsafe { ((*ctx).protocol, (*ctx).__bindgen_anon_1.sk) };
    if protocol == TCP
        // SAFETY: the context is the hook's own.
        && let Some(peer) = find(unsafe { bpf_get_socket_cookie(ctx.cast()) })
    {
        return Some(peer);
    }
    stored(socket, 0)
}

/// Where the TCP socket of a `sock_ops` program was steered, if it was.
#[inline(always)]
pub(crate) fn of_tcp<'a>(ops: *mut bpf_sock_ops) -> Option<&'a mut Peer> {
    // SAFETY: the context is the hook's own.
    if let Some(peer) = find(unsafe { bpf_get_socket_cookie(ops.cast()) }) {
        return Some(peer);
    }
    // SAFETY: as above.
    let socket = unsafe { (*ops).__bindgen_anon_2.sk };
    if socket.is_null() {
        return None;
    }
    stored(socket, 0).filter(|peer| peer.state != 0)
}

/// A place for where the socket is steered now, and until when it is kept, as in [`Peer::state`]. `None`: the kernel is
/// out of memory. What was there before must be forgotten.
#[inline(always)]
pub(crate) fn take<'a>(ctx: *mut bpf_sock_addr) -> Option<(&'a mut Peer, u64)> {
    // SAFETY: as in `of`.
    let (protocol, socket) = unsafe { ((*ctx).protocol, (*ctx).__bindgen_anon_1.sk) };
    if protocol == TCP {
        // SAFETY: the context is the hook's own; a helper without arguments.
        let (cookie, now) = unsafe { (bpf_get_socket_cookie(ctx.cast()), bpf_ktime_get_coarse_ns()) };
        let now = now >> PEER_CLOCK_SHIFT;
        if let Some(peer) = claim(cookie, now) {
            return Some((peer, (now + PEER_WAITS) << PEER_UNTIL_SHIFT));
        }
    }
    stored(socket, BPF_SK_STORAGE_GET_F_CREATE.into()).map(|peer| (peer, PEER_UNTIL_END))
}

/// Forgets where a socket was steered before, if it was. Returns 0, as a global function has to return a number.
///
/// A function of its own for the verifier, see [`fate`](crate::fate).
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn forget(ctx: *mut bpf_sock_addr) -> i32 {
    if let Some(peer) = of(ctx) {
        free(peer);
    }
    0
}

/// Makes a place free.
#[inline(always)]
pub(crate) fn free(peer: &mut Peer) {
    peer.cookie = 0;
    let state = peer.state;
    // Nobody else changes it. What was read of the peer was read before.
    let _ = exchange(&mut peer.state, state, 0);
}

/// The cookie's place, if it has it.
#[inline(always)]
fn find<'a>(cookie: u64) -> Option<&'a mut Peer> {
    place(cookie).filter(|peer| peer.cookie == cookie)
}

/// The cookie's place, if nobody has it, or somebody who has not begun for so long that it never will.
#[inline(always)]
fn claim<'a>(cookie: u64, now: u64) -> Option<&'a mut Peer> {
    let peer = place(cookie)?;
    let state = peer.state;
    if state >> PEER_UNTIL_SHIFT < now && exchange(&mut peer.state, state, PEER_UNTIL_END) {
        peer.cookie = cookie;
        return Some(peer);
    }
    None
}

/// Where a cookie belongs. They count up on each CPU, in batches of its own (`gen_cookie_next` of the kernel), so those of
/// sockets that live at a time mostly lie apart.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the mask is below the number of places")]
fn place<'a>(cookie: u64) -> Option<&'a mut Peer> {
    let index = (cookie & (MAX_PEERS as u64 - 1)) as u32;
    // SAFETY: the pointer is valid for the run. Others may look at cookie and state of a place meanwhile, and change
    // those only where this socket does not; each is one word.
    unsafe { PEERS.get_ptr_mut(index)?.as_mut() }
}

/// The socket's storage.
#[inline(always)]
fn stored<'a>(socket: *mut bpf_sock, flags: u64) -> Option<&'a mut Peer> {
    let map = core::ptr::from_ref(&STORED_PEERS).cast_mut();
    // SAFETY: the socket is the context's own, and the pointer is checked.
    unsafe {
        bpf_sk_storage_get(map.cast(), socket.cast(), core::ptr::null_mut(), flags).cast::<Peer>().as_mut()
    }
}

/// Changes a word to `new` if it is `old`: the kernel's `BPF_CMPXCHG`, which orders all that is before and after it.
/// The language has no such thing for this target.
#[inline(always)]
fn exchange(word: &mut u64, old: u64, new: u64) -> bool {
    let mut found = old;
    // SAFETY: an aligned word of a map.
    unsafe {
        asm!(
            "r0 = cmpxchg_64({word} + 0, r0, {new})",
            word = in(reg) core::ptr::from_mut(word),
            new = in(reg) new,
            inout("r0") found,
        );
    }
    found == old
}
