//! Connects to a VIP go to an endpoint of one revision and that role (K1, K2, K7): real sockets, real programs.
#![cfg(test)]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
};

use revgate::config::{FenceMode, GatingMode};
use revgate_common::counter::Counter;
use revgate_tests::dial::{EHOSTUNREACH, at, count, dial, disconnect, errno, tcp_socket};
use revgate_tests::{
    echo::{self, PATIENCE},
    node::{self, Node},
    world::{Revision, World},
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

#[test]
fn a_vip_is_steered_by_weight_to_its_role() {
    let Some(mut node) = Node::enter("weight", FenceMode::Enforce) else { return };
    let decode_a: Vec<_> = (1..=6).map(|n| echo::tcp(&format!("127.50.1.{n}"))).collect();
    let decode_b: Vec<_> = (1..=4).map(|n| echo::tcp(&format!("127.50.2.{n}"))).collect();
    let prefill = [echo::tcp("127.50.3.1"), echo::tcp("127.50.3.2")];
    let vip = at("127.50.0.1:80");
    let world = World::of(vec![
        Revision::new("a", 0, 1, &[&prefill[..1], &decode_a]),
        Revision::new("b", 1, 2, &[&prefill[1..], &decode_b]),
    ])
    .vip(vip, 1, false);
    node.publish(&world.snapshot(1));

    let mut hits: BTreeMap<SocketAddr, u32> = BTreeMap::new();
    for _ in 0..1000 {
        *hits.entry(dial(vip).unwrap()).or_default() += 1;
    }
    let of = |endpoints: &[SocketAddr]| -> u32 { endpoints.iter().filter_map(|e| hits.get(e)).sum() };
    assert_eq!(of(&decode_a) + of(&decode_b), 1000, "only endpoints of the role: {hits:?}");
    // 600 expected, standard deviation 15.5: outside 5 of them once in 1.7 million runs.
    assert!((523..=677).contains(&of(&decode_a)), "{hits:?}");
    assert_eq!(hits.len(), 10, "every endpoint is reached");
    assert_eq!(count(&node, Counter::SteeredWeight), 1000);
}

#[test]
fn an_ordinary_client_sees_the_vip_as_its_peer_and_forgets_it_when_it_dials_elsewhere() {
    let Some(mut node) = Node::enter("peer", FenceMode::Enforce) else { return };
    let (endpoint, prefill, elsewhere) =
        (echo::tcp("127.51.1.1"), echo::tcp("127.51.3.1"), echo::tcp("127.51.9.1"));
    let vip = at("127.51.0.1:80");
    node.publish(
        &World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &[endpoint]])]).vip(vip, 1, false).snapshot(1),
    );

    let socket = tcp_socket(Domain::IPV4);
    socket.connect(&vip.into()).unwrap();
    assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(vip));
    assert_eq!(echo::answer(&mut &socket).unwrap(), endpoint);

    // Not by address family `AF_UNSPEC` of a fresh socket: the same socket, disconnected and used again.
    disconnect(&socket);
    socket.connect(&elsewhere.into()).unwrap();
    assert_eq!(socket.peer_addr().unwrap().as_socket(), Some(elsewhere));
    disconnect(&socket);
    socket.connect(&endpoint.into()).unwrap();
    assert_eq!(
        socket.peer_addr().unwrap().as_socket(),
        Some(endpoint),
        "the VIP is forgotten, not only unmatched"
    );
}

