//! A client that leaves frees both legs at once (H9).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Channel};
use revgate::config::ConnectorKind;
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::Mutex, sync::mpsc};

use crate::{
    base::{soon, until},
    support::{CHAT, Engine, Rig, ask, events, nixlv2, of},
};

/// A client that sends a chat and does not read.
async fn begin(rig: &Rig) -> TcpStream {
    let body = ask().to_string();
    let mut stream = TcpStream::connect(rig.address(0)).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test]
async fn h9_a_client_that_leaves_during_the_prefill_frees_it_and_no_decode_begins() {
    let (prefill, decode) = (Engine::sleeps().await, Engine::decodes().await);
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    let client = begin(&rig).await;
    until(|| prefill.in_flight() == 1).await;
    drop(client);
    until(|| prefill.in_flight() == 0 && rig.proxy.in_flight() == 0).await;
    assert_eq!(decode.connections(), 0);
}

#[tokio::test]
async fn h9_a_client_that_leaves_after_the_prefills_reply_frees_the_decode() {
    let (prefill, decode) = (Engine::prefills(0).await, Engine::sleeps().await);
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    let client = begin(&rig).await;
    until(|| decode.in_flight() == 1).await;
    drop(client);
    until(|| decode.in_flight() == 0 && rig.proxy.in_flight() == 0).await;
    assert_eq!((prefill.calls(), decode.calls()), (1, 1));
}

#[tokio::test]
async fn h9_a_client_that_leaves_frees_both_legs_of_sglang() {
    let (prefill, decode) = (Engine::sleeps().await, Engine::sleeps().await);
    let rig = Rig::between(of(ConnectorKind::Sglang), &prefill, &decode);
    let client = begin(&rig).await;
    until(|| prefill.in_flight() == 1 && decode.in_flight() == 1).await;
    drop(client);
    until(|| prefill.in_flight() == 0 && decode.in_flight() == 0 && rig.proxy.in_flight() == 0).await;
}

#[tokio::test]
async fn h9_a_client_that_leaves_in_the_middle_of_a_stream_frees_both_legs() {
    // Both have sent a head, and neither an end.
    let (feed, chunks) = mpsc::channel::<Bytes>(16);
    let chunks = Arc::new(Mutex::new(chunks));
    let (open, mut opened) = mpsc::channel(16);
    let streams = move || {
        let (open, chunks) = (open.clone(), Arc::clone(&chunks));
        Engine::new(move |_| {
            let (open, chunks) = (open.clone(), Arc::clone(&chunks));
            async move {
                let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
                #[expect(clippy::disallowed_methods, reason = "ends with the response")]
                tokio::spawn(async move {
                    while let Ok(Some(chunk)) = tokio::time::timeout(Duration::from_millis(5), async {
                        chunks.lock().await.recv().await
                    })
                    .await
                    .or(Ok::<_, ()>(Some(Bytes::from_static(b": ping\n\n"))))
                    {
                        if sender.send_data(chunk).await.is_err() {
                            return open.send(()).await.unwrap_or_default();
                        }
                    }
                });
                events(body.boxed_unsync())
            }
        })
    };
    let (prefill, decode) = (streams().await, streams().await);
    let rig = Rig::between(of(ConnectorKind::Sglang), &prefill, &decode);
    let mut client = rig.client().await;
    let body = json!({"model": "m", "stream": true}).to_string();
    let mut answer = client.start(crate::support::post(CHAT, &[], body)).await.unwrap().into_body();
    assert!(soon(answer.frame()).await.unwrap().is_ok());
    drop((answer, client));
    // Each engine notices that nobody reads.
    soon(opened.recv()).await.unwrap();
    soon(opened.recv()).await.unwrap();
    until(|| rig.proxy.in_flight() == 0).await;
    drop(feed);
}
