//! The ways in which programs connect, beyond a plain one (K1, K2, K13): each meets the same decision.
#![cfg(test)]

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    os::fd::AsRawFd,
    thread,
};

use revgate::config::FenceMode;
use revgate_common::counter::Counter;
use revgate_tests::{
    dial::{ECONNREFUSED, EHOSTUNREACH, at, count, dial_with, disconnect, errno, pinned, tcp_socket},
    echo::{self, PATIENCE},
    node::{self, Node},
    require,
    world::{Revision, World},
};
use socket2::{Domain, Protocol, Socket, Type};

/// `MSG_FASTOPEN` of `linux/socket.h`.
const MSG_FASTOPEN: i32 = 0x2000_0000;
/// `EINPROGRESS` of `asm-generic/errno.h`.
const EINPROGRESS: Option<i32> = Some(115);
/// `ENETUNREACH` of `asm-generic/errno.h`.
const ENETUNREACH: Option<i32> = Some(101);

/// One decode endpoint of each of two revisions, of which a alone is eligible, and a Pod of each.
struct Stage {
    a: SocketAddr,
    b: SocketAddr,
    vip: SocketAddr,
    world: World,
}

impl Stage {
    fn on(net: u8) -> Self {
        let tcp = |host: &str| echo::tcp(&format!("127.{net}.{host}"));
        let (a, b, prefill) = (tcp("1.1"), tcp("2.1"), tcp("3.1"));
        let vip = at(&format!("127.{net}.0.1:80"));
        let world = World::of(vec![
            Revision::new("a", 0, 1, &[&[prefill], &[a]]),
            Revision::new("b", 1, 2, &[&[], &[b]]),
        ])
        .vip(vip, 1, false);
        Self { a, b, vip, world }
    }

    /// With nothing to steer to.
    fn paused(&self) -> World {
        let mut world = self.world.clone();
        world.sets[0].revisions[0].endpoints[0].clear();
        world
    }
}

fn mapped(at: SocketAddr) -> SocketAddr {
    match at {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        SocketAddr::V6(_) => at,
    }
}

fn peer(socket: &Socket) -> Option<SocketAddr> {
    socket.peer_addr().unwrap().as_socket()
}

#[test]
fn a_connect_that_does_not_wait_is_steered_and_denied_at_once() {
    let Some(mut node) = Node::enter("nonblock", FenceMode::Enforce) else { return };
    let stage = Stage::on(140);
    node.publish(&stage.world.snapshot(1));
    let socket = tcp_socket(Domain::IPV4);
    socket.set_nonblocking(true).unwrap();
    let begun = socket.connect(&stage.vip.into()).err().and_then(|error| error.raw_os_error());
    assert_eq!(begun, EINPROGRESS);
    // From here on the read waits until it is connected and answered.
    socket.set_nonblocking(false).unwrap();
    assert_eq!(echo::answer(&mut &socket).unwrap(), stage.a);
    assert!(socket.take_error().unwrap().is_none());
    assert_eq!(peer(&socket), Some(stage.vip));

    node.publish(&stage.paused().snapshot(2));
    let socket = tcp_socket(Domain::IPV4);
    socket.set_nonblocking(true).unwrap();
    assert_eq!(errno(&dial_with(&socket, stage.vip)), EHOSTUNREACH, "no EINPROGRESS, no EAGAIN");
    let socket = pinned(&node, 1, 2, None, Domain::IPV4);
    socket.set_nonblocking(true).unwrap();
    assert_eq!(errno(&dial_with(&socket, stage.a)), ECONNREFUSED);
}

/// A server that hears its caller out before it says where it is: data that nobody reads would end in a reset.
fn listening(ip: &str) -> SocketAddr {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut heard = [0; 5];
            let _ = stream.read_exact(&mut heard).and_then(|()| writeln!(stream, "{address}"));
        }
    });
    address
}

/// Has a connect wait for data to send with it.
#[expect(unsafe_code, reason = "an option that no crate here has a name for")]
fn connect_with_first_write(socket: &Socket) -> io::Result<()> {
    let (on, size) = (1_i32, libc::socklen_t::try_from(size_of::<i32>()).unwrap());
    let (fd, value) = (socket.as_raw_fd(), (&raw const on).cast());
    // SAFETY: the option's value is an int that lives through the call.
    let set = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, value, size) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[test]
