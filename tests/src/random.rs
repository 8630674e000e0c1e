//! Random small worlds and connects, and what must become of each: the decision table written a second time, from
//! the world and not from the kernel's tables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use revgate::{
    cluster::Cgroup,
    config::{AgentGone, GatingMode},
    snapshot::{SourceView, Vip},
};
use revgate_common::{
    address::Address,
    counter::Counter,
    layout::{self, ANY_SLOT, PIN_AGENT, PIN_REVISION, Pin, Tenant},
    twin::{DENY, PASS, STEER, Trial},
};

use crate::world::{Revision, Set, World, source};

/// Endpoints of one revision: by role, how many of IPv4 and of IPv6.
type Counts = [(u8, u8); 2];

/// Two sets with up to three revisions and two roles, a VIP of each family for every role, and a local Pod for every
/// revision, whose cgroup is `100 * set + slot + 1`.
pub fn worlds() -> impl Strategy<Value = World> {
    let revision = prop::option::of([(0_u8..3, 0_u8..3), (0..3, 0..3)]);
    let set = (prop::array::uniform3(revision), any::<bool>());
    (prop::array::uniform2(set), any::<bool>()).prop_map(|(sets, members_only)| {
        let mut world = World::default();
        for (index, (revisions, gated)) in (0_u8..).zip(sets) {
            let set = usize::from(index);
            world.sets.push(Set {
                name: format!("set-{index}"),
                mode: if gated { GatingMode::MaxRole } else { GatingMode::Disabled },
                roles: vec!["prefill".into(), "decode".into()],
                revisions: (0_u8..)
                    .zip(revisions)
                    .filter_map(|(slot, c)| Some(revision_of(index, slot, c?)))
                    .collect(),
            });
            for role in 0..2 {
                let vips = [(vip4(index, role), AgentGone::Keep), (vip6(index, role), AgentGone::Deny)];
                for (address, agent_gone) in vips {
                    world.vips.push(Vip { address, set, role: usize::from(role), members_only, agent_gone });
                }
            }
            for revision in &world.sets[set].revisions {
                let id = 100 * u64::from(index) + u64::from(revision.slot) + 1;
                let (slot, epoch) = (revision.slot, revision.epoch);
                world.sources.push(source(Cgroup { id, level: 2 }, set, slot, epoch));
            }
        }
        world
    })
}

fn revision_of(set: u8, slot: u8, counts: Counts) -> Revision {
    let endpoint = |role: u8, n: u8, v4: bool| {
        let ip: IpAddr = if v4 {
            Ipv4Addr::new(127, 100 + set, 10 * slot + role, n + 1).into()
        } else {
            Ipv6Addr::new(0xfd00, 0, 0, 0, set.into(), slot.into(), role.into(), u16::from(n) + 1).into()
        };
        // A table writes endpoints of one port and of several in different ways: here of one, of one for each Pod, and of
        // one for each revision.
        let more = match (set, role) {
            (0, _) => 0,
            (_, 0) => n,
            _ => slot,
        };
        SocketAddr::new(ip, 8000 + u16::from(more))
    };
    let endpoints = (0_u8..).zip(counts).map(|(role, (v4, v6))| {
        (0..v4).map(|n| endpoint(role, n, true)).chain((0..v6).map(|n| endpoint(role, n, false))).collect()
    });
    Revision {
        name: format!("revision-{slot}"),
        slot: slot.into(),
        epoch: epoch_of(set, slot),
        endpoints: endpoints.collect(),
        others: vec![Ipv4Addr::new(127, 100 + set, 10 * slot + 5, 1).into()],
        host_network: false,
        declared: Vec::new(),
    }
}

/// The set of an endpoint, as its address tells.
fn set_of(endpoint: SocketAddr) -> u8 {
    match endpoint.ip() {
        IpAddr::V4(ip) => ip.octets()[1] - 100,
        IpAddr::V6(ip) => ip.octets()[9],
    }
}

fn epoch_of(set: u8, slot: u8) -> u32 {
    1 + 10 * u32::from(set) + u32::from(slot)
}

fn vip4(set: u8, role: u8) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(127, 90, set, role).into(), 80)
}

fn vip6(set: u8, role: u8) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, set.into(), role.into()).into(), 80)
}

