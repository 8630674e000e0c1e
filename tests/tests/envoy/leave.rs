//! Clients and engines that leave before an answer is whole: nothing stays in flight (H4, H9, H10).

use http_body_util::BodyExt;
use revgate_engine::Fault;
use revgate_tests::envoy::Bodies;
use tokio::{io::AsyncWriteExt, net::TcpStream, task::JoinSet};

use crate::{
    client::{CHAT, Client, chat_of, request, soon, until},
    scene::{Scene, Setup},
};

/// The next chat meets this fault.
fn fail_next(scene: &Scene, fault: Fault) {
    for engine in scene.decodes() {
        engine.clear_faults();
        engine.fail_next(1, fault);
    }
}

fn cancelled(scene: &Scene) -> u64 {
    scene.decodes().map(|engine| engine.counters().cancelled).sum()
}

/// The client is gone: agent and engines notice.
async fn is_over(scene: &Scene, left: u64) {
    until(|| scene.in_flight() == Some((0, 0))).await;
    until(|| cancelled(scene) == left).await;
}

#[tokio::test]
async fn h9_a_client_that_leaves_leaves_nothing_in_flight() {
    for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
        let Some(scene) = Scene::set(&Setup { bodies, ..Setup::default() }).await else { return };

        // In the middle of a stream.
        fail_next(&scene, Fault::StallMidBody);
        let mut client = scene.client().await;
        let mut answer = client.start(request("POST", CHAT, &[], chat_of(300, true))).await;
        assert_eq!(answer.status(), 200);
        soon(answer.frame()).await.unwrap().unwrap();
        if bodies == Bodies::FullDuplex {
            // By headers alone a call ends with those of the response.
            until(|| scene.in_flight() == Some((1, 1))).await;
        }
        drop((client, answer));
        is_over(&scene, 1).await;

        // Before its head: a prefill is in flight as well.
        fail_next(&scene, Fault::Stall);
        let (address, mut waits) = (scene.envoy.address(), JoinSet::new());
        waits.spawn(async move {
            let mut client = Client::connect(address).await;
            client.chat(&[], chat_of(300, false)).await;
        });
        until(|| scene.in_flight() == Some((1, 2))).await;
        waits.shutdown().await;
        is_over(&scene, 2).await;

        // In the middle of its own request.
        let mut client = TcpStream::connect(address).await.unwrap();
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: 100000\r\n\r\n{{\"model\":");
        client.write_all(head.as_bytes()).await.unwrap();
        until(|| scene.in_flight().is_some_and(|(calls, _)| calls == 1)).await;
        drop(client);
        until(|| scene.in_flight() == Some((0, 0))).await;

        for engine in scene.decodes() {
            engine.clear_faults();
        }
        scene.client().await.chat(&[], chat_of(1 << 10, false)).await.served();
        scene.pairs();
    }
}

#[tokio::test]
async fn h10_an_answer_that_its_engine_breaks_off_is_broken_for_the_client() {
    for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
        let Some(scene) = Scene::set(&Setup { bodies, ..Setup::default() }).await else { return };
        for stream in [true, false] {
            fail_next(&scene, Fault::ResetMidBody);
            let mut client = scene.client().await;
            // Broken before its head has come through, it may be a whole error of Envoy's, or nothing.
            if let Ok(answer) = client.try_start(request("POST", CHAT, &[], chat_of(300, stream))).await {
                let status = answer.status();
                let whole = soon(answer.into_body().collect()).await.is_ok();
                assert!(!whole || status.is_server_error(), "{bodies:?} {status}");
            }
            until(|| scene.in_flight() == Some((0, 0))).await;
        }
    }
}
