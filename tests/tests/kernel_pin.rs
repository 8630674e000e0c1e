//! A pinned socket reaches its revision or nothing (K2, K4, K5, K7): real sockets, real programs.
#![cfg(test)]

use std::{net::SocketAddr, os::fd::AsFd};

use revgate::{config::FenceMode, kernel::Pinner};
use revgate_common::{
    address::Address,
    counter::Counter,
    layout::{self, PIN_AGENT, Pin, Tenant},
};
use revgate_tests::{
    dial::{ECONNREFUSED, EHOSTUNREACH, at, count, dial, dial_with, disconnect, errno, pinned, tcp_socket},
    echo,
    node::Node,
    world::{Revision, World},
};
use socket2::Domain;

/// Two revisions with two decode endpoints each, of which `b` is not eligible.
struct Two {
    a: [SocketAddr; 2],
    b: [SocketAddr; 2],
    prefill: SocketAddr,
    vip: SocketAddr,
}

impl Two {
    fn on(net: u8) -> Self {
        let tcp = |host: &str| echo::tcp(&format!("127.{net}.{host}"));
        Self {
            a: [tcp("1.1"), tcp("1.2")],
            b: [tcp("2.1"), tcp("2.2")],
            prefill: tcp("3.1"),
            vip: at(&format!("127.{net}.0.1:80")),
        }
    }

    fn world(&self) -> World {
        World::of(vec![
            Revision::new("a", 0, 1, &[&[self.prefill], &self.a]),
            Revision::new("b", 1, 2, &[&[], &self.b]),
        ])
        .vip(self.vip, 1, false)
    }
}

#[test]
fn a_pinned_socket_reaches_its_endpoint_through_anchor_and_vip_and_sees_it() {
    let Some(mut node) = Node::enter("pin", FenceMode::Enforce) else { return };
    let two = Two::on(60);
    node.publish(&two.world().snapshot(1));
    let anchor = node.pinner().destination(0, 1, two.b[0]);
    assert_ne!(anchor, two.b[0]);
    for endpoint in two.b {
        for dialled in [anchor, two.vip] {
            let socket = pinned(&node, 1, 2, Some(endpoint), Domain::IPV4);
            assert_eq!(dial_with(&socket, dialled).unwrap(), endpoint);
            assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(endpoint), "no VIP for the agent");
        }
    }
    assert_eq!(count(&node, Counter::SteeredPin), 4);
}

#[test]
fn a_pinned_ipv6_socket_reaches_its_endpoint_through_the_mapped_anchor() {
    let Some(mut node) = Node::enter("pin6", FenceMode::Enforce) else { return };
    let two = Two::on(61);
    let six = echo::tcp("::1");
    let mut world = two.world();
    world.sets[0].revisions[0].endpoints[1].push(six);
    node.publish(&world.snapshot(1));
    let anchor = node.pinner().destination(0, 1, six);
    assert!(anchor.is_ipv6());
    let socket = pinned(&node, 0, 1, Some(six), Domain::IPV6);
    assert_eq!(dial_with(&socket, anchor).unwrap(), six);
    assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(six));
}

#[test]
fn when_the_pinned_endpoint_is_gone_another_of_its_revision_is_taken() {
    let Some(mut node) = Node::enter("repick", FenceMode::Enforce) else { return };
    let two = Two::on(62);
    let mut world = two.world();
    world.sets[0].revisions[1].endpoints[1].remove(0);
    node.publish(&world.snapshot(1));
    let anchor = node.pinner().destination(0, 1, two.b[0]);
    for _ in 0..8 {
        let socket = pinned(&node, 1, 2, Some(two.b[0]), Domain::IPV4);
        assert_eq!(dial_with(&socket, anchor).unwrap(), two.b[1]);
    }
    assert_eq!(count(&node, Counter::Repicked), 8);

    // An endpoint of another revision is as good as gone, and so is one of another role.
    for wrong in [two.a[0], two.prefill] {
        let socket = pinned(&node, 1, 2, Some(wrong), Domain::IPV4);
        assert_eq!(dial_with(&socket, anchor).unwrap(), two.b[1]);
    }
    // No endpoint named: any.
    let socket = pinned(&node, 1, 2, None, Domain::IPV4);
    assert_eq!(dial_with(&socket, anchor).unwrap(), two.b[1]);

    world.sets[0].revisions[1].endpoints[1].clear();
    node.publish(&world.snapshot(2));
    let socket = pinned(&node, 1, 2, Some(two.b[0]), Domain::IPV4);
    assert_eq!(errno(&dial_with(&socket, anchor)), EHOSTUNREACH, "its revision or nothing");
    assert_eq!(count(&node, Counter::DeniedNoEndpoint), 1);
}

