//! Start, restart, detach and what is pinned in between (K8, K9, K12), counting (K11), and the budget (K6).
#![cfg(test)]

use std::{fs, thread};

use aya::{maps::MapInfo, programs::ProgramInfo};
use revgate::{
    config::{FenceMode, KernelConfig, KernelMode},
    kernel::{Gate, Kernel, KernelError, Tenant, cgroup, detach, preflight, twin::Twin},
    snapshot::slots::set_hash,
};
use revgate_common::{
    counter::Counter,
    layout::{PIN_DIRECTORY, map},
};
use revgate_tests::{
    dial::{at, count, dial, tcp_socket},
    echo,
    node::{Node, join},
    world::{Revision, World},
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use socket2::Domain;
use xxhash_rust::xxh64::xxh64;

const PROGRAMS: [&str; 5] = ["connect4", "connect6", "getpeername4", "getpeername6", "count"];

fn small(net: u8) -> World {
    let (endpoint, prefill) = (echo::tcp(&format!("127.{net}.1.1")), echo::tcp(&format!("127.{net}.3.1")));
    let revisions = vec![Revision::new("a", 3, 7, &[&[prefill], &[endpoint]])];
    World::of(revisions).vip(at(&format!("127.{net}.0.1:80")), 1, false)
}

/// Most instructions that the verifier may walk (K6).
const BUDGET: u32 = 2_000;

/// The verifier is stricter with a loader that has only these: it walks what a processor may run ahead by
/// speculation too, and lets no pointer go where a number is expected.
#[test]
fn with_two_capabilities_every_program_loads_and_stays_below_the_instruction_budget() {
    let Some(mut node) = Node::enter("least", FenceMode::Enforce) else { return };
    node.stop();
    detach(node.config()).unwrap();
    // Capabilities are a thread's own.
    thread::scope(|scope| {
        let least = scope.spawn(|| {
            let only = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
            let sets =
                CapabilitySets { effective: only, permitted: only, inheritable: CapabilitySet::empty() };
            set_capabilities(None, sets).unwrap();
            node.restart();
            Twin::load(node.kernel()).unwrap();
            within_the_budget(&node);
        });
        least.join().unwrap();
    });
}

#[test]
fn programs_stay_below_the_instruction_budget() {
    let Some(node) = Node::enter("budget", FenceMode::Enforce) else { return };
    within_the_budget(&node);
}

fn within_the_budget(node: &Node) {
    for program in PROGRAMS {
        let pin = node.config().bpffs.join(PIN_DIRECTORY).join("programs").join(program);
        let verified = ProgramInfo::from_pin(pin).unwrap().verified_instruction_count().unwrap();
        assert!(verified < BUDGET, "{program}: {verified} verified instructions");
        println!("{program}: {verified} verified instructions");
    }
}

#[test]
fn steering_goes_on_without_the_agent_and_under_the_next_one() {
    let Some(mut node) = Node::enter("survive", FenceMode::Enforce) else { return };
    let world = small(70);
    let vip = world.vips[0].address;
    let endpoint = world.sets[0].revisions[0].endpoints[1][0];
    node.publish(&world.snapshot(5));
    let maps = |node: &Node| {
        map::ALL.map(|name| {
            MapInfo::from_pin(node.config().bpffs.join(PIN_DIRECTORY).join("maps").join(name)).unwrap().id()
        })
    };
    let maps_before = maps(&node);

    node.stop();
    assert_eq!(dial(vip).unwrap(), endpoint, "no agent, same traffic");

    node.restart();
    assert_eq!(maps(&node), maps_before, "the same maps");
    assert_eq!(dial(vip).unwrap(), endpoint, "in force before anything is published");
    let tenants = node.reader().tenants().unwrap();
    assert_eq!(tenants.len(), 1);
    assert_eq!(tenants[0].set, set_hash("chat", &["prefill".into(), "decode".into()]));
    assert_eq!(tenants[0].generation, 5);
    assert_eq!(tenants[0].tenants, [Tenant { slot: 3, revision: xxh64(b"a", 0), epoch: 7 }]);
    // A second copy beside the first would count twice.
    let steered = || node.reader().counters().unwrap().iter().map(|(_, n)| n).sum::<u64>();
    let counted = steered();
    dial(vip).unwrap();
    assert_eq!(steered(), counted + 1);
    assert_eq!(node.reader().generation(), 0);
    node.publish(&world.snapshot(6));
    assert_eq!(node.reader().generation(), 6);
    assert_eq!(dial(vip).unwrap(), endpoint);
}

#[test]
fn two_agents_do_not_run_on_the_same_pins() {
    let Some(node) = Node::enter("lock", FenceMode::Enforce) else { return };
    assert!(matches!(Kernel::start(node.config()), Err(KernelError::Locked { .. })));
    assert!(matches!(detach(node.config()), Err(KernelError::Locked { .. })));
    let auto = KernelConfig { mode: KernelMode::Auto, ..node.config().clone() };
    let opened = Gate::open(&auto);
    assert!(matches!(opened, Err(KernelError::Locked { .. })), "no reason to gate in user space: {opened:?}");
}

#[test]
fn without_programs_of_its_own_an_agent_says_that_those_of_an_earlier_one_go_on() {
    let Some(mut node) = Node::enter("earlier", FenceMode::Enforce) else { return };
    node.stop();
    let reason = |node: &Node| {
        let config =
            KernelConfig { mode: KernelMode::Auto, cgroup: Some("/proc".into()), ..node.config().clone() };
        let Ok(Gate::UserSpace { reason }) = Gate::open(&config) else { panic!("no cgroup2 at /proc") };
        reason
    };
    assert!(reason(&node).contains("an earlier agent still steer"), "{}", reason(&node));
    detach(node.config()).unwrap();
    assert!(!reason(&node).contains("an earlier agent"), "{}", reason(&node));
}

#[test]
fn pins_of_another_shape_are_made_anew() {
    let Some(mut node) = Node::enter("shape", FenceMode::Enforce) else { return };
    let world = small(71);
    node.publish(&world.snapshot(1));
    node.stop();
    // Another map under the name of one: a hash where an array is expected.
    let maps = node.config().bpffs.join(PIN_DIRECTORY).join("maps");
    fs::remove_file(maps.join(map::SETTINGS)).unwrap();
    fs::rename(maps.join(map::CONNECTIONS), maps.join(map::SETTINGS)).unwrap();
    node.restart();
    node.publish(&world.snapshot(2));
    assert_eq!(dial(world.vips[0].address).unwrap(), world.sets[0].revisions[0].endpoints[1][0]);
}

#[test]
fn detach_removes_everything_and_connects_pass_again() {
    let Some(mut node) = Node::enter("detach", FenceMode::Enforce) else { return };
    // Someone listens on the VIP, to see that nobody steers it.
    let vip = echo::tcp("127.72.0.1");
    node.publish(&World::of(vec![]).vip(vip, 1, false).snapshot(1));
    assert!(dial(vip).is_err());
    node.stop();
    let removed = detach(node.config()).unwrap();
    assert!(removed.len() >= PROGRAMS.len() * 2 + map::ALL.len(), "{removed:?}");
    assert_eq!(fs::read_dir(&node.config().bpffs).unwrap().count(), 0);
    assert_eq!(dial(vip).unwrap(), vip);
    assert_eq!(detach(node.config()).unwrap(), Vec::<std::path::PathBuf>::new(), "again: nothing to do");
}

#[test]
fn the_probe_tells_whether_the_programs_have_an_effect() {
    let Some(mut node) = Node::enter("probe", FenceMode::Enforce) else { return };
    let _ = node.pod_cgroup("other");
    node.publish(&World::default().snapshot(1));
    // A threaded cgroup takes no process, so this is what an agent sees that may make no cgroup; with the least rights.
    let kernel = node.kernel();
    thread::scope(|scope| {
        let least = scope.spawn(|| {
            let only = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
            let sets =
                CapabilitySets { effective: only, permitted: only, inheritable: CapabilitySet::empty() };
            set_capabilities(None, sets).unwrap();
            let proof = kernel.probe().unwrap();
            assert!(proof.cgroups >= 1 && proof.only_here.is_some(), "{proof}");
        });
        least.join().unwrap();
    });
    assert_eq!((count(&node, Counter::Probed), count(&node, Counter::DeniedForeign)), (1, 0));
    join(&cgroup::find(None).unwrap());
    let outside = node.kernel().probe().unwrap_err();
    assert!(matches!(outside, KernelError::NoEffect { .. }), "{outside}");
}

#[test]
fn connections_are_counted_by_endpoint_until_their_revision_is_gone() {
    let Some(mut node) = Node::enter("count", FenceMode::Enforce) else { return };
    let mut world = small(74);
    let (vip, endpoint) = (world.vips[0].address, world.sets[0].revisions[0].endpoints[1][0]);
    node.publish(&world.snapshot(1));
    let sockets: Vec<_> = (0..3).map(|_| tcp_socket(Domain::IPV4)).collect();
    for socket in &sockets {
        socket.connect(&vip.into()).unwrap();
        echo::answer(&mut &*socket).unwrap();
    }
    let counts = |node: &Node| -> Vec<_> {
        let all = node.reader().connections().unwrap();
        all.into_iter()
            .map(|(key, n)| (key.endpoint.into(), key.tenant.slot, key.tenant.epoch, n.opened, n.closed))
            .collect()
    };
    assert_eq!(counts(&node), [(endpoint, 3, 7, 3, 0)]);
    // An abort closes at once, without the peer.
    let mut sockets = sockets.into_iter();
    let first = sockets.next().unwrap();
    first.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(first);
    assert_eq!(counts(&node), [(endpoint, 3, 7, 3, 1)]);

    world.sets[0].revisions[0].epoch = 8;
    node.publish(&world.snapshot(2));
    assert_eq!(counts(&node), [(endpoint, 3, 7, 3, 1)], "two still run there");
    for socket in sockets {
        socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
    world.sets[0].revisions[0].epoch = 9;
    node.publish(&world.snapshot(3));
    assert_eq!(counts(&node), []);
}

#[test]
fn connections_of_an_endpoint_that_left_its_living_revision_are_forgotten_once_closed() {
    let Some(mut node) = Node::enter("churn", FenceMode::Enforce) else { return };
    let mut world = small(75);
    let vip = world.vips[0].address;
    node.publish(&world.snapshot(1));
    let socket = tcp_socket(Domain::IPV4);
    socket.connect(&vip.into()).unwrap();
    echo::answer(&mut &socket).unwrap();
    let known = |node: &Node| node.reader().connections().unwrap().len();
    let (first, second) = (world.sets[0].revisions[0].endpoints[1][0], echo::tcp("127.75.1.2"));
    let mut serve = |node: &mut Node, endpoint, generation| {
        world.sets[0].revisions[0].endpoints[1] = vec![endpoint];
        node.publish(&world.snapshot(generation));
    };
    serve(&mut node, second, 2);
    assert_eq!(known(&node), 1, "it still runs");
    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(socket);
    serve(&mut node, first, 3);
    assert_eq!(known(&node), 1, "an endpoint keeps its counts");
    serve(&mut node, second, 4);
    assert_eq!(known(&node), 0);
}

#[test]
fn where_it_cannot_work_auto_gates_in_user_space_and_says_why_and_required_fails() {
    let config = |mode| KernelConfig {
        mode,
        fence: FenceMode::Enforce,
        cgroup: Some("/proc".into()),
        bpffs: "/proc".into(),
        ..KernelConfig::default()
    };
    let Ok(Gate::UserSpace { reason }) = Gate::open(&config(KernelMode::Auto)) else {
        panic!("no cgroup2 at /proc")
    };
    assert!(!reason.is_empty());
    assert!(Gate::open(&config(KernelMode::Required)).is_err());
    let Ok(Gate::UserSpace { reason }) = Gate::open(&config(KernelMode::Off)) else { panic!("off is off") };
    assert!(reason.contains("off"));
}

#[test]
fn every_failed_check_says_what_to_do() {
    let config = KernelConfig {
        mode: KernelMode::Auto,
        fence: FenceMode::Enforce,
        cgroup: Some("/proc".into()),
        bpffs: "/proc".into(),
        ..KernelConfig::default()
    };
    let checks = preflight::checks(&config);
    let failed: Vec<_> = checks.iter().filter(|check| !check.ok).collect();
    for check in &failed {
        assert!(!check.fix.is_empty(), "{check:?}");
    }
    let names: Vec<_> = failed.iter().map(|check| check.name).collect();
    assert!(names.contains(&"cgroup2") && names.contains(&"bpffs"), "{names:?}");
    let bpffs = failed.iter().find(|check| check.name == "bpffs").unwrap();
    assert!(bpffs.fix.starts_with("mount -t bpf bpf /proc "), "{}", bpffs.fix);
    for name in ["CAP_BPF", "CAP_NET_ADMIN"] {
        assert!(checks.iter().any(|check| check.name == name));
    }
}
