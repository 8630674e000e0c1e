//! The decision: from one connect to its fate, the whole table of who may reach what.
//!
//! | caller | a VIP | a member's address | anything else |
//! |---|---|---|---|
//! | agent socket, pinned | its endpoint, else another of its revision and role, else deny | its revision only | pass |
//! | agent socket, not pinned | deny | pass | pass |
//! | member Pod of the set | its own revision, else deny | its own revision only | pass |
//! | member Pod of another set | by weight | pass | pass |
//! | any other process | by weight, or deny (members only) | pass | pass |
//!
//! The address of the agent's probe denies all of them: that is how the agent sees that the programs act.
//!
//! A VIP that is to deny when the agent is gone denies all of them from the end of its lease on.
//!
//! Pure: the tables come through [`Tables`], who is asking and the draws through [`Caller`], so the connect hooks, their
//! twin for `BPF_PROG_TEST_RUN` and the tests' shadow in user space run the same code. The verifier walks every path,
//! so the paths meet again early: first a revision's range is chosen, then one piece of code picks from it.

use crate::{
    address::Address,
    counter::Counter,
    endpoints::{Locator, Range},
    layout::{
        ANY_SLOT, FENCE_AUDIT, FENCE_OFF, MEMBER_BY_PORT, MEMBER_ENDPOINT, Member, PIN_REVISION, Pin,
        SET_UNGATED, SOURCE_MEMBER, SetTable, Source, Tenant, VIP_ANCHOR, VIP_LEASED, VIP_MEMBERS_ONLY,
        VIP_PROBE, Vip,
    },
    pick,
};

/// What a decision may ask of what is published.
pub trait Tables {
    /// What this VIP stands for, if it is one.
    fn vip(&self, at: &Address) -> Option<&Vip>;
    /// The table of a set.
    fn set(&self, set: u16) -> Option<&SetTable>;
    /// The members' addresses, as one question after another to the same table: whose is this very key, port included?
    /// Asked for once in a decision, so that a swap between two questions shows in neither.
    fn members<'t>(&'t self) -> Option<impl Fn(&Address) -> Option<&'t Member>>;
    /// The fence: one of the `FENCE_` values of the layout.
    fn fence(&self) -> u32;
}

/// What a decision may ask of whoever connects, and of the moment.
pub trait Caller {
    /// The pin of the calling socket.
    fn pin(&self) -> Option<&Pin>;
    /// Who the calling process is, if it is known.
    fn source(&self) -> Option<Source>;
    /// Whether the agent's last sign of life is older than its lease. Asked only for VIPs that want to know.
    fn lapsed(&self) -> bool;
    /// A uniform draw, independent of the others.
    fn draw(&self, of: Draw) -> u32;
    /// Picks from a range. The hooks do so in functions of their own for the verifier.
    #[inline(always)]
    fn pick(&self, table: &SetTable, range: Range, to: &Address, family: Family) -> Option<Address> {
        let locator = locate(range, to, family, self.draw(Draw::Endpoint))?;
        Some(table.endpoint(locator, family))
    }
}

/// What is drawn; a decision draws each at most once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Draw {
    /// A revision, by weight.
    Revision,
    /// An endpoint of the revision.
    Endpoint,
}

/// The family of the calling socket, which bounds what it can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// `AF_INET`: IPv4 endpoints only.
    V4,
    /// `AF_INET6`: both, IPv4 in its mapped form.
    V6,
}

/// What becomes of a connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Goes on unchanged.
    Pass,
    /// Goes on unchanged; the fence would have denied it.
    Audit,
    /// Goes to another address.
    Steer(Steer),
    /// Fails.
    Deny(Counter),
}

/// Where a connect is steered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steer {
    /// The endpoint.
    pub endpoint: Address,
    /// Of which revision; with [`ANY_SLOT`] and epoch 0 of any.
    pub tenant: Tenant,
    /// How the endpoint was found.
    pub how: Counter,
}

/// Whether the caller of a steered connect is no agent, by its counter: `getpeername` then shows it the VIP.
#[inline(always)]
#[must_use]
pub const fn hides(steered: u32) -> bool {
    steered == Counter::SteeredOwn as u32 || steered == Counter::SteeredWeight as u32
}

