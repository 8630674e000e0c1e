//! revgate on a real node, as its users deploy it: who is steered where, and by whom (K2, K10, O5).
#![cfg(test)]

use revgate_tests::cluster::{
    api::AGENT,
    deployed,
    node::Node,
    process::eventually,
    workload::{Workload, answers, is_of},
};

#[test]
fn pods_reach_endpoints_of_their_own_revision_and_clients_all_by_weight() {
    let Some(node) = deployed::node() else { return };
    let on = Workload::on(&node);
    deployed::watch_vips(&node);
    on.deploy_all(&[("prefill", "a", 1), ("prefill", "b", 1), ("decode", "a", 3), ("decode", "b", 1)]);
    // Without revgate the Services work, and revisions are mixed.
    let _ = eventually(
        "kube-proxy mixes revisions",
        || on.reports(),
        |reports| reports.values().map(|report| report.mixed).sum::<u64>() > 0,
    );
    assert!(deployed::unsteered(&node) > 0, "the packets that kube-proxy translates are seen");

    deployed::agent(&node);
    the_container_has_its_declared_rights(&node);
    // Clients that were there before forget what they saw.
    for (revision, replicas) in [("a", 3), ("b", 1)] {
        let _ = on.kubectl(&["rollout", "restart", "deployment", &format!("decode-{revision}")]);
        on.settles("decode", revision, replicas);
    }
    on.forget_reports();
    let _ = deployed::unsteered(&node);
    on.client("by-weight", &["--decode", "$(DECODE_SERVICE_HOST):8000"]);

    let report = on.goes_on("by-weight", 800);
    let (a, b) = (answers(&report.decode, "decode-a"), answers(&report.decode, "decode-b"));
    assert_eq!(a + b, report.decode.values().sum::<u64>(), "{report:?}");
    // Three of four: half as many again is ten standard deviations away.
    assert!(2 * a > 3 * b && b > 0, "weights 3 and 1: {a} and {b}");

    for (pod, report) in on.reports().iter().filter(|(pod, _)| pod.as_str() != "by-weight") {
        let revision = if is_of(pod, "decode-a") { "a" } else { "b" };
        let own = answers(&report.prefill, &format!("prefill-{revision}"));
        assert!(own > 0, "{pod}: {report:?}");
        assert_eq!(own, report.prefill.values().sum::<u64>(), "{pod} reached another revision: {report:?}");
    }
    assert!(deployed::nothing_went_wrong(&on, 0) > 800);
    assert_eq!(deployed::unsteered(&node), 0, "kube-proxy's rules were asked");

    let status = deployed::status(&node);
    assert_eq!(status["ready"], true, "{status:#}");
    assert_eq!(status["kernel"]["mode"], "ebpf", "{status:#}");
    let outcome = |word: &str| {
        let outcomes = status["kernel"]["connects"].as_array().unwrap().iter();
        outcomes.filter(|of| of["outcome"] == word).filter_map(|of| of["count"].as_u64()).sum::<u64>()
    };
    assert!(outcome("steered_own") > 0, "by Pod identity: {status:#}");
    assert!(outcome("steered_weight") >= 800, "{status:#}");
    let shares: Vec<_> =
        status["sets"][0]["revisions"].as_array().unwrap().iter().map(|of| &of["share"]).collect();
    assert_eq!(shares, ["3/4", "1/4"]);
    let check = deployed::revgate(&node, &["check"]);
    assert!(check.contains("pass") && !check.contains("FAIL"), "{check}");
}

/// What the kernel says of the container, not what was asked for.
fn the_container_has_its_declared_rights(node: &Node) {
    let processes =
        node.read("/bin/sh", &["-c", "grep -l '^Name:.revgate$' /proc/[0-9]*/status | head -n 1"]);
    let process = processes.trim().trim_end_matches("/status");
    let status = node.read("/bin/cat", &[&format!("{process}/status")]);
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    // CAP_NET_ADMIN is 12, CAP_BPF is 39 (capabilities(7)).
    let rights = format!("{:016x}", 1_u64 << 12 | 1_u64 << 39);
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(field(set), rights, "{set} of {process}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2", "a filter");
    let mounts = node.read("/bin/cat", &[&format!("{process}/mountinfo")]);
    let options = |point: &str| {
        let mount = mounts.lines().find(|line| line.split(' ').nth(4) == Some(point));
        mount
            .and_then(|line| line.split(' ').nth(5))
            .unwrap_or_else(|| panic!("{point}: {mounts}"))
            .to_owned()
    };
    for point in ["/", "/host/sys/fs/cgroup", "/etc/revgate"] {
        assert!(options(point).split(',').any(|option| option == "ro"), "{point}: {mounts}");
    }
    assert!(options("/host/sys/fs/bpf").split(',').any(|option| option == "rw"), "{mounts}");
    let pods = node.kubectl().get(&["--namespace", AGENT, "pods"]);
    assert_ne!(pods["items"][0]["spec"]["hostNetwork"], true);
}
