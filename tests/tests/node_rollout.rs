//! A rollout on a real node with requests running (R1): by the header through the listeners, and by Pod identity.
#![cfg(test)]

use revgate_tests::cluster::{
    api::AGENT,
    deployed,
    workload::{Workload, answers},
};

#[test]
fn a_rollout_by_scaling_mixes_no_pair_and_fails_no_request() {
    let Some(node) = deployed::node() else { return };
    let on = Workload::on(&node);
    deployed::agent(&node);
    deployed::watch_vips(&node);
    on.deploy_all(&[("prefill", "a", 2), ("decode", "a", 2), ("prefill", "b", 0), ("decode", "b", 0)]);
    let listeners = deployed::cluster_ip(&node, AGENT, "revgate");
    on.client(
        "coordinator",
        &["--prefill", &format!("{listeners}:8081"), "--decode", &format!("{listeners}:8082")],
    );
    let before = on.goes_on("coordinator", 100);
    assert_eq!(answers(&before.decode, "decode-b"), 0, "{before:?}");

    // Step by step: one more of the new, one less of the old.
    for (new, old) in [(1, 2), (2, 1), (2, 0)] {
        for role in ["prefill", "decode"] {
            on.scale(role, "b", new);
        }
        let _ = on.goes_on("coordinator", 50);
        // Its Decode Pods first: they need a Prefill Pod of their own until their end.
        for role in ["decode", "prefill"] {
            on.scale(role, "a", old);
        }
        let _ = on.goes_on("coordinator", 50);
    }
    let during = on.goes_on("coordinator", 1);
    let after = on.goes_on("coordinator", 100);
    for (leg, before, after) in
        [("prefill", &during.prefill, &after.prefill), ("decode", &during.decode, &after.decode)]
    {
        let gone = |counts| answers(counts, &format!("{leg}-a"));
        assert!(
            gone(before) > 0 && answers(after, &format!("{leg}-b")) > 0,
            "both revisions served: {after:?}"
        );
        assert_eq!(gone(before), gone(after), "an engine of the old revision answered after the rollout");
    }
    // The old revision ends once, and the coordinator has one request at a time.
    assert!(deployed::nothing_went_wrong(&on, 1) > 300);
    assert_eq!(deployed::unsteered(&node), 0, "a connect to a VIP went past the kernel programs");
}
