//! The fence (K3) and the decision table (K4) on real sockets: who is let through to a member, in each mode, with which
//! error, and that nothing else on the machine notices.
#![cfg(test)]

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use revgate::{
    config::{FenceMode, GatingMode},
    kernel::detach,
};
use revgate_common::{
    address::Address,
    counter::Counter,
    layout::{PIN_AGENT, Pin, Tenant},
};
use revgate_tests::{
    dial::{ECONNREFUSED, at, count, dial, dial_with, disconnect, errno, pinned, tcp_socket},
    echo::{self, PATIENCE},
    node::{self, Node},
    world::{Revision, Set, World, source},
};
use socket2::{Domain, Protocol, Socket, Type};

/// Who dials.
#[derive(Clone, Debug)]
enum Caller {
    /// A socket of the agent, pinned to revision a.
    Pinned,
    /// A socket of the agent without a pin.
    Agent,
    /// A process in this cgroup.
    Pod(PathBuf),
    /// Any other process.
    Stranger,
}

impl Caller {
    fn dial(&self, node: &Node, to: SocketAddr) -> io::Result<SocketAddr> {
        let domain = Domain::for_address(to);
        match self {
            Self::Pinned => dial_with(&pinned(node, 0, 1, None, domain), to),
            Self::Agent => {
                let socket = tcp_socket(domain);
                let pin = Pin { endpoint: Address::default(), kind: PIN_AGENT, tenant: Tenant::default() };
                node.pinner().pin(socket.as_fd(), &pin).unwrap();
                dial_with(&socket, to)
            }
            Self::Pod(cgroup) => in_pod(node, cgroup, || dial(to)),
            Self::Stranger => dial(to),
        }
    }
}

fn in_pod<T: Send>(node: &Node, cgroup: &Path, work: impl FnOnce() -> T + Send) -> T {
    node::inside(cgroup, node.cgroup(), work)
}

fn mapped(at: SocketAddr) -> SocketAddr {
    match at {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        SocketAddr::V6(_) => at,
    }
}

/// Every row of the table against members' addresses, by any port and as both families: what each mode lets through.
fn table(net: u8, fence: FenceMode) {
    let Some(mut node) = Node::enter(&format!("fence{net}"), fence) else { return };
    let ip = |host: &str| format!("127.{net}.{host}");
    // Every member also listens on a port that is no endpoint's, as the KV handshake does.
    let [a, a_kv] = [(); 2].map(|()| echo::tcp(&ip("1.1")));
    let [b, b_kv] = [(); 2].map(|()| echo::tcp(&ip("2.1")));
    let other_member = echo::tcp(&ip("2.9"));
    let (elsewhere, other_set) = (echo::tcp(&ip("9.1")), echo::tcp(&ip("3.1")));
    let (in_a, pod_a) = node.pod_cgroup("a");
    let (in_other, pod_other) = node.pod_cgroup("other");
    let mut world = World::of(vec![
        Revision::new("a", 0, 1, &[&[], &[a]]),
        Revision { others: vec![other_member.ip()], ..Revision::new("b", 1, 2, &[&[], &[b]]) },
    ]);
    world.sets.push(Set {
        name: "other".into(),
        mode: GatingMode::MaxRole,
        roles: vec!["decode".into()],
        revisions: vec![Revision::new("c", 0, 3, &[&[other_set]])],
    });
    world = world.source(pod_a, "a");
    world.sources.push(source(pod_other, 1, 0, 3));
    node.publish(&world.snapshot(1));

    let allowed = [a, a_kv, elsewhere, other_set];
    let foreign = [b, b_kv, other_member];
    let mut fenced = 0;
    for caller in
        [Caller::Pinned, Caller::Agent, Caller::Pod(in_a.clone()), Caller::Pod(in_other), Caller::Stranger]
    {
        for to in allowed {
            // A pinned socket reaches members of its revision only, of whatever set.
            if to == other_set && matches!(caller, Caller::Pinned) {
                continue;
            }
            for to in [to, mapped(to)] {
                let reached = caller.dial(&node, to).unwrap_or_else(|e| panic!("{caller:?} to {to}: {e}"));
                assert_eq!(mapped(reached), mapped(to));
            }
        }
        let is_fenced =
            matches!(&caller, Caller::Pinned) || matches!(&caller, Caller::Pod(of) if *of == in_a);
        for to in foreign.into_iter().flat_map(|to| [to, mapped(to)]) {
            let reached = caller.dial(&node, to);
            fenced += u64::from(is_fenced);
            if is_fenced && fence == FenceMode::Enforce {
                // Someone listens there: this error is the fence's.
                assert_eq!(errno(&reached), ECONNREFUSED, "{caller:?} to {to}");
            } else {
                assert_eq!(mapped(reached.unwrap()), mapped(to), "{caller:?}");
            }
        }
    }
    // Connected UDP is fenced too.
    let udp = echo::udp(&ip("2.1"));
    let sent = in_pod(&node, &in_a, || UdpSocket::bind("127.0.0.1:0")?.connect(udp));
    fenced += 1;
    assert_eq!(
        sent.err().and_then(|e| e.raw_os_error()),
        ECONNREFUSED.filter(|_| fence == FenceMode::Enforce)
    );

    assert!(fenced > 0);
    let (denied, audited) = (count(&node, Counter::DeniedFence), count(&node, Counter::AuditedFence));
    let expected = match fence {
        FenceMode::Enforce => (fenced, 0),
        FenceMode::Audit => (0, fenced),
        FenceMode::Off => (0, 0),
    };
    assert_eq!((denied, audited), expected);
}