/// `ECONNREFUSED` of `asm-generic/errno.h`.
const ECONNREFUSED: i32 = 111;
/// `EHOSTUNREACH` of `asm-generic/errno.h`.
const EHOSTUNREACH: i32 = 113;

/// What `connect` fails with, by the counter of the deny: refused by the fence or a stale pin, unreachable where there
/// is nothing to steer to.
#[inline(always)]
#[must_use]
pub const fn errno(denied: u32) -> i32 {
    if denied == Counter::DeniedFence as u32 || denied == Counter::DeniedStalePin as u32 {
        ECONNREFUSED
    } else {
        EHOSTUNREACH
    }
}

/// Decides on a connect to `to`.
#[inline(always)]
pub fn decide<T: Tables, C: Caller>(tables: &T, caller: &C, to: &Address, family: Family) -> Verdict {
    match tables.vip(to) {
        Some(vip) => match steer(tables, caller, vip, to, family) {
            Ok(steer) => Verdict::Steer(steer),
            Err(denied) => Verdict::Deny(denied),
        },
        None => fence(tables, caller, to),
    }
}

/// The endpoints to pick from, and on whose behalf.
struct Choice {
    range: Range,
    tenant: Tenant,
    how: Counter,
}

#[inline(always)]
fn steer<T: Tables, C: Caller>(
    tables: &T,
    caller: &C,
    vip: &Vip,
    to: &Address,
    family: Family,
) -> Result<Steer, Counter> {
    if vip.flags & VIP_PROBE != 0 {
        return Err(Counter::Probed);
    }
    if vip.flags & VIP_LEASED != 0 && caller.lapsed() {
        return Err(Counter::DeniedLease);
    }
    let table = tables.set(vip.set).ok_or(Counter::DeniedBroken)?;
    let choice = match caller.pin() {
        Some(pin) => {
            if pin.kind != PIN_REVISION {
                return Err(Counter::DeniedUnpinnedAgent);
            }
            if pin.tenant.set != vip.set {
                return Err(Counter::DeniedStalePin);
            }
            let range = own(table, pin.tenant, vip.role).ok_or(Counter::DeniedStalePin)?;
            let mut how = Counter::SteeredPin;
            if pin.endpoint.port != 0 {
                if still_good(tables, pin, vip.role) && reaches(family, &pin.endpoint) {
                    return Ok(Steer { endpoint: pin.endpoint, tenant: pin.tenant, how });
                }
                how = Counter::Repicked;
            }
            Choice { range, tenant: pin.tenant, how }
        }
        None => unpinned(caller, table, vip)?,
    };
    let endpoint = caller.pick(table, choice.range, to, family).ok_or(Counter::DeniedNoEndpoint)?;
    Ok(Steer { endpoint, tenant: choice.tenant, how: choice.how })
}

/// For a caller without a pin: its own revision where it is a member of the set, else by weight.
#[inline(always)]
fn unpinned<C: Caller>(caller: &C, table: &SetTable, vip: &Vip) -> Result<Choice, Counter> {
    if vip.flags & VIP_ANCHOR != 0 {
        return Err(Counter::DeniedForeign);
    }
    if let Some(source) = caller.source()
        && source.kind == SOURCE_MEMBER
        && source.tenant.set == vip.set
    {
        let range = own(table, source.tenant, vip.role).ok_or(Counter::DeniedNoRevision)?;
        return Ok(Choice { range, tenant: source.tenant, how: Counter::SteeredOwn });
    }
    if vip.flags & VIP_MEMBERS_ONLY != 0 {
        return Err(Counter::DeniedForeign);
    }
    if table.flags & SET_UNGATED != 0 {
        let range = *at(&table.any, usize::from(vip.role));
        let tenant = Tenant { set: vip.set, slot: ANY_SLOT, epoch: 0 };
        return Ok(Choice { range, tenant, how: Counter::SteeredWeight });
    }
    if table.ranks == 0 {
        return Err(Counter::DeniedNoRevision);
    }
    let rank = pick::rank(&table.last, caller.draw(Draw::Revision));
    let slot = u16::from(*at(&table.slot_of_rank, rank));
    let tenant = at(&table.slots, usize::from(slot));
    Ok(Choice {
        range: *at(&tenant.ranges, usize::from(vip.role)),
        tenant: Tenant { set: vip.set, slot, epoch: tenant.epoch },
        how: Counter::SteeredWeight,
    })
}