#[test]
fn a_pin_of_a_former_tenant_is_denied() {
    let Some(mut node) = Node::enter("stale", FenceMode::Enforce) else { return };
    let two = Two::on(63);
    let mut world = two.world();
    // Slot 1 has a new tenant, with the very endpoints of the old one.
    world.sets[0].revisions[1].name = "c".into();
    world.sets[0].revisions[1].epoch = 3;
    node.publish(&world.snapshot(1));
    let anchor = node.pinner().destination(0, 1, two.b[0]);
    for (slot, epoch) in [(1, 2), (2, 2), (0, 0), (5, 0)] {
        let socket = pinned(&node, slot, epoch, Some(two.b[0]), Domain::IPV4);
        assert_eq!(errno(&dial_with(&socket, anchor)), ECONNREFUSED, "slot {slot} epoch {epoch}");
    }
    assert_eq!(count(&node, Counter::DeniedStalePin), 4);
}

#[test]
fn only_pinned_sockets_use_an_anchor_and_an_agent_socket_without_a_pin_uses_no_vip() {
    let Some(mut node) = Node::enter("anchor", FenceMode::Enforce) else { return };
    let two = Two::on(64);
    node.publish(&two.world().snapshot(1));
    assert_eq!(errno(&dial(layout::anchor(0, 1).into())), EHOSTUNREACH);
    assert_eq!(count(&node, Counter::DeniedForeign), 1);

    let socket = tcp_socket(Domain::IPV4);
    let unpinned = Pin { endpoint: Address::default(), kind: PIN_AGENT, tenant: Tenant::default() };
    node.pinner().pin(socket.as_fd(), &unpinned).unwrap();
    assert_eq!(errno(&dial_with(&socket, two.vip)), EHOSTUNREACH);
    assert_eq!(count(&node, Counter::DeniedUnpinnedAgent), 1);
    // Health checks and scrapes reach every member by its address.
    assert_eq!(dial_with(&socket, two.b[0]).unwrap(), two.b[0]);
}

#[test]
fn a_pin_stays_with_its_socket_and_fences_it() {
    let Some(mut node) = Node::enter("pinfence", FenceMode::Enforce) else { return };
    let two = Two::on(65);
    let elsewhere = echo::tcp("127.65.9.1");
    node.publish(&two.world().snapshot(1));
    let socket = pinned(&node, 1, 2, Some(two.b[0]), Domain::IPV4);
    assert_eq!(dial_with(&socket, two.b[1]).unwrap(), two.b[1], "its revision, by address");
    disconnect(&socket);
    assert_eq!(errno(&dial_with(&socket, two.a[0])), ECONNREFUSED, "another revision");
    assert_eq!(count(&node, Counter::DeniedFence), 1);
    disconnect(&socket);
    assert_eq!(dial_with(&socket, elsewhere).unwrap(), elsewhere);
}

#[test]
fn without_kernel_programs_endpoints_are_dialled_by_their_own_address() {
    let endpoint = echo::tcp("127.66.1.1");
    let pinner = Pinner::user_space();
    let socket = tcp_socket(Domain::IPV4);
    let pin = Pin {
        endpoint: endpoint.into(),
        kind: layout::PIN_REVISION,
        tenant: Tenant { set: 0, slot: 0, epoch: 1 },
    };
    pinner.pin(socket.as_fd(), &pin).unwrap();
    assert_eq!(pinner.destination(0, 1, endpoint), endpoint);
    assert_eq!(dial_with(&socket, pinner.destination(0, 1, endpoint)).unwrap(), endpoint);
}
