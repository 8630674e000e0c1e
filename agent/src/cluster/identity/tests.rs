//! Paths as nodes have them, and paths that somebody made up.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

use proptest::prelude::*;

use super::*;

const UID: &str = "5ba3a4f8-9d3d-4c2b-8b2a-1f0c9e7d6a55";
/// The same as systemd writes it.
const UNIT: &str = "5ba3a4f8_9d3d_4c2b_8b2a_1f0c9e7d6a55";
/// Of a static Pod.
const HASH: &str = "0d1b2c3a4f5e6d7c8b9a0f1e2d3c4b5a";
const CONTAINER: &str = "3f4e0c1ab2d59f6e7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6b7c8d9e0f";

/// `U`, `S`, `H` and `C` stand for the constants above.
fn path(pattern: &str) -> String {
    let mut path = pattern.replace("{C}", CONTAINER).replace("{U}", UID);
    path = path.replace("{S}", UNIT).replace("{H}", HASH);
    path
}

fn found(pattern: &str) -> Option<(String, u32)> {
    match identify(Path::new(&path(pattern))) {
        Whose::Pod(pod) => Some((pod.uid.into_owned(), pod.level)),
        Whose::Open | Whose::Nobodys => None,
    }
}

#[test]
fn every_layout_of_a_node_gives_the_uid_and_the_level_of_the_pod() {
    let of_uid = [
        // cgroupfs, containerd: guaranteed, and the two classes; the Pod itself and its container.
        ("/kubepods/pod{U}", 2),
        ("/kubepods/pod{U}/{C}", 2),
        ("/kubepods/burstable/pod{U}/{C}", 3),
        ("/kubepods/besteffort/pod{U}/{C}", 3),
        // cgroupfs, CRI-O; a process that its container moved into a cgroup of its own.
        ("/kubepods/besteffort/pod{U}/crio-{C}", 3),
        ("/kubepods/besteffort/pod{U}/crio-conmon-{C}", 3),
        ("/kubepods/besteffort/pod{U}/{C}/init.scope", 3),
        // systemd: containerd, CRI-O, cri-dockerd.
        ("/kubepods.slice/kubepods-pod{S}.slice/cri-containerd-{C}.scope", 2),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope",
            3,
        ),
        ("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice/crio-{C}.scope", 3),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice/crio-{C}.scope/container",
            3,
        ),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{S}.slice/crio-conmon-{C}.scope",
            3,
        ),
        ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{S}.slice/docker-{C}.scope", 3),
        // kind: the node is a container, with --cgroup-root /kubelet; cgroupfs, then systemd on a systemd host.
        ("/docker/{C}/kubelet/kubepods/besteffort/pod{U}/{C}", 6),
        ("/docker/{C}/kubelet/kubepods/pod{U}/{C}", 5),
        ("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{S}.slice/cri-containerd-{C}.scope", 3),
        (
            "/system.slice/docker-{C}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope",
            6,
        ),
        // A deeper cgroup root.
        ("/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod{S}.slice", 4),
        // The kubelet uses systemd and containerd does not: no Pod has a cgroup, its containers do.
        ("/kubepods-besteffort-pod{S}.slice:cri-containerd:{C}", 1),
        ("/system.slice/containerd.service/kubepods-burstable-pod{S}.slice:cri-containerd:{C}", 3),
        ("/system.slice/containerd.service/kubepods-pod{S}.slice:cri-containerd:{C}", 3),
        // k3s and microk8s have the usual names; without a leading slash it is the same.
        ("kubepods/burstable/pod{U}/{C}", 3),
    ];
    for (path, level) in of_uid {
        assert_eq!(found(path), Some((UID.to_owned(), level)), "{path}");
    }
    let of_static = [
        ("/kubepods/burstable/pod{H}/{C}", 3),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{H}.slice/cri-containerd-{C}.scope",
            3,
        ),
    ];
    for (path, level) in of_static {
        assert_eq!(found(path), Some((HASH.to_owned(), level)), "{path}");
    }
}

