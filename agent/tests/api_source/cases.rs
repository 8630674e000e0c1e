//! What Pods do in clusters, as events of the API.

use serde_json::json;

use super::{
    rig::{LLM, Rig, configuration, endpoints, pod, unready, with},
    server::Server,
};

const SET: [(&str, &str); 1] = [("chat", "disaggregatedset.x-k8s.io/name=my-set")];

const ROLE: &str = "/metadata/labels/disaggregatedset.x-k8s.io~1role";
const REVISION: &str = "/metadata/labels/disaggregatedset.x-k8s.io~1revision";

/// A server with one Ready Pod of revision `a` in each role, and a rig that has seen them.
async fn one_pair() -> (Server, Rig) {
    let server = Server::start().await;
    server.put("pods", pod("llm", "p-0", "a", "prefill", "10.0.0.1"));
    server.put("pods", pod("llm", "d-0", "a", "decode", "10.0.0.2"));
    let rig = Rig::start(&server, configuration(&SET, LLM)).await;
    rig.until_counts(0, &[("a", 1, 1)]).await;
    (server, rig)
}

#[tokio::test]
async fn c1_events_of_the_watch_are_followed_one_by_one() {
    let (server, rig) = one_pair().await;
    server.put("pods", unready(pod("llm", "d-1", "a", "decode", "10.0.0.3")));
    server.put("pods", pod("llm", "d-1", "a", "decode", "10.0.0.3"));
    rig.until_counts(0, &[("a", 1, 2)]).await;
    server.delete("pods", "llm", "d-0");
    rig.until_counts(0, &[("a", 1, 1)]).await;
    assert_eq!(endpoints(&rig.published.load(), "a", 1), ["10.0.0.3:8000"]);
}

#[tokio::test]
async fn c10_only_lists_and_watches_are_asked_with_what_the_server_can_filter() {
    let (server, _rig) = one_pair().await;
    let asked = server.requests();
    assert!(asked.iter().all(|line| line.starts_with("GET /api/v1/namespaces/llm/pods?")), "{asked:?}");
    let filters =
        "labelSelector=disaggregatedset.x-k8s.io%2Fname%3Dmy-set%2Cdisaggregatedset.x-k8s.io%2Frevision";
    assert_eq!(server.asked(&[filters]), asked.len(), "{asked:?}");
    assert_eq!(server.asked(&["limit=100"]), 1, "{asked:?}");
}

#[tokio::test]
async fn one_name_of_a_set_in_two_namespaces_is_two_sets_of_pods() {
    let server = Server::start().await;
    for (namespace, revision) in [("llm", "a"), ("staging", "b")] {
        server.put("pods", pod(namespace, "p-0", revision, "prefill", "10.0.0.1"));
        server.put("pods", pod(namespace, "d-0", revision, "decode", "10.0.0.2"));
    }
    let sets = [
        ("chat", "disaggregatedset.x-k8s.io/name=my-set"),
        ("test", "disaggregatedset.x-k8s.io/name=my-set"),
    ];
    let lines = "sets: [{name: chat, namespaces: [llm]}, {name: test, namespaces: [staging]}]";
    let rig = Rig::start(&server, configuration(&sets, lines)).await;
    rig.until_counts(0, &[("a", 1, 1)]).await;
    rig.until_counts(1, &[("b", 1, 1)]).await;
    server.delete("pods", "staging", "d-0");
    rig.until_counts(1, &[("b", 1, 0)]).await;
    rig.until_counts(0, &[("a", 1, 1)]).await;
}

#[tokio::test]
async fn two_sets_in_a_namespace_share_a_watch_and_a_pod_moves_between_them() {
    let server = Server::start().await;
    let of =
        |set: &str| with(pod("llm", "d-0", "a", "decode", "10.0.0.2"), "/metadata/labels/app", json!(set));
    server.put("pods", of("one"));
    let sets = [("one", "app=one"), ("two", "app=two")];
    let lines = "sets: [{name: one, namespaces: [llm]}, {name: two, namespaces: [llm]}]";
    let rig = Rig::start(&server, configuration(&sets, lines)).await;
    rig.until_counts(0, &[("a", 0, 1)]).await;
    server.put("pods", of("two"));
    rig.until_counts(1, &[("a", 0, 1)]).await;
    rig.until_counts(0, &[]).await;
    server.put("pods", of("three"));
    rig.until_counts(1, &[]).await;
    assert_eq!(server.asked(&["watch=true"]), 1);
}