#[test]
fn ipv6_and_mapped_sockets_are_steered_and_see_the_vip_in_their_own_form() {
    let Some(mut node) = Node::enter("ipv6", FenceMode::Enforce) else { return };
    let (v4, v6, prefill) = (echo::tcp("127.52.1.1"), echo::tcp("::1"), echo::tcp("127.52.3.1"));
    let (vip4, vip6) = (at("127.52.0.1:80"), at("[::1]:9"));
    let both = World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &[v4, v6]])]);
    node.publish(&both.vip(vip4, 1, false).vip(vip6, 1, false).snapshot(1));

    for _ in 0..8 {
        assert_eq!(dial(vip6).unwrap(), v6, "the VIP's family first");
    }
    let mapped = SocketAddr::new(Ipv4Addr::new(127, 52, 0, 1).to_ipv6_mapped().into(), 80);
    let mut stream = TcpStream::connect(mapped).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), mapped);
    assert_eq!(echo::answer(&mut stream).unwrap(), v4);

    let only_v4 = World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &[v4]])]);
    node.publish(&only_v4.vip(vip4, 1, false).vip(vip6, 1, false).snapshot(2));
    let mut stream = TcpStream::connect(vip6).unwrap();
    assert_eq!(stream.peer_addr().unwrap(), vip6);
    assert_eq!(echo::answer(&mut stream).unwrap(), v4, "the other family where there is no choice");

    let only_v6 = World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &[v6]])]);
    node.publish(&only_v6.vip(vip4, 1, false).snapshot(3));
    assert_eq!(errno(&dial(vip4)), EHOSTUNREACH, "an IPv4 socket cannot reach an IPv6 endpoint");
    assert_eq!(dial(mapped).unwrap(), v6);
}

/// Endpoints of one port and of several are written down in different ways.
#[test]
fn every_endpoint_of_a_role_is_reached_at_its_own_port() {
    let Some(mut node) = Node::enter("ports", FenceMode::Enforce) else { return };
    let prefill = echo::tcp("127.59.3.1");
    let (vip4, vip6) = (at("127.59.0.1:80"), at("[::1]:9"));
    let first = echo::tcp("127.59.1.3");
    let port = |ip| echo::tcp_at(SocketAddr::new(at(ip).ip(), first.port()));
    let one_port = vec![first, port("127.59.1.4:0"), port("127.59.1.5:0")];
    let several = ["127.59.1.1", "127.59.1.2", "127.59.1.1"].map(echo::tcp).to_vec();
    let sixes = ["::1", "::1", "::1"].map(echo::tcp).to_vec();
    for (generation, endpoints) in (1..).zip([one_port, several, sixes]) {
        let world = World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &endpoints])]);
        node.publish(&world.vip(vip4, 1, false).vip(vip6, 1, false).snapshot(generation));
        let vip = if endpoints[0].is_ipv6() { vip6 } else { vip4 };
        // That one of three is never met in so many has a chance of 3 in 10^18.
        let met: BTreeSet<_> = (0..100).map(|_| dial(vip).unwrap()).collect();
        assert_eq!(met, endpoints.into_iter().collect());
    }
}

#[test]
fn connected_udp_is_steered() {
    let Some(mut node) = Node::enter("udp", FenceMode::Enforce) else { return };
    let (endpoint, prefill) = (echo::udp("127.53.1.1"), echo::udp("127.53.3.1"));
    let (endpoint6, vip, vip6) = (echo::udp("::1"), at("127.53.0.1:80"), at("[::1]:9"));
    let world = World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &[endpoint, endpoint6]])]);
    node.publish(&world.vip(vip, 1, false).vip(vip6, 1, false).snapshot(1));

    for (local, vip, endpoint) in [("127.0.0.1:0", vip, endpoint), ("[::1]:0", vip6, endpoint6)] {
        let socket = UdpSocket::bind(local).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.connect(vip).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), vip);
        socket.send(b"who").unwrap();
        let mut packet = [0; 64];
        let length = socket.recv(&mut packet).unwrap();
        assert_eq!(echo::answer(&mut &packet[..length]).unwrap(), endpoint);
    }
}

