//! Streams of a pair: as they come, and broken where they broke (H9, H10).

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Channel};
use revgate::config::ConnectorKind;
use serde_json::json;
use tokio::sync::{Mutex, mpsc};

use crate::{
    base::{soon, until},
    support::{CHAT, Engine, Rig, ask, chunks, events, nixlv2, of, post},
};

/// An engine that streams what the test sends.
async fn streaming() -> (Engine, mpsc::Sender<Result<Bytes, ()>>) {
    let (feed, chunks) = mpsc::channel::<Result<Bytes, ()>>(16);
    let chunks = Arc::new(Mutex::new(chunks));
    let engine = Engine::new(move |_| {
        let chunks = Arc::clone(&chunks);
        async move {
            let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
            #[expect(clippy::disallowed_methods, reason = "ends with the response")]
            tokio::spawn(async move {
                let mut chunks = chunks.lock().await;
                while let Some(Ok(chunk)) = chunks.recv().await {
                    if sender.send_data(chunk).await.is_err() {
                        return;
                    }
                }
                sender.abort(std::io::ErrorKind::ConnectionReset.into());
            });
            events(body.boxed_unsync())
        }
    })
    .await;
    (engine, feed)
}

fn stream() -> http::Request<http_body_util::Full<Bytes>> {
    post(CHAT, &[], json!({"model": "m", "stream": true}).to_string())
}

#[tokio::test]
async fn h10_each_chunk_of_a_decode_reaches_the_client_before_the_next_is_made() {
    for connector in [ConnectorKind::NixlV2, ConnectorKind::SharedStorage, ConnectorKind::Sglang] {
        let prefill = Engine::prefills(1).await;
        let (decode, feed) = streaming().await;
        let rig = Rig::between(of(connector), &prefill, &decode);
        let mut client = rig.client().await;
        let mut body = client.start(stream()).await.unwrap().into_body();
        for n in 0..5 {
            let chunk = Bytes::from(format!("data: {{\"n\":{n}}}\n\n"));
            feed.send(Ok(chunk.clone())).await.unwrap();
            assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), chunk);
        }
    }
}

#[tokio::test]
async fn h10_two_events_and_a_reset_are_two_events_and_a_reset() {
    for connector in [ConnectorKind::NixlV2, ConnectorKind::SharedStorage, ConnectorKind::Sglang] {
        let prefill = Engine::prefills(1).await;
        let (decode, feed) = streaming().await;
        let rig = Rig::between(of(connector), &prefill, &decode);
        let mut client = rig.client().await;
        let mut body = client.start(stream()).await.unwrap().into_body();
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            feed.send(Ok(Bytes::from_static(event.as_bytes()))).await.unwrap();
            assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), event);
        }
        feed.send(Err(())).await.unwrap();
        assert!(soon(body.frame()).await.unwrap().is_err(), "no clean end");
        assert_eq!((prefill.calls(), decode.calls()), (1, 1), "nothing is tried again");
        assert_eq!(rig.metric(r#"proxy_responses_broken_total{listener="pair"}"#), 1);
        until(|| rig.proxy.in_flight() == 0).await;
    }
}

#[tokio::test]
async fn h9_a_prefill_that_breaks_in_its_reply_breaks_the_decodes_stream() {
    let (prefill, breaks) = streaming().await;
    let (decode, feed) = streaming().await;
    let rig = Rig::between(of(ConnectorKind::Sglang), &prefill, &decode);
    let mut client = rig.client().await;
    let mut body = client.start(stream()).await.unwrap().into_body();
    feed.send(Ok(Bytes::from_static(b"data: 1\n\n"))).await.unwrap();
    assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "data: 1\n\n");
    breaks.send(Err(())).await.unwrap();
    assert!(soon(body.frame()).await.unwrap().is_err(), "no clean end");
    until(|| rig.proxy.in_flight() == 0).await;
}

#[tokio::test]
async fn h9_a_prefill_that_breaks_before_the_decode_is_told_as_such() {
    let prefill = Engine::new(|_| async {
        events(chunks(vec![Ok(Bytes::from_static(b"{")), Err(std::io::ErrorKind::ConnectionReset.into())]))
    })
    .await;
    let decode = Engine::decodes().await;
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    rig.chat(ask()).await.is_refusal(502, "endpoint-reset");
    assert_eq!((prefill.calls(), decode.connections()), (1, 0), "not after the first byte");
}

#[tokio::test]
async fn h8_a_prefills_reply_that_outlasts_the_decode_is_read_to_its_end() {
    let (prefill, feed) = streaming().await;
    let decode = Engine::decodes().await;
    let rig = Rig::between(of(ConnectorKind::Sglang), &prefill, &decode);
    assert_eq!(rig.chat(ask()).await.status, 200);
    feed.send(Ok(Bytes::from_static(b"data: late\n\n"))).await.unwrap();
    drop(feed);
    until(|| prefill.in_flight() == 0 && rig.proxy.in_flight() == 0).await;
}
