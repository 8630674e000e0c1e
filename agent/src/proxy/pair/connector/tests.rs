//! What each leg sends, field by field (H8).

use serde_json::{Value, json};

use super::*;
use crate::proxy::pair::json::Object;

fn config(connector: ConnectorKind) -> PairConfig {
    PairConfig { connector, ..PairConfig::between(0, 1) }
}

const MEETING: Meeting = Meeting { prefill: IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), room: 77 };

fn apply(connector: &dyn Connector, edits: &Edits, body: &Value) -> Value {
    for (name, _) in edits {
        assert!(connector.fields().contains(name), "{name} is edited and not read");
    }
    let text = Bytes::from(body.to_string());
    let edited = Object::scan(&text, connector.fields()).unwrap().edit(&text, edits).whole();
    serde_json::from_slice(&edited).unwrap()
}

fn kept() -> Value {
    json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
           "remote_block_ids": null, "remote_host": null, "remote_port": null})
}

#[test]
fn h8_nixlv2_prefill_asks_for_one_token_kept_for_another_engine() {
    let connector = of(&config(ConnectorKind::NixlV2));
    let prefill = |api, body: &Value| apply(&*connector, &connector.prefill(api, MEETING), body);
    let stream = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}, "min_tokens": 5,
                        "kv_transfer_params": {"remote_host": "evil"}, "temperature": 0.1});
    assert_eq!(
        prefill(Api::Chat, &stream),
        json!({"model": "m", "stream": false, "min_tokens": 1, "kv_transfer_params": kept(), "temperature": 0.1,
               "max_tokens": 1, "max_completion_tokens": 1})
    );
    let bare = json!({"model": "m"});
    let sent = |extra: Value| {
        let mut sent = json!({"model": "m", "stream": false, "kv_transfer_params": kept()});
        sent.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        sent
    };
    let both = json!({"max_tokens": 1, "max_completion_tokens": 1});
    assert_eq!(prefill(Api::Completions, &bare), sent(both));
    assert_eq!(prefill(Api::Responses, &bare), sent(json!({"max_output_tokens": 1})));
    assert_eq!(prefill(Api::Messages, &bare), sent(json!({"max_tokens": 1})));
    let limits = json!({"sampling_params": {"max_tokens": 1, "min_tokens": 1}});
    assert_eq!(prefill(Api::Generate, &bare), sent(limits.clone()));
    let sampled = json!({"model": "m", "sampling_params": {"max_tokens": 9, "seed": 3}});
    let prefilled = prefill(Api::Generate, &sampled);
    assert_eq!(prefilled["sampling_params"], json!({"max_tokens": 1, "min_tokens": 1, "seed": 3}));
}

#[test]
fn h8_nixlv2_decode_has_the_clients_body_and_the_prefills_parameters() {
    let connector = of(&config(ConnectorKind::NixlV2));
    let read = connector.hand_over().unwrap();
    let reply = json!({"id": 1, "kv_transfer_params": {"remote_block_ids": [1, 2], "x": 1.50},
                       "usage": {"prompt_tokens_details": {"cached_tokens": 5}}});
    let handover = read(&reply.to_string().into());
    assert_eq!(handover.cached.as_deref(), Some(&b"5"[..]));
    let body =
        json!({"model": "m", "stream": true, "max_tokens": 9, "kv_transfer_params": {"remote_host": "evil"}});
    let decoded = apply(&*connector, &connector.decode(MEETING, &handover), &body);
    assert_eq!(
        decoded,
        json!({"model": "m", "stream": true, "max_tokens": 9,
               "kv_transfer_params": {"remote_block_ids": [1, 2], "x": 1.50}})
    );
    for none in ["{}", r#"{"kv_transfer_params":null,"usage":null}"#, "no JSON", ""] {
        let handover = read(&Bytes::from(none));
        assert_eq!(handover, Handover::default(), "{none}");
        let decoded = apply(&*connector, &connector.decode(MEETING, &handover), &body);
        assert!(decoded.get("kv_transfer_params").is_none());
    }
    let odd = r#"{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}"#;
    assert_eq!(read(&Bytes::from(odd)).cached, None);
}

#[test]
fn h8_shared_storage_asks_both_engines_to_take_whatever_is_cached() {
    let connector = of(&config(ConnectorKind::SharedStorage));
    let body = json!({"model": "m", "stream": true, "max_tokens": 9});
    assert_eq!(
        apply(&*connector, &connector.prefill(Api::Chat, MEETING), &body),
        json!({"model": "m", "stream": true, "max_tokens": 1, "max_completion_tokens": 1, "cache_hit_threshold": 0})
    );
    assert_eq!(
        apply(&*connector, &connector.decode(MEETING, &Handover::default()), &body),
        json!({"model": "m", "stream": true, "max_tokens": 9, "cache_hit_threshold": 0})
    );
    assert_eq!(connector.order(), Order::PrefillFirst);
}

#[test]
fn h8_sglang_sends_both_the_same_body_with_a_place_to_meet() {
    let connector = of(&config(ConnectorKind::Sglang));
    let body = json!({"model": "m", "stream": true, "bootstrap_host": "evil"});
    let sent = json!({"model": "m", "stream": true, "bootstrap_host": "10.0.0.1", "bootstrap_port": 8998,
                      "bootstrap_room": 77});
    assert_eq!(apply(&*connector, &connector.prefill(Api::Chat, MEETING), &body), sent);
    assert_eq!(apply(&*connector, &connector.decode(MEETING, &Handover::default()), &body), sent);
    let v6 = Meeting { prefill: "fd00::1".parse().unwrap(), ..MEETING };
    let sent = apply(&*connector, &connector.prefill(Api::Chat, v6), &body);
    assert_eq!(sent["bootstrap_host"], "[fd00::1]");
    assert_eq!(connector.order(), Order::Together);
}

#[test]
fn h2_the_paths_with_two_legs_are_posts_of_these_exactly() {
    for path in
        ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"]
    {
        assert!(Api::of(&Method::POST, path).is_some());
        assert!(Api::of(&Method::GET, path).is_none());
        assert!(Api::of(&Method::POST, &format!("{path}/x")).is_none());
    }
    assert!(Api::of(&Method::POST, "/v1/models").is_none());
}
