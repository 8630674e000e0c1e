//! KV from a prefill engine to a decode engine by each connector, and what becomes of KV of another revision.

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use revgate_engine::{Connector, Engine, EngineConfig, KV_MISMATCH};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{BOUND, CHAT, Client, engine};

async fn of(connector: Connector, revision: &str, role: &str) -> Engine {
    let mut config = EngineConfig::new(([127, 77, 0, 1], 0).into(), revision, role);
    config.connector = connector;
    Engine::start(config).await.unwrap()
}

fn prefill() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 1,
           "kv_transfer_params": {"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
                                  "remote_block_ids": null, "remote_host": null, "remote_port": null}})
}

#[tokio::test]
async fn kv_of_ones_own_revision_is_decoded() {
    let (prefiller, decoder) = (engine("a", "prefill").await, engine("a", "decode").await);
    let (status, reply) = Client::to(&prefiller).await.json(CHAT, &prefill()).await;
    assert_eq!(status, StatusCode::OK);
    let kv = &reply["kv_transfer_params"];
    assert_eq!((&kv["do_remote_prefill"], &kv["do_remote_decode"]), (&json!(true), &json!(false)));
    assert_eq!(kv["remote_host"], "127.77.0.1");
    assert_eq!(reply["usage"]["completion_tokens"], 1);

    let decode = json!({"model": "m", "prompt": "hello there", "max_tokens": 5, "kv_transfer_params": kv});
    let (status, reply) = Client::to(&decoder).await.json("/v1/completions", &decode).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(reply["usage"]["completion_tokens"], 5);
    assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["usage"]["prompt_tokens"]);
    assert_eq!((prefiller.counters().prefill, decoder.counters().decode), (1, 1));
    assert_eq!((decoder.counters().mixed, decoder.counters().misplaced), (0, 0));
}

