//! For how long the kernel part remembers where a socket was steered: until its end, and in bounded memory (K6, K7, K11).
#![cfg(test)]

use std::{
    collections::HashSet,
    fs,
    net::{SocketAddr, TcpListener, UdpSocket},
    os::fd::AsFd,
    time::Duration,
};

use aya::maps::{Array, Map, MapData};
use revgate::config::FenceMode;
use revgate_common::layout::{
    Connections, MAX_PEERS, PEER_CLOCK_SHIFT, PEER_UNTIL_END, PEER_UNTIL_SHIFT, PEER_WAITS, Peer, map,
};
use revgate_tests::{
    dial::{at, dial_with, disconnect, errno, pinned, tcp_socket},
    echo::{self, PATIENCE},
    node::Node,
    require,
    wait::until,
    world::{Revision, World},
};
use rustix::{
    net::sockopt::socket_cookie,
    time::{ClockId, clock_gettime},
};
use socket2::{Domain, Protocol, Socket, Type};

/// `ENETUNREACH` of `asm-generic/errno.h`.
const ENETUNREACH: Option<i32> = Some(101);
/// `ECONNREFUSED` of `asm-generic/errno.h`, as of a port where nobody listens.
const ECONNREFUSED: Option<i32> = Some(111);

/// One endpoint behind a VIP.
struct Stage {
    endpoint: SocketAddr,
    vip: SocketAddr,
    world: World,
}

impl Stage {
    fn on(net: u8) -> Self {
        Self::with(net, echo::tcp(&format!("127.{net}.1.1")))
    }

    fn with(net: u8, endpoint: SocketAddr) -> Self {
        let vip = at(&format!("127.{net}.0.1:80"));
        let prefill = echo::tcp(&format!("127.{net}.3.1"));
        let world = World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &[endpoint]])]).vip(vip, 1, false);
        Self { endpoint, vip, world }
    }
}

/// The places of TCP sockets.
struct Places(Array<MapData, [u8; size_of::<Peer>()]>);

impl Places {
    fn of(node: &Node) -> Self {
        let map = MapData::from_pin(node.pins().join("maps").join(map::PEERS)).unwrap();
        Self(Array::try_from(Map::Array(map)).unwrap())
    }

    fn all(&self) -> impl Iterator<Item = Peer> {
        self.0.iter().map(|place| bytemuck::pod_read_unaligned(&place.unwrap()))
    }

    /// Those that somebody has.
    fn taken(&self) -> Vec<Peer> {
        self.all().filter(|peer| peer.state != 0).collect()
    }

    /// Gives every place to a socket that there is not.
    fn fill(&mut self, state: u64) {
        let peer = Peer { cookie: u64::MAX, state, ..bytemuck::Zeroable::zeroed() };
        for at in 0..u32::try_from(MAX_PEERS).unwrap() {
            self.0
                .set(at, <[u8; size_of::<Peer>()]>::try_from(bytemuck::bytes_of(&peer)).unwrap(), 0)
                .unwrap();
        }
    }

    /// Those that another socket has.
    fn lost(&self) -> usize {
        self.all().filter(|peer| peer.cookie != u64::MAX).count()
    }
}

fn peer(socket: &Socket) -> Option<SocketAddr> {
    socket.peer_addr().unwrap().as_socket()
}

/// Ends a connection at once, without the peer.
fn abort(socket: Socket) {
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
}

/// Opened and closed connections over all endpoints.
fn counts(node: &Node) -> (u64, u64) {
    let all = node.reader().connections().unwrap();
    all.iter()
        .fold((0, 0), |(opened, closed), (_, n): &(_, Connections)| (opened + n.opened, closed + n.closed))
}

#[test]
fn a_tcp_socket_has_a_place_from_its_connect_to_its_end() {
    let Some(mut node) = Node::enter("places", FenceMode::Enforce) else { return };
    let stage = Stage::on(180);
    node.publish(&stage.world.snapshot(1));
    let places = Places::of(&node);
    let ordinary = tcp_socket(Domain::IPV4);
    assert_eq!(dial_with(&ordinary, stage.vip).unwrap(), stage.endpoint);
    let taken = places.taken();
    assert_eq!(taken.len(), 1);
    assert_eq!(SocketAddr::from(taken[0].vip), stage.vip);
    assert_eq!(SocketAddr::from(taken[0].endpoint), stage.endpoint);
    assert_eq!(taken[0].state & PEER_UNTIL_END, PEER_UNTIL_END, "it has begun");
    let agents = pinned(&node, 0, 1, None, Domain::IPV4);
    assert_eq!(dial_with(&agents, node.pinner().destination(0, 1, stage.endpoint)).unwrap(), stage.endpoint);
    assert_eq!(places.taken().len(), 2);
    assert_eq!((peer(&ordinary), peer(&agents)), (Some(stage.vip), Some(stage.endpoint)));

    // Another descriptor of the same socket.
    let copy = ordinary.try_clone().unwrap();
    drop(ordinary);
    assert_eq!(peer(&copy), Some(stage.vip));
    assert_eq!(places.taken().len(), 2);
    abort(copy);
    assert_eq!(places.taken().len(), 1);
    // The server has closed: the kernel waits a while for what is late, without the socket.
    drop(agents);
    until("its place", || places.taken().len(), |taken| *taken == 0);
    assert_eq!(counts(&node), (2, 2));
}

