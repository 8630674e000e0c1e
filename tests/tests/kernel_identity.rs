//! Whose process it is that connects, from the cgroups that a kubelet makes (K10, K2): an agent as a process, a Pod file
//! with UIDs, and processes inside the Pods' cgroups. That the agent is seen to act at all (K9) comes first.
//!
//! The agent looks at cgroups by itself only every 30 s, for longer than these tests wait: what they see, events told.
#![cfg(test)]

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    os::unix::fs::chown,
    process::{self, Command},
};

use revgate_tests::{agent::Agent, dial::at, echo, kubelet::Kubelet, wait::until};

const AGENT: &str = env!("CARGO_BIN_EXE_revgate-under-test");
const CONTAINER: &str = "3f4e0c1ab2d59f6e7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6b7c8d9e0f";

/// Two revisions of equal weight, an agent, and a VIP for prefill.
struct Stage {
    /// Ends before its cgroup does.
    agent: Agent,
    kubelet: Kubelet,
    /// Prefill endpoints of a and b.
    prefill: [SocketAddr; 2],
    vip: SocketAddr,
    net: u8,
}

impl Stage {
    fn new(test: &str, net: u8) -> Option<Self> {
        let kubelet = Kubelet::new(test)?;
        let server = |n: u8| echo::tcp_at(SocketAddr::new(IpAddr::from([127, net, 1, n]), 8000));
        let vip = at(&format!("127.{net}.0.1:80"));
        let line = format!("- {{address: '{vip}', role: prefill}}");
        let agent = Agent::prepare_at(AGENT, kubelet.cgroup(), kubelet.bpffs(), "30s", &line);
        let stage = Self { agent, kubelet, prefill: [server(1), server(2)], vip, net };
        stage.pods(&[]);
        Some(stage)
    }

    /// The UID of a Pod. Of this test alone: an agent looks at all of cgroup2, so at the other tests' corners too.
    fn uid(&self, n: u32) -> String {
        format!("{n:08x}-{:04x}-4c2b-8b2a-{:012x}", self.net, process::id())
    }

    /// The list of Pods: those that make both revisions eligible, and decode Pods of a revision, which are not Ready and
    /// have no address yet, by their UIDs.
    fn pods(&self, local: &[(u32, &str)]) {
        let labels = |revision: &str, role: &str| {
            format!(
                "{{app: llm, disaggregatedset.x-k8s.io/revision: {revision}, disaggregatedset.x-k8s.io/role: {role}}}"
            )
        };
        let mut text = String::new();
        for (revision, n) in [("a", 1), ("b", 2)] {
            for (role, part) in [("prefill", 1), ("decode", 2)] {
                let (ip, labels) = (IpAddr::from([127, self.net, part, n]), labels(revision, role));
                let _ = writeln!(text, "- {{name: {role}-{revision}, ip: {ip}, labels: {labels}}}");
            }
        }
        for (n, revision) in local {
            let (uid, labels) = (self.uid(*n), labels(revision, "decode"));
            let _ = writeln!(
                text,
                "- {{apiVersion: v1, kind: Pod, metadata: {{name: local-{n}, uid: {uid}, labels: {labels}}}}}"
            );
        }
        self.agent.write_pods(&text);
    }

    fn start(&mut self) {
        let home = self.kubelet.make("kubepods/burstable/agent");
        let mut command = self.kubelet.inside(&home, AGENT);
        command.args(self.agent.arguments());
        self.agent.start_as(command);
    }

    /// Waits until so many Pods are known by their cgroups.
    fn known(&self, count: usize) {
        let look = || self.agent.state()["localPods"]["known"].as_u64();
        let _ = until("Pods are known", look, |known| *known == u64::try_from(count).ok());
    }

    /// The snapshot that the kernel's tables show.
    fn generation(&self) -> u64 {
        self.agent.state()["kernel"]["generation"].as_u64().unwrap()
    }

    /// How many connects had this outcome.
    fn count(&self, outcome: &str) -> u64 {
        let state = self.agent.state();
        let outcomes = state["kernel"]["connects"].as_array().cloned().unwrap_or_default();
        outcomes
            .iter()
            .find(|told| told["outcome"] == outcome)
            .and_then(|told| told["count"].as_u64())
            .unwrap()
    }

