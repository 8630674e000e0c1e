//! `getpeername`: an ordinary client sees the VIP that it dialled, the agent sees the endpoint.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};
use revgate_common::{
    address::{self, Address},
    layout::PEER_HIDDEN,
};

use crate::{ctx6, peers};

/// The only answer that these hooks allow.
const GO: i32 = 1;

#[cgroup_sock_addr(getpeername4)]
fn getpeername4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel hands every run a valid context, and the verifier checks each access to it.
    let answer = unsafe { &mut *ctx.sock_addr };
    let shown = Address::v4(answer.user_ip4, address::port_from_user_port(answer.user_port));
    if let Some(vip) = dialled(&ctx, &shown) {
        answer.user_ip4 = vip.ip[3];
        answer.user_port = address::user_port_from_port(vip.port);
    }
    GO
}

#[cgroup_sock_addr(getpeername6)]
fn getpeername6(ctx: SockAddrContext) -> i32 {
    // SAFETY: as in `getpeername4`.
    let answer = unsafe { &mut *ctx.sock_addr };
    let shown = Address::v6(ctx6::read(answer), address::port_from_user_port(answer.user_port));
    if let Some(vip) = dialled(&ctx, &shown) {
        ctx6::write(answer, &vip.ip);
        answer.user_port = address::user_port_from_port(vip.port);
    }
    GO
}

/// The VIP behind a peer, while it is still the endpoint that the socket was steered to: after a disconnect and
/// another connect the kernel may show another peer.
#[inline(always)]
fn dialled<'a>(ctx: &SockAddrContext, shown: &Address) -> Option<&'a Address> {
    let peer = peers::of(ctx.sock_addr)?;
    (peer.state & PEER_HIDDEN != 0 && peer.endpoint == *shown).then_some(&peer.vip)
}