#[test]
fn a_connect_that_fails_leaves_no_place_and_one_that_never_began_keeps_it_for_a_while() {
    let Some(mut node) = Node::enter("failed", FenceMode::Enforce) else { return };
    // Nobody listens any more.
    let gone = TcpListener::bind("127.181.1.1:0").unwrap().local_addr().unwrap();
    let mut stage = Stage::with(181, gone);
    let vip6 = at("[::1]:9");
    stage.world = stage.world.vip(vip6, 1, false);
    node.publish(&stage.world.snapshot(1));
    let places = Places::of(&node);
    assert_eq!(errno(&dial_with(&tcp_socket(Domain::IPV4), stage.vip)), ECONNREFUSED);
    assert_eq!(places.taken(), []);

    // No way to an IPv4 endpoint from here: TCP does not begin.
    let socket = tcp_socket(Domain::IPV6);
    socket.set_only_v6(true).unwrap();
    for _ in 0..2 {
        assert_eq!(errno(&dial_with(&socket, vip6)), ENETUNREACH);
        let taken = places.taken();
        assert_eq!(taken.len(), 1, "the same");
        let until = taken[0].state >> PEER_UNTIL_SHIFT;
        let seconds = u64::try_from(clock_gettime(ClockId::MonotonicCoarse).tv_sec).unwrap();
        let now = (seconds * 1_000_000_000) >> PEER_CLOCK_SHIFT;
        assert!((now..=now + PEER_WAITS + 1).contains(&until), "{until} at {now}");
    }
    let elsewhere = echo::tcp("::1");
    assert_eq!(dial_with(&socket, elsewhere).unwrap(), elsewhere);
    assert_eq!(places.taken(), [], "forgotten with the next connect");
    assert_eq!(peer(&socket), Some(elsewhere));
    assert_eq!(counts(&node), (0, 0));
}

#[test]
fn a_place_whose_owner_never_began_is_anothers_after_a_while() {
    let Some(mut node) = Node::enter("overdue", FenceMode::Enforce) else { return };
    let stage = Stage::on(182);
    node.publish(&stage.world.snapshot(1));
    let mut places = Places::of(&node);
    // Long ago: the first second of the machine.
    places.fill(1 << PEER_UNTIL_SHIFT);
    let socket = tcp_socket(Domain::IPV4);
    assert_eq!(dial_with(&socket, stage.vip).unwrap(), stage.endpoint);
    assert_eq!(places.lost(), 1);
    assert_eq!(peer(&socket), Some(stage.vip));
    abort(socket);
    assert_eq!(counts(&node), (1, 1));
    assert_eq!(places.taken().len(), MAX_PEERS - 1);
}

#[test]
fn where_no_place_is_left_a_socket_is_remembered_all_the_same() {
    let Some(mut node) = Node::enter("full", FenceMode::Enforce) else { return };
    let stage = Stage::on(183);
    node.publish(&stage.world.snapshot(1));
    let mut places = Places::of(&node);
    places.fill(PEER_UNTIL_END);
    let socket = tcp_socket(Domain::IPV4);
    let agents = pinned(&node, 0, 1, None, Domain::IPV4);
    assert_eq!(dial_with(&socket, stage.vip).unwrap(), stage.endpoint);
    assert_eq!(dial_with(&agents, node.pinner().destination(0, 1, stage.endpoint)).unwrap(), stage.endpoint);
    assert_eq!((peer(&socket), peer(&agents)), (Some(stage.vip), Some(stage.endpoint)));
    assert_eq!(counts(&node), (2, 0));
    disconnect(&socket);
    assert_eq!(counts(&node), (2, 1));
    assert_eq!(dial_with(&socket, stage.endpoint).unwrap(), stage.endpoint);
    assert_eq!(peer(&socket), Some(stage.endpoint), "a later connect elsewhere forgets");
    assert_eq!(counts(&node), (2, 1), "and is not counted");
    disconnect(&socket);
    // With places again the socket takes one.
    places.fill(0);
    assert_eq!(dial_with(&socket, stage.vip).unwrap(), stage.endpoint);
    assert_eq!(peer(&socket), Some(stage.vip));
    assert_eq!(places.lost(), 1);
    abort(socket);
    abort(agents);
    assert_eq!(counts(&node), (3, 3));
    assert_eq!(places.lost(), 1, "free, without a cookie");
    assert_eq!(places.taken(), []);
}