    /// Dials the VIP from a cgroup again and again: to be steered to the process's own revision each time.
    fn reaches_its_own(&self, cgroup: &str, prefill: SocketAddr) {
        let cgroup = self.kubelet.make(cgroup);
        let (own, weighed) = (self.count("steered_own"), self.count("steered_weight"));
        for _ in 0..4 {
            assert_eq!(self.kubelet.dial(&cgroup, self.vip), Some(prefill), "{cgroup:?}");
        }
        assert_eq!(
            (self.count("steered_own"), self.count("steered_weight")),
            (own + 4, weighed),
            "{cgroup:?}"
        );
    }

    /// Dials as somebody who is no member.
    fn is_a_stranger(&self, cgroup: &str) {
        let cgroup = self.kubelet.make(cgroup);
        let (own, weighed) = (self.count("steered_own"), self.count("steered_weight"));
        assert!(self.kubelet.dial(&cgroup, self.vip).is_some(), "{cgroup:?}");
        assert_eq!(
            (self.count("steered_own"), self.count("steered_weight")),
            (own, weighed + 1),
            "{cgroup:?}"
        );
    }
}

#[test]
fn a_process_of_a_pod_is_steered_to_its_own_revision_in_every_layout_before_the_pod_is_ready() {
    let Some(mut stage) = Stage::new("layouts", 30) else { return };
    let unit = |n| stage.uid(n).replace('-', "_");
    let layouts = [
        format!("kubepods/besteffort/pod{}/{CONTAINER}", stage.uid(1)),
        format!("kubepods/pod{}/crio-{CONTAINER}/init", stage.uid(2)),
        format!(
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-{CONTAINER}.scope",
            unit(3)
        ),
        format!(
            "system.slice/docker-{CONTAINER}.scope/kubelet/kubepods/burstable/pod{}/{CONTAINER}",
            stage.uid(4)
        ),
    ];
    stage.pods(&[(1, "a"), (2, "b"), (3, "a"), (4, "b")]);
    // Two before the agent, two after it.
    for layout in &layouts[..2] {
        let _ = stage.kubelet.make(layout);
    }
    stage.start();
    stage.known(2);
    for layout in &layouts[2..] {
        let _ = stage.kubelet.make(layout);
    }
    stage.known(4);
    for (layout, revision) in layouts.iter().zip([0, 1, 0, 1]) {
        stage.reaches_its_own(layout, stage.prefill[revision]);
    }
}

#[test]
fn pod_and_cgroup_may_come_in_either_order_and_go_and_come_again_and_strangers_stay_strangers() {
    let Some(mut stage) = Stage::new("order", 31) else { return };
    stage.start();
    let [one, two, unknown] = [1, 2, 3].map(|n| {
        (
            format!("kubepods/besteffort/pod{}", stage.uid(n)),
            format!("kubepods/besteffort/pod{}/c", stage.uid(n)),
        )
    });
    let _ = stage.kubelet.make(&one.1);
    stage.is_a_stranger(&one.1);
    stage.pods(&[(1, "a"), (2, "b")]);
    stage.known(1);
    stage.reaches_its_own(&one.1, stage.prefill[0]);
    let _ = stage.kubelet.make(&two.1);
    stage.known(2);
    stage.reaches_its_own(&two.1, stage.prefill[1]);
    stage.is_a_stranger(&unknown.1);
    stage.is_a_stranger("kubepods/besteffort");

    stage.kubelet.remove(&one.0);
    stage.known(1);
    let _ = stage.kubelet.make(&one.1);
    stage.known(2);
    stage.reaches_its_own(&one.1, stage.prefill[0]);
    // The Pod moves on to another revision while its process runs on.
    stage.pods(&[(1, "b"), (2, "b")]);
    let moved = || stage.kubelet.dial(&stage.kubelet.cgroup().join(&one.1), stage.vip);
    let _ = until("the Pod is of the other revision", moved, |to| *to == Some(stage.prefill[1]));
    stage.reaches_its_own(&one.1, stage.prefill[1]);
}

