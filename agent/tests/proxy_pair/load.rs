//! Many requests: nothing is left behind, and no request is lost to a closing connection (H6, R2).

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use revgate::config::{ConnectorKind, HttpConfig};
use revgate_engine::{EngineConfig, Fleet};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    base::{Client, http, soon, until},
    support::{CHAT, Engine, PATHS, ROLES, Rig, answer, ask, endpoint, nixlv2, of, post, prefilled},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r2_of_a_thousand_requests_five_hundred_are_aborted_and_nothing_is_left() {
    for connector in [ConnectorKind::NixlV2, ConnectorKind::Sglang] {
        let slow = |body: Value| {
            Engine::new(move |seen| {
                let (body, wait) = (body.clone(), seen.json()["wait"].as_u64().unwrap_or_default());
                async move {
                    tokio::time::sleep(Duration::from_millis(wait)).await;
                    answer(200, &body)
                }
            })
        };
        let (prefill, decode) = (slow(prefilled(0)).await, slow(json!({"id": "d"})).await);
        let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, decode.address())];
        let rig = Rig::with(HttpConfig { workers: 2, ..http() }, of(connector), &endpoints);
        let address = rig.address(0);
        let mut requests = JoinSet::new();
        for number in 0..1000_u64 {
            let abort = number % 2 == 0;
            requests.spawn(async move {
                let mut client = Client::connect(address).await;
                // The aborted ones wait long, and their clients leave at all kinds of moments.
                let wait = if abort { 60_000 } else { number % 7 };
                let body = json!({"model": "m", "wait": wait}).to_string();
                let request = post(PATHS[usize::try_from(number).unwrap() % 5], &[], body);
                if abort {
                    let gone = Duration::from_millis(number % 50);
                    let _ = tokio::time::timeout(gone, client.start(request)).await;
                    return 0;
                }
                u32::from(client.send(request).await.status == 200)
            });
            if number % 50 == 49 {
                tokio::task::yield_now().await;
            }
        }
        let served: u32 = soon(requests.join_all()).await.iter().sum();
        assert_eq!(served, 500, "{connector:?}");
        until(|| rig.proxy.in_flight() == 0).await;
        until(|| prefill.in_flight() == 0 && decode.in_flight() == 0).await;
        assert!(endpoints.iter().all(|endpoint| endpoint.vitals.outstanding.load(SeqCst) == 0));
        assert_eq!(rig.metric(r#"proxy_requests_in_flight{listener="pair"}"#), 0);
        until(|| rig.metric(r#"proxy_connections{listener="pair"}"#) == 0).await;
    }
}

#[tokio::test]
async fn h6_no_request_is_lost_to_engines_that_close_idle_connections() {
    let fleet = Fleet::new().unwrap();
    let mut engines = Vec::new();
    for role in ROLES {
        let mut config = EngineConfig::new(([127, 0, 0, 1], 0).into(), "a", role);
        config.behaviour.idle_close = Some(Duration::from_secs(1));
        engines.push(fleet.start(config).await.unwrap());
    }
    let endpoints: Vec<_> =
        engines.iter().enumerate().map(|(role, engine)| endpoint("a", role, engine.address())).collect();
    let rig = Rig::new(nixlv2(), &endpoints);
    let address = rig.address(0);
    let mut clients = JoinSet::new();
    for number in 0..40_u64 {
        clients.spawn(async move {
            let mut client = Client::connect(address).await;
            let mut served = 0;
            for round in 0..5 {
                // 1.0 to 1.2 s after the one before, in steps that all clients together make fine.
                let wait = if round == 0 { number } else { 1000 + (number * 5 + round * 41) % 200 };
                tokio::time::sleep(Duration::from_millis(wait)).await;
                let reply = client.send(post(CHAT, &[], ask().to_string())).await;
                served += u32::from(reply.status == 200);
            }
            served
        });
    }
    assert_eq!(clients.join_all().await.iter().sum::<u32>(), 200);
    assert_eq!(engines.iter().map(|engine| engine.counters().mixed).sum::<u64>(), 0);
    assert!(engines[1].counters().decode >= 200);
}
