//! `connect`: the decision carried out.

use aya_ebpf::{
    helpers::{bpf_get_current_ancestor_cgroup_id, bpf_get_prandom_u32, bpf_ktime_get_ns, bpf_set_retval},
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
    ctx6, events,
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
    let live = Live { ctx };
    let outcome = match decide::decide(&live, to, family) {
        Verdict::Pass => {
            maps::forget_peer(ctx);
            return Next::Go;
        }
        Verdict::Steer(steer) => {
            maps::count(steer.how as u32);
            maps::remember_peer(ctx, to, &steer);
            return Next::To(steer.endpoint);
        }
        Verdict::Audit => Counter::AuditedFence,
        Verdict::Deny(outcome) => outcome,
    };
    maps::forget_peer(ctx);
    let outcome = events::tell(&live, to, outcome);
    maps::count(outcome);
    if outcome == Counter::AuditedFence as u32 {
        return Next::Go;
    }
    // SAFETY: a helper without memory arguments. It fails only for values that are no error numbers.
    let _ = unsafe { bpf_set_retval(-decide::errno(outcome)) };
    Next::Fail
}

/// The published tables, for the socket and the process that connect now.
pub(crate) struct Live<'a> {
    ctx: &'a SockAddrContext,
}

impl Live<'_> {
    /// The protocol of the socket.
    #[inline(always)]
    pub(crate) fn protocol(&self) -> u32 {
        // SAFETY: the kernel hands every run a valid context.
        unsafe { (*self.ctx.sock_addr).protocol }
    }

    /// The levels at which Pods' cgroups are, as in the settings.
    #[inline(always)]
    fn levels() -> u32 {
        maps::settings().map_or(0, |settings| settings.source_levels)
    }

    /// The cgroups of the process at these levels. Straight on, with nothing for the verifier to walk twice.
    #[inline(always)]
    pub(crate) fn ancestors() -> [u64; SOURCE_LEVELS] {
        let levels = Self::levels();
        [ancestor(levels), ancestor(levels >> 8), ancestor(levels >> 16), ancestor(levels >> 24)]
    }
}

/// The cgroup above the process (or its own) at the level in the lowest byte; 0 for a level below its own.
#[inline(always)]
fn ancestor(level: u32) -> u64 {
    // SAFETY: a helper without memory arguments.
    unsafe { bpf_get_current_ancestor_cgroup_id((level & 0xff).cast_signed()) }
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
        let mut levels = Self::levels();
        let mut tried = 0;
        // Not a range: its iterator costs the verifier more than all the rest.
        while tried < SOURCE_LEVELS && levels != 0 {
            if let Some(source) = maps::source(ancestor(levels)) {
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
    fn lapsed(&self) -> bool {
        // SAFETY: a helper without arguments.
        maps::lease() < unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn draw(&self, _of: Draw) -> u32 {
        // SAFETY: a helper without arguments.
        unsafe { bpf_get_prandom_u32() }
    }
}