#[tokio::test]
async fn c2_a_flipped_role_label_moves_a_ready_pod_at_once() {
    let (server, rig) = one_pair().await;
    let spare = pod("llm", "s-0", "a", "decode", "10.0.0.3");
    server.put("pods", spare.clone());
    rig.until_counts(0, &[("a", 1, 2)]).await;
    server.put("pods", with(spare.clone(), ROLE, json!("prefill")));
    rig.until_counts(0, &[("a", 2, 1)]).await;
    assert_eq!(endpoints(&rig.published.load(), "a", 0), ["10.0.0.1:8000", "10.0.0.3:8000"]);
    // Without the label it is no member: to a watch with the label in its selector that is a deletion.
    let mut bare = spare;
    bare["metadata"]["labels"].as_object_mut().unwrap().remove("disaggregatedset.x-k8s.io/role");
    server.put("pods", bare);
    rig.until_counts(0, &[("a", 1, 1)]).await;
}

#[tokio::test]
async fn c2_an_address_goes_to_its_newest_ready_owner_before_the_old_ones_delete() {
    let (server, rig) = one_pair().await;
    // The address of the decode Pod, in the hands of a prefill Pod of another revision.
    server.put("pods", pod("llm", "p-1", "b", "prefill", "10.0.0.2"));
    let snapshot =
        rig.until("the address has its new owner", |s| endpoints(s, "b", 0) == ["10.0.0.2:8000"]).await;
    assert!(endpoints(&snapshot, "a", 1).is_empty(), "an address is one Pod's");
    server.delete("pods", "llm", "d-0");
    rig.until_counts(0, &[("a", 1, 0), ("b", 1, 0)]).await;
    assert_eq!(endpoints(&rig.published.load(), "b", 0), ["10.0.0.2:8000"], "the late delete takes nothing");
}

#[tokio::test]
async fn c2_a_late_delete_of_an_earlier_uid_leaves_the_successor() {
    let (server, rig) = one_pair().await;
    let old = pod("llm", "d-0", "a", "decode", "10.0.0.2");
    server.put("pods", with(pod("llm", "d-0", "a", "decode", "10.0.0.9"), "/metadata/uid", json!("new")));
    rig.until("the successor", |s| endpoints(s, "a", 1) == ["10.0.0.9:8000"]).await;
    server.replay("pods", Some(old), None);
    server.put("pods", pod("llm", "d-1", "a", "decode", "10.0.0.3"));
    rig.until_counts(0, &[("a", 1, 2)]).await;
}

#[tokio::test]
async fn c3_a_terminating_pod_leaves_though_it_is_ready() {
    let (server, rig) = one_pair().await;
    let old = pod("llm", "d-0", "a", "decode", "10.0.0.2");
    server.put("pods", with(old, "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")));
    rig.until_counts(0, &[("a", 1, 0)]).await;
    assert!(endpoints(&rig.published.load(), "a", 1).is_empty());
}

#[tokio::test]
async fn c2_a_pod_that_loses_its_address_is_no_endpoint() {
    let (server, rig) = one_pair().await;
    let mut lost = pod("llm", "d-0", "a", "decode", "");
    lost["status"].as_object_mut().unwrap().remove("podIPs");
    server.put("pods", lost);
    rig.until("no endpoint", |s| endpoints(s, "a", 1).is_empty()).await;
    let snapshot = rig.published.load();
    assert!(
        !snapshot.sets[0].distribution.revisions[0].eligible,
        "a revision needs an endpoint in each role"
    );
}

#[tokio::test]
async fn a_pod_that_makes_no_sense_counts_as_absent_and_is_named() {
    let (server, mut rig) = one_pair().await;
    server.put("pods", pod("llm", "d-0", "a", "decode", "10.0.0.300"));
    rig.until_counts(0, &[("a", 1, 0)]).await;
    rig.until_said(&["Unusable", "llm/d-0", "10.0.0.300"]).await;
    server.put("pods", pod("llm", "d-0", "a", "decode", "10.0.0.30"));
    rig.until_counts(0, &[("a", 1, 1)]).await;
}

#[tokio::test]
async fn c4_a_worker_of_a_group_counts_and_takes_no_requests() {
    let server = Server::start().await;
    let index = |pod, index: &str| {
        with(pod, "/metadata/labels/leaderworkerset.sigs.k8s.io~1worker-index", json!(index))
    };
    server.put("pods", pod("llm", "p-0", "a", "prefill", "10.0.0.1"));
    server.put("pods", index(pod("llm", "d-0-1", "a", "decode", "10.0.0.3"), "1"));
    let rig = Rig::start(&server, configuration(&SET, LLM)).await;
    rig.until_counts(0, &[("a", 1, 1)]).await;
    assert!(!rig.published.load().sets[0].distribution.revisions[0].eligible, "no leader, no endpoint");
    server.put("pods", index(pod("llm", "d-0", "a", "decode", "10.0.0.2"), "0"));
    rig.until_counts(0, &[("a", 1, 2)]).await;
    let snapshot = rig.published.load();
    assert_eq!(endpoints(&snapshot, "a", 1), ["10.0.0.2:8000"]);
    assert!(snapshot.sets[0].distribution.revisions[0].eligible);
}