/// The endpoints of a tenant in a role; `None` when the slot is free or has a newer tenant.
///
/// Whether the revision is eligible is not asked: work in flight on a draining revision finishes there.
#[inline(always)]
fn own(table: &SetTable, tenant: Tenant, role: u16) -> Option<Range> {
    let slot = at(&table.slots, usize::from(tenant.slot));
    if tenant.epoch == 0 || slot.epoch != tenant.epoch {
        return None;
    }
    Some(*at(&slot.ranges, usize::from(role)))
}

/// Whether the pinned endpoint is still an endpoint of that revision and role.
#[inline(always)]
fn still_good<T: Tables>(tables: &T, pin: &Pin, role: u16) -> bool {
    let member = tables.members().and_then(|whose| whose(&pin.endpoint));
    member.is_some_and(|member| {
        member.flags & MEMBER_ENDPOINT != 0 && member.tenant == pin.tenant && member.role == role
    })
}

#[inline(always)]
fn reaches(family: Family, endpoint: &Address) -> bool {
    family == Family::V6 || endpoint.is_v4()
}

/// The locator of one of a range: of the VIP's family, where the socket leaves a choice and there is one.
#[inline(always)]
#[must_use]
pub fn locate(range: Range, to: &Address, family: Family, draw: u32) -> Option<Locator> {
    let Range { runs, form } = range;
    let (mut before, mut count, mut words, mut port) =
        (runs.v4_before, runs.v4_count, form.v4_words, form.v4_port);
    let mut v6 = false;
    if family == Family::V6 && runs.v6_count != 0 && (count == 0 || !to.is_v4()) {
        (before, count, words, port) = (runs.v6_before, runs.v6_count, form.v6_words, form.v6_port);
        v6 = true;
    }
    (count != 0).then(|| Locator::new(v6, before, pick::index(draw, count.into()), words, port))
}

/// An element by an index that is masked, not checked: no panic path, and a bound that the verifier sees.
///
/// The tables hold only indices below the length, so the mask changes none of them.
#[inline(always)]
#[expect(clippy::indexing_slicing, reason = "the mask is below the length, which is a power of two")]
fn at<T, const N: usize>(array: &[T; N], index: usize) -> &T {
    const { assert!(N.is_power_of_two()) };
    &array[index & (N - 1)]
}

/// A connect straight to an address that is no VIP.
#[inline(always)]
fn fence<T: Tables, C: Caller>(tables: &T, caller: &C, to: &Address) -> Verdict {
    let member = tables.members().and_then(|whose| match whose(&to.any_port()) {
        Some(member) if member.flags & MEMBER_BY_PORT != 0 => whose(to),
        whole => whole,
    });
    let Some(member) = member else { return Verdict::Pass };
    let fence = tables.fence();
    if fence == FENCE_OFF || may_reach(tables, caller, member) {
        Verdict::Pass
    } else if fence == FENCE_AUDIT {
        Verdict::Audit
    } else {
        Verdict::Deny(Counter::DeniedFence)
    }
}

#[inline(always)]
fn may_reach<T: Tables, C: Caller>(tables: &T, caller: &C, member: &Member) -> bool {
    if let Some(pin) = caller.pin() {
        return pin.kind != PIN_REVISION || pin.tenant == member.tenant;
    }
    match caller.source() {
        // Epoch 0 is of a revision without a slot: it is nobody's own.
        Some(Source { kind: SOURCE_MEMBER, tenant, .. }) if tenant.set == member.tenant.set => {
            tenant == member.tenant && tenant.epoch != 0
        }
        // Another set, if the source is what it says: while sets change places, both may be of one.
        Some(Source { kind: SOURCE_MEMBER, tenant, .. }) => {
            let own = tables.set(tenant.set).map(|table| at(&table.slots, usize::from(tenant.slot)));
            own.is_some_and(|slot| slot.epoch == tenant.epoch)
        }
        _ => true,
    }
}
