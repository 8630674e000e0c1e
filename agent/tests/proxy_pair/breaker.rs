//! Which endpoints of a pair rest, and that they come back (H7).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::SeqCst},
    },
    time::Duration,
};

use revgate::{
    config::{ConnectorKind, HttpConfig, PairConfig},
    snapshot::{Breaker, vitals::Admission},
};
use serde_json::json;

use crate::{
    base::{PATIENCE, http},
    support::{Engine, Rig, answer, ask, endpoint, nixlv2, of, prefilled},
};

/// A prefill engine whose status the test sets.
async fn switched() -> (Engine, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let now = Arc::clone(&status);
    let engine = Engine::new(move |_| {
        let status = now.load(SeqCst);
        async move { answer(status, &if status == 200 { prefilled(0) } else { json!({}) }) }
    })
    .await;
    (engine, status)
}

#[tokio::test]
async fn h7_twenty_times_400_open_no_breaker() {
    for connector in [ConnectorKind::NixlV2, ConnectorKind::Sglang] {
        let (prefill, status) = switched().await;
        let decode = Engine::decodes().await;
        let rig = Rig::between(of(connector), &prefill, &decode);
        status.store(400, SeqCst);
        for _ in 0..20 {
            assert_eq!(rig.chat(ask()).await.status, 400);
        }
        status.store(200, SeqCst);
        assert_eq!(rig.chat(ask()).await.status, 200);
        assert_eq!(rig.metric(r#"proxy_breaker_opens_total{listener="pair"}"#), 0);
    }
}

#[tokio::test]
async fn h7_a_prefill_that_failed_again_and_again_rests_and_comes_back() {
    let (prefill, status) = switched().await;
    let decode = Engine::decodes().await;
    let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, decode.address())];
    let http = HttpConfig { breaker_failures: 3, breaker_open: Duration::from_millis(300), ..http() };
    let rig = Rig::with(http, PairConfig { prefill_retries: 0, ..nixlv2() }, &endpoints);
    status.store(500, SeqCst);
    for _ in 0..3 {
        assert_eq!(rig.chat(ask()).await.status, 500);
    }
    rig.chat(ask()).await.is_refusal(503, "breakers-open");
    assert_eq!((prefill.calls(), decode.connections()), (3, 0));
    status.store(200, SeqCst);
    let mut reply = rig.chat(ask()).await;
    while reply.status != 200 {
        reply.is_refusal(503, "breakers-open");
        tokio::time::sleep(Duration::from_millis(20)).await;
        reply = rig.chat(ask()).await;
    }
    assert_eq!(prefill.calls(), 4, "one probe closed it");
    assert_eq!(rig.metric(r#"proxy_breaker_opens_total{listener="pair"}"#), 1);
}

#[tokio::test]
async fn h7_not_now_and_a_broken_reply_count_as_failures_of_the_prefill_alone() {
    let (prefill, status) = switched().await;
    let decode = Engine::decodes().await;
    let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, decode.address())];
    let http = HttpConfig { breaker_failures: 3, breaker_open: Duration::from_mins(1), ..http() };
    let rig = Rig::with(http, nixlv2(), &endpoints);
    status.store(503, SeqCst);
    // Three tries of one request are three failures.
    assert_eq!(rig.chat(ask()).await.status, 503);
    rig.chat(ask()).await.is_refusal(503, "breakers-open");
    assert_eq!(endpoints.each_ref().map(|endpoint| endpoint.vitals.is_open()), [true, false]);
}

#[tokio::test]
async fn h7_a_request_that_finds_no_decode_gives_the_probe_of_its_prefill_back() {
    let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
    let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, decode.address())];
    let rig = Rig::with(HttpConfig { breaker_open: PATIENCE, ..http() }, nixlv2(), &endpoints);
    let rests = |open| Breaker { failures: 1, open };
    endpoints[0].vitals.failed(0, rests(Duration::from_millis(1)));
    endpoints[1].vitals.failed(0, rests(10 * PATIENCE));
    rig.chat(ask()).await.is_refusal(503, "breakers-open");
    assert_eq!(prefill.connections(), 0);
    // A probe that is claimed is followed by the next one after the test's whole patience.
    let later = u64::try_from(PATIENCE.as_millis()).unwrap();
    assert_eq!(endpoints[0].vitals.admission(later), Admission::ProbeDue);
}