#[test]
fn many_sockets_at_a_time_are_told_apart() {
    let Some(mut node) = Node::enter("many", FenceMode::Enforce) else { return };
    let mut stage = Stage::on(184);
    let endpoints: Vec<_> = (1..=3).map(|at| echo::tcp(&format!("127.184.2.{at}"))).collect();
    stage.world.sets[0].revisions[0].endpoints[1].clone_from(&endpoints);
    let vips: Vec<_> = (1..=4).map(|host| at(&format!("127.184.0.{host}:80"))).collect();
    for vip in &vips[1..] {
        stage.world = stage.world.vip(*vip, 1, false);
    }
    node.publish(&stage.world.snapshot(1));
    let places = Places::of(&node);
    let sockets: Vec<_> = vips
        .iter()
        .cycle()
        .take(200)
        .map(|vip| {
            let socket = tcp_socket(Domain::IPV4);
            assert!(endpoints.contains(&dial_with(&socket, *vip).unwrap()));
            (socket, *vip)
        })
        .collect();
    // Each CPU counts its own cookies up, so two sockets may meet at a place: the later one has storage then.
    let place = |socket: &Socket| socket_cookie(socket).unwrap() % MAX_PEERS as u64;
    let apart: HashSet<_> = sockets.iter().map(|(socket, _)| place(socket)).collect();
    assert_eq!(places.taken().len(), apart.len());
    assert_eq!(counts(&node), (200, 0));
    for (at, (socket, vip)) in sockets.into_iter().enumerate() {
        assert_eq!(peer(&socket), Some(vip), "{at}");
        abort(socket);
    }
    assert_eq!(places.taken(), []);
    assert_eq!(counts(&node), (200, 200));
}

#[test]
fn places_of_connections_whose_end_nobody_heard_are_free_again() {
    let Some(mut node) = Node::enter("unheard", FenceMode::Enforce) else { return };
    let stage = Stage::on(187);
    node.publish(&stage.world.snapshot(1));
    let open = || {
        let socket = tcp_socket(Domain::IPV4);
        assert_eq!(dial_with(&socket, stage.vip).unwrap(), stage.endpoint);
        socket
    };
    let sockets = [open(), open(), open()];
    node.stop();
    node.restart();
    assert_eq!(Places::of(&node).taken().len(), 3, "the next agent knows of them");
    node.stop();
    // With its last pin the link ends.
    fs::remove_file(node.pins().join("links/count")).unwrap();
    until("the program", || node.attached("count"), Vec::is_empty);
    sockets.into_iter().for_each(abort);
    assert_eq!(Places::of(&node).taken().len(), 3);
    node.restart();
    assert_eq!(Places::of(&node).taken(), []);
    let socket = open();
    assert_eq!(
        (peer(&socket), Places::of(&node).taken().len()),
        (Some(stage.vip), 1),
        "all see the same places"
    );
    abort(socket);
    assert_eq!(Places::of(&node).taken(), []);
}

#[test]
fn multipath_tcp_leaves_no_place_behind() {
    let Some(mut node) = Node::enter("subflow", FenceMode::Enforce) else { return };
    let stage = Stage::on(185);
    node.publish(&stage.world.snapshot(1));
    let places = Places::of(&node);
    let socket = match Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)) {
        Ok(socket) => socket,
        Err(error) => return require::skip("bpf", &format!("no MPTCP (net.mptcp.enabled): {error}")),
    };
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(dial_with(&socket, stage.vip).unwrap(), stage.endpoint);
    assert_eq!(places.taken().len(), 1);
    drop(socket);
    until("its place", || places.taken().len(), |taken| *taken == 0);
    assert_eq!(counts(&node), (1, 1));
}

#[test]
fn udp_sockets_take_no_place() {
    let Some(mut node) = Node::enter("udpplaces", FenceMode::Enforce) else { return };
    let stage = Stage::with(186, echo::udp("127.186.1.1"));
    node.publish(&stage.world.snapshot(1));
    let places = Places::of(&node);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let copy = socket.as_fd().try_clone_to_owned().map(UdpSocket::from).unwrap();
    for (to, shown) in [(stage.vip, stage.vip), (stage.endpoint, stage.endpoint), (stage.vip, stage.vip)] {
        socket.connect(to).unwrap();
        assert_eq!(copy.peer_addr().unwrap(), shown);
    }
    assert_eq!(places.taken(), []);
    assert_eq!(counts(&node), (0, 0));
}
