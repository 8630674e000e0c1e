//! The tables in the kernel: the programs decide as user space does, swaps never mix (K5), and the size (K6).
#![cfg(test)]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use revgate::{
    config::FenceMode,
    kernel::{tables::Tables, twin::Twin},
};
use revgate_common::{
    layout::{PIN_REVISION, Pin, Tenant},
    twin::{STEER, Trial},
};
use revgate_tests::{
    node::Node,
    random::{trials, worlds},
    shadow,
    world::{Revision, World},
};

#[test]
fn the_kernel_decides_as_user_space_does() {
    let Some(mut node) = Node::enter("twin", FenceMode::Enforce) else { return };
    let twin = Twin::load(node.kernel()).unwrap();
    let mut runner = TestRunner::deterministic();
    for generation in 1..=8 {
        let world = worlds().new_tree(&mut runner).unwrap().current();
        let snapshot = world.snapshot(generation);
        node.publish(&snapshot);
        let tables = Tables::of(&snapshot, FenceMode::Enforce).unwrap();
        for _ in 0..500 {
            let trial = trials().new_tree(&mut runner).unwrap().current();
            assert_eq!(
                twin.decide(&trial).unwrap(),
                shadow::decide(&tables, &trial),
                "{trial:?} in {world:?}"
            );
        }
    }
}

/// Decode endpoints of the tenant with this epoch: 127.120.<epoch>.x.
fn endpoints(epoch: u32) -> Vec<SocketAddr> {
    let net = u8::try_from(epoch).unwrap_or(u8::MAX);
    (1..=50).map(|n| SocketAddr::new(Ipv4Addr::new(127, 120, net, n).into(), 80)).collect()
}

#[test]
fn a_swap_under_way_never_mixes_one_table_with_another() {
    let Some(mut node) = Node::enter("swap", FenceMode::Enforce) else { return };
    let twin = Twin::load(node.kernel()).unwrap();
    let vip: SocketAddr = "127.120.0.1:80".parse().unwrap();
    let prefill: SocketAddr = "127.120.0.2:80".parse().unwrap();
    // The slots change tenants, the tenants change places in the list of endpoints, and the weights change.
    let world = |epochs: [u32; 2], split: usize| {
        let of = |slot, epoch, n: usize| {
            Revision::new(&format!("r{slot}"), slot, epoch, &[&[prefill], &endpoints(epoch)[..n]])
        };
        World::of(vec![of(0, epochs[0], split), of(1, epochs[1], 50 - split)]).vip(vip, 1, false)
    };
    let worlds = [world([1, 2], 40), world([3, 4], 10)];
    node.publish(&worlds[0].snapshot(1));
    let (done, decided) = (AtomicBool::new(false), AtomicU64::new(0));
    // Of each world.
    let steered = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        for seed in 0..2_u32 {
            let (twin, done, decided, steered) = (&twin, &done, &decided, &steered);
            scope.spawn(move || {
                let mut draw = seed;
                while !done.load(Ordering::Relaxed) {
                    draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let pin = Pin {
                        endpoint: revgate_common::address::Address::default(),
                        kind: if draw & 1024 == 0 { PIN_REVISION } else { 0 },
                        tenant: Tenant { set: 0, slot: 0, epoch: 1 },
                    };
                    let trial = Trial {
                        cgroup: 0,
                        to: vip.into(),
                        family: 4,
                        pin,
                        draw_revision: draw,
                        draw_endpoint: draw.rotate_left(16),
                        lapsed: 0,
                        zero: 0,
                    };
                    let answer = twin.decide(&trial).unwrap();
                    decided.fetch_add(1, Ordering::Relaxed);
                    if answer.verdict == STEER {
                        let endpoint = SocketAddr::from(answer.endpoint);
                        assert!(endpoints(answer.tenant.epoch).contains(&endpoint), "{answer:?}");
                        steered[usize::from(answer.tenant.epoch > 2)].fetch_add(1, Ordering::Relaxed);
                        assert!(
                            pin.kind == 0 || answer.tenant.epoch == 1,
                            "a pin never leaves its tenant: {answer:?}"
                        );
                    }
                }
            });
        }
        let both = || steered.iter().all(|of_world| of_world.load(Ordering::Relaxed) > 0);
        for generation in 2.. {
            node.publish(&worlds[usize::try_from(generation % 2).unwrap()].snapshot(generation));
            // At least sixty, and as many as a busy machine needs.
            if generation > 60 && both() || generation > 6000 {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    println!("{decided:?} decisions, {steered:?} steered");
    assert!(steered.into_iter().all(|of_world| of_world.into_inner() > 0), "both worlds were in force");
}

#[test]
fn ten_thousand_endpoints_of_fifty_revisions_in_sixteen_roles_fit_into_eight_megabytes() {
    let Some(mut node) = Node::enter("large", FenceMode::Enforce) else { return };
    let world = |shift: usize| {
        let mut next = 0x7f80_0000_u32;
        let revisions = (0..50_u16).map(|slot| {
            let mut endpoints = vec![Vec::new(); 16];
            for n in 0..200 {
                endpoints[(n + shift) % 16].push(SocketAddr::new(Ipv4Addr::from(next).into(), 8000));
                next += 1;
            }
            let name = format!("revision-{slot:02}");
            Revision { name, slot, epoch: u32::from(slot) + 1, endpoints, ..Revision::default() }
        });
        let mut world = World::of(revisions.collect());
        world.sets[0].roles = (0..16).map(|role| format!("role-{role}")).collect();
        world
    };
    for generation in 1..=2 {
        node.publish(&world(usize::try_from(generation).unwrap()).snapshot(generation));
        let memory = node.reader().memory().unwrap();
        println!("generation {generation}: {memory} bytes");
        assert!(memory < 8 << 20, "{memory} bytes");
    }
    let tenants = node.reader().tenants().unwrap();
    assert_eq!((tenants[0].generation, tenants[0].tenants.len()), (2, 50));
}
