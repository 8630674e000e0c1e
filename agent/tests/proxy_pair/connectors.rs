//! What each connector's legs send and how the answer comes back (H2, H8).

use std::collections::HashSet;

use bytes::Bytes;
use revgate::config::ConnectorKind;
use serde_json::{Value, json};

use crate::{
    base::soon,
    support::{CHAT, Engine, PATHS, Rig, answer, ask, chunks, events, nixlv2, of, post, revision},
};

#[tokio::test]
async fn h8_nixlv2_runs_a_prefill_and_hands_its_cache_to_the_decode() {
    let (prefill, decode) = (Engine::prefills(7).await, Engine::decodes().await);
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    let body = r#"{ "model":"m", "seed":1e400, "x":"\ud800 é", "messages":[], "stream":false, "n" : 1.50 }"#;
    let reply = rig.send(post(CHAT, &[("x-request-id", "r1"), ("x-request-id", "r2")], body)).await;
    assert_eq!((reply.status.as_u16(), revision(&reply)), (200, "a"));
    let answered: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(answered, json!({"id": "d", "usage": {"prompt_tokens_details": {"cached_tokens": 7}}}));

    let kept = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;
    let [sent] = &prefill.seen()[..] else { panic!("one prefill") };
    assert_eq!(
        sent.body,
        format!(
            "{},\"max_tokens\":1,\"max_completion_tokens\":1,\"kv_transfer_params\":{kept} }}",
            body.trim_end_matches(" }")
        ),
        "all that is not edited is there byte for byte"
    );
    let [sent] = &decode.seen()[..] else { panic!("one decode") };
    let kv = r#"{"remote_block_ids":[1,2],"remote_host":"10.0.0.9"}"#;
    assert_eq!(sent.body, format!("{},\"kv_transfer_params\":{kv} }}", body.trim_end_matches(" }")));
    for leg in [&prefill, &decode] {
        let headers = &leg.seen()[0].headers;
        assert_eq!(headers.get_all("x-request-id").iter().collect::<Vec<_>>(), ["r1"], "once on each leg");
        assert_eq!(headers["content-length"], leg.seen()[0].body.len().to_string());
        assert_eq!(headers["host"], "model.example");
    }
    assert_eq!(rig.metric(r#"proxy_prefill_seconds_count{listener="pair"}"#), 1);
}

#[tokio::test]
async fn h8_a_request_without_an_id_gets_one_for_both_legs() {
    let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    for _ in 0..2 {
        assert_eq!(rig.chat(ask()).await.status, 200);
    }
    let ids = |engine: &Engine| -> Vec<_> {
        engine.seen().iter().map(|seen| seen.headers["x-request-id"].clone()).collect()
    };
    assert_eq!(ids(&prefill), ids(&decode));
    assert_ne!(ids(&prefill)[0], ids(&prefill)[1]);
}

#[tokio::test]
async fn h8_the_prefills_cached_tokens_stand_in_the_usage_of_a_stream() {
    let stream = [
        "data: {\"choices\":[{\"delta\":{\"content\":\"usage\"}}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_to",
        "kens\":9}}}\n\ndata: [DO",
        "NE]\n\n",
    ];
    let prefill = Engine::prefills(5).await;
    let decode = Engine::new(move |_| async move {
        events(chunks(stream.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect()))
    })
    .await;
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    let reply =
        rig.chat(json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}})).await;
    assert_eq!(reply.text(), stream.concat().replace("\"cached_tokens\":9", "\"cached_tokens\":5"));
    assert_eq!(prefill.seen()[0].json()["stream"], false);
    assert!(prefill.seen()[0].json().get("stream_options").is_none());
    assert_eq!(decode.seen()[0].json()["stream"], true);
}