fn data_sent_with_tcp_fast_open_goes_where_a_connect_would() {
    let Some(mut node) = Node::enter("fastopen", FenceMode::Enforce) else { return };
    let mut stage = Stage::on(141);
    (stage.a, stage.b) = (listening("127.141.1.1"), listening("127.141.2.1"));
    for (revision, endpoint) in stage.world.sets[0].revisions.iter_mut().zip([stage.a, stage.b]) {
        revision.endpoints[1] = vec![endpoint];
    }
    node.publish(&stage.world.snapshot(1));
    let open = |to: SocketAddr, domain| {
        let socket = tcp_socket(domain);
        socket.send_to_with_flags(b"hello", &to.into(), MSG_FASTOPEN).map(|_| socket)
    };
    match open(stage.b, Domain::IPV4) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            require::skip("bpf", "net.ipv4.tcp_fastopen has no client side here");
            return;
        }
        reached => assert_eq!(peer(&reached.unwrap()), Some(stage.b)),
    }
    for (to, domain) in [(stage.vip, Domain::IPV4), (mapped(stage.vip), Domain::IPV6)] {
        // Twice: with the second the cookie is known, if the server gave one.
        for _ in 0..2 {
            let socket = open(to, domain).unwrap();
            assert_eq!(echo::answer(&mut &socket).unwrap(), stage.a);
            assert_eq!(peer(&socket), Some(to));
        }
    }
    assert_eq!(count(&node, Counter::SteeredWeight), 4);

    // The hooks see the `connect`, which does not wait; the first write is what goes out with the cookie.
    let defer = |to: SocketAddr, domain| {
        let socket = tcp_socket(domain);
        connect_with_first_write(&socket).unwrap();
        socket.connect(&to.into()).map(|()| socket)
    };
    for (to, domain) in [(stage.vip, Domain::IPV4), (mapped(stage.vip), Domain::IPV6)] {
        for _ in 0..2 {
            let socket = defer(to, domain).unwrap();
            (&socket).write_all(b"hello").unwrap();
            assert_eq!(echo::answer(&mut &socket).unwrap(), stage.a);
            assert_eq!(peer(&socket), Some(to));
        }
    }
    assert_eq!(count(&node, Counter::SteeredWeight), 8);

    let (in_b, pod_b) = node.pod_cgroup("b");
    node.publish(&stage.paused().source(pod_b, "b").snapshot(2));
    let failed = |result: io::Result<Socket>| result.err().and_then(|error| error.raw_os_error());
    assert_eq!(failed(defer(stage.vip, Domain::IPV4)), EHOSTUNREACH);
    let fenced = node::inside(&in_b, node.cgroup(), || defer(stage.a, Domain::IPV4));
    assert_eq!(failed(fenced), ECONNREFUSED);
    assert_eq!(failed(open(stage.vip, Domain::IPV4)), EHOSTUNREACH);
    let fenced = node::inside(&in_b, node.cgroup(), || open(stage.a, Domain::IPV4));
    assert_eq!(failed(fenced), ECONNREFUSED);
}

#[test]
fn multipath_tcp_is_steered_and_fenced_and_shows_the_true_peer() {
    let Some(mut node) = Node::enter("mptcp", FenceMode::Enforce) else { return };
    let socket = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        io::Result::Ok(socket)
    };
    if let Err(error) = socket() {
        require::skip("bpf", &format!("no MPTCP (net.mptcp.enabled): {error}"));
        return;
    }
    let stage = Stage::on(142);
    let (in_b, pod_b) = node.pod_cgroup("b");
    node.publish(&stage.world.clone().source(pod_b, "b").snapshot(1));
    let steered = socket().unwrap();
    assert_eq!(dial_with(&steered, stage.vip).unwrap(), stage.a);
    assert_eq!(peer(&steered), Some(stage.a), "documented: the endpoint, not the VIP");
    let in_pod = |to| node::inside(&in_b, node.cgroup(), || dial_with(&socket()?, to));
    assert_eq!(in_pod(stage.vip).unwrap(), stage.b, "its own revision");
    assert_eq!(errno(&in_pod(stage.a)), ECONNREFUSED);
    assert_eq!(in_pod(stage.b).unwrap(), stage.b);
}

#[test]
fn a_socket_that_dials_again_is_decided_anew() {
    let Some(mut node) = Node::enter("again", FenceMode::Enforce) else { return };
    let stage = Stage::on(143);
    node.publish(&stage.world.snapshot(1));
    let socket = tcp_socket(Domain::IPV4);
    assert_eq!(dial_with(&socket, stage.vip).unwrap(), stage.a);

    // b takes over.
    let mut world = stage.paused();
    world.sets[0].revisions[1].endpoints[0].push(echo::tcp("127.143.3.2"));
    node.publish(&world.snapshot(2));
    disconnect(&socket);
    assert_eq!(dial_with(&socket, stage.vip).unwrap(), stage.b);
    assert_eq!(peer(&socket), Some(stage.vip));

    node.publish(&World::of(vec![]).vip(stage.vip, 1, false).snapshot(3));
    disconnect(&socket);
    assert_eq!(errno(&dial_with(&socket, stage.vip)), EHOSTUNREACH);
    // A denied connect leaves a socket that can be used.
    assert_eq!(dial_with(&socket, stage.a).unwrap(), stage.a);
    assert_eq!(peer(&socket), Some(stage.a));
}