/// Connects that meet every row and column of the table in these worlds.
pub fn trials() -> impl Strategy<Value = Trial> {
    let pin_endpoint = (0_u8..2, 0_u8..3, 0_u8..2, 0_u8..3, any::<bool>(), 0_u8..4).prop_map(
        |(set, slot, role, n, v4, none)| {
            if none == 0 {
                return Address::default();
            }
            let counts = if v4 { (n + 1, 0) } else { (0, n + 1) };
            let of = revision_of(set, slot, [counts, counts]);
            of.endpoints[usize::from(role)][usize::from(n)].into()
        },
    );
    let pin = (0_u32..=2, 0_u16..2, 0_u16..4, 0_u8..6, pin_endpoint).prop_map(
        |(kind, set, slot, other, endpoint)| {
            // Mostly the epoch of the tenant.
            let right = epoch_of(u8::try_from(set).unwrap_or(0), u8::try_from(slot).unwrap_or(0));
            let epoch = if other == 0 { 0 } else { right + u32::from(other == 1) };
            Pin { endpoint, kind, tenant: Tenant { set, slot, epoch } }
        },
    );
    let to =
        (0_u8..7, 0_u8..2, 0_u8..3, 0_u8..2, 0_u8..2).prop_map(|(kind, set, slot, role, n)| -> Address {
            match kind {
                0 | 1 => vip4(set, role).into(),
                2 => vip6(set, role).into(),
                3 if n == 0 && slot == 0 => layout::PROBE,
                3 => layout::anchor(set, role),
                4 => revision_of(set, slot, [(2, 0), (2, 0)]).endpoints[usize::from(role)][usize::from(n)]
                    .into(),
                5 => SocketAddr::new(revision_of(set, slot, [(0, 0), (0, 0)]).others[0], 5557 + u16::from(n))
                    .into(),
                _ => SocketAddr::new(Ipv4Addr::new(127, 99, set, slot).into(), 80 + u16::from(n)).into(),
            }
        });
    let cgroup = prop_oneof![Just(0_u64), 1..4_u64, 101..104_u64];
    (to, any::<bool>(), pin, cgroup, any::<u32>(), any::<u32>(), any::<bool>()).prop_map(
        |(to, six, pin, cgroup, draw_revision, draw_endpoint, lapsed)| {
            let family = if six || !to.is_v4() { 6 } else { 4 };
            Trial { cgroup, to, family, pin, draw_revision, draw_endpoint, lapsed: lapsed.into(), zero: 0 }
        },
    )
}

/// What must become of a connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It goes on unchanged.
    Pass,
    /// It fails, with this count.
    Deny(Counter),
    /// It goes to one of these endpoints of that slot (by weight: of one of these).
    Steer(Vec<(u16, SocketAddr)>, Counter),
}

impl Fate {
    /// Whether the answer of the programs is this fate.
    #[must_use]
    pub fn fits(&self, answer: &revgate_common::twin::Answer) -> bool {
        match self {
            Self::Pass => answer.verdict == PASS,
            Self::Deny(counter) => answer.verdict == DENY && answer.counter == *counter as u32,
            Self::Steer(to, counter) => {
                let endpoint = SocketAddr::from(answer.endpoint);
                let set = set_of(endpoint);
                let epoch = match u8::try_from(answer.tenant.slot) {
                    Ok(slot) => epoch_of(set, slot),
                    // Of no revision.
                    Err(_) => 0,
                };
                let ordinary = matches!(counter, Counter::SteeredOwn | Counter::SteeredWeight);
                answer.verdict == STEER
                    && answer.counter == *counter as u32
                    && to.contains(&(answer.tenant.slot, endpoint))
                    && answer.tenant.set == u16::from(set)
                    && answer.tenant.epoch == epoch
                    && answer.hidden == u32::from(ordinary)
            }
        }
    }
}

