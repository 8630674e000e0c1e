//! One connect, one published generation (K5): real connects on all CPUs while a set of 10,000 endpoints changes as
//! a whole, again and again; and what a slot's new tenant means for those who knew the old one.
#![cfg(test)]

use std::{
    collections::BTreeSet,
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use revgate::{config::FenceMode, kernel::Pinner};
use revgate_common::{
    address::Address,
    layout::{PIN_REVISION, Pin, Tenant},
};
use revgate_tests::{
    dial::{ECONNREFUSED, EHOSTUNREACH, at, dial, dial_with, errno, pinned, tcp_socket},
    echo,
    node::{self, Node},
    world::{Revision, World},
};
use socket2::{Domain, Socket, Type};

/// Endpoints of a generation: two revisions, two roles.
const ENDPOINTS: u32 = 10_000;
const OF_ROLE: u32 = ENDPOINTS / 4;
/// Where generation 0 would start; each has addresses of its own.
const FIRST: u32 = 0x7f01_0000;
const GENERATIONS: u64 = 40;
/// Between two publications, each of which takes some milliseconds of its own.
const PAUSE: Duration = Duration::from_millis(20);

/// What an address says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    generation: u64,
    slot: u16,
    epoch: u32,
    role: usize,
}

fn identity(endpoint: SocketAddr) -> Identity {
    let SocketAddr::V4(v4) = endpoint else { panic!("{endpoint} is no endpoint") };
    let n = u32::from(*v4.ip()) - FIRST;
    let (generation, n) = (n / ENDPOINTS, n % ENDPOINTS);
    let half = n / (2 * OF_ROLE);
    let (slot, epoch) = tenant(generation.into(), half);
    Identity { generation: generation.into(), slot, epoch, role: usize::from(n / OF_ROLE % 2 == 1) }
}

/// The slots are always the same two: each generation takes them over from the one before.
fn tenant(generation: u64, half: u32) -> (u16, u32) {
    let epoch = 2 * u32::try_from(generation).unwrap() + half + 1;
    (u16::try_from(half).unwrap(), epoch)
}

fn world(generation: u64, port: u16, vips: [SocketAddr; 2]) -> World {
    let first = FIRST + u32::try_from(generation).unwrap() * ENDPOINTS;
    let revisions = (0..2).map(|half| {
        let of_role = |role: u32| -> Vec<SocketAddr> {
            let start = first + (2 * half + role) * OF_ROLE;
            (start..start + OF_ROLE).map(|ip| (Ipv4Addr::from(ip), port).into()).collect()
        };
        let (slot, epoch) = tenant(generation, half);
        let endpoints = vec![of_role(0), of_role(1)];
        Revision { name: format!("{epoch:08x}"), slot, epoch, endpoints, ..Revision::default() }
    });
    let world = World::of(revisions.collect());
    world.vip(vips[0], 0, false).vip(vips[1], 1, false)
}

/// A server on every loopback address, which tells each caller where it came in. Returns its port.
fn everywhere() -> u16 {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Bound to the device: nothing from outside comes in.
    socket.bind_device(Some(b"lo")).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into()).unwrap();
    socket.listen(1024).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    thread::spawn(move || {
        while let Ok((stream, _)) = socket.accept() {
            let here = stream.local_addr().ok().and_then(|at| at.as_socket());
            let _ = here.map(|here| io::Write::write_all(&mut &stream, format!("{here}\n").as_bytes()));
        }
    });
    port
}

/// The generations, as the writer sees them.
#[derive(Default)]
struct Progress {
    /// Its publication has begun.
    begun: AtomicU64,
    /// Its publication has returned: all before it are retired.
    in_force: AtomicU64,
    done: AtomicBool,
}

/// Dials until the writer is done; every other time pinned. Returns the generations that were met, and the refusals.
fn client(pinner: &Pinner, progress: &Progress, vips: [SocketAddr; 2]) -> (BTreeSet<u64>, u32) {
    let (mut met, mut refused, mut n) = (BTreeSet::new(), 0, 0_u32);
    while !progress.done.load(Ordering::Acquire) {
        n += 1;
        let role = usize::from(n & 1 == 1);
        let socket = tcp_socket(Domain::IPV4);
        socket.set_linger(Some(Duration::ZERO)).unwrap();
        let retired = progress.in_force.load(Ordering::Acquire);
        let pin = (n & 2 == 2).then(|| tenant(retired, n >> 2 & 1));
        if let Some((slot, epoch)) = pin {
            let pin = Pin {
                endpoint: Address::default(),
                kind: PIN_REVISION,
                tenant: Tenant { set: 0, slot, epoch },
            };
            pinner.pin(socket.as_fd(), &pin).unwrap();
        }
        let reached = dial_with(&socket, vips[role]);
        let begun = progress.begun.load(Ordering::Acquire);
        match (reached, pin) {
            (Ok(endpoint), pin) => {
                let who = identity(endpoint);
                assert_eq!(who.role, role, "{endpoint}: the role of the VIP");
                assert!((retired..=begun).contains(&who.generation), "{who:?} outside {retired} to {begun}");
                assert!(pin.is_none_or(|pin| pin == (who.slot, who.epoch)), "{who:?} for pin {pin:?}");
                met.insert(who.generation);
            }
            (Err(error), Some(_)) => {
                assert_eq!(error.raw_os_error(), ECONNREFUSED, "{error}");
                assert!(begun > retired, "refused while its revision was the only one");
                refused += 1;
            }
            (Err(error), None) => panic!("by weight there is always one: {error}"),
        }
    }
    (met, refused)
}