#[test]
fn a_process_whose_pod_left_the_api_is_a_member_until_its_cgroup_goes() {
    let Some(mut stage) = Stage::new("left", 34) else { return };
    let [stays, last] = [(1, "a"), (2, "c")].map(|(n, revision)| {
        let cgroup = format!("kubepods/pod{}/c", stage.uid(n));
        let _ = stage.kubelet.make(&cgroup);
        (cgroup, (n, revision))
    });
    stage.pods(&[stays.1, last.1]);
    stage.start();
    stage.known(2);
    let before = stage.generation();
    stage.pods(&[]);
    let _ = until("the Pods have left", || stage.generation(), |now| *now > before);
    stage.reaches_its_own(&stays.0, stage.prefill[0]);
    // Nobody else is of its revision, and no other is its own: neither by the VIP nor straight.
    let cgroup = stage.kubelet.make(&last.0);
    let (nowhere, fenced) = (stage.count("denied_no_revision"), stage.count("denied_fence"));
    for to in [stage.vip, stage.prefill[0], stage.prefill[1]] {
        assert_eq!(stage.kubelet.dial(&cgroup, to), None, "{to}");
    }
    assert_eq!((stage.count("denied_no_revision"), stage.count("denied_fence")), (nowhere + 1, fenced + 2));
    stage.kubelet.remove(&format!("kubepods/pod{}", stage.uid(1)));
    stage.known(1);
    stage.is_a_stranger(&stays.0);
}

#[test]
fn a_cgroup_that_was_given_to_a_user_makes_nobody_a_pod() {
    let Some(mut stage) = Stage::new("given", 35) else { return };
    let given = stage.kubelet.make("user.slice/user-1000.slice/user@1000.service");
    chown(&given, Some(1000), Some(1000)).unwrap();
    let pod = format!("user.slice/user-1000.slice/user@1000.service/kubepods/pod{}", stage.uid(1));
    let path = stage.kubelet.make(&pod);
    chown(path.parent().unwrap(), Some(1000), Some(1000)).unwrap();
    chown(&path, Some(1000), Some(1000)).unwrap();
    stage.pods(&[(1, "a"), (2, "b")]);
    let own = format!("kubepods/pod{}", stage.uid(2));
    let _ = stage.kubelet.make(&own);
    stage.start();
    stage.known(1);
    stage.is_a_stranger(&pod);
    stage.reaches_its_own(&own, stage.prefill[1]);
}

#[test]
fn a_full_node_of_pods_is_known_by_events_made_in_other_namespaces_too() {
    let Some(mut stage) = Stage::new("full", 32) else { return };
    let pods: Vec<(u32, &str)> = (1..=250).map(|n| (n, if n % 2 == 0 { "a" } else { "b" })).collect();
    stage.pods(&pods);
    stage.start();
    stage.known(0);
    for (n, _) in &pods[..249] {
        let class = if n % 3 == 0 { "besteffort/" } else { "" };
        let _ = stage.kubelet.make(&format!("kubepods/{class}pod{}/{CONTAINER}", stage.uid(*n)));
    }
    stage.known(249);
    // A runtime has its own mounts; the events are those of the file system.
    let last = format!("kubepods/pod{}", stage.uid(250));
    let name = stage.kubelet.cgroup().file_name().unwrap();
    let script = r#"mkdir "$0/m" && mount -t cgroup2 none "$0/m" && mkdir "$0/m/$1/$2""#;
    let folder = tempfile::TempDir::new().unwrap();
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--mount", "--cgroup", "sh", "-c", script]).arg(folder.path()).arg(name).arg(&last);
    assert!(elsewhere.status().unwrap().success());
    stage.known(250);
    stage.reaches_its_own(&format!("{last}/{CONTAINER}"), stage.prefill[0]);
    stage.kubelet.remove("kubepods/besteffort");
    stage.known(250 - 83);
}

#[test]
fn the_agent_proves_itself_on_a_connect_from_another_cgroup_and_it_counts_as_nothing_else() {
    let Some(mut stage) = Stage::new("proof", 33) else { return };
    stage.start();
    let log = stage.agent.log();
    assert!(log.contains("seen on a connect of the agent and on one from another cgroup"), "{log}");
    assert_eq!((stage.count("probed"), stage.count("denied_foreign")), (2, 0));
    assert!(!stage.kubelet.cgroup().join("revgate-probe").exists());
    // Nobody is told of it as of a denied connect.
    assert!(!log.contains("revgate::denied"), "{log}");
}
