//! What is in the way of the programs (K8, K9): other programs on the hook, a cgroup that goes, no place for pins.
#![cfg(test)]

use std::fs;

use revgate::{
    config::{FenceMode, KernelConfig},
    kernel::{self, Kernel, KernelError, cgroup, preflight},
};
use revgate_tests::{
    dial::dial,
    echo,
    foreign::Foreign,
    load::{Load, decoy},
    node::{Node, join},
    world::{Revision, World},
};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

fn world(net: u8) -> World {
    let endpoint = |role: u8| echo::tcp(&format!("127.{net}.1.{role}"));
    let revisions = vec![Revision::new("a", 3, 7, &[&[endpoint(1)], &[endpoint(2)]])];
    World::of(revisions).vip(decoy(&format!("127.{net}.0.1")), 1, false)
}

#[test]
fn programs_of_others_on_the_hook_run_before_and_after() {
    let Some(mut node) = Node::enter("others", FenceMode::Enforce) else { return };
    node.stop();
    kernel::detach(node.config()).unwrap();
    let (mut before, mut after) = (Foreign::load(), Foreign::load());
    before.attach(node.cgroup());
    node.restart();
    after.attach(node.cgroup());
    let world = world(60);
    node.publish(&world.snapshot(1));
    let load = Load::start(&node, world.vips[0].address);
    let others = [before.id(), after.id()];
    let ours_between = |node: &Node| {
        let attached = node.attached("connect4");
        assert_eq!([attached[0], attached[2]], others);
        assert_eq!(attached.len(), 3);
        attached[1]
    };
    let first = ours_between(&node);
    node.stop();
    node.restart();
    assert_ne!(ours_between(&node), first, "replaced in its place");
    node.publish(&world.snapshot(2));
    load.end();
    node.stop();
    kernel::detach(node.config()).unwrap();
    assert_eq!(node.attached("connect4"), others, "theirs stay");
}

#[test]
fn a_program_that_is_attached_alone_is_named_and_nothing_is_left_half_attached() {
    let Some(mut node) = Node::enter("alone", FenceMode::Enforce) else { return };
    node.stop();
    kernel::detach(node.config()).unwrap();
    let mut foreign = Foreign::load();
    foreign.attach_alone(node.cgroup());
    let error = Kernel::start(node.config()).unwrap_err();
    let id = foreign.id();
    assert!(
        matches!(error, KernelError::Exclusive { program: "connect4", id: found, .. } if found == id),
        "{error}"
    );
    let (text, path) = (error.to_string(), node.cgroup().display());
    assert!(text.contains(&format!("bpftool cgroup detach {path} connect4 id {id}")), "{text}");
    for hook in ["connect6", "getpeername4", "getpeername6", "count"] {
        assert_eq!(node.attached(hook), Vec::<u32>::new(), "{hook}");
    }
}

#[test]
fn a_second_copy_of_the_programs_is_detached() {
    let Some(mut node) = Node::enter("copy", FenceMode::Enforce) else { return };
    let world = world(62);
    node.publish(&world.snapshot(1));
    node.stop();
    let mut copy = Foreign::copy();
    copy.attach(node.cgroup());
    assert_eq!(node.attached("connect4").len(), 2);
    let load = Load::start(&node, world.vips[0].address);
    node.restart();
    node.publish(&world.snapshot(2));
    assert_eq!(node.attached("connect4").len(), 1);
    load.end();
}

#[test]
fn agents_with_other_pins_do_not_share_a_cgroup() {
    let Some(node) = Node::enter("twopins", FenceMode::Enforce) else { return };
    let mut other = node.config().bpffs.clone().into_os_string();
    other.push("-other");
    let other = std::path::PathBuf::from(other);
    fs::create_dir(&other).unwrap();
    let error = Kernel::start(&KernelConfig { bpffs: other.clone(), ..node.config().clone() }).unwrap_err();
    fs::remove_dir_all(&other).unwrap();
    assert!(matches!(&error, KernelError::Locked { path } if path == node.cgroup()), "{error}");
    assert_eq!(node.attached("connect4").len(), 1);
}

#[test]
fn a_cgroup_that_went_and_came_again_is_attached_to_anew() {
    // First: its servers' threads are not to keep the cgroup busy.
    let world = world(61);
    let Some(mut node) = Node::enter("rmdir", FenceMode::Enforce) else { return };
    let vip = world.vips[0].address;
    node.publish(&world.snapshot(1));
    assert_ne!(dial(vip).unwrap(), vip);
    node.stop();
    let root = cgroup::find(None).unwrap();
    join(&root);
    fs::remove_dir(node.cgroup()).unwrap();
    let error = Kernel::start(node.config()).unwrap_err();
    assert!(matches!(error, KernelError::Cgroup(_)), "{error}");
    assert!(error.to_string().contains(&node.cgroup().display().to_string()), "{error}");
    fs::create_dir(node.cgroup()).unwrap();
    fs::write(node.cgroup().join("cgroup.type"), "threaded").unwrap();
    join(node.cgroup());
    assert_eq!(dial(vip).unwrap(), vip, "the programs went with the cgroup");
    node.restart();
    assert_ne!(dial(vip).unwrap(), vip, "the tables did not");
    assert_eq!(node.attached("connect4").len(), 1);
}

#[test]
fn without_a_writable_bpffs_it_says_what_to_mount() {
    let Some(node) = Node::enter("bpffs", FenceMode::Enforce) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let start = || {
        let config = KernelConfig { bpffs: path.to_path_buf(), ..node.config().clone() };
        let checks = preflight::checks(&config);
        let fix = checks.into_iter().find(|check| check.name == "bpffs").unwrap().fix;
        (Kernel::start(&config).unwrap_err().to_string(), fix)
    };
    let (error, fix) = start();
    assert!(error.contains(&format!("mount -t bpf bpf {}", path.display())), "{error}");
    assert!(fix.starts_with(&format!("mount -t bpf bpf {} ", path.display())), "{fix}");

    mount("bpf", path, "bpf", MountFlags::empty(), None).unwrap();
    mount_remount(path, MountFlags::RDONLY, "").unwrap();
    let (error, fix) = start();
    unmount(path, UnmountFlags::empty()).unwrap();
    assert!(error.contains("Read-only file system") && error.contains("mount -o remount,rw"), "{error}");
    assert!(fix.starts_with(&format!("mount -o remount,rw {} ", path.display())), "{fix}");
}