#[tokio::test]
async fn kv_of_another_revision_is_refused_and_counted() {
    let (prefiller, decoder) = (engine("a", "prefill").await, engine("b", "decode").await);
    let (_, reply) = Client::to(&prefiller).await.json(CHAT, &prefill()).await;
    let decode = json!({"messages": [], "stream": true, "kv_transfer_params": reply["kv_transfer_params"]});
    let mut client = Client::to(&decoder).await;
    let (status, reply) = client.json(CHAT, &decode).await;
    assert_eq!((status, &reply["error"]["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!(KV_MISMATCH)));
    assert_eq!(decoder.counters().mixed, 1);

    let get = Request::get("/metrics").body(Full::default()).unwrap();
    let metrics =
        client.sender.send_request(get).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&metrics).contains("engine_kv_revision_mismatch_total 1\n"));
}

#[tokio::test]
async fn kv_in_a_shared_storage_is_found_by_its_prompt_and_refused_by_another_revision() {
    let directory = tempfile::tempdir().unwrap();
    let storage = Connector::SharedStorage(directory.path().into());
    let prefiller = of(storage.clone(), "a", "prefill").await;
    let (decoder, foreign) = (of(storage.clone(), "a", "decode").await, of(storage, "b", "decode").await);
    let ask = |prompt: &str| json!({"model": "m", "prompt": prompt, "cache_hit_threshold": 0});
    let send = async |engine: &Engine, prompt: &str| {
        Client::to(engine).await.json("/v1/completions", &ask(prompt)).await
    };
    assert_eq!(send(&prefiller, "a long prompt").await.0, StatusCode::OK);
    let (status, reply) = send(&decoder, "a long prompt").await;
    assert_eq!(
        (status, &reply["usage"]["prompt_tokens_details"]["cached_tokens"]),
        (StatusCode::OK, &json!(4))
    );
    let (status, reply) = send(&foreign, "a long prompt").await;
    assert_eq!((status, &reply["error"]["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!(KV_MISMATCH)));
    assert_eq!(send(&foreign, "another").await.0, StatusCode::OK);
    assert_eq!(
        (prefiller.counters().prefill, decoder.counters().decode, decoder.counters().mixed),
        (1, 1, 0)
    );
    let counters = foreign.counters();
    assert_eq!((counters.decode, counters.mixed, counters.local), (1, 1, 1));
}

#[tokio::test]
async fn sglangs_legs_wait_for_each_other_and_refuse_another_revision() {
    let sglang = Connector::Sglang(0);
    let prefiller = of(sglang.clone(), "a", "prefill").await;
    let (decoder, foreign) = (of(sglang.clone(), "a", "decode").await, of(sglang, "b", "decode").await);
    let bootstrap = prefiller.bootstrap().unwrap();
    let ask = |room: u64| {
        json!({"model": "m", "prompt": "hello there", "bootstrap_host": bootstrap.ip(),
               "bootstrap_port": bootstrap.port(), "bootstrap_room": room})
    };
    let send =
        async |engine: &Engine, body: Value| Client::to(engine).await.json("/v1/completions", &body).await;
    // Whichever comes first.
    for (first, second) in [(&prefiller, &decoder), (&decoder, &prefiller)] {
        let before = first.counters().requests;
        let (one, other) = tokio::join!(send(first, ask(before + 1)), async {
            first.wait_until(|counters| counters.requests > before).await;
            send(second, ask(before + 1)).await
        });
        assert_eq!((one.0, other.0), (StatusCode::OK, StatusCode::OK));
    }
    let refused = (StatusCode::INTERNAL_SERVER_ERROR, json!(KV_MISMATCH));
    let refusals: [(StatusCode, Value); 2] =
        tokio::join!(send(&prefiller, ask(9)), send(&foreign, ask(9))).into();
    for (status, reply) in refusals {
        assert_eq!((status, reply["error"]["code"].clone()), refused);
    }
    assert_eq!((foreign.counters().mixed, prefiller.counters().mixed, decoder.counters().mixed), (1, 0, 0));
    for engine in [&prefiller, &decoder] {
        let (status, reply) = send(engine, json!({"prompt": "hello"})).await;
        assert_eq!((status, &reply["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("kv_params_invalid")));
    }
    prefiller.down().await.unwrap();
    let (status, reply) = send(&decoder, ask(10)).await;
    assert_eq!(
        (status, &reply["error"]["code"]),
        (StatusCode::INTERNAL_SERVER_ERROR, &json!("kv_transfer_failed"))
    );
    prefiller.up().await.unwrap();
    let (one, other) = tokio::join!(send(&prefiller, ask(11)), send(&decoder, ask(11)));
    assert_eq!((one.0, other.0), (StatusCode::OK, StatusCode::OK));
}

#[tokio::test]
async fn a_leg_whose_client_leaves_frees_its_room() {
    let prefiller = of(Connector::Sglang(0), "a", "prefill").await;
    let bootstrap = prefiller.bootstrap().unwrap();
    let body = json!({"prompt": "x", "bootstrap_host": bootstrap.ip(), "bootstrap_port": bootstrap.port(),
                      "bootstrap_room": 1});
    for _ in 0..2 {
        // The second would be told that the room is taken.
        let mut client = Client::to(&prefiller).await;
        let cancelled = prefiller.counters().cancelled;
        tokio::select! {
            answer = client.json(CHAT, &body) => panic!("no decode came: {answer:?}"),
            counters = prefiller.wait_until(|counters| counters.prefill == cancelled + 1) => {
                assert_eq!(counters.completed, 0);
            }
        }
        drop(client);
        timeout(BOUND, prefiller.wait_until(|counters| counters.cancelled == cancelled + 1)).await.unwrap();
    }
}

#[tokio::test]
async fn a_leg_on_an_engine_of_the_other_role_is_counted() {
    let decoder = engine("a", "decode").await;
    let (status, _) = Client::to(&decoder).await.json(CHAT, &prefill()).await;
    assert_eq!((status, decoder.counters().misplaced), (StatusCode::OK, 1));
}
