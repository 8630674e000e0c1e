//! A picker that is asked by TLS (E1).

use revgate_tests::envoy::Bodies;

use crate::{
    client::chat_of,
    scene::{Scene, Setup},
};

#[tokio::test]
async fn e1_envoy_asks_by_tls() {
    for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
        let setup = Setup { bodies, trusted: Some("localhost.pem"), ..Setup::default() };
        let Some(mut scene) = Scene::set(&setup).await else { return };
        let mut client = scene.client().await;
        for length in [1 << 10, 62_001, 5 << 20] {
            let reply = client.chat(&[], chat_of(length, false)).await;
            reply.served();
            assert_eq!(scene.server(&reply).recorded().last().unwrap().body.len(), length);
            client.get(&[]).await.served();
        }
        let stream = client.chat(&[], chat_of(300, true)).await;
        stream.served();
        assert!(stream.body.ends_with(b"data: [DONE]\n\n"));
        scene.agent.kill();
        assert_eq!(scene.client().await.get(&[]).await.status, 503);
        scene.agent.start();
        scene.answered().await.served();
        scene.pairs();
    }
}

#[tokio::test]
async fn e1_a_picker_with_a_certificate_that_envoy_does_not_trust_is_none() {
    let setup = Setup { trusted: Some("renewed.pem"), ..Setup::default() };
    let Some(scene) = Scene::set(&setup).await else { return };
    assert_eq!(scene.client().await.get(&[]).await.status, 503);
    assert_eq!(scene.client().await.chat(&[], chat_of(300, false)).await.status, 503);
    assert_eq!(scene.served(), 0);
}
