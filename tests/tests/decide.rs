//! The decision (K4), the tables (K5) and the plan between them, without a kernel.
#![cfg(test)]

use std::net::{Ipv6Addr, SocketAddr};

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use revgate::{
    cluster::Cgroup,
    config::FenceMode,
    kernel::{
        plan::{Before, Write, plan},
        tables::{Tables, TooLarge},
    },
};
use revgate_common::{
    address::Address,
    counter::Counter,
    decide::{Family, locate},
    endpoints::Range,
    layout::{FENCE_AUDIT, MAX_ENDPOINTS, MEMBER_BY_PORT, MEMBER_ENDPOINT, Pin, SetTable, Tenant},
    twin::{AUDIT, DENY, PASS, STEER, Trial},
};
use revgate_tests::{
    dial::at,
    random::{Fate, fate, trials, worlds},
    shadow::{self, tables},
    world::{Revision, World},
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn every_connect_meets_the_fate_of_its_row(world in worlds(), trial in trials()) {
        let answer = shadow::decide(&tables(&world), &trial);
        let fate = fate(&world, &trial);
        prop_assert!(fate.fits(&answer), "{:?} instead of {:?}", answer, fate);
    }

    #[test]
    fn audit_counts_what_enforce_denies_and_off_does_nothing(world in worlds(), trial in trials()) {
        let mut tables = tables(&world);
        let denied = fate(&world, &trial) == Fate::Deny(Counter::DeniedFence);
        tables.settings.fence = FENCE_AUDIT;
        prop_assert_eq!(shadow::decide(&tables, &trial).verdict == AUDIT, denied);
        tables.settings.fence = 0;
        let off = shadow::decide(&tables, &trial).verdict;
        prop_assert!(off != AUDIT && (!denied || off == PASS));
    }

    #[test]
    fn every_endpoint_is_in_the_range_of_its_revision_role_and_family(world in worlds()) {
        for (table, set) in tables(&world).sets.iter().zip(&world.sets) {
            for role in 0..2 {
                let mut all = Vec::new();
                for revision in &set.revisions {
                    let range = table.slots[usize::from(revision.slot)].ranges[role];
                    let mut has = endpoints(table, &range);
                    let v4 = revision.endpoints[role].iter().filter(|endpoint| endpoint.is_ipv4()).count();
                    prop_assert_eq!(usize::from(range.runs.v4_count), v4);
                    prop_assert!(has[..v4].iter().all(SocketAddr::is_ipv4) && has[v4..].iter().all(SocketAddr::is_ipv6));
                    let mut wants = revision.endpoints[role].clone();
                    has.sort_unstable();
                    wants.sort_unstable();
                    prop_assert_eq!(&has, &wants);
                    all.extend(has);
                }
                let mut has = endpoints(table, &table.any[role]);
                has.sort_unstable();
                all.sort_unstable();
                prop_assert_eq!(has, all);
            }
        }
    }

    #[test]
    fn a_plan_leads_from_any_tables_to_any_others(old in worlds(), new in worlds()) {
        let (old, new) = (tables(&old), tables(&new));
        let mut members = old.members.clone();
        let mut last_vips_or_set = 0;
        for (step, write) in plan(&Before::Tables(&old), &new).into_iter().enumerate() {
            match write {
                Write::Members(next) => members = next.into_owned(),
                Write::Set(index, table) => {
                    last_vips_or_set = step;
                    // Whatever this table or the one before steers to is a member now.
                    for table in [table, &*old.sets[index as usize]] {
                        for range in &table.any {
                            for endpoint in endpoints(table, range) {
                                prop_assert!(members.contains_key(&Address::from(endpoint)), "{}", endpoint);
                            }
                        }
                    }
                }
                Write::Vips(vips) => {
                    last_vips_or_set = step;
                    prop_assert_eq!(vips, &new.vips);
                }
                Write::Sources(sources) => {
                    prop_assert_eq!(sources, &new.sources);
                    prop_assert_eq!(last_vips_or_set, 0, "sources before the sets that weigh them");
                }
                Write::Settings(settings) => prop_assert_eq!(settings, new.settings),
                Write::DropSet(index) => prop_assert!(index as usize >= new.sets.len()),
            }
        }
        prop_assert_eq!(members, new.members.clone());
        prop_assert!(plan(&Before::Tables(&new), &new).is_empty(), "nothing changed, nothing to write");
    }
}

#[test]
fn the_random_connects_meet_every_outcome() {
    let mut runner = TestRunner::deterministic();
    let mut missing: Vec<_> = Counter::ALL
        .into_iter()
        // The fence is enforced here, and no table is missing.
        .filter(|counter| !matches!(counter, Counter::AuditedFence | Counter::DeniedBroken))
        .collect();
    for _ in 0..200 {
        let world = worlds().new_tree(&mut runner).unwrap().current();
        let tables = tables(&world);
        for _ in 0..50 {
            let trial = trials().new_tree(&mut runner).unwrap().current();
            let answer = shadow::decide(&tables, &trial);
            let outcome = matches!(answer.verdict, STEER | DENY).then_some(answer.counter);
            missing.retain(|counter| Some(*counter as u32) != outcome);
        }
    }
    assert_eq!(missing, []);
}

/// The endpoints of a range.
fn endpoints(table: &SetTable, range: &Range) -> Vec<SocketAddr> {
    table.endpoints(range).map(SocketAddr::from).collect()
}

#[test]
fn a_new_generation_alone_is_no_change() {
    let world = World::of(vec![Revision::new("a", 0, 1, &[&[at("127.1.0.1:1")], &[at("127.1.0.2:1")]])]);
    let old = Tables::of(&world.snapshot(1), FenceMode::Enforce).unwrap();
    let new = Tables::of(&world.snapshot(2), FenceMode::Enforce).unwrap();
    assert!(plan(&Before::Tables(&old), &new).is_empty());
}

