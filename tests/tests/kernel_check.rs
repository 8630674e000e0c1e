//! What `revgate check` says of machines that lack something (K9): each made here of namespaces and of capabilities taken
//! away, with nothing changed outside.
#![cfg(test)]

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use revgate::{
    config::{FenceMode, KernelConfig},
    kernel::{
        self, cgroup,
        preflight::{self, Check},
    },
};
use revgate_tests::{foreign::Foreign, kubelet::Kubelet, node::Node, require};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use tempfile::TempDir;

const AGENT: &str = env!("CARGO_BIN_EXE_revgate-under-test");

/// Takes every cgroup2 and bpffs out of sight of this mount namespace.
const NOTHING_MOUNTED: &str = r#"for m in $(awk '/ - (cgroup2|bpf) /{print $5}' /proc/self/mountinfo | sort -r); do umount -l "$m"; done"#;

/// What a check finds after a script, run with namespaces of its own: (name, verdict, detail, fix).
fn found(namespaces: &[&str], script: &str, inside: Option<&Path>) -> Vec<[String; 4]> {
    let folder = TempDir::new().unwrap();
    let (config, pods) = (folder.path().join("revgate.yaml"), folder.path().join("pods.yaml"));
    let text = format!(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- \
         type: disaggregatedset-rollout-screener\n  name: chat\n  parameters:\n    \
         scope: {{labelSelector: app=llm}}\n    revisionGating: {{mode: max-role, requiredRoles: [decode]}}\n---\n\
         apiVersion: revgate.dev/v1alpha1\nkind: AgentConfig\nkernel: {{mode: required}}\n\
         source: {{file: {{path: {}}}}}\nadmin: {{address: '127.66.0.2:0'}}\n",
        pods.display()
    );
    fs::write(&config, text).unwrap();
    fs::write(&pods, "[]").unwrap();
    let mut command = Command::new("unshare");
    let whole = format!("{script}\nexec \"$0\" check --config \"$1\" -o json");
    command.args(namespaces).args(["sh", "-ec", &whole, AGENT]).arg(&config).stderr(Stdio::inherit());
    if let Some(cgroup) = inside {
        let procs = cgroup.join("cgroup.procs");
        // SAFETY: between fork and exec; opens and writes a file of a path that was made before.
        #[expect(unsafe_code, reason = "a cgroup namespace begins where its first process is")]
        unsafe {
            command.pre_exec(move || fs::write(&procs, "0"));
        }
    }
    let output = command.output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("findings");
    let field = |of: &serde_json::Value, name: &str| of[name].as_str().unwrap_or_default().to_owned();
    let findings = json["preconditions"].as_array().unwrap().iter();
    findings.map(|of| ["name", "verdict", "detail", "fix"].map(|name| field(of, name))).collect()
}

fn of<'f>(found: &'f [[String; 4]], name: &str) -> &'f [String; 4] {
    found.iter().find(|finding| finding[0] == name).unwrap_or_else(|| panic!("no {name} in {found:?}"))
}

/// Whether this machine has what the others here lack.
fn able() -> bool {
    let able =
        rustix::process::geteuid().is_root() && cgroup::find(None).is_ok() && kernel::object().is_some();
    if !able {
        require::skip("bpf", "not root, no cgroup2, or no kernel programs in this build");
    }
    able
}

#[test]
fn a_machine_with_everything_passes() {
    if !able() {
        return;
    }
    let found = found(&["--mount"], "true", None);
    for name in [
        "kernel version",
        "CAP_BPF",
        "CAP_NET_ADMIN",
        "cgroup2",
        "bpffs",
        "cgroup hooks",
        "kernel BTF",
        "Pods' cgroups",
    ] {
        assert_eq!(of(&found, name)[1], "pass", "{found:?}");
    }
    let layout = &of(&found, "cgroup2")[2];
    assert!(layout.ends_with("(hybrid)") || layout.ends_with("(pure)"), "{layout}");
}

#[test]
fn what_is_not_mounted_is_named_with_the_command_that_mounts_it() {
    if !able() {
        return;
    }
    let found = found(&["--mount"], NOTHING_MOUNTED, None);
    let [_, verdict, detail, fix] = of(&found, "bpffs");
    assert_eq!((verdict.as_str(), detail.as_str()), ("fail", "/sys/fs/bpf is not a bpffs"));
    assert!(fix.starts_with("mount -t bpf bpf /sys/fs/bpf"), "{fix}");
    let [_, verdict, _, fix] = of(&found, "cgroup2");
    assert!(verdict == "fail" && fix.contains("mount -t cgroup2"), "{fix}");
}