#[test]
fn what_is_no_pods_is_nobodys() {
    let nobodys = [
        "",
        "/",
        "/init.scope",
        "/kubepods",
        "/kubepods/burstable",
        "/kubepods.slice/kubepods-burstable.slice",
        "/system.slice/kubelet.service",
        "/docker/{C}",
        "/docker/{C}/kubelet/kubepods",
        // A Pod's name, where no kubelet puts Pods.
        "/pod{U}",
        "/system.slice/pod{U}",
        "/kubepods-burstable-pod{S}.slice",
        "/kubepods/{C}/pod{U}",
        "/kubepods/burstable/burstable/pod{U}",
        "/mykubepods/pod{U}",
        "/mykubepods.slice/mykubepods-pod{S}.slice",
        // A slice that does not carry its parents' names.
        "/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-pod{S}.slice",
        "/kubepods.slice/pod{S}.slice",
        "/kubepods.slice/kubepods-burstable-pod{S}.slice",
        // A UID in the other driver's spelling, cut short, too long, or none at all.
        "/kubepods/pod{S}",
        "/kubepods.slice/kubepods-pod{U}.slice",
        "/kubepods/pod5ba3a4f8-9d3d-4c2b-8b2a",
        "/kubepods/pod{U}0",
        "/kubepods/pod{H}0",
        "/kubepods/pod",
        "/kubepods/pod../{U}",
        "/kubepods/pod{C}",
        "/kubepods/podinfo",
        "/kubepods/pod5ba3a4f8-9d3d-4c2b-8b2a-1f0c9e7d6a5g",
        "/kubepods/pod5ba3a4f8-9d3d-4c2b-8b2a-1f0c9e7d6\u{e4}",
        "/kubepods-pod{S}.slice:{C}",
        "/kubepods-pod{U}.slice:cri-containerd:{C}",
        "/mykubepods-pod{S}.slice:cri-containerd:{C}",
    ];
    for path in nobodys {
        assert_eq!(found(path), None, "{path}");
    }
}

#[test]
fn a_name_that_is_no_pods_where_pods_are_hides_what_is_below_it() {
    let hiding = [
        // A static Pod whose manifest names a UID.
        "/kubepods/podmy-engine",
        "/kubepods.slice/kubepods-podmy_engine.slice",
        "/kubepods/burstable/other",
        "/kubepods.slice/kubepods-besteffort.slice/other.service",
        "/kubelet.slice/kubelet-kubepods.slice/\u{e4}.slice",
        "/kubepods/kubepods",
    ];
    for above in hiding {
        assert_eq!(identify(Path::new(above)), Whose::Nobodys, "{above}");
        for inside in
            ["kubepods/pod{U}", "pod{U}", "kubepods.slice/kubepods-pod{S}.slice", "kubepods-pod{S}.slice:a:b"]
        {
            let path = path(&format!("{above}/{inside}"));
            assert_eq!(identify(Path::new(&path)), Whose::Nobodys, "{path}");
        }
    }
    for open in ["", "/", "/system.slice", "/docker/{C}/kubelet", "/kubepods/burstable", "/kubepods.slice"] {
        assert_eq!(identify(Path::new(&path(open))), Whose::Open, "{open}");
    }
}

#[test]
fn what_a_pod_makes_inside_its_cgroup_is_still_its_own() {
    for inside in ["kubepods/pod{H}", "kubepods.slice/kubepods-pod{H}.slice", "kubepods-pod{H}.slice:a:b"] {
        let path = format!("/kubepods/besteffort/pod{{U}}/{{C}}/{inside}");
        assert_eq!(found(&path), Some((UID.to_owned(), 3)), "{path}");
    }
}

/// Names as a kubelet, systemd or somebody hostile may write them.
fn name() -> impl Strategy<Value = Vec<u8>> {
    const KNOWN: [&str; 12] = [
        "kubepods",
        "burstable",
        "besteffort",
        "kubepods.slice",
        "kubepods-burstable.slice",
        "kubelet-kubepods.slice",
        ".slice",
        "-kubepods.slice",
        "-pod.slice",
        ".slice:",
        "kubepods-pod.slice::",
        "pod",
    ];
    prop_oneof![
        prop::sample::select(&KNOWN[..]).prop_map(|name| name.as_bytes().to_vec()),
        Just(path("pod{U}").into_bytes()),
        Just(path("kubepods-pod{S}.slice").into_bytes()),
        Just(path("kubepods-burstable-pod{S}.slice").into_bytes()),
        Just(path("kubepods-pod{S}.slice:a:b").into_bytes()),
        prop::collection::vec(prop::num::u8::ANY, 0..48),
        "[a-z:._-]{0,48}".prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn no_name_panics_and_a_uid_is_one_that_stands_in_the_path(names in prop::collection::vec(name(), 0..8)) {
        let bytes = names.join(&b'/');
        let path = Path::new(OsStr::from_bytes(&bytes));
        let Whose::Pod(pod) = identify(path) else { return Ok(()) };
        prop_assert!(is_uid(&pod.uid, '-'));
        let at = usize::try_from(pod.level).unwrap() - 1;
        let name = path.strip_prefix("/").unwrap_or(path).iter().nth(at).unwrap().to_str().unwrap();
        prop_assert!(name.replace('_', "-").contains(&*pod.uid));
    }

    /// Whatever a Pod puts below its cgroup, it stays this Pod; whatever is above, an outer Pod comes first.
    #[test]
    fn below_a_pod_nothing_changes_whose_it_is(names in prop::collection::vec(name(), 0..6)) {
        let below = names.join(&b'/');
        let mut bytes = path("kubepods/burstable/pod{H}/").into_bytes();
        bytes.extend(below.into_iter().skip_while(|byte| *byte == b'/'));
        let pod = Identity { uid: HASH.into(), level: 3 };
        prop_assert_eq!(identify(Path::new(OsStr::from_bytes(&bytes))), Whose::Pod(pod));
    }
}