#[test]
fn a_bound_source_address_stays() {
    let Some(mut node) = Node::enter("bound", FenceMode::Enforce) else { return };
    let stage = Stage::on(144);
    node.publish(&stage.world.snapshot(1));
    let source = Ipv4Addr::new(127, 144, 7, 7);
    let ordinary = tcp_socket(Domain::IPV4);
    let agents = pinned(&node, 1, 2, None, Domain::IPV4);
    for (socket, to, endpoint) in
        [(ordinary, stage.vip, stage.a), (agents, node.pinner().destination(0, 1, stage.b), stage.b)]
    {
        socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
        let bound = socket.local_addr().unwrap().as_socket();
        assert_eq!(dial_with(&socket, to).unwrap(), endpoint);
        assert_eq!(socket.local_addr().unwrap().as_socket(), bound);
    }
}

#[test]
fn a_dual_stack_socket_reaches_both_families_and_an_ipv6_only_socket_one() {
    let Some(mut node) = Node::enter("family", FenceMode::Enforce) else { return };
    let stage = Stage::on(145);
    let (vip6, six) = (at("[::1]:9"), echo::tcp("::1"));
    let only = |only_v6| {
        let socket = tcp_socket(Domain::IPV6);
        socket.set_only_v6(only_v6).unwrap();
        socket
    };
    node.publish(&stage.world.clone().vip(vip6, 1, false).snapshot(1));
    let dual = only(false);
    assert_eq!(dial_with(&dual, vip6).unwrap(), stage.a, "the other family where there is no choice");
    assert_eq!(peer(&dual), Some(vip6));
    assert_eq!(errno(&dial_with(&only(true), vip6)), ENETUNREACH, "never past the VIP");

    let mut both = stage.world.clone();
    both.sets[0].revisions[0].endpoints[1].push(six);
    node.publish(&both.vip(vip6, 1, false).snapshot(2));
    for only_v6 in [false, true] {
        for _ in 0..8 {
            assert_eq!(dial_with(&only(only_v6), vip6).unwrap(), six);
        }
    }
    for _ in 0..8 {
        assert_eq!(dial_with(&only(false), mapped(stage.vip)).unwrap(), stage.a, "the VIP's family first");
        assert_eq!(dial_with(&tcp_socket(Domain::IPV4), stage.vip).unwrap(), stage.a);
    }
}

/// Asks a UDP server for its address, over a connected socket.
fn ask(socket: &UdpSocket) -> io::Result<SocketAddr> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"who")?;
    let mut packet = [0; 64];
    let length = socket.recv(&mut packet)?;
    echo::answer(&mut &packet[..length])
}

#[test]
fn connected_udp_moves_with_each_connect_and_sendto_passes_by() {
    let Some(mut node) = Node::enter("udphooks", FenceMode::Enforce) else { return };
    let (a, elsewhere) = (echo::udp("127.146.1.1"), echo::udp("127.146.9.1"));
    // Someone does listen on the VIP: what passes by reaches it.
    let vip = echo::udp("127.146.0.1");
    let prefill = echo::udp("127.146.3.1");
    let world = World::of(vec![Revision::new("a", 0, 1, &[&[prefill], &[a]])]).vip(vip, 1, false);
    node.publish(&world.snapshot(1));

    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (to, answers) in [(vip, a), (elsewhere, elsewhere), (vip, a), (a, a)] {
        socket.connect(to).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), to);
        assert_eq!(ask(&socket).unwrap(), answers);
    }
    let dual = UdpSocket::bind("[::]:0").unwrap();
    dual.connect(mapped(vip)).unwrap();
    assert_eq!(dual.peer_addr().unwrap(), mapped(vip));
    assert_eq!(ask(&dual).unwrap(), a);

    let unconnected = UdpSocket::bind("127.0.0.1:0").unwrap();
    unconnected.set_read_timeout(Some(PATIENCE)).unwrap();
    unconnected.send_to(b"who", vip).unwrap();
    let mut packet = [0; 64];
    let (_, from) = unconnected.recv_from(&mut packet).unwrap();
    assert_eq!(from, vip, "documented: sendto is not steered");
}
