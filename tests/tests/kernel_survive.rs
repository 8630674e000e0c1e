//! What survives an agent, and what the next one does with it (K8): upgrades of programs and layouts, lost and
//! damaged pins. Connects run through all of it: not one goes unsteered or fails.
#![cfg(test)]

use std::{fs, net::SocketAddr, path::Path, thread, time::Duration};

use aya::{
    maps::loaded_maps,
    programs::{ProgramInfo, links::PinnedLink, loaded_links, loaded_programs},
};
use revgate::{config::FenceMode, kernel};
use revgate_common::layout::map;
use revgate_tests::{
    dial::{EHOSTUNREACH, at, dial, errno},
    echo,
    load::{Load, decoy},
    node::Node,
    wait::until,
    world::{Revision, World},
};

const HOOKS: [&str; 5] = ["connect4", "connect6", "getpeername4", "getpeername6", "count"];
/// `ENETUNREACH`.
const ENETUNREACH: Option<i32> = Some(101);

/// One revision with one decode endpoint of its own; a VIP for everybody and one for members only.
fn world(net: u8, revision: &str) -> World {
    let of = u32::from(revision.as_bytes()[0]);
    let endpoint = |role: u8| echo::tcp(&format!("127.{net}.{of}.{role}"));
    let revisions = vec![Revision::new(revision, 3, 7, &[&[endpoint(1)], &[endpoint(2)]])];
    World::of(revisions).vip(decoy(&format!("127.{net}.0.1")), 1, false).vip(
        at(&format!("127.{net}.0.2:80")),
        1,
        true,
    )
}

/// The same VIPs, for other Pods.
fn next(before: &World, net: u8, revision: &str) -> World {
    let mut after = world(net, revision);
    after.vips.clone_from(&before.vips);
    after
}

fn endpoint(world: &World) -> SocketAddr {
    world.sets[0].revisions[0].endpoints[1][0]
}

/// The program behind a pin: id and tag, which is a hash of its instructions.
fn program(pins: &Path, name: &str) -> (u32, u64) {
    let info = ProgramInfo::from_pin(pins.join("programs").join(name)).unwrap();
    (info.id(), info.tag())
}

/// This agent's object with one constant of its programs changed: they deny with `ENETUNREACH`.
fn other_build() -> Vec<u8> {
    // A load of -EHOSTUNREACH into a register, in the kernel's encoding: BPF_MOV64_IMM or BPF_LD_IMM64, as the compiler
    // likes.
    let loads = |at: &[u8]| matches!(at[0], 0xb7 | 0x18) && at[4..] == (-113_i32).to_le_bytes();
    let mut object = kernel::object().unwrap().to_vec();
    let places: Vec<_> =
        object.windows(8).enumerate().filter(|(_, at)| loads(at)).map(|(at, _)| at + 4).collect();
    assert_eq!(places.len(), 1, "in the function that connect4 and connect6 share");
    for place in places {
        object[place..place + 4].copy_from_slice(&(-101_i32).to_le_bytes());
    }
    object
}

/// Watches a hook while `work` runs: there is one program at every moment.
fn never_two(node: &Node, hook: &str, work: impl FnOnce()) {
    let cgroup = node.cgroup();
    let count = || {
        let hooks = kernel::hooks(cgroup).unwrap();
        hooks.into_iter().find(|(name, _)| *name == hook).map_or(0, |(_, ids)| ids.len())
    };
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(count(), 1, "programs on {hook}");
                thread::sleep(Duration::from_micros(200));
            }
        });
        work();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        watch.join().unwrap();
    });
}

#[test]
fn an_upgrade_puts_the_changed_programs_into_the_live_links() {
    let Some(mut node) = Node::enter("upgrade", FenceMode::Enforce) else { return };
    let world = world(90, "a");
    node.stop();
    node.restart_with(&other_build());
    node.publish(&world.snapshot(1));
    let (vip, members_only) = (world.vips[0].address, world.vips[1].address);
    assert_eq!(errno(&dial(members_only)), ENETUNREACH, "the other build runs");
    let before = program(&node.pins(), "connect4");
    let load = Load::start(&node, vip);
    node.stop();
    load.goes_on();
    let pins = node.pins();
    let links = links(&pins);
    let (config, mut started) = (node.config().clone(), None);
    never_two(&node, "connect4", || started = Some(kernel::Kernel::start(&config).unwrap()));
    let after = program(&pins, "connect4");
    assert_ne!(after.0, before.0);
    assert_ne!(after.1, before.1, "other instructions");
    assert_eq!(node.attached("connect4"), [after.0], "it is what runs");
    assert_eq!(self::links(&pins), links, "in the same links");
    assert_eq!(errno(&dial(members_only)), EHOSTUNREACH, "on the same tables, before anything is published");
    drop(started);
    load.end();
}

/// The ids of the pinned links.
fn links(pins: &Path) -> Vec<u32> {
    let links = HOOKS.map(|hook| program(pins, hook).0);
    loaded_links()
        .filter_map(Result::ok)
        .filter(|link| links.contains(&link.program_id()))
        .map(|link| link.id())
        .collect()
}

