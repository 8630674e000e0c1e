//! `revgate run` as a process, in user space: from files to answers, through reloads, to its end.
#![cfg(test)]

mod memory;
mod pods;
mod support;

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use revgate_engine::Engine;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use support::{Agent, chat, engine, get, summary};
use tokio::task::JoinSet;

/// What a client got.
type Reply = Result<Response<Bytes>, String>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_a_rollout_from_files_and_reports_it() {
    let engines = [
        engine("a", "prefill").await,
        engine("a", "decode").await,
        engine("b", "decode").await,
        engine("b", "prefill").await,
    ];
    let mut agent = Agent::prepare();
    agent.start();

    // No list yet: alive, not ready, and everything is refused.
    let alive = async || get(agent.admin, "/livez").await.map(|r| r.status().as_u16());
    agent.until("alive", alive, |seen| *seen == Ok(200)).await;
    assert_eq!(get(agent.admin, "/readyz").await.unwrap().status(), 503);
    assert_eq!(summary(&chat(agent.decode, None).await.unwrap()), (503, "", "not-synced"));

    // b has no prefill yet: all traffic is a's, and asking for b is refused.
    agent.pods(&engines[..3]);
    agent.ready().await;
    agent.shares("a 1 b 0").await;
    for _ in 0..20 {
        assert_eq!(summary(&chat(agent.decode, None).await.unwrap()), (200, "a", ""));
    }
    assert_eq!(summary(&chat(agent.decode, Some("b")).await.unwrap()), (503, "", "revision-not-eligible"));

    // b is whole.
    agent.pods(&engines);
    agent.shares("a 1/2 b 1/2").await;
    assert_eq!(summary(&chat(agent.decode, Some("b")).await.unwrap()), (200, "b", ""));
    let metrics = get(agent.admin, "/metrics").await.unwrap();
    let text = String::from_utf8_lossy(metrics.body()).into_owned();
    assert!(text.contains(r#"revgate_revision_share{set="chat",revision="b"} 0.5"#), "{text}");
    assert!(text.contains("revgate_kernel_active 0"), "{text}");

    // a goes: its series go with it.
    agent.pods(&engines[2..]);
    agent.shares("b 1").await;
    assert_eq!(summary(&chat(agent.decode, Some("a")).await.unwrap()), (503, "", "revision-not-eligible"));
    let metrics = get(agent.admin, "/metrics").await.unwrap();
    assert!(!String::from_utf8_lossy(metrics.body()).contains(r#"revision="a""#));
    for line in ["revision b appeared", "revision b is eligible", "revision a is gone"] {
        assert!(agent.log().contains(line), "no line {line:?} in\n{}", agent.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_files_change_nothing_and_are_reported() {
    let engines = [engine("a", "prefill").await, engine("a", "decode").await];
    let mut agent = Agent::prepare();
    agent.pods(&engines);
    agent.start();
    agent.ready().await;

    agent.replace("pods.yaml", "- {name: broken, nmae: x}");
    let errors = async || agent.report().await["source"]["errors"].as_u64();
    agent.until("the bad Pod file", errors, |seen| *seen == Some(1)).await;
    agent.configure("max-rolle");
    let failed = async || agent.report().await["config"]["reloadsFailed"].as_u64();
    agent.until("the bad configuration", failed, |seen| *seen == Some(1)).await;
    assert!(agent.log().contains("max-role"), "the error names what is allowed: {}", agent.log());
    assert_eq!(summary(&chat(agent.decode, None).await.unwrap()), (200, "a", ""));

    // A good change comes into force without a restart.
    agent.configure("sum");
    let mode = async || agent.report().await["sets"][0]["mode"].as_str().map(str::to_owned);
    agent.until("the new mode", mode, |seen| seen.as_deref() == Some("sum")).await;
    assert_eq!(agent.report().await["config"]["reloadsSucceeded"], 1);
}

/// An agent that has a request in flight, whose answer takes that long to begin, and is told to end.
async fn told_to_end(answer_after: Duration) -> (Agent, JoinSet<Reply>, [Engine; 2]) {
    let engines = [engine("a", "prefill").await, engine("a", "decode").await];
    engines[1].update(|behaviour| behaviour.first_byte_delay = answer_after);
    let mut agent = Agent::prepare();
    agent.pods(&engines);
    agent.start();
    agent.ready().await;
    let decode = agent.decode;
    let mut requests = JoinSet::new();
    requests.spawn(async move { chat(decode, None).await });
    engines[1].wait_until(|counters| counters.requests > 0).await;
    agent.signal(Signal::TERM);
    (agent, requests, engines)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_finishes_what_is_in_flight_and_exits_0() {
    let (mut agent, mut requests, _engines) = told_to_end(Duration::from_secs(2)).await;
    let refused = async || tokio::net::TcpStream::connect(agent.decode).await.is_err();
    agent.until("closed for new connections", refused, |seen| *seen).await;
    let answer = requests.join_next().await.expect("one was sent").expect("no panic").expect("an answer");
    assert_eq!(summary(&answer), (200, "a", ""));
    assert_eq!(agent.exit_code().await, Some(0), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_at_once() {
    let (mut agent, mut requests, _engines) = told_to_end(Duration::from_mins(10)).await;
    let draining = async || get(agent.admin, "/readyz").await.map(|r| r.status().as_u16());
    agent.until("draining", draining, |seen| *seen == Ok(503)).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.exit_code().await, Some(0), "{}", agent.log());
    assert!(
        requests.join_next().await.expect("one was sent").expect("no panic").is_err(),
        "its connection was cut"
    );
}

#[tokio::test]
async fn a_bad_file_never_starts_the_agent() {
    let mut agent = Agent::prepare();
    agent.configure("max-rolle");
    agent.start();
    assert_eq!(agent.exit_code().await, Some(64));
    let log = agent.log();
    for part in ["revgate.yaml:", "plugins[0].parameters.revisionGating.mode", "max-role"] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
}

#[tokio::test]
async fn a_port_in_use_is_said_and_ends_the_start() {
    let mut agent = Agent::prepare();
    let _taken = tokio::net::TcpListener::bind(agent.decode).await.expect("free until now");
    agent.start();
    assert_eq!(agent.exit_code().await, Some(1));
    assert!(agent.log().contains(&agent.decode.to_string()), "{}", agent.log());
}

#[tokio::test]
async fn the_agent_takes_all_the_open_files_that_it_may() {
    // What this process has as its soft limit is what the agent starts with.
    let limit = getrlimit(Resource::Nofile);
    let less = limit.maximum.and_then(|most| most.checked_sub(1));
    setrlimit(Resource::Nofile, Rlimit { current: less, ..limit }).expect("below the hard limit");
    let mut agent = Agent::prepare();
    agent.pods([]);
    agent.start();
    agent.ready().await;
    let (soft, hard) = agent.file_limits();
    assert_eq!(soft, hard);
}