#[test]
fn a_bpffs_that_cannot_be_written_is_told_from_none() {
    if !able() {
        return;
    }
    let found = found(&["--mount"], "mount -o remount,bind,ro /sys/fs/bpf", None);
    let [_, verdict, detail, fix] = of(&found, "bpffs");
    assert_eq!((verdict.as_str(), detail.as_str()), ("fail", "/sys/fs/bpf is read-only"));
    assert!(fix.starts_with("mount -o remount,rw /sys/fs/bpf"), "{fix}");
}

#[test]
fn a_containers_own_part_of_cgroup2_is_not_taken_for_the_root() {
    let Some(kubelet) = Kubelet::new("check") else { return };
    let container = kubelet.make("container");
    let script = format!("{NOTHING_MOUNTED}\nmount -t cgroup2 none /mnt");
    let part = found(&["--mount", "--cgroup"], &script, Some(&container));
    let [_, verdict, detail, fix] = of(&part, "cgroup2");
    assert_eq!((verdict.as_str(), detail.as_str()), ("fail", "only a part of it is in sight"));
    assert!(fix.contains("cgroup namespace of its own") && fix.contains("hostPath"), "{fix}");
    // With the host's mount beside it, as a hostPath volume gives it, the namespace is no obstacle.
    let both = found(&["--mount", "--cgroup"], "mount -t cgroup2 none /mnt", Some(&container));
    assert_eq!(of(&both, "cgroup2")[1], "pass", "{both:?}");
}

#[test]
fn root_in_a_user_namespace_of_its_own_has_no_capability_that_counts() {
    if !able() {
        return;
    }
    let found = found(&["--user", "--map-root-user"], "true", None);
    for name in ["CAP_BPF", "CAP_NET_ADMIN"] {
        let [_, verdict, detail, fix] = of(&found, name);
        assert!(verdict == "fail" && detail.contains("user namespace"), "{detail}");
        assert!(fix.contains("hostUsers"), "{fix}");
    }
}

/// Checks on a thread with these capabilities alone.
fn with_only(capabilities: CapabilitySet, config: &KernelConfig) -> Vec<Check> {
    thread::scope(|scope| {
        let checked = scope.spawn(|| {
            let sets = CapabilitySets {
                effective: capabilities,
                permitted: capabilities,
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, sets).unwrap();
            preflight::checks(config)
        });
        checked.join().unwrap()
    })
}

#[test]
fn each_missing_capability_is_named_and_the_two_are_enough() {
    if !able() {
        return;
    }
    let failed = |capabilities| -> Vec<&'static str> {
        let checks = with_only(capabilities, &KernelConfig::default());
        checks.into_iter().filter(|check| !check.ok).map(|check| check.name).collect()
    };
    let (bpf, net) = (CapabilitySet::BPF, CapabilitySet::NET_ADMIN);
    assert_eq!(failed(bpf | net), [""; 0]);
    assert_eq!(failed(bpf), ["CAP_NET_ADMIN"]);
    assert_eq!(failed(net), ["CAP_BPF"]);
    assert_eq!(failed(CapabilitySet::empty()), ["CAP_BPF", "CAP_NET_ADMIN"]);
}

#[test]
fn programs_of_others_on_the_hooks_are_told_and_one_that_lets_nobody_beside_it_fails() {
    let Some(mut node) = Node::enter("hooks", FenceMode::Enforce) else { return };
    let hooks = |config: &KernelConfig| {
        let checks = preflight::checks(config);
        checks.into_iter().find(|check| check.name == "cgroup hooks").expect("the hooks")
    };
    let mine = hooks(node.config());
    assert_eq!((mine.ok, mine.detail.as_str()), (true, "free"), "revgate's own are no strangers");
    let mut beside = Foreign::load();
    beside.attach(node.cgroup());
    let shared = hooks(node.config());
    let expected = format!("shared with program {} (connect4) on connect4", beside.id());
    assert_eq!((shared.ok, shared.detail.as_str()), (true, expected.as_str()));

    drop(beside);
    node.stop();
    kernel::detach(node.config()).unwrap();
    let mut alone = Foreign::load();
    alone.attach_alone(node.cgroup());
    let refused = hooks(node.config());
    let id = alone.id();
    assert!(!refused.ok && refused.detail.contains(&format!("program {id}")), "{refused:?}");
    assert!(refused.fix.ends_with(&format!("connect4 id {id}")), "{refused:?}");
    // Without the right to ask, the capability that is missing is what is told.
    let unasked = with_only(CapabilitySet::BPF, node.config());
    assert!(!unasked.iter().any(|check| check.name == "cgroup hooks"), "{unasked:?}");
}
