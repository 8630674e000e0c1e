//! A member Pod stays inside its own revision (K2, K3): by VIP it is steered there, and straight to a foreign member it
//! is refused, on the port of the KV handshake as on any other. The Pods are cgroups that the test makes.
#![cfg(test)]

use std::{fs, net::SocketAddr, path::PathBuf};

use revgate::{
    cluster::Cgroup,
    config::{FenceMode, GatingMode},
};
use revgate_common::counter::Counter;
use revgate_tests::{
    dial::{ECONNREFUSED, EHOSTUNREACH, at, count, dial, errno},
    echo,
    node::{self, Node},
    world::{Revision, Set, World},
};

/// Two eligible revisions, each with prefill, decode and a decode Pod's cgroup.
struct Rollout {
    prefill: [SocketAddr; 2],
    /// Where the prefill Pods listen for the KV handshake: no endpoint of anything.
    handshake: [SocketAddr; 2],
    decode: [SocketAddr; 2],
    cgroups: [(PathBuf, Cgroup); 2],
    vip: SocketAddr,
}

impl Rollout {
    fn on(node: &Node, net: u8) -> Self {
        let tcp = |host: &str| echo::tcp(&format!("127.{net}.{host}"));
        Self {
            prefill: [tcp("1.1"), tcp("1.2")],
            handshake: [tcp("1.1"), tcp("1.2")],
            decode: [tcp("2.1"), tcp("2.2")],
            cgroups: ["decode-a", "decode-b"].map(|name| node.pod_cgroup(name)),
            vip: at(&format!("127.{net}.0.1:80")),
        }
    }

    fn world(&self) -> World {
        let of = |name: &str, slot: u16| {
            let at = usize::from(slot);
            Revision::new(name, slot, u32::from(slot) + 1, &[&self.prefill[at..=at], &self.decode[at..=at]])
        };
        World::of(vec![of("a", 0), of("b", 1)])
            .vip(self.vip, 0, false)
            .source(self.cgroups[0].1, "a")
            .source(self.cgroups[1].1, "b")
    }

    /// Dials as a process of a container in a decode Pod.
    fn dial(&self, node: &Node, pod: usize, to: SocketAddr) -> std::io::Result<SocketAddr> {
        let container = self.cgroups[pod].0.join("container");
        if !container.exists() {
            fs::create_dir(&container).unwrap();
            fs::write(container.join("cgroup.type"), "threaded").unwrap();
        }
        node::inside(&container, node.cgroup(), || dial(to))
    }
}

#[test]
fn a_decode_pod_that_dials_the_prefill_vip_gets_its_own_revision() {
    let Some(mut node) = Node::enter("ownvip", FenceMode::Enforce) else { return };
    let rollout = Rollout::on(&node, 90);
    node.publish(&rollout.world().snapshot(1));
    for pod in [0, 1] {
        for _ in 0..16 {
            assert_eq!(rollout.dial(&node, pod, rollout.vip).unwrap(), rollout.prefill[pod]);
        }
    }
    assert_eq!((count(&node, Counter::SteeredOwn), count(&node, Counter::SteeredWeight)), (32, 0));
}

#[test]
fn a_foreign_prefill_pod_is_refused_on_every_port_the_kv_handshake_included() {
    let Some(mut node) = Node::enter("ownfence", FenceMode::Enforce) else { return };
    let rollout = Rollout::on(&node, 91);
    node.publish(&rollout.world().snapshot(1));
    for (own, foreign) in [(0, 1), (1, 0)] {
        for ports in [&rollout.prefill, &rollout.handshake, &rollout.decode] {
            assert_eq!(rollout.dial(&node, own, ports[own]).unwrap(), ports[own]);
            assert_eq!(errno(&rollout.dial(&node, own, ports[foreign])), ECONNREFUSED);
        }
    }
    assert_eq!(count(&node, Counter::DeniedFence), 6);
}

#[test]
fn a_pod_whose_revision_has_left_reaches_nobody_of_its_set() {
    let Some(mut node) = Node::enter("ownleft", FenceMode::Enforce) else { return };
    let rollout = Rollout::on(&node, 92);
    let mut world = rollout.world();
    // Slot 0 has a new tenant; the Pod of the old one still runs.
    world.sets[0].revisions[0].name = "c".into();
    world.sets[0].revisions[0].epoch = 3;
    node.publish(&world.snapshot(1));
    assert_eq!(errno(&rollout.dial(&node, 0, rollout.vip)), EHOSTUNREACH);
    for to in [rollout.prefill[0], rollout.prefill[1], rollout.handshake[0]] {
        assert_eq!(errno(&rollout.dial(&node, 0, to)), ECONNREFUSED);
    }
    assert_eq!(
        rollout.dial(&node, 1, rollout.vip).unwrap(),
        rollout.prefill[1],
        "the other Pod is untouched"
    );
}

#[test]
fn to_another_set_a_member_pod_is_like_anybody() {
    let Some(mut node) = Node::enter("ownother", FenceMode::Enforce) else { return };
    let rollout = Rollout::on(&node, 93);
    let (there, vip) = (echo::tcp("127.93.3.1"), at("127.93.0.2:80"));
    let mut world = rollout.world();
    world.sets.push(Set {
        name: "other".into(),
        mode: GatingMode::MaxRole,
        roles: vec!["decode".into()],
        revisions: vec![Revision::new("z", 5, 9, &[&[there]])],
    });
    world = world.vip(vip, 0, false);
    world.vips[1].set = 1;
    node.publish(&world.snapshot(1));
    assert_eq!(rollout.dial(&node, 0, vip).unwrap(), there);
    assert_eq!(rollout.dial(&node, 0, there).unwrap(), there);
    assert_eq!(count(&node, Counter::SteeredWeight), 1);
}

#[test]
fn a_pod_is_known_from_the_moment_that_it_is_published_and_forgotten_with_it() {
    let Some(mut node) = Node::enter("ownknown", FenceMode::Enforce) else { return };
    let rollout = Rollout::on(&node, 94);
    let known = rollout.world();
    let mut unknown = known.clone();
    unknown.sources.clear();
    for (generation, world, refused) in [(1, &unknown, false), (2, &known, true), (3, &unknown, false)] {
        node.publish(&world.snapshot(generation));
        let reached = rollout.dial(&node, 0, rollout.handshake[1]);
        assert_eq!(errno(&reached), ECONNREFUSED.filter(|_| refused), "generation {generation}");
    }
}
