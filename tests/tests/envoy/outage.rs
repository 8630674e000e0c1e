//! No picker: no request goes anywhere (Envoy's failure mode is closed), until there is one again.

use std::time::Duration;

use http_body_util::BodyExt;
use revgate_tests::envoy::Bodies;
use rustix::process::Signal;

use crate::{
    client::{CHAT, DESTINATION, chat_of, request, soon},
    load::Load,
    scene::{Scene, Setup},
};

/// Answers that a load waits for.
const ANSWERS: usize = 40;

/// Whatever is asked, the answer is 503 and no engine hears of it.
async fn nothing_passes(scene: &Scene) {
    let served = scene.served();
    for length in [300, 62_001] {
        assert_eq!(scene.client().await.chat(&[], chat_of(length, false)).await.status, 503);
        assert_eq!(scene.client().await.get(&[]).await.status, 503);
    }
    assert_eq!(scene.served(), served, "nothing crossed");
}

#[tokio::test]
async fn e7_an_agent_that_is_gone_lets_nothing_pass_and_one_that_is_back_does() {
    for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
        let Some(mut scene) = Scene::set(&Setup { bodies, ..Setup::default() }).await else { return };
        scene.client().await.chat(&[], chat_of(1 << 10, false)).await.served();
        scene.agent.kill();
        nothing_passes(&scene).await;
        scene.agent.start();
        scene.answered().await.served();
    }
}

#[tokio::test]
async fn e7_an_agent_that_is_frozen_lets_nothing_pass_until_it_goes_on() {
    for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
        let Some(scene) = Scene::set(&Setup { bodies, ..Setup::default() }).await else { return };
        scene.client().await.chat(&[], chat_of(1 << 10, false)).await.served();
        scene.agent.signal(Signal::STOP);
        // By the keepalive of a connection that was there, and of those after it, which the kernel takes in its place.
        nothing_passes(&scene).await;
        scene.agent.signal(Signal::CONT);
        scene.answered().await.served();
        scene.pairs();
    }
}

/// In full duplex the answers pass through the agent.
#[tokio::test]
async fn h10_an_answer_whose_agent_is_killed_is_whole_or_broken() {
    for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
        let Some(mut scene) = Scene::set(&Setup { bodies, ..Setup::default() }).await else { return };
        for engine in scene.decodes() {
            engine.update(|behaviour| behaviour.token_delay = Duration::from_millis(100));
        }
        let mut client = scene.client().await;
        let mut answer = client.start(request("POST", CHAT, &[], chat_of(300, true))).await;
        soon(answer.frame()).await.unwrap().unwrap();
        scene.agent.kill();
        let rest = soon(answer.into_body().collect()).await;
        let whole = |rest: http_body_util::Collected<_>| rest.to_bytes().ends_with(b"data: [DONE]\n\n");
        assert!(rest.map_or(bodies == Bodies::FullDuplex, whole), "{bodies:?}");
    }
}

#[tokio::test]
async fn e7_an_agent_that_ends_under_load_finishes_what_it_has_and_nothing_but_503_fails() {
    for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
        let Some(mut scene) = Scene::set(&Setup { bodies, ..Setup::default() }).await else { return };
        let mut load = Load::through_outages(&scene);
        for _ in 0..2 {
            load.goes_on(ANSWERS).await;
            scene.agent.signal(Signal::TERM);
            assert!(scene.agent.ended().success());
            load.is_refused().await;
            scene.agent.start();
        }
        load.goes_on(ANSWERS).await;
        load.end().await;
        assert!(scene.pairs() >= 3 * ANSWERS);
    }
}

#[tokio::test]
async fn g7_a_client_steers_nothing_even_where_envoy_is_told_to_fail_open() {
    let Some(mut scene) = Scene::set(&Setup { fails_open: true, ..Setup::default() }).await else { return };
    let engine = scene.engines.keys().next().unwrap().to_string();
    let wish = [(DESTINATION, &*engine)];
    scene.client().await.get(&wish).await.served();
    assert_eq!(scene.pairs(), 1, "by the picker, not by the client");
    scene.agent.kill();
    assert_eq!(scene.client().await.get(&wish).await.status, 503);
    assert_eq!(scene.client().await.chat(&wish, chat_of(300, false)).await.status, 503);
    assert_eq!(scene.served(), 1);
}