/// An agent starts beside what is left, and takes it over with its first publication.
fn takes_over(node: &mut Node, before: &World, after: &World) {
    let vip = before.vips[0].address;
    let load = Load::start(node, vip);
    let old = HOOKS.map(|hook| node.attached(hook));
    node.restart();
    load.goes_on();
    assert_eq!(HOOKS.map(|hook| node.attached(hook)), old, "the programs before run on");
    assert_eq!(dial(vip).unwrap(), endpoint(before), "on the tables before");
    assert!(node.reader().takeover_pending());
    let (mut writer, snapshot) = (node.kernel().writer().unwrap(), after.snapshot(1));
    never_two(node, "connect4", || writer.publish(&snapshot).unwrap());
    assert!(!node.reader().takeover_pending());
    load.goes_on();
    for (hook, old) in HOOKS.into_iter().zip(old) {
        let new = node.attached(hook);
        assert_eq!(new, [program(&node.pins(), hook).0], "{hook}");
        assert_ne!(new, old, "{hook}");
    }
    assert_eq!(dial(vip).unwrap(), endpoint(after));
    let above = fs::read_dir(node.pins().parent().unwrap()).unwrap().count();
    assert_eq!(above, 1, "nothing is left of what was before");
    load.end();
}

#[test]
fn another_layout_runs_on_until_the_new_tables_are_in_force() {
    let Some(mut node) = Node::enter("layout", FenceMode::Enforce) else { return };
    let before = world(91, "a");
    node.publish(&before.snapshot(9));
    node.stop();
    fs::rename(node.pins(), node.pins().with_file_name("v0")).unwrap();
    takes_over(&mut node, &before, &next(&before, 91, "b"));
}

#[test]
fn a_map_of_another_shape_runs_on_until_the_new_tables_are_in_force() {
    let Some(mut node) = Node::enter("shapes", FenceMode::Enforce) else { return };
    let before = world(92, "a");
    node.publish(&before.snapshot(9));
    node.stop();
    let maps = node.pins().join("maps");
    // The lease's value has 8 bytes, as the counters' have, but it is another type of map.
    fs::remove_file(maps.join(map::COUNTERS)).unwrap();
    fs::rename(maps.join(map::LEASE), maps.join(map::COUNTERS)).unwrap();
    takes_over(&mut node, &before, &next(&before, 92, "b"));
}

#[test]
fn programs_whose_maps_lost_their_pins_run_on_until_the_new_tables_are_in_force() {
    let Some(mut node) = Node::enter("lostmaps", FenceMode::Enforce) else { return };
    let before = world(93, "a");
    node.publish(&before.snapshot(9));
    node.stop();
    fs::remove_dir_all(node.pins().join("maps")).unwrap();
    fs::remove_dir_all(node.pins().join("tables")).unwrap();
    takes_over(&mut node, &before, &next(&before, 93, "b"));
}

#[test]
fn links_that_lost_their_pins_are_found_and_replaced() {
    let Some(mut node) = Node::enter("strays", FenceMode::Enforce) else { return };
    let before = world(94, "a");
    node.publish(&before.snapshot(9));
    node.stop();
    // Somebody holds them, or they would end.
    let held: Vec<_> = HOOKS
        .iter()
        .map(|hook| PinnedLink::from_pin(node.pins().join("links").join(hook)).unwrap())
        .collect();
    fs::remove_dir_all(node.pins().parent().unwrap()).unwrap();
    takes_over(&mut node, &before, &next(&before, 94, "b"));
    drop(held);
    assert_eq!(node.attached("connect4").len(), 1, "pinned again");
}

#[test]
fn an_agent_that_ends_before_its_first_publication_leaves_the_one_before_in_force() {
    let Some(mut node) = Node::enter("halfway", FenceMode::Enforce) else { return };
    let before = world(95, "a");
    node.publish(&before.snapshot(9));
    node.stop();
    fs::rename(node.pins(), node.pins().with_file_name("v0")).unwrap();
    let load = Load::start(&node, before.vips[0].address);
    for _ in 0..2 {
        node.restart();
        node.stop();
    }
    load.end();
    takes_over(&mut node, &before, &next(&before, 95, "b"));
}

#[test]
fn detach_leaves_nothing_in_the_kernel() {
    let Some(mut node) = Node::enter("nothing", FenceMode::Enforce) else { return };
    let world = world(96, "a");
    node.publish(&world.snapshot(1));
    node.stop();
    let programs: Vec<u32> = HOOKS.iter().map(|hook| program(&node.pins(), hook).0).collect();
    let links = links(&node.pins());
    let maps: Vec<u32> = ["maps", "tables"]
        .iter()
        .flat_map(|kind| fs::read_dir(node.pins().join(kind)).unwrap())
        .map(|pin| aya::maps::MapInfo::from_pin(pin.unwrap().path()).unwrap().id())
        .collect();
    assert_eq!((programs.len(), links.len()), (HOOKS.len(), HOOKS.len()));
    assert_eq!(maps.len(), map::ALL.len() + 4);
    // What another version left goes too.
    fs::rename(node.pins(), node.pins().with_file_name("v0")).unwrap();
    node.restart();
    node.stop();

    let removed = kernel::detach(node.config()).unwrap();
    assert!(removed.len() >= programs.len() + links.len() + maps.len(), "{removed:?}");
    assert_eq!(fs::read_dir(&node.config().bpffs).unwrap().count(), 0);
    assert_eq!(HOOKS.map(|hook| node.attached(hook)), HOOKS.map(|_| Vec::<u32>::new()));
    let vip = world.vips[0].address;
    assert_eq!(dial(vip).unwrap(), vip, "nobody steers");
    // The kernel frees what nobody uses a little later.
    let left = || {
        let of_programs =
            loaded_programs().filter_map(Result::ok).filter(|p| programs.contains(&p.id())).count();
        let of_links = loaded_links().filter_map(Result::ok).filter(|l| links.contains(&l.id())).count();
        let of_maps = loaded_maps().filter_map(Result::ok).filter(|m| maps.contains(&m.id())).count();
        (of_programs, of_links, of_maps)
    };
    until("what is left", left, |left| *left == (0, 0, 0));
}
