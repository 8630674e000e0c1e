//! What servers and networks do on bad days.

use std::time::Duration;

use super::{
    rig::{LLM, Rig, configuration, counts, pod},
    server::Server,
};

const SET: [(&str, &str); 1] = [("chat", "disaggregatedset.x-k8s.io/name=my-set")];

fn prefill() -> serde_json::Value {
    pod("llm", "p-0", "a", "prefill", "10.0.0.1")
}

fn decode(n: u8) -> serde_json::Value {
    pod("llm", &format!("d-{n}"), "a", "decode", &format!("10.0.1.{n}"))
}

async fn one_pair() -> (Server, Rig) {
    let server = Server::start().await;
    server.put("pods", prefill());
    server.put("pods", decode(0));
    let rig = Rig::start(&server, configuration(&SET, LLM)).await;
    rig.until_counts(0, &[("a", 1, 1)]).await;
    (server, rig)
}

#[tokio::test]
async fn a_cut_watch_goes_on_from_the_version_that_it_has_seen() {
    let (server, rig) = one_pair().await;
    for (n, cleanly) in [(1, true), (2, false), (3, true), (4, false)] {
        server.cut(cleanly);
        server.put("pods", decode(n));
        rig.until_counts(0, &[("a", 1, u32::from(n) + 1)]).await;
    }
    assert_eq!(server.asked(&["limit=100"]), 1, "no new list was needed");
}

#[tokio::test]
async fn a_delete_that_was_lost_with_the_watch_is_made_good_by_a_list() {
    for gone_as_event in [false, true] {
        let (server, rig) = one_pair().await;
        server.put("pods", decode(1));
        rig.until_counts(0, &[("a", 1, 2)]).await;
        server.fault(|faults| {
            faults.gone_as_event = gone_as_event;
            // So that the watch cannot begin again before everything has happened.
            faults.fail_watches = (1, 503);
        });
        server.cut(false);
        server.delete("pods", "llm", "d-1");
        server.put("pods", pod("llm", "d-9", "b", "decode", "10.0.1.9"));
        server.compact();
        rig.until_counts(0, &[("a", 1, 1), ("b", 0, 1)]).await;
        server.put("pods", decode(2));
        rig.until_counts(0, &[("a", 1, 2), ("b", 0, 1)]).await;
    }
}

#[tokio::test]
async fn events_that_come_twice_change_nothing() {
    let (server, rig) = one_pair().await;
    server.fault(|faults| faults.duplicate = true);
    server.put("pods", decode(1));
    server.delete("pods", "llm", "d-0");
    server.put("pods", decode(2));
    rig.until_counts(0, &[("a", 1, 2)]).await;
}

#[tokio::test]
async fn a_frozen_connection_is_given_up_and_what_happened_meanwhile_is_seen() {
    let server = Server::start().await;
    server.put("pods", prefill());
    // 2.5 s of silence end a watch.
    let config = configuration(&SET, LLM);
    let mut rig = Rig::with_stale_after(&server, config, Duration::from_secs(6)).await;
    rig.until_counts(0, &[("a", 1, 0)]).await;
    server.fault(|faults| faults.frozen = true);
    server.put("pods", decode(0));
    rig.until_said(&["cannot watch pods in namespace llm: the API server said nothing for 2.5 s"]).await;
    server.fault(|faults| faults.frozen = false);
    // The watch that froze has thawed as well; whichever tells of the Pod, it is seen.
    rig.until_counts(0, &[("a", 1, 1)]).await;
}

#[tokio::test]
async fn failing_lists_and_watches_are_tried_again_and_the_last_state_stays() {
    let (server, mut rig) = one_pair().await;
    server.fault(|faults| {
        faults.fail_watches = (3, 500);
        faults.fail_lists = (2, 429);
    });
    server.cut(false);
    rig.until_said(&["cannot watch pods in namespace llm: the API server answers 500"]).await;
    assert_eq!(counts(&rig.published.load()), [[("a".to_owned(), 1, 1)]]);
    server.put("pods", decode(1));
    server.compact();
    rig.until_said(&["cannot list pods in namespace llm: the API server answers 429"]).await;
    rig.until_counts(0, &[("a", 1, 2)]).await;
}

#[tokio::test]
async fn a_missing_right_is_named_with_its_fix_and_waited_for() {
    for verb in ["list", "watch"] {
        let server = Server::start().await;
        server.put("pods", prefill());
        server.fault(|faults| faults.forbidden.extend([(verb, "pods")]));
        let mut rig = Rig::start(&server, configuration(&SET, LLM)).await;
        let said = rig.until_said(&[&format!("may not {verb} pods in namespace llm")]).await;
        assert!(said.contains("resources: [pods], verbs: [get, list, watch]"), "{said}");
        assert_eq!(rig.published.load().synced, verb == "watch", "a list alone is a state");
        server.put("pods", decode(0));
        server.fault(|faults| faults.forbidden.clear());
        rig.until_counts(0, &[("a", 1, 1)]).await;
    }
}

#[tokio::test]
async fn the_server_may_be_away_at_first_and_go_away_later() {
    let mut server = Server::away().await;
    server.put("pods", prefill());
    let mut rig = Rig::start(&server, configuration(&SET, LLM)).await;
    rig.until_said(&["cannot list pods in namespace llm: the API server cannot be reached"]).await;
    assert!(!rig.published.load().synced);
    server.come_back().await;
    rig.until_counts(0, &[("a", 1, 0)]).await;
    server.go_away();
    rig.until_said(&["cannot watch pods in namespace llm: the API server cannot be reached"]).await;
    assert!(rig.published.load().synced, "the last state stays");
    server.put("pods", decode(0));
    server.come_back().await;
    rig.until_counts(0, &[("a", 1, 1)]).await;
    assert_eq!(server.asked(&["limit=100"]), 1, "the watch went on where it was");
}

#[tokio::test]
async fn nothing_is_published_before_every_namespace_has_been_listed() {
    let server = Server::start().await;
    server.put("pods", prefill());
    server.put("pods", pod("staging", "d-0", "a", "decode", "10.0.1.0"));
    server.fault(|faults| faults.fail_lists = (3, 503));
    let rig = Rig::start(&server, configuration(&SET, "sets: [{namespaces: [llm, staging]}]")).await;
    let first = rig.until("the first snapshot", |snapshot| snapshot.synced).await;
    assert_eq!(counts(&first), [[("a".to_owned(), 1, 1)]], "whole from the start");
}

#[tokio::test]
async fn a_long_list_comes_in_pages_and_starts_again_when_a_page_is_gone() {
    let server = Server::start().await;
    server.put("pods", prefill());
    for n in 0..240_u32 {
        let [.., high, low] = n.to_be_bytes();
        server.put("pods", pod("llm", &format!("d-{n}"), "a", "decode", &format!("10.1.{high}.{low}")));
    }
    server.fault(|faults| faults.expire_pages = 1);
    let rig = Rig::start(&server, configuration(&SET, LLM)).await;
    rig.until_counts(0, &[("a", 1, 240)]).await;
    assert_eq!(server.asked(&["limit=100"]), 1 + 1 + 3, "the first page, the refused one, and three pages");
}
