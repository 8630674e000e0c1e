//! Time limits, bounds and the end, where a request has two legs (H11, H12, H14).

use std::{sync::Arc, time::Duration};

use revgate::config::{ConnectorKind, HttpConfig, ShutdownConfig};
use tokio::{net::TcpStream, sync::Notify};

use crate::{
    base::{PATIENCE, http, nobody, soon, until},
    support::{CHAT, Engine, Rig, answer, ask, endpoint, nixlv2, of, post, prefilled},
};

const BOTH: [ConnectorKind; 2] = [ConnectorKind::NixlV2, ConnectorKind::Sglang];

/// A prefill engine that answers when it is let.
async fn held() -> (Engine, Arc<Notify>) {
    let release = Arc::new(Notify::new());
    let wait = Arc::clone(&release);
    let engine = Engine::new(move |_| {
        let wait = Arc::clone(&wait);
        async move {
            wait.notified().await;
            answer(200, &prefilled(0))
        }
    })
    .await;
    (engine, release)
}

#[tokio::test]
async fn h14_draining_lets_both_legs_of_a_pair_finish_and_refuses_new_connections() {
    for connector in BOTH {
        let (prefill, release) = held().await;
        let decode = Engine::decodes().await;
        let rig = Rig::between(of(connector), &prefill, &decode);
        let address = rig.address(0);
        let mut client = rig.client().await;
        let shutdown = ShutdownConfig { delay: Duration::ZERO, deadline: PATIENCE };
        let end = async {
            until(|| prefill.in_flight() == 1).await;
            let drain = rig.proxy.drain(&shutdown);
            let finish = async {
                soon(async {
                    while TcpStream::connect(address).await.is_ok() {
                        tokio::task::yield_now().await;
                    }
                })
                .await;
                release.notify_one();
            };
            tokio::join!(drain, finish).0
        };
        let (reply, drained) = tokio::join!(client.send(post(CHAT, &[], ask().to_string())), end);
        assert_eq!((reply.status.as_u16(), drained), (200, true), "{connector:?}");
        assert_eq!((prefill.calls(), decode.calls()), (1, 1));
    }
}

#[tokio::test]
async fn h14_a_pair_that_outlasts_the_deadline_is_ended_with_both_its_legs() {
    let (prefill, decode) = (Engine::sleeps().await, Engine::sleeps().await);
    let rig = Rig::between(of(ConnectorKind::Sglang), &prefill, &decode);
    let mut client = rig.client().await;
    let shutdown = ShutdownConfig { delay: Duration::ZERO, deadline: Duration::from_millis(50) };
    let end = async {
        until(|| prefill.in_flight() == 1 && decode.in_flight() == 1).await;
        soon(rig.proxy.drain(&shutdown)).await
    };
    let (begun, drained) = tokio::join!(client.start(post(CHAT, &[], ask().to_string())), end);
    assert!(begun.is_err() && !drained);
    until(|| prefill.in_flight() == 0 && decode.in_flight() == 0).await;
}

#[tokio::test]
async fn h14_a_pair_is_one_request_in_flight_and_more_than_allowed_are_refused() {
    for connector in BOTH {
        let (prefill, release) = held().await;
        let decode = Engine::decodes().await;
        let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, decode.address())];
        let rig = Rig::with(HttpConfig { max_requests: 1, ..http() }, of(connector), &endpoints);
        let mut client = rig.client().await;
        let other = async {
            until(|| prefill.in_flight() == 1).await;
            assert_eq!(rig.proxy.in_flight(), 1, "{connector:?}");
            rig.chat(ask()).await.is_refusal(503, "overloaded");
            release.notify_one();
        };
        let (reply, ()) = tokio::join!(client.send(post(CHAT, &[], ask().to_string())), other);
        assert_eq!(reply.status, 200);
        until(|| rig.proxy.in_flight() == 0).await;
        release.notify_one();
        assert_eq!(rig.chat(ask()).await.status, 200);
        assert_eq!(prefill.calls(), 2, "what was refused reached nobody");
    }
}

#[tokio::test]
async fn h11_a_decode_that_does_not_answer_in_time_is_a_504_and_is_not_tried_again() {
    for connector in BOTH {
        let (prefill, decode) = (Engine::prefills(0).await, Engine::sleeps().await);
        let spare = Engine::sleeps().await;
        let endpoints = [
            endpoint("a", 0, prefill.address()),
            endpoint("a", 1, decode.address()),
            endpoint("a", 1, spare.address()),
        ];
        let http = HttpConfig { response_timeout: Duration::from_millis(500), ..http() };
        let rig = Rig::with(http, of(connector), &endpoints);
        rig.chat(ask()).await.is_refusal(504, "response-timeout");
        assert_eq!(prefill.calls(), 1);
        // None, where this machine was so slow that the prefill took too long already.
        assert!(decode.calls() + spare.calls() <= 1, "{connector:?}");
        until(|| decode.in_flight() + spare.in_flight() == 0).await;
    }
}

#[tokio::test]
async fn h11_a_leg_whose_tries_are_used_up_while_others_are_left_is_a_502() {
    let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
    for dead in [0, 1] {
        let mut endpoints: Vec<_> = (0..4).map(|_| endpoint("a", dead, nobody())).collect();
        endpoints.push(endpoint("a", 1 - dead, [&decode, &prefill][dead].address()));
        let rig = Rig::with(HttpConfig { retries: 1, ..http() }, nixlv2(), &endpoints);
        rig.chat(ask()).await.is_refusal(502, "endpoint-unreachable");
        assert_eq!(decode.connections(), 0, "no decode goes without its prefill");
    }
    assert_eq!(prefill.calls(), 1);
}

#[tokio::test]
async fn h12_a_trace_goes_on_over_both_legs() {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for connector in BOTH {
        let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
        let rig = Rig::between(of(connector), &prefill, &decode);
        let headers = [("traceparent", trace), ("tracestate", "vendor=1")];
        assert_eq!(rig.send(post(CHAT, &headers, ask().to_string())).await.status, 200);
        for leg in [&prefill, &decode] {
            let seen = &leg.seen()[0].headers;
            assert_eq!(
                (&seen["traceparent"], &seen["tracestate"]),
                (&trace.parse().unwrap(), &"vendor=1".parse().unwrap())
            );
        }
    }
}