#[test]
fn every_connect_sees_one_generation_and_none_that_was_retired_before_it_began() {
    let Some(mut node) = Node::enter("flip", FenceMode::Enforce) else { return };
    let vips = [at("127.0.200.1:80"), at("127.0.200.2:80")];
    let port = everywhere();
    let (pinner, reader) = (node.pinner(), node.reader());
    let progress = Progress::default();
    node.publish(&world(0, port, vips).snapshot(1));
    thread::scope(|scope| {
        let cpus = thread::available_parallelism().map_or(2, usize::from).max(2);
        let clients: Vec<_> = (0..cpus).map(|_| scope.spawn(|| client(&pinner, &progress, vips))).collect();
        for generation in 1..=GENERATIONS {
            let next = world(generation, port, vips).snapshot(generation + 1);
            progress.begun.store(generation, Ordering::Release);
            node.publish(&next);
            progress.in_force.store(generation, Ordering::Release);
            thread::sleep(PAUSE);
            // What the programs noted of each connection agrees with where it went.
            for (key, _) in reader.connections().unwrap() {
                let who = identity(key.endpoint.into());
                assert_eq!((who.slot, who.epoch), (key.tenant.slot, key.tenant.epoch), "{key:?}");
            }
        }
        progress.done.store(true, Ordering::Release);
        let mut met = BTreeSet::new();
        for client in clients {
            let (of_client, refused) = client.join().unwrap();
            println!("{} generations met, {refused} pins refused", of_client.len());
            met.extend(of_client);
        }
        assert!(met.len() > 1, "connects went on while the tables changed: {met:?}");
    });
}

#[test]
fn when_a_slot_has_a_new_tenant_all_that_names_the_old_one_is_denied() {
    let Some(mut node) = Node::enter("reuse", FenceMode::Enforce) else { return };
    let (a, prefill) = (echo::tcp("127.150.1.1"), echo::tcp("127.150.3.1"));
    let (b, vip) = (echo::tcp("127.150.2.1"), at("127.150.0.1:80"));
    let (cgroup, pod) = node.pod_cgroup("pod-of-a");
    let with = |name: &str, epoch| {
        let first = Revision::new(name, 0, epoch, &[&[prefill], &[a]]);
        World::of(vec![first, Revision::new("b", 1, 2, &[&[prefill], &[b]])]).vip(vip, 1, false)
    };
    let of_a = with("a", 1).source(pod, "a");
    node.publish(&of_a.snapshot(1));
    let dial_in_pod = |to| node::inside(&cgroup, node.cgroup(), || dial(to));
    assert_eq!(dial_with(&pinned(&node, 0, 1, Some(a), Domain::IPV4), vip).unwrap(), a);
    assert_eq!(dial_in_pod(vip).unwrap(), a);
    let by_vip = pinned(&node, 0, 1, Some(a), Domain::IPV4);
    let by_anchor = pinned(&node, 0, 1, Some(a), Domain::IPV4);
    let direct = pinned(&node, 0, 1, None, Domain::IPV4);

    // a has died, and c has its slot and the very addresses; a's Pod still runs.
    let mut of_c = with("c", 3);
    of_c.sources.clone_from(&of_a.sources);
    node.publish(&of_c.snapshot(2));
    assert_eq!(errno(&dial_with(&by_vip, vip)), ECONNREFUSED);
    assert_eq!(errno(&dial_with(&by_anchor, node.pinner().destination(0, 1, a))), ECONNREFUSED);
    assert_eq!(errno(&dial_with(&direct, a)), ECONNREFUSED);
    let dial_in_pod = |to| node::inside(&cgroup, node.cgroup(), || dial(to));
    assert_eq!(errno(&dial_in_pod(vip)), EHOSTUNREACH);
    assert_eq!(errno(&dial_in_pod(a)), ECONNREFUSED);
    assert_eq!(dial_with(&pinned(&node, 0, 3, Some(a), Domain::IPV4), vip).unwrap(), a, "c itself");
}