#[test]
fn enforce_refuses_members_and_pinned_sockets_across_revisions_and_nobody_else() {
    table(80, FenceMode::Enforce);
}

#[test]
fn audit_counts_what_enforce_refuses_and_refuses_nothing() {
    table(81, FenceMode::Audit);
}

#[test]
fn off_refuses_and_counts_nothing() {
    table(82, FenceMode::Off);
}

#[test]
fn a_pinned_socket_is_refused_by_members_of_another_set_too() {
    let Some(mut node) = Node::enter("fenceset", FenceMode::Enforce) else { return };
    let (a, c) = (echo::tcp("127.83.1.1"), echo::tcp("127.83.2.1"));
    let mut world = World::of(vec![Revision::new("a", 0, 1, &[&[], &[a]])]);
    world.sets.push(Set { name: "other".into(), ..world.sets[0].clone() });
    // The same slot and epoch: only the set differs.
    world.sets[1].revisions = vec![Revision::new("a", 0, 1, &[&[], &[c]])];
    node.publish(&world.snapshot(1));
    let socket = pinned(&node, 0, 1, None, Domain::IPV4);
    assert_eq!(errno(&dial_with(&socket, c)), ECONNREFUSED);
    disconnect(&socket);
    assert_eq!(dial_with(&socket, a).unwrap(), a);
}

#[test]
fn pods_on_the_network_of_their_node_are_fenced_by_endpoint_and_declared_port_alone() {
    let Some(mut node) = Node::enter("hostnet", FenceMode::Enforce) else { return };
    let [endpoint, declared, of_the_node] = [(); 3].map(|()| echo::tcp("127.84.2.1"));
    let own = echo::tcp("127.84.1.1");
    let (in_a, pod_a) = node.pod_cgroup("a");
    let b = Revision {
        host_network: true,
        declared: vec![declared.port()],
        ..Revision::new("b", 1, 2, &[&[], &[endpoint]])
    };
    let world = World::of(vec![Revision::new("a", 0, 1, &[&[], &[own]]), b]).source(pod_a, "a");
    node.publish(&world.snapshot(1));
    for (to, fenced) in [(endpoint, true), (declared, true), (of_the_node, false), (own, false)] {
        let reached = in_pod(&node, &in_a, || dial(to));
        if fenced {
            assert_eq!(errno(&reached), ECONNREFUSED, "{to}");
        } else {
            assert_eq!(reached.unwrap(), to);
        }
    }
    assert_eq!(count(&node, Counter::DeniedFence), 2);
}

/// What an unrelated connect shows of itself: who answered or the error, and the peer that the socket names.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    to: SocketAddr,
    answer: Result<SocketAddr, Option<i32>>,
    peer: Option<SocketAddr>,
}

