//! What becomes of a request when a leg fails (H6, H9, H11).

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use revgate::{
    config::{ConnectorKind, HttpConfig, PairConfig, Serves},
    snapshot::{Breaker, owner::Published},
};
use serde_json::json;

use crate::{
    base::{http, nobody, until},
    support::{
        CHAT, Engine, Rig, answer, ask, config, endpoint, nixlv2, of, post, prefilled, revision, snapshot,
        ungated,
    },
};

/// A prefill engine that says these, one after the other, and then the last one for ever.
async fn script(statuses: &'static [u16]) -> Engine {
    let next = Arc::new(AtomicUsize::new(0));
    Engine::new(move |_| {
        let status = statuses[next.fetch_add(1, SeqCst).min(statuses.len() - 1)];
        async move {
            if status == 200 { answer(200, &prefilled(0)) } else { answer(status, &json!({"told": status})) }
        }
    })
    .await
}

const BOTH: [ConnectorKind; 3] = [ConnectorKind::NixlV2, ConnectorKind::SharedStorage, ConnectorKind::Sglang];

#[tokio::test]
async fn h6_a_prefill_that_says_not_now_twice_is_served_the_third_time() {
    for connector in BOTH {
        let (prefill, decode) = (script(&[503, 503, 200]).await, Engine::decodes().await);
        let rig = Rig::between(of(connector), &prefill, &decode);
        let reply = rig.chat(ask()).await;
        assert_eq!((reply.status.as_u16(), revision(&reply)), (200, "a"), "{connector:?}");
        assert_eq!(prefill.calls(), 3);
        assert_eq!(rig.metric(r#"proxy_retries_total{listener="pair"}"#), 2);
    }
}

#[tokio::test]
async fn h6_the_tries_are_bounded_and_the_last_words_are_the_clients() {
    for (statuses, calls) in [(&[502, 503, 504, 503][..], 3), (&[503, 400], 2), (&[500], 1), (&[429], 1)] {
        let (prefill, decode) = (script(statuses).await, Engine::decodes().await);
        let rig = Rig::between(nixlv2(), &prefill, &decode);
        let reply = rig.chat(ask()).await;
        let last = statuses[calls - 1];
        assert_eq!((reply.status.as_u16(), reply.text()), (last, &*format!(r#"{{"told":{last}}}"#)));
        assert_eq!(revision(&reply), "a", "it is an endpoint's response");
        assert_eq!((prefill.calls(), decode.connections()), (calls, 0), "no decode is tried");
    }
    let (prefill, decode) = (script(&[503]).await, Engine::decodes().await);
    let rig = Rig::between(PairConfig { prefill_retries: 0, ..nixlv2() }, &prefill, &decode);
    assert_eq!((rig.chat(ask()).await.status.as_u16(), prefill.calls()), (503, 1));
}

#[tokio::test]
async fn h6_another_prefill_of_the_revision_is_tried_before_the_same_one() {
    let (busy, free) = (script(&[503]).await, script(&[200]).await);
    let (decode, foreign) = (Engine::decodes().await, script(&[200]).await);
    let endpoints = [
        endpoint("a", 0, busy.address()),
        endpoint("a", 0, free.address()),
        endpoint("a", 1, decode.address()),
        endpoint("b", 0, foreign.address()),
    ];
    let rig = Rig::with(HttpConfig { breaker_failures: 0, ..http() }, nixlv2(), &endpoints);
    for _ in 0..20 {
        assert_eq!(rig.chat(ask()).await.status, 200);
    }
    assert_eq!((free.calls(), foreign.connections()), (20, 0));
    assert!(busy.calls() < 20);
}

#[tokio::test]
async fn g4_where_nothing_gates_both_legs_go_to_a_revision_that_has_both_endpoints() {
    let (lone, prefill, decode) = (script(&[200]).await, script(&[200]).await, Engine::decodes().await);
    let mut endpoints = vec![endpoint("b", 0, prefill.address()), endpoint("b", 1, decode.address())];
    // Where they are is of no account: they get nothing.
    endpoints.extend([1, 2, 3].map(|last| endpoint("a", 0, SocketAddr::from(([127, 9, 9, last], 9)))));
    endpoints.push(endpoint("c", 0, lone.address()));
    let rig = Rig::over(&config(http(), &[Serves::Pair(nixlv2())]), ungated(&endpoints));
    for _ in 0..20 {
        let reply = rig.chat(ask()).await;
        assert_eq!((reply.status.as_u16(), revision(&reply)), (200, "b"));
    }
    assert_eq!((prefill.calls(), decode.calls(), lone.connections()), (20, 20, 0));
    // A revision that has both, but whose decode rests.
    let resting = endpoint("a", 1, SocketAddr::from(([127, 9, 9, 4], 9)));
    assert!(resting.vitals.failed(0, Breaker { failures: 1, open: Duration::from_hours(24) }));
    endpoints.push(resting);
    rig.published.store(Arc::new(ungated(&endpoints)));
    for _ in 0..20 {
        assert_eq!(rig.chat(ask()).await.status, 200);
    }
    assert_eq!((prefill.calls(), decode.calls()), (40, 40));
    let halves = [endpoint("a", 0, prefill.address()), endpoint("b", 1, decode.address())];
    rig.published.store(Arc::new(ungated(&halves)));
    rig.chat(ask()).await.is_refusal(503, "no-endpoint");
}

#[tokio::test]
async fn h9_a_400_of_the_prefill_is_the_clients_after_one_call() {
    for connector in BOTH {
        let prefill = Engine::says(400, json!({"error": {"message": "too long"}})).await;
        let decode = Engine::sleeps().await;
        let rig = Rig::between(of(connector), &prefill, &decode);
        let reply = rig.chat(ask()).await;
        assert_eq!((reply.status.as_u16(), reply.text()), (400, r#"{"error":{"message":"too long"}}"#));
        assert_eq!(prefill.calls(), 1);
        until(|| decode.in_flight() == 0).await;
    }
}

#[tokio::test]
async fn h9_a_failed_prefill_is_told_at_once_though_the_decode_would_sleep() {
    for connector in BOTH {
        let (prefill, decode) = (Engine::says(500, json!({})).await, Engine::sleeps().await);
        let rig = Rig::between(of(connector), &prefill, &decode);
        // The decode would take a minute; the patience of a test is less.
        assert_eq!(rig.chat(ask()).await.status, 500, "{connector:?}");
        until(|| decode.in_flight() == 0).await;
        // Of two legs at once the second may be cancelled before it arrives.
        assert!(decode.calls() <= usize::from(connector == ConnectorKind::Sglang));
    }
}

#[tokio::test]
async fn h9_a_decode_that_is_refused_cancels_the_prefill() {
    let prefill = Engine::sleeps().await;
    let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, nobody())];
    let rig = Rig::new(of(ConnectorKind::Sglang), &endpoints);
    rig.chat(ask()).await.is_refusal(503, "no-endpoint-left");
    until(|| prefill.in_flight() == 0).await;

    let prefill = Engine::prefills(0).await;
    let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, nobody())];
    let rig = Rig::new(nixlv2(), &endpoints);
    rig.chat(ask()).await.is_refusal(503, "no-endpoint-left");
    assert_eq!(prefill.calls(), 1);
}

#[tokio::test]
async fn h9_a_decode_that_fails_first_cancels_the_prefill() {
    let (prefill, decode) = (Engine::sleeps().await, Engine::says(422, json!({"no": 1})).await);
    let rig = Rig::between(of(ConnectorKind::Sglang), &prefill, &decode);
    let reply = rig.chat(ask()).await;
    assert_eq!((reply.status.as_u16(), reply.text()), (422, r#"{"no":1}"#));
    until(|| prefill.in_flight() == 0).await;
}

#[tokio::test]
async fn h6_a_refused_leg_goes_to_another_endpoint_of_the_revision_with_the_whole_body() {
    for connector in BOTH {
        let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
        let endpoints = [
            endpoint("a", 0, nobody()),
            endpoint("a", 0, prefill.address()),
            endpoint("a", 1, nobody()),
            endpoint("a", 1, decode.address()),
        ];
        let rig = Rig::with(HttpConfig { breaker_failures: 0, ..http() }, of(connector), &endpoints);
        let body = json!({"model": "m", "prompt": "x".repeat(300_000)});
        for _ in 0..10 {
            assert_eq!(rig.chat(&body).await.status, 200);
        }
        for leg in [&prefill, &decode] {
            assert!(leg.seen().iter().all(|seen| seen.json()["prompt"] == body["prompt"]));
        }
    }
}

#[tokio::test]
async fn h9_without_the_option_no_decode_goes_without_its_prefill_and_with_it_only_where_that_helps() {
    let decode = Engine::decodes().await;
    let fallback = PairConfig { decode_only_fallback: true, prefill_retries: 0, ..nixlv2() };
    let body = json!({"model": "m", "kv_transfer_params": {"remote_host": "evil"}});

    let dead = [endpoint("a", 0, nobody()), endpoint("a", 1, decode.address())];
    Rig::new(nixlv2(), &dead).chat(&body).await.is_refusal(503, "no-endpoint-left");
    assert_eq!(decode.connections(), 0);
    let rig = Rig::new(fallback.clone(), &dead);
    assert_eq!(rig.chat(&body).await.status, 200);
    assert_eq!(decode.seen()[0].json(), json!({"model": "m"}));
    assert_eq!(rig.metric(r#"proxy_decode_only_total{listener="pair"}"#), 1);

    let (busy, strict) = (Engine::says(503, json!({})).await, Engine::says(400, json!({})).await);
    let rig = Rig::between(fallback.clone(), &busy, &decode);
    assert_eq!(rig.chat(&body).await.status, 200);
    let rig = Rig::between(fallback, &strict, &decode);
    assert_eq!(rig.chat(&body).await.status, 400, "the decode would say the same");
    assert_eq!(decode.calls(), 2);
}

#[tokio::test]
async fn h6_endpoints_that_went_between_choice_and_connect_are_not_dialled() {
    let decode = Engine::decodes().await;
    let published: Arc<OnceLock<Published>> = Arc::default();
    let (late, other) = (Arc::clone(&published), nobody());
    let prefill = Engine::new(move |_| {
        // The revision's decode Pods go while its prefill runs.
        let left = [endpoint("a", 0, other), endpoint("b", 0, other), endpoint("b", 1, other)];
        late.get().unwrap().store(Arc::new(snapshot(&left, &[])));
        async { answer(200, &prefilled(0)) }
    })
    .await;
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    published.set(Arc::clone(&rig.published)).unwrap_or_else(|_| panic!("once"));
    rig.chat(ask()).await.is_refusal(503, "no-endpoint");
    assert_eq!(decode.connections(), 0);
}

#[tokio::test]
async fn h11_a_revision_without_one_of_its_roles_gets_nothing() {
    let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
    let rig = Rig::new(nixlv2(), &[endpoint("a", 0, prefill.address()), endpoint("b", 1, decode.address())]);
    rig.chat(ask()).await.is_refusal(503, "no-eligible-revision");
    rig.send(post("/v1/models", &[], "")).await.is_refusal(503, "no-eligible-revision");
    assert_eq!(prefill.connections() + decode.connections(), 0);
}

#[tokio::test]
async fn h11_a_prefill_that_does_not_answer_in_time_is_a_504() {
    let (prefill, decode) = (Engine::sleeps().await, Engine::decodes().await);
    let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, decode.address())];
    let http = HttpConfig { response_timeout: Duration::from_millis(100), ..http() };
    let rig = Rig::with(http, nixlv2(), &endpoints);
    rig.chat(ask()).await.is_refusal(504, "response-timeout");
    assert_eq!(decode.connections(), 0);
    until(|| prefill.in_flight() == 0).await;
}

#[tokio::test]
async fn h10_a_prefills_reply_is_bounded() {
    let (prefill, decode) =
        (Engine::says(200, json!({"x": "y".repeat(5000)})).await, Engine::decodes().await);
    for connector in BOTH {
        let pair = PairConfig { max_prefill_reply: 4096, ..of(connector) };
        let rig = Rig::between(pair, &prefill, &decode);
        let mut client = rig.client().await;
        if connector == ConnectorKind::Sglang {
            // The decode's head may be on its way already; then its stream breaks.
            let begun = client.start(post(CHAT, &[], ask().to_string())).await.unwrap();
            assert!(begun.status() == 502 || begun.status() == 200);
        } else {
            client.send(post(CHAT, &[], ask().to_string())).await.is_refusal(502, "reply-too-large");
        }
    }
}
