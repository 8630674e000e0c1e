//! Requests of every size, and streams (E2, E4, E5, G6).

use revgate_tests::envoy::Bodies;

use crate::scene::{PREFILLER, REVISION, Scene, Setup, chat_of, revision_of, soon};

async fn every_size_and_way(setup: &Setup) {
    let Some(scene) = Scene::set(setup).await else { return };
    let mut client = scene.client().await;
    for length in [1 << 10, 6451, 62_001, 5 << 20] {
        let body = chat_of(length, false);
        let reply =
            client.chat(&[(PREFILLER, "127.0.0.1:1"), ("x-llm-d-epp-profile", "x")], body.clone()).await;
        let revision = reply.served();
        let seen = scene.server(&reply).recorded();
        let seen = seen.last().unwrap();
        assert_eq!((seen.body.len(), seen.body == body), (length, true));
        let prefill = seen.headers[PREFILLER].to_str().unwrap().parse().unwrap();
        assert_eq!(revision_of(prefill), revision, "both of one revision, not the client's");
        assert_eq!(seen.headers.get_all(PREFILLER).iter().count(), 1);
        assert!(!seen.headers.contains_key("x-llm-d-epp-profile"));
    }
    for name in ["a", "b"] {
        for _ in 0..5 {
            assert_eq!(client.get(&[(REVISION, name)]).await.served(), name);
            let chat = client.chat(&[(REVISION, name)], chat_of(300, false)).await;
            assert_eq!(chat.served(), name);
        }
    }
    client.get(&[(REVISION, "c")]).await.is_refusal(503, "revision-not-eligible");

    let stream = client.chat(&[], chat_of(300, true)).await;
    stream.served();
    let text = std::str::from_utf8(&stream.body).unwrap();
    assert!(text.matches("data: ").count() > 8 && text.ends_with("data: [DONE]\n\n"), "{text}");

    scene.only(&[]);
    let refused = soon(async {
        loop {
            let reply = client.get(&[]).await;
            if reply.status != 200 {
                break reply;
            }
        }
    });
    let refused = refused.await;
    refused.is_refusal(503, "no-eligible-revision");
    assert_eq!(refused.header("retry-after"), "1");
    let served = scene.served();
    client.chat(&[], chat_of(62_001, false)).await.is_refusal(503, "no-eligible-revision");
    client.get(&[(REVISION, "a")]).await.is_refusal(503, "revision-not-eligible");
    assert_eq!(scene.served(), served, "nobody was asked");
}

#[tokio::test]
async fn e7_chats_of_every_size_and_gets_with_bodies_that_are_read() {
    let setup = Setup { net: 1, bodies: Bodies::FullDuplex, picker: "trust: always", fallback: false };
    every_size_and_way(&setup).await;
}

#[tokio::test]
async fn e7_chats_of_every_size_and_gets_by_headers_alone() {
    let setup = Setup { net: 2, bodies: Bodies::HeadersOnly, picker: "trust: always", fallback: false };
    every_size_and_way(&setup).await;
}

#[tokio::test]
async fn e7_a_body_that_two_legs_cannot_work_on_reaches_no_engine() {
    let setup = Setup { net: 3, bodies: Bodies::FullDuplex, picker: "", fallback: false };
    let Some(scene) = Scene::set(&setup).await else { return };
    for (body, reason) in [("", "bad-json"), ("{", "bad-json"), (r#"{"messages": []}"#, "no-model")] {
        // Envoy closes a connection whose request it has not passed on whole.
        scene.client().await.chat(&[], body).await.is_refusal(400, reason);
    }
    assert_eq!(scene.served(), 0);
}
