//! Requests of every size, and streams (E2, E4, E5, G6).

use bytes::Bytes;
use revgate_tests::envoy::Bodies;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    client::{CHAT, DESTINATION, PREFILLER, REVISION, chat_of, request, revision_of, soon},
    scene::{Scene, Setup},
};

/// 0 B, 1 KiB, 6.3 KiB, a byte more than a piece, and as many as take many pieces.
const LENGTHS: [usize; 4] = [1 << 10, 6451, 62_001, 5 << 20];

async fn every_size_and_way(bodies: Bodies, lengths: &[usize]) {
    let setup = Setup { bodies, picker: "trust: always", ..Setup::default() };
    let Some(scene) = Scene::set(&setup).await else { return };
    let mut client = scene.client().await;
    for length in lengths.iter().copied() {
        let body = chat_of(length, false);
        let wishes = [(PREFILLER, "127.0.0.1:1"), (DESTINATION, "127.0.0.1:1"), ("x-llm-d-epp-profile", "x")];
        let reply = client.chat(&wishes, body.clone()).await;
        let revision = reply.served();
        let seen = scene.server(&reply).recorded();
        let seen = seen.last().unwrap();
        assert_eq!((seen.body.len(), seen.body == body), (length, true));
        let prefill = seen.headers[PREFILLER].to_str().unwrap().parse().unwrap();
        assert_eq!(revision_of(prefill), revision, "both of one revision, not the client's");
        for name in [PREFILLER, DESTINATION] {
            assert_eq!(seen.headers.get_all(name).iter().count(), 1);
        }
        assert!(!seen.headers.contains_key("x-llm-d-epp-profile"));
    }
    // Nothing at all goes on where nobody looks at it. The engine knows no such path.
    let reply = client.send(request("POST", "/tokenize", &[], Bytes::new())).await;
    assert_eq!((reply.status.as_u16(), reply.header(REVISION)), (404, revision_of(reply.server())));
    assert!(scene.server(&reply).recorded().last().unwrap().body.is_empty());
    client.chat(&[], "").await.is_refusal(400, "bad-json");

    let mut client = scene.client().await;
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
    for engine in scene.decodes() {
        engine.update(|behaviour| behaviour.min_body = 300_000);
    }
    let long = client.chat(&[], chat_of(300, false)).await;
    long.served();
    assert_eq!(long.body.len(), 300_000);

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
    scene.client().await.get(&[(REVISION, "a")]).await.is_refusal(503, "revision-not-eligible");
    assert_eq!(scene.served(), served, "nobody was asked");
}

#[tokio::test]
async fn e7_chats_of_every_size_and_gets_with_bodies_that_are_read() {
    every_size_and_way(Bodies::FullDuplex, &LENGTHS).await;
}

#[tokio::test]
async fn e7_chats_of_every_size_and_gets_by_headers_alone() {
    every_size_and_way(Bodies::HeadersOnly, &LENGTHS).await;
}

#[tokio::test]
async fn e7_chats_of_every_size_and_gets_with_bodies_that_wait_for_each_answer() {
    every_size_and_way(Bodies::Streamed, &LENGTHS).await;
}

/// What is longer than Envoy's buffer, 1 MiB, goes nowhere.
#[tokio::test]
async fn e7_chats_and_gets_with_bodies_that_envoy_holds_back() {
    let (most, too_long) = LENGTHS.split_at(3);
    every_size_and_way(Bodies::Buffered, most).await;
    let Some(scene) = Scene::set(&Setup { bodies: Bodies::Buffered, ..Setup::default() }).await else {
        return;
    };
    assert_eq!(scene.client().await.chat(&[], chat_of(too_long[0], false)).await.status, 413);
    assert_eq!(scene.served(), 0);
}

#[tokio::test]
async fn e7_a_body_that_two_legs_cannot_work_on_reaches_no_engine() {
    let Some(scene) = Scene::set(&Setup::default()).await else { return };
    for (body, reason) in [("", "bad-json"), ("{", "bad-json"), (r#"{"messages": []}"#, "no-model")] {
        // Envoy closes a connection whose request it has not passed on whole.
        scene.client().await.chat(&[], body).await.is_refusal(400, reason);
    }
    // An end that comes by itself.
    let mut client = TcpStream::connect(scene.envoy.address()).await.unwrap();
    let chunked = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n");
    client.write_all(chunked.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    soon(client.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, *b"HTTP/1.1 400");
    assert_eq!(scene.served(), 0);
}

#[tokio::test]
async fn e7_an_endpoint_with_an_ipv6_address_gets_its_requests() {
    for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
        let Some(mut scene) = Scene::set(&Setup { bodies, ..Setup::default() }).await else { return };
        let address = scene.only_ipv6().await;
        let first = scene.answered().await;
        assert_eq!((first.served(), first.server()), ("a", address));
        for length in [300, 62_001] {
            let reply = scene.client().await.chat(&[], chat_of(length, false)).await;
            assert_eq!((reply.served(), reply.server()), ("a", address));
        }
        let seen = scene.engines[&address].recorded();
        assert!(seen.iter().all(|seen| seen.headers[DESTINATION] == address.to_string()));
        assert_eq!(scene.pairs(), 3);
    }
}