#[tokio::test]
async fn g2_decode_alone_is_not_eligible_while_prefill_starts() {
    let server = Server::start().await;
    let starting = pod("llm", "p-0", "a", "prefill", "10.0.0.1");
    server.put("pods", unready(starting.clone()));
    server.put("pods", pod("llm", "d-0", "a", "decode", "10.0.0.2"));
    let rig = Rig::start(&server, configuration(&SET, LLM)).await;
    rig.until_counts(0, &[("a", 0, 1)]).await;
    assert!(!rig.published.load().sets[0].distribution.revisions[0].eligible);
    server.put("pods", starting);
    rig.until("eligible", |s| s.sets[0].distribution.revisions[0].eligible).await;
}

#[tokio::test]
async fn g8_three_revisions_and_a_rollback_with_the_same_names() {
    let (server, rig) = one_pair().await;
    for (revision, ip) in [("b", 20), ("c", 30)] {
        server
            .put("pods", pod("llm", &format!("p-{revision}"), revision, "prefill", &format!("10.0.0.{ip}")));
        server.put("pods", pod("llm", &format!("d-{revision}"), revision, "decode", &format!("10.0.1.{ip}")));
    }
    rig.until_counts(0, &[("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]).await;
    server.delete("pods", "llm", "p-0");
    server.delete("pods", "llm", "d-0");
    rig.until_counts(0, &[("b", 1, 1), ("c", 1, 1)]).await;
    // Back to `a`: a StatefulSet gives the Pods the names that they had, and other UIDs.
    for (name, role, ip) in [("p-0", "prefill", "10.0.0.1"), ("d-0", "decode", "10.0.0.2")] {
        server.put(
            "pods",
            with(pod("llm", name, "a", role, ip), "/metadata/uid", json!(format!("again {name}"))),
        );
    }
    rig.until_counts(0, &[("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]).await;
    // And a Pod that changes its revision in place.
    server.put("pods", with(pod("llm", "d-b", "b", "decode", "10.0.1.20"), REVISION, json!("c")));
    rig.until_counts(0, &[("a", 1, 1), ("b", 1, 0), ("c", 1, 2)]).await;
}

#[tokio::test]
async fn a_reload_moves_the_watches_and_keeps_what_it_has_until_the_new_ones_have_listed() {
    let (server, rig) = one_pair().await;
    server.put("pods", pod("new", "p-0", "b", "prefill", "10.1.0.1"));
    server.fault(|faults| faults.list_delay = std::time::Duration::from_millis(300));
    rig.reconfigure(configuration(&SET, "sets: [{namespaces: [llm, new]}]"));
    rig.until_counts(0, &[("a", 1, 1), ("b", 1, 0)]).await;
    rig.reconfigure(configuration(&SET, "sets: [{namespaces: [new]}]"));
    rig.until_counts(0, &[("b", 1, 0)]).await;
    rig.reconfigure(configuration(&SET, ""));
    rig.until_counts(0, &[("a", 1, 1), ("b", 1, 0)]).await;
    server.delete("pods", "llm", "d-0");
    rig.until_counts(0, &[("a", 1, 0), ("b", 1, 0)]).await;
    assert_eq!(server.asked(&["/api/v1/pods?", "watch=true"]), 1);
    // Each state in one step, and none of them without the Pods that belong to it.
    let states = ["a 1 1", "a 1 1, b 1 0", "b 1 0", "a 1 1, b 1 0", "a 1 0, b 1 0"];
    assert_eq!(rig.diary.states(), states);
}

#[tokio::test]
async fn a_reload_that_may_not_list_changes_nothing_and_the_old_watches_go_on() {
    let (server, mut rig) = one_pair().await;
    server.fault(|faults| faults.forbidden.extend([("list", "pods")]));
    rig.reconfigure(configuration(&SET, "sets: [{namespaces: [new]}]"));
    rig.until_said(&["Waiting"]).await;
    rig.until_said(&["may not list pods in namespace new"]).await;
    server.put("pods", pod("llm", "d-1", "a", "decode", "10.0.0.3"));
    rig.until_counts(0, &[("a", 1, 2)]).await;
    server.put("pods", pod("new", "p-0", "b", "prefill", "10.1.0.1"));
    server.fault(|faults| faults.forbidden.clear());
    rig.until_said(&["Adopted"]).await;
    rig.until_counts(0, &[("b", 1, 0)]).await;
}
