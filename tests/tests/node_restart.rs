//! An agent that is replaced or killed on a real node, with requests running: nobody notices (K8).
#![cfg(test)]

use revgate_tests::cluster::{
    api::AGENT,
    deployed,
    workload::{Workload, answers},
};

#[test]
fn connects_are_steered_while_the_agent_is_restarted_and_deleted() {
    let Some(node) = deployed::node() else { return };
    let on = Workload::on(&node);
    deployed::agent(&node);
    on.deploy_all(&[("prefill", "a", 1), ("prefill", "b", 1), ("decode", "a", 1), ("decode", "b", 1)]);
    deployed::watch_vips(&node);
    on.client("by-weight", &["--decode", "$(DECODE_SERVICE_HOST):8000"]);
    let _ = on.goes_on("by-weight", 50);

    let kubectl = node.kubectl();
    kubectl.run(&["--namespace", AGENT, "rollout", "restart", "daemonset/revgate"]);
    kubectl.run(&["--namespace", AGENT, "rollout", "status", "daemonset/revgate", "--timeout=3m"]);
    deployed::agent_is_ready(&node);
    let _ = on.goes_on("by-weight", 50);

    kubectl.run(&["--namespace", AGENT, "delete", "pods", "--all"]);
    // No agent is there, or one that has just begun.
    let _ = on.goes_on("by-weight", 50);
    deployed::agent_is_ready(&node);

    kubectl.run(&["--namespace", AGENT, "delete", "pods", "--all", "--force", "--grace-period=0"]);
    deployed::agent_is_ready(&node);
    let report = on.goes_on("by-weight", 50);
    for revision in ["decode-a", "decode-b"] {
        assert!(answers(&report.decode, revision) > 0, "{report:?}");
    }
    // The new agent follows: what it publishes is in force.
    on.scale("decode", "b", 0);
    let before = on.goes_on("by-weight", 1);
    let after = on.goes_on("by-weight", 50);
    assert_eq!(answers(&before.decode, "decode-b"), answers(&after.decode, "decode-b"));
    assert!(deployed::nothing_went_wrong(&on, 0) > 200);
    assert_eq!(deployed::unsteered(&node), 0, "a connect to a VIP went past the kernel programs");
}