#[test]
fn a_member_pod_is_steered_to_its_own_revision_whether_or_not_it_is_eligible() {
    let Some(mut node) = Node::enter("own", FenceMode::Enforce) else { return };
    let (a, b, prefill) = (echo::tcp("127.54.1.1"), echo::tcp("127.54.2.1"), echo::tcp("127.54.3.1"));
    let vip = at("127.54.0.1:80");
    let (pod_cgroup, pod) = node.pod_cgroup("pod");
    // b has no prefill, so it gets no weight.
    let revisions =
        || vec![Revision::new("a", 0, 1, &[&[prefill], &[a]]), Revision::new("b", 1, 2, &[&[], &[b]])];
    node.publish(&World::of(revisions()).vip(vip, 1, false).source(pod, "b").snapshot(1));

    for _ in 0..16 {
        assert_eq!(dial(vip).unwrap(), a, "a stranger goes to the eligible revision");
    }
    let home = node.cgroup().to_path_buf();
    let in_pod = || node::inside(&pod_cgroup, &home, || dial(vip));
    for _ in 0..16 {
        assert_eq!(in_pod().unwrap(), b);
    }
    assert_eq!(count(&node, Counter::SteeredOwn), 16);

    let mut gone = revisions();
    gone[1].endpoints = vec![vec![], vec![]];
    gone[1].others = vec![b.ip()];
    let world = World::of(gone).vip(vip, 1, false).source(pod, "b").snapshot(2);
    node.publish(&world);
    assert_eq!(errno(&in_pod()), EHOSTUNREACH, "own revision only; none: deny");
}

#[test]
fn with_nothing_eligible_a_vip_is_unreachable_and_never_falls_through() {
    let Some(mut node) = Node::enter("paused", FenceMode::Enforce) else { return };
    // Someone does listen on the VIP: a connect that falls through would reach it.
    let vip = echo::tcp("127.55.0.1");
    assert_eq!(dial(vip).unwrap(), vip, "nobody steers it yet");
    node.publish(&World::of(vec![]).vip(vip, 1, false).snapshot(1));
    assert_eq!(errno(&dial(vip)), EHOSTUNREACH);
    assert_eq!(count(&node, Counter::DeniedNoRevision), 1);
    node.publish(&World::of(vec![]).snapshot(2));
    assert_eq!(dial(vip).unwrap(), vip, "no VIP any more");
}

#[test]
fn members_only_denies_strangers() {
    let Some(mut node) = Node::enter("members", FenceMode::Enforce) else { return };
    let (endpoint, prefill, vip) = (echo::tcp("127.56.1.1"), echo::tcp("127.56.3.1"), at("127.56.0.1:80"));
    node.publish(
        &World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &[endpoint]])]).vip(vip, 1, true).snapshot(1),
    );
    assert_eq!(errno(&dial(vip)), EHOSTUNREACH);
    assert_eq!(count(&node, Counter::DeniedForeign), 1);
}

#[test]
fn without_gating_any_endpoint_of_the_role_is_taken() {
    let Some(mut node) = Node::enter("ungated", FenceMode::Enforce) else { return };
    let (a, b, vip) = (echo::tcp("127.57.1.1"), echo::tcp("127.57.2.1"), at("127.57.0.1:80"));
    let mut world =
        World::of(vec![Revision::new("a", 0, 1, &[&[], &[a]]), Revision::new("b", 1, 2, &[&[], &[b]])])
            .vip(vip, 1, false);
    world.sets[0].mode = GatingMode::Disabled;
    node.publish(&world.snapshot(1));
    let reached: std::collections::BTreeSet<_> = (0..64).map(|_| dial(vip).unwrap()).collect();
    assert_eq!(reached, [a, b].into());
}

#[test]
fn anything_that_is_no_vip_and_no_member_is_never_touched() {
    let Some(mut node) = Node::enter("others", FenceMode::Enforce) else { return };
    let (endpoint, prefill, vip) = (echo::tcp("127.58.1.1"), echo::tcp("127.58.3.1"), at("127.58.0.1:80"));
    let other = echo::tcp("127.58.0.1");
    node.publish(
        &World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &[endpoint]])]).vip(vip, 1, false).snapshot(1),
    );
    assert_eq!(dial(other).unwrap(), other, "another port of the VIP's address");
    assert_eq!(dial(endpoint).unwrap(), endpoint, "a stranger may dial a member");
    // A raw socket's connect sets a filter; an address rewritten there would be wrong.
    let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    raw.connect(&SockAddr::from(at("127.58.0.1:80"))).unwrap();
    assert_eq!(raw.peer_addr().unwrap().as_socket().unwrap().ip(), vip.ip());
    assert!(node.reader().counters().unwrap().iter().all(|(_, n)| *n == 0), "nothing to count");
}