/// The decision table, row by row, with the fence enforced.
#[must_use]
pub fn fate(world: &World, trial: &Trial) -> Fate {
    if trial.to == layout::PROBE {
        return Fate::Deny(Counter::Probed);
    }
    let to = SocketAddr::from(trial.to);
    let pin = (trial.pin.kind != revgate_common::twin::NO_PIN).then_some(trial.pin);
    let source = world.sources.iter().find(|source| source.cgroup.id == trial.cgroup);
    let anchor = (0..2_u8)
        .flat_map(|s| (0..2_u8).map(move |r| (s, r)))
        .find(|(s, r)| layout::anchor(*s, *r) == trial.to);
    let vip = world.vips.iter().find(|vip| vip.address == to);
    let (set, role, members_only) = match (anchor, vip) {
        (Some((set, role)), _) => (usize::from(set), usize::from(role), true),
        (None, Some(vip)) => (vip.set, vip.role, vip.members_only),
        (None, None) => return direct(world, to, pin, source),
    };
    if trial.lapsed != 0 && vip.is_some_and(|vip| vip.agent_gone == AgentGone::Deny) {
        return Fate::Deny(Counter::DeniedLease);
    }
    let tenant =
        |slot: u16, epoch: u32| world.sets[set].revisions.iter().find(|r| (r.slot, r.epoch) == (slot, epoch));
    let of = |revision: &Revision| -> Vec<(u16, SocketAddr)> {
        reachable(&revision.endpoints[role], trial).into_iter().map(|e| (revision.slot, e)).collect()
    };
    let steer = |to: Vec<_>, how| {
        if to.is_empty() { Fate::Deny(Counter::DeniedNoEndpoint) } else { Fate::Steer(to, how) }
    };
    if let Some(pin) = pin {
        if pin.kind == PIN_AGENT {
            return Fate::Deny(Counter::DeniedUnpinnedAgent);
        }
        let tenant =
            if usize::from(pin.tenant.set) == set { tenant(pin.tenant.slot, pin.tenant.epoch) } else { None };
        let Some(revision) = tenant else { return Fate::Deny(Counter::DeniedStalePin) };
        let endpoint = SocketAddr::from(pin.endpoint);
        if revision.endpoints[role].contains(&endpoint) && (trial.family == 6 || endpoint.is_ipv4()) {
            return Fate::Steer(vec![(pin.tenant.slot, endpoint)], Counter::SteeredPin);
        }
        let how = if pin.endpoint.port == 0 { Counter::SteeredPin } else { Counter::Repicked };
        return steer(of(revision), how);
    }
    let own = source.filter(|source| source.set == set && anchor.is_none());
    if let Some(own) = own {
        return match tenant(own.slot, own.epoch) {
            Some(revision) => steer(of(revision), Counter::SteeredOwn),
            None => Fate::Deny(Counter::DeniedNoRevision),
        };
    }
    if members_only {
        return Fate::Deny(Counter::DeniedForeign);
    }
    let revisions = &world.sets[set].revisions;
    if world.sets[set].mode == GatingMode::Disabled {
        let all: Vec<_> = revisions.iter().flat_map(|r| r.endpoints[role].clone()).collect();
        return steer(
            reachable(&all, trial).into_iter().map(|e| (ANY_SLOT, e)).collect(),
            Counter::SteeredWeight,
        );
    }
    by_weight(revisions, trial, of)
}

/// The weighted choice in exact fractions.
fn by_weight(
    revisions: &[Revision],
    trial: &Trial,
    of: impl Fn(&Revision) -> Vec<(u16, SocketAddr)>,
) -> Fate {
    let eligible: Vec<_> = revisions.iter().filter(|r| r.endpoints.iter().all(|e| !e.is_empty())).collect();
    let sum = |role: usize| -> u64 { eligible.iter().map(|r| r.endpoints[role].len() as u64).sum() };
    let dominant = usize::from(sum(1) > sum(0));
    let mut cumulative = 0;
    for revision in &eligible {
        cumulative += revision.endpoints[dominant].len() as u64;
        if u64::from(trial.draw_revision) * sum(dominant) < cumulative << 32 {
            let to = of(revision);
            return if to.is_empty() {
                Fate::Deny(Counter::DeniedNoEndpoint)
            } else {
                Fate::Steer(to, Counter::SteeredWeight)
            };
        }
    }
    Fate::Deny(Counter::DeniedNoRevision)
}

/// What a socket can reach, of the VIP's family where it can choose.
fn reachable(endpoints: &[SocketAddr], trial: &Trial) -> Vec<SocketAddr> {
    let of = |v4: bool| -> Vec<_> { endpoints.iter().copied().filter(|e| e.is_ipv4() == v4).collect() };
    let first = of(trial.to.is_v4());
    if trial.family == 6 && first.is_empty() { of(!trial.to.is_v4()) } else { first }
}

/// A connect to an address that is no VIP.
fn direct(world: &World, to: SocketAddr, pin: Option<Pin>, source: Option<&SourceView>) -> Fate {
    let owner = world.sets.iter().enumerate().find_map(|(set, of)| {
        let owns = |r: &&Revision| {
            r.endpoints.iter().flatten().any(|e| e.ip() == to.ip()) || r.others.contains(&to.ip())
        };
        of.revisions.iter().find(owns).map(|r| (set, r.slot, r.epoch))
    });
    let Some(owner) = owner else { return Fate::Pass };
    let mine = match (pin, source) {
        (Some(pin), _) if pin.kind == PIN_REVISION => {
            Some((usize::from(pin.tenant.set), pin.tenant.slot, pin.tenant.epoch))
        }
        (None, Some(source)) if source.set == owner.0 => Some((source.set, source.slot, source.epoch)),
        _ => None,
    };
    if mine.is_none_or(|mine| mine == owner) { Fate::Pass } else { Fate::Deny(Counter::DeniedFence) }
}
