//! An API server that goes away, forgets or falls silent: the agent serves on, and ends up with what is true (C1, C9).
#![cfg(test)]

use revgate_tests::cluster::{
    api::Api, kubectl::Kubectl, pods::Pods, process::eventually, relay::Relay, watcher::Watcher,
};

const AGENT: &str = env!("CARGO_BIN_EXE_revgate-under-test");
const CHAT: &str = "rollout-screener";

const A: [&str; 3] = ["a prefill llm/prefill-a 10.0.0.1:8000", "a decode llm/decode-a 10.0.0.2:8000", "a 1"];
const B: [&str; 3] = ["b prefill llm/prefill-b 10.0.1.1:8000", "b decode llm/decode-b 10.0.1.2:8000", "b 1"];

fn make(pods: &Pods, revision: &str, net: u8) {
    pods.ready(&format!("prefill-{revision}"), revision, "prefill", &format!("10.0.{net}.1"));
    pods.ready(&format!("decode-{revision}"), revision, "decode", &format!("10.0.{net}.2"));
}

/// An agent behind a relay that sees revision `a`.
fn start(test: &mut Api, pods: &Pods) -> (Watcher, Relay) {
    make(pods, "a", 0);
    let relay = Relay::start(test.plane().address());
    let mut agent = test.agent(AGENT, relay.address());
    agent.is_ready();
    agent.sees("revision a", CHAT, &A);
    (agent, relay)
}

/// While nothing is heard: the last state is in force, and the agent is ready.
fn serves_on(agent: &mut Watcher) {
    let before = agent.report().unwrap();
    let _ = eventually(
        "the agent notices that it hears nothing",
        || agent.report(),
        |seen| seen.as_ref().is_ok_and(|seen| seen.source.errors > before.source.errors),
    );
    agent.sees("the last state stays", CHAT, &A);
    assert_eq!(agent.ask("/readyz").unwrap().0, 200, "it serves on");
}

/// The version of everything, now.
fn version(kubectl: &Kubectl) -> String {
    kubectl.get_raw("/api/v1/namespaces/llm/pods?limit=1")["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn what_happens_while_the_watch_is_cut_is_seen_afterwards() {
    let Some((mut api, pods)) = Api::deployed() else { return };
    let (mut agent, relay) = start(&mut api, &pods);
    relay.cut();
    // Nobody will ever tell of this delete, were it not for the list or the replay.
    pods.delete("prefill-a");
    pods.delete("decode-a");
    make(&pods, "b", 1);
    serves_on(&mut agent);
    relay.mend();
    agent.sees("what is there now, and nothing else", CHAT, &B);
    // The watch works again.
    pods.delete("decode-b");
    agent.sees("a later event", CHAT, &[B[0], "b 0"]);
}

#[test]
fn a_frozen_connection_is_given_up() {
    let Some((mut api, pods)) = Api::deployed() else { return };
    let (mut agent, relay) = start(&mut api, &pods);
    let before = relay.accepted();
    relay.freeze();
    pods.delete("prefill-a");
    pods.delete("decode-a");
    make(&pods, "b", 1);
    agent.sees("what is there now, over a new connection", CHAT, &B);
    assert!(relay.accepted() > before, "no new connection");
}

#[test]
fn history_that_is_gone_means_a_new_list() {
    let Some((mut api, pods)) = Api::deployed() else { return };
    let (mut agent, relay) = start(&mut api, &pods);
    let old = version(&api.kubectl());
    relay.cut();
    pods.delete("prefill-a");
    pods.delete("decode-a");
    make(&pods, "b", 1);
    serves_on(&mut agent);
    api.plane().compact();
    // It has no memory of its own of what etcd has forgotten.
    api.plane().stop_server();
    api.plane().start_server();
    let watch = format!("/api/v1/namespaces/llm/pods?watch=1&timeoutSeconds=5&resourceVersion={old}");
    let told = api.kubectl().attempt(&["get", "--raw", &watch]);
    assert!(told.as_ref().is_ok_and(|told| told.contains("\"code\":410")), "{old}: {told:?}");
    relay.mend();
    agent.sees("what is there now, and nothing else", CHAT, &B);
    pods.delete("decode-b");
    agent.sees("a later event", CHAT, &[B[0], "b 0"]);
}

#[test]
fn an_agent_outlives_its_api_server() {
    let Some((mut api, pods)) = Api::deployed() else { return };
    let (mut agent, _relay) = start(&mut api, &pods);
    api.plane().stop_server();
    serves_on(&mut agent);
    api.plane().start_server();
    make(&pods, "b", 1);
    let both = [A[0], A[1], B[0], B[1], "a 1/2", "b 1/2"];
    agent.sees("the server is back", CHAT, &both);
    // And once more without a farewell.
    api.plane().kill_server();
    api.plane().start_server();
    pods.delete("prefill-a");
    pods.delete("decode-a");
    agent.sees("the server is back", CHAT, &B);
}

#[test]
fn an_agent_waits_for_its_first_list() {
    let Some((mut api, pods)) = Api::deployed() else { return };
    make(&pods, "a", 0);
    let relay = Relay::start(api.plane().address());
    relay.cut();
    let mut agent = api.agent(AGENT, relay.address());
    let answer = eventually("the agent answers", || agent.ask("/readyz"), Result::is_ok).unwrap();
    assert_eq!(answer.0, 503, "{}", answer.1);
    let _ = eventually(
        "it cannot reach the server, and says so",
        || agent.report(),
        |seen| seen.as_ref().is_ok_and(|seen| seen.source.errors > 0 && seen.source.last_error.is_some()),
    );
    assert_eq!(agent.ask("/readyz").unwrap().0, 503, "not ready before the first list");
    relay.mend();
    agent.is_ready();
    agent.sees("the first list", CHAT, &A);
}
