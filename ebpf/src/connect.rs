//! `connect`: the decision carried out.

use aya_ebpf::{
    helpers::{bpf_get_prandom_u32, bpf_ktime_get_ns},
    macros::cgroup_sock_addr,
    programs::SockAddrContext,
};
use revgate_common::{
    address::{self, Address},
    counter::Counter,
    decide::{self, Caller, Draw, Family, Verdict},
    endpoints::Range,
    layout::{Pin, SetTable, Source},
};

use crate::{
    caller, ctx6, fate,
    maps::{self, Published},
    peers,
};

/// `IPPROTO_TCP`.
pub(crate) const TCP: u32 = 6;
/// `IPPROTO_UDP`.
const UDP: u32 = 17;
/// `IPPROTO_MPTCP`.
const MPTCP: u32 = 262;

/// The hook lets the connect go on.
pub(crate) const GO: i32 = 1;
/// The hook fails the connect, with the return value set before.
pub(crate) const FAIL: i32 = 0;

#[cgroup_sock_addr(connect4)]
fn connect4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel hands every run a valid context, and the verifier checks each access to it.
    let asked = unsafe { &mut *ctx.sock_addr };
    if !steered_protocol(asked.protocol) {
        return GO;
    }
    let to = Address::v4(asked.user_ip4, address::port_from_user_port(asked.user_port));
    match run(&ctx, &to, Family::V4) {
        Next::Go => GO,
        Next::Fail => FAIL,
        Next::To(endpoint) => {
            asked.user_ip4 = endpoint.ip[3];
            asked.user_port = address::user_port_from_port(endpoint.port);
            GO
        }
    }
}

#[cgroup_sock_addr(connect6)]
fn connect6(ctx: SockAddrContext) -> i32 {
    // SAFETY: as in `connect4`.
    let asked = unsafe { &mut *ctx.sock_addr };
    if !steered_protocol(asked.protocol) {
        return GO;
    }
    let to = Address::v6(ctx6::read(asked), address::port_from_user_port(asked.user_port));
    match run(&ctx, &to, Family::V6) {
        Next::Go => GO,
        Next::Fail => FAIL,
        Next::To(endpoint) => {
            ctx6::write(asked, &endpoint.ip);
            asked.user_port = address::user_port_from_port(endpoint.port);
            GO
        }
    }
}

/// Raw sockets and the rest pass by: an address rewritten there would mean nothing.
#[inline(always)]
fn steered_protocol(protocol: u32) -> bool {
    matches!(protocol, TCP | UDP | MPTCP)
}

/// What the entry point has left to do.
enum Next {
    Go,
    To(Address),
    Fail,
}

#[inline(always)]
fn run(ctx: &SockAddrContext, to: &Address, family: Family) -> Next {
    // First: where that is in memory is fetched while the tables are read.
    let _ = peers::forget(ctx.sock_addr);
    let refused = match decide::decide(&Published, &Live { ctx }, to, family) {
        Verdict::Pass => return Next::Go,
        Verdict::Steer(steer) => {
            let tenant = steer.tenant.bits();
            let _ = fate::steered(ctx.sock_addr, to, &raw const steer.endpoint, tenant, steer.how as u32);
            return Next::To(steer.endpoint);
        }
        Verdict::Audit => Counter::AuditedFence,
        Verdict::Deny(outcome) => outcome,
    };
    if fate::refused(ctx.sock_addr, to, refused as u32) == GO { Next::Go } else { Next::Fail }
}

/// The socket and the process that connect now.
struct Live<'a> {
    ctx: &'a SockAddrContext,
}

impl Caller for Live<'_> {
    #[inline(always)]
    fn pin(&self) -> Option<&Pin> {
        maps::pin(self.ctx)
    }

    #[inline(always)]
    fn source(&self) -> Option<Source> {
        caller::unpack(caller::source())
    }

    #[inline(always)]
    fn lapsed(&self) -> bool {
        // SAFETY: a helper without arguments.
        maps::lease() < unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn draw(&self, _of: Draw) -> u32 {
        // SAFETY: a helper without arguments.
        unsafe { bpf_get_prandom_u32() }
    }

    #[inline(always)]
    fn pick(&self, table: &SetTable, range: Range, to: &Address, family: Family) -> Option<Address> {
        fate::pick(table, range, to, family, self.draw(Draw::Endpoint))
    }
}