#[tokio::test]
async fn h8_a_prefill_that_tells_no_place_leaves_the_field_away_and_is_counted() {
    let prefill = Engine::says(200, json!({"id": "p"})).await;
    let decode = Engine::decodes().await;
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    let reply = rig.chat(json!({"model": "m", "kv_transfer_params": {"remote_host": "evil"}})).await;
    let answered: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(answered["usage"]["prompt_tokens_details"]["cached_tokens"], 99, "nothing better is known");
    assert_eq!(decode.seen()[0].json(), json!({"model": "m"}), "a client names no engine's memory");
    assert_eq!(rig.metric(r#"proxy_prefills_without_kv_total{listener="pair"}"#), 1);
}

#[tokio::test]
async fn h8_shared_storage_asks_both_for_what_is_cached() {
    let (prefill, decode) = (Engine::says(200, json!({})).await, Engine::decodes().await);
    let rig = Rig::between(of(ConnectorKind::SharedStorage), &prefill, &decode);
    let reply = rig.chat(json!({"model": "m", "stream": true, "max_tokens": 9})).await;
    assert_eq!(reply.status, 200);
    assert_eq!(
        prefill.seen()[0].json(),
        json!({"model": "m", "stream": true, "max_tokens": 1, "max_completion_tokens": 1,
               "cache_hit_threshold": 0})
    );
    assert_eq!(
        decode.seen()[0].json(),
        json!({"model": "m", "stream": true, "max_tokens": 9, "cache_hit_threshold": 0})
    );
}

#[tokio::test]
async fn h8_sglangs_legs_meet_at_the_prefill_and_no_room_is_used_twice() {
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let meets = |id: &'static str| {
        let barrier = std::sync::Arc::clone(&barrier);
        Engine::new(move |_| {
            let barrier = std::sync::Arc::clone(&barrier);
            async move {
                // Neither answers before the other has its request.
                barrier.wait().await;
                answer(200, &json!({"id": id}))
            }
        })
    };
    let (prefill, decode) = (meets("p").await, meets("d").await);
    let rig = Rig::between(of(ConnectorKind::Sglang), &prefill, &decode);
    let mut client = rig.client().await;
    for _ in 0..200 {
        let reply = client.send(post(CHAT, &[], ask().to_string())).await;
        assert_eq!((reply.status.as_u16(), reply.text()), (200, r#"{"id":"d"}"#));
    }
    let rooms = |engine: &Engine| -> Vec<u64> {
        engine.seen().iter().map(|seen| seen.json()["bootstrap_room"].as_u64().unwrap()).collect()
    };
    let (ours, theirs) = (rooms(&prefill), rooms(&decode));
    assert_eq!(ours, theirs);
    assert!(
        ours.iter().all(|room| i64::try_from(*room).is_ok())
            && ours.iter().any(|room| *room > u64::from(u32::MAX))
    );
    assert_eq!(ours.iter().collect::<HashSet<_>>().len(), 200);
    let sent = decode.seen()[0].json();
    assert_eq!((&sent["bootstrap_host"], &sent["bootstrap_port"]), (&json!("127.0.0.1"), &json!(8998)));
    assert_eq!(prefill.connections() + decode.connections(), 2, "both connections are used again");
}

#[tokio::test]
async fn h2_each_path_has_two_legs_whatever_its_query_and_all_others_one() {
    let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    for (count, path) in (1..).zip(PATHS) {
        let target = format!("{path}?beta=true&x=/v1/models");
        assert_eq!(rig.send(post(&target, &[], ask().to_string())).await.status, 200);
        assert_eq!((prefill.calls(), decode.calls()), (count, count), "{path}");
        assert_eq!(prefill.seen()[count - 1].target, target);
        assert_eq!(decode.seen()[count - 1].target, target);
    }
    for path in ["/v1/models", "/health", "/v1/chat/completions/", "/v1/responses/r1/cancel", "/tokenize"] {
        let reply = rig.send(post(path, &[], "not JSON")).await;
        assert_eq!((reply.status.as_u16(), revision(&reply)), (200, "a"), "{path}");
    }
    assert_eq!((prefill.calls(), decode.calls()), (5, 10));
    assert_eq!(decode.seen()[9].body, "not JSON");
}

#[tokio::test]
async fn h12_http2_clients_have_pairs_too_several_at_once() {
    let (prefill, decode) = (Engine::prefills(3).await, Engine::decodes().await);
    let rig = Rig::between(nixlv2(), &prefill, &decode);
    let stream = tokio::net::TcpStream::connect(rig.address(0)).await.unwrap();
    let mut client = crate::base::Client::http2(stream).await;
    for _ in 0..3 {
        let mut request = post(CHAT, &[], ask().to_string());
        *request.uri_mut() = format!("http://model.example{CHAT}").parse().unwrap();
        request.headers_mut().remove("host");
        let reply = soon(client.send(request)).await;
        let answered: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(answered["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    }
    assert_eq!(prefill.seen()[0].headers["host"], "model.example");
}