#[test]
fn an_unknown_kernel_gets_everything_and_loses_the_sets_that_are_no_more() {
    let new = tables(&World::of(vec![]));
    let writes = plan(&Before::Unknown(vec![(0, new.sets[0].set), (3, 1)]), &new);
    let dropped: Vec<_> =
        writes.iter().filter_map(|w| if let Write::DropSet(set) = w { Some(*set) } else { None }).collect();
    assert_eq!(dropped, [3]);
    assert_eq!(writes.len(), 6, "settings, members, sources, set 0, set 3 dropped, VIPs");
}

#[test]
fn on_the_network_of_its_node_only_the_ports_of_a_pod_are_fenced() {
    let endpoint = at("127.2.0.1:8000");
    let mut a = Revision::new("a", 0, 1, &[&[], &[endpoint]]);
    a.host_network = true;
    let tables = tables(&World::of(vec![a, Revision::new("b", 1, 2, &[])]));
    assert_eq!(tables.members[&Address::from(endpoint).any_port()].flags, MEMBER_BY_PORT);
    assert_eq!(tables.members[&Address::from(endpoint)].flags, MEMBER_ENDPOINT);
    let pin = Pin { endpoint: Address::default(), kind: 1, tenant: Tenant { set: 0, slot: 1, epoch: 2 } };
    let mut trial = Trial {
        cgroup: 0,
        to: endpoint.into(),
        family: 4,
        pin,
        draw_revision: 0,
        draw_endpoint: 0,
        lapsed: 0,
        zero: 0,
    };
    assert_eq!(shadow::decide(&tables, &trial).counter, Counter::DeniedFence as u32);
    trial.to = at("127.2.0.1:22").into();
    assert_eq!(shadow::decide(&tables, &trial).verdict, PASS);
}

#[test]
fn a_port_is_of_the_revision_whose_endpoint_it_is_not_of_one_that_only_declares_it() {
    let endpoint = at("127.2.0.1:8000");
    let shared = |name: &str, slot, epoch| Revision {
        host_network: true,
        declared: vec![8000],
        others: vec![endpoint.ip()],
        ..Revision::new(name, slot, epoch, &[&[], &[]])
    };
    let (declares, mut serves) = (shared("a", 0, 1), shared("b", 1, 2));
    serves.endpoints[1].push(endpoint);
    let tables = tables(&World::of(vec![declares, serves]));
    let member = tables.members[&Address::from(endpoint)];
    assert_eq!(
        (member.flags, member.tenant.slot, member.tenant.epoch, member.role),
        (MEMBER_ENDPOINT, 1, 2, 1)
    );
}

#[test]
fn pods_are_looked_for_at_the_levels_where_most_are() {
    let mut world = World::of(vec![Revision::new("a", 0, 1, &[])]);
    for (id, level) in [(1, 3), (2, 3), (3, 4), (4, 5), (5, 5), (6, 2), (7, 2), (8, 9), (9, 9)] {
        world = world.source(Cgroup { id, level }, "a");
    }
    let tables = tables(&world);
    assert_eq!(tables.settings.source_levels, 0x0905_0302);
    assert_eq!(tables.unseen_sources, 1, "the one at level 4");
    assert!(!tables.sources.contains_key(&3));

    // A Pod that has many cgroups at one level is one Pod.
    let mut crowd = world.sources[2].clone();
    for id in 10..20 {
        crowd.cgroup = Cgroup { id, level: 4 };
        world.sources.push(crowd.clone());
    }
    assert_eq!(self::tables(&world).settings.source_levels, 0x0905_0302);
}

/// The widest endpoints fill a table to its last word.
#[test]
fn as_many_endpoints_as_there_may_be_are_found_again_each() {
    let endpoints: Vec<_> = (0..MAX_ENDPOINTS)
        .map(|n| {
            let n = u16::try_from(n).unwrap();
            SocketAddr::new(Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, n).into(), 1 + n)
        })
        .collect();
    let world = World::of(vec![Revision::new("a", 0, 1, &[&[], &endpoints])]);
    let table = &tables(&world).sets[0];
    let range = table.slots[0].ranges[1];
    assert_eq!(self::endpoints(table, &range), endpoints);
    assert_eq!(self::endpoints(table, &table.any[1]), endpoints);
    for draw in [0, u32::MAX] {
        let locator = locate(range, &Address::from(endpoints[0]), Family::V6, draw).unwrap();
        let expected = if draw == 0 { endpoints[0] } else { endpoints[MAX_ENDPOINTS - 1] };
        assert_eq!(SocketAddr::from(table.endpoint(locator, Family::V6)), expected);
    }
}

#[test]
fn what_does_not_fit_is_said_with_its_name() {
    let many: Vec<_> = (0..=MAX_ENDPOINTS)
        .map(|n| {
            SocketAddr::new(std::net::Ipv4Addr::from(0x7f00_0000 + u32::try_from(n).unwrap()).into(), 80)
        })
        .collect();
    let world = World::of(vec![Revision::new("a", 0, 1, &[&many, &[]])]);
    let error = Tables::of(&world.snapshot(1), FenceMode::Off).err();
    assert_eq!(error, Some(TooLarge::Endpoints { set: "chat".into(), count: MAX_ENDPOINTS + 1 }));
    let world = World::of(vec![Revision::new("a", 64, 1, &[])]);
    let error = Tables::of(&world.snapshot(1), FenceMode::Off).err().unwrap().to_string();
    assert!(error.contains("slot 64"), "{error}");
}
