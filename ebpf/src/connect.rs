//! `connect`: the decision carried out.

use aya_ebpf::{
    helpers::{bpf_get_current_ancestor_cgroup_id, bpf_get_prandom_u32, bpf_set_retval},
    macros::cgroup_sock_addr,
    programs::SockAddrContext,
};
use revgate_common::{
    address::{self, Address},
    counter::Counter,
    decide::{self, Draw, Family, Tables, Verdict},
    layout::{FENCE_OFF, Member, Pin, SOURCE_LEVELS, SetTable, Source, Vip},
};

use crate::{
    ctx6,
    maps::{self, PINS},
};

/// `IPPROTO_TCP`.
const TCP: u32 = 6;
/// `IPPROTO_UDP`.
const UDP: u32 = 17;
/// `IPPROTO_MPTCP`.
const MPTCP: u32 = 262;

/// The hook lets the connect go on.
const GO: i32 = 1;
/// The hook fails the connect, with the return value set before.
const FAIL: i32 = 0;

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
    match decide::decide(&Live { ctx }, to, family) {
        Verdict::Pass => {
            maps::forget_peer(ctx);
            Next::Go
        }
        Verdict::Audit => {
            maps::forget_peer(ctx);
            maps::count(Counter::AuditedFence);
            Next::Go
        }
        Verdict::Deny(denied) => {
            maps::forget_peer(ctx);
            maps::count(denied);
            // SAFETY: a helper without memory arguments. It fails only for values that are no error numbers.
            let _ = unsafe { bpf_set_retval(-decide::errno(denied)) };
            Next::Fail
        }
        Verdict::Steer(steer) => {
            maps::count(steer.how);
            maps::remember_peer(ctx, to, &steer);
            Next::To(steer.endpoint)
        }
    }
}

/// The published tables, for the socket and the process that connect now.
struct Live<'a> {
    ctx: &'a SockAddrContext,
}

impl Tables for Live<'_> {
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
        // SAFETY: the socket is the context's own. The agent does not write a pin while its socket connects.
        unsafe { PINS.get_ptr_mut(self.ctx).as_ref() }
    }

    /// Processes are known by their Pod's cgroup, some levels above their container's.
    #[inline(always)]
    fn source(&self) -> Option<&Source> {
        let mut levels = maps::settings()?.source_levels;
        let mut tried = 0;
        // Not a range: its iterator costs the verifier more than all the rest.
        while tried < SOURCE_LEVELS && levels != 0 {
            // SAFETY: a helper without memory arguments; 0 for a level below the process's own.
            let cgroup = unsafe { bpf_get_current_ancestor_cgroup_id((levels & 0xff).cast_signed()) };
            if let Some(source) = maps::source(cgroup) {
                return Some(source);
            }
            levels >>= 8;
            tried += 1;
        }
        None
    }

    #[inline(always)]
    fn fence(&self) -> u32 {
        maps::settings().map_or(FENCE_OFF, |settings| settings.fence)
    }

    #[inline(always)]
    fn draw(&self, _of: Draw) -> u32 {
        // SAFETY: a helper without arguments.
        unsafe { bpf_get_prandom_u32() }
    }
}