/// Connects to addresses that are neither VIPs nor members.
fn unrelated(servers: &[SocketAddr], udp: SocketAddr, closed: &[SocketAddr]) -> Vec<Seen> {
    let tcp = servers.iter().chain(closed).map(|to| {
        let stream = TcpStream::connect_timeout(to, PATIENCE);
        let peer = stream.as_ref().ok().and_then(|s| s.peer_addr().ok());
        let answer = stream.and_then(|mut s| {
            s.set_read_timeout(Some(PATIENCE))?;
            echo::answer(&mut s)
        });
        Seen { to: *to, answer: answer.map_err(|e| e.raw_os_error()), peer }
    });
    let mut seen: Vec<_> = tcp.collect();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(udp).unwrap();
    socket.send(b"who").unwrap();
    let mut packet = [0; 64];
    let length = socket.recv(&mut packet).unwrap();
    let answer = echo::answer(&mut &packet[..length]).map_err(|e| e.raw_os_error());
    seen.push(Seen { to: udp, answer, peer: socket.peer_addr().ok() });
    let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    raw.connect(&servers[0].into()).unwrap();
    let peer = raw.peer_addr().unwrap().as_socket().map(|at| SocketAddr::new(at.ip(), 0));
    seen.push(Seen { to: servers[0], answer: Err(None), peer });
    seen
}

#[test]
fn unrelated_connects_are_the_same_before_during_and_after() {
    // The VIP's address on another port, two ports of one address, IPv6, a mapped address; and nobody at all.
    let vip = at("127.85.0.1:80");
    let servers = ["127.85.0.1", "127.85.9.1", "127.85.9.1", "::1"].map(echo::tcp);
    let with_mapped: Vec<_> = servers.into_iter().chain([mapped(servers[1])]).collect();
    let closed = [at("127.85.9.2:1"), at("[::1]:1")];
    let udp = echo::udp("127.85.9.1");
    let member = echo::tcp("127.85.1.1");
    let look = || unrelated(&with_mapped, udp, &closed);
    let before = look();
    assert_eq!(before.iter().filter(|seen| seen.answer.is_ok()).count(), with_mapped.len() + 1, "{before:?}");

    let Some(mut node) = Node::enter("bystander", FenceMode::Enforce) else { return };
    let (in_a, pod_a) = node.pod_cgroup("a");
    for generation in 1..=5 {
        let epoch = u32::try_from(generation).unwrap();
        let revision = Revision::new("a", 0, epoch, &[&[member], &[member]]);
        node.publish(&World::of(vec![revision]).vip(vip, 1, false).source(pod_a, "a").snapshot(generation));
        assert_eq!(look(), before, "generation {generation}");
        assert_eq!(in_pod(&node, &in_a, look), before, "from a member Pod, generation {generation}");
    }
    let counters = node.reader().counters().unwrap();
    assert!(counters.iter().all(|(_, n)| *n == 0), "nothing to count: {counters:?}");
    assert_eq!(node.reader().connections().unwrap(), []);

    node.stop();
    assert_eq!(look(), before, "without the agent");
    detach(node.config()).unwrap();
    assert_eq!(look(), before, "without the programs");
}

#[test]
fn a_connection_that_is_open_stays_open_when_its_peer_becomes_foreign() {
    let Some(mut node) = Node::enter("open", FenceMode::Enforce) else { return };
    let listener = std::net::TcpListener::bind((Ipv4Addr::new(127, 86, 1, 1), 0)).unwrap();
    let peer = listener.local_addr().unwrap();
    let (in_a, pod_a) = node.pod_cgroup("a");
    let world = |peer_of: &str| {
        let of = |name: &str, slot, epoch| {
            let endpoints: &[SocketAddr] = if name == peer_of { &[peer] } else { &[] };
            Revision::new(name, slot, epoch, &[&[], endpoints])
        };
        World::of(vec![of("a", 0, 1), of("b", 1, 2)]).source(pod_a, "a")
    };
    node.publish(&world("a").snapshot(1));
    let mut client = in_pod(&node, &in_a, || TcpStream::connect(peer)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    node.publish(&world("b").snapshot(2));
    assert_eq!(errno(&in_pod(&node, &in_a, || dial(peer))), ECONNREFUSED, "a new one is refused");
    io::Write::write_all(&mut server, format!("{peer}\n").as_bytes()).unwrap();
    assert_eq!(echo::answer(&mut client).unwrap(), peer);
}
