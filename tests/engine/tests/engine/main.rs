//! What a client sees of an engine: the APIs, the faults, and (`connectors`) how KV goes from leg to leg.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod connectors;

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use revgate_engine::{Behaviour, Engine, EngineConfig, Fault, Fleet, NAME_HEADER, Pace, SENT, now};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

/// Far longer than anything here takes; only a bound.
const BOUND: Duration = Duration::from_secs(30);

async fn engine(revision: &str, role: &str) -> Engine {
    with(revision, role, |_| {}).await
}

async fn with(revision: &str, role: &str, change: impl FnOnce(&mut Behaviour)) -> Engine {
    let mut config = EngineConfig::new(([127, 77, 0, 1], 0).into(), revision, role);
    config.name = format!("{role}-of-{revision}");
    change(&mut config.behaviour);
    Engine::start(config).await.unwrap()
}

/// One client connection.
struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    connection: JoinSet<hyper::Result<()>>,
}

impl Client {
    async fn to(engine: &Engine) -> Self {
        let stream = TcpStream::connect(engine.address()).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut set = JoinSet::new();
        set.spawn(connection);
        Self { sender, connection: set }
    }

    async fn post(&mut self, path: &str, body: &Value) -> hyper::Result<Response<Incoming>> {
        let request =
            Request::post(path).header("host", "engine").body(Full::from(body.to_string())).unwrap();
        self.sender.send_request(request).await
    }

    async fn json(&mut self, path: &str, body: &Value) -> (StatusCode, Value) {
        let response = self.post(path, body).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn messages_end_for_the_reasons_that_anthropic_names() {
    let engine = engine("a", "decode").await;
    let mut client = Client::to(&engine).await;
    for (limit, reason) in [(3, "max_tokens"), (30, "end_turn")] {
        let body =
            json!({"model": "m", "max_tokens": limit, "messages": [{"role": "user", "content": "hello"}]});
        let (status, reply) = client.json("/v1/messages", &body).await;
        assert_eq!((status, &reply["stop_reason"]), (StatusCode::OK, &json!(reason)));
        assert_eq!((&reply["type"], &reply["content"][0]["type"]), (&json!("message"), &json!("text")));
        assert_eq!(reply["usage"]["output_tokens"], limit.min(8));
    }
}

#[tokio::test]
async fn every_dialect_streams_its_tokens_and_ends() {
    let engine = with("a", "decode", |behaviour| behaviour.token_delay = Duration::from_micros(100)).await;
    let mut client = Client::to(&engine).await;
    for (path, end) in [
        (CHAT, "data: [DONE]\n\n"),
        ("/v1/completions", "data: [DONE]\n\n"),
        ("/inference/v1/generate", "data: [DONE]\n\n"),
        ("/v1/responses", "}\n\n"),
        ("/v1/messages", "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
    ] {
        let response = client.post(path, &json!({"model": "m", "stream": true})).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.ends_with(end), "{path}: {text}");
        // An opening, eight tokens, a finish, an end; of messages, the first and the third are two.
        let events = if path == "/v1/messages" { 13 } else { 11 };
        assert_eq!(text.matches("data: ").count(), events, "{path}: {text}");
    }
    assert_eq!(engine.wait_until(|counters| counters.completed == 5).await.cancelled, 0);
}

#[tokio::test]
async fn it_names_itself_only_where_that_is_asked_for() {
    let engine = with("a", "decode", |behaviour| {
        behaviour.headers.push(("x-llm-d-disagg-revision".parse().unwrap(), "wrong".parse().unwrap()));
    })
    .await;
    let mut client = Client::to(&engine).await;
    let response = client.post(CHAT, &json!({})).await.unwrap();
    assert!(!response.headers().contains_key(NAME_HEADER));
    assert_eq!(response.headers()["x-llm-d-disagg-revision"], "wrong");
    drop(response.into_body().collect().await.unwrap());
    engine.update(|behaviour| behaviour.reveal = true);
    assert_eq!(client.post(CHAT, &json!({})).await.unwrap().headers()[NAME_HEADER], "decode-of-a");
}

#[tokio::test]
async fn wrong_requests_get_the_openai_error_shape() {
    let engine = engine("a", "decode").await;
    let mut client = Client::to(&engine).await;
    for (method, path, body, expected) in [
        ("POST", CHAT, "{", StatusCode::BAD_REQUEST),
        ("POST", CHAT, r#"{"max_tokens":-1}"#, StatusCode::BAD_REQUEST),
        ("GET", CHAT, "", StatusCode::METHOD_NOT_ALLOWED),
        ("POST", "/v2", "{}", StatusCode::NOT_FOUND),
        ("POST", CHAT, r#"{"kv_transfer_params":{"do_remote_prefill":true}}"#, StatusCode::BAD_REQUEST),
    ] {
        let request = Request::builder().method(method).uri(path).body(Full::from(body)).unwrap();
        let response = client.sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), expected, "{method} {path} {body}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(serde_json::from_slice::<Value>(&body).unwrap()["error"]["message"].is_string());
    }
}

#[tokio::test]
async fn faults_strike_as_many_times_as_told() {
    let engine = engine("a", "decode").await;
    engine.fail_next(2, Fault::Status(503));
    engine.fail_next(1, Fault::ResetBeforeHead);
    let mut client = Client::to(&engine).await;
    for expected in [StatusCode::SERVICE_UNAVAILABLE; 2] {
        assert_eq!(client.json(CHAT, &json!({})).await.0, expected);
    }
    let error = client.post(CHAT, &json!({})).await.unwrap_err();
    assert!(format!("{error:?}").contains("ConnectionReset"), "{error:?}");
    drop(client);
    assert_eq!(Client::to(&engine).await.json(CHAT, &json!({})).await.0, StatusCode::OK);
    assert_eq!(engine.counters().faulted, 3);
}

#[tokio::test]
async fn a_fault_rate_is_met_exactly() {
    let engine = with("a", "decode", |behaviour| behaviour.fault_rate = 0.1).await;
    let mut client = Client::to(&engine).await;
    let mut failed = 0;
    for _ in 0..100 {
        failed += u32::from(client.json(CHAT, &json!({})).await.0 == StatusCode::INTERNAL_SERVER_ERROR);
    }
    assert_eq!(failed, 10);
}

#[tokio::test]
async fn a_reset_in_the_middle_comes_after_a_part_of_the_body() {
    let engine = engine("a", "decode").await;
    for stream in [false, true] {
        engine.fail_next(1, Fault::ResetMidBody);
        let mut client = Client::to(&engine).await;
        let mut body = client.post(CHAT, &json!({"stream": stream})).await.unwrap().into_body();
        assert!(!body.frame().await.unwrap().unwrap().into_data().unwrap().is_empty());
        assert!(body.frame().await.unwrap().is_err(), "stream: {stream}");
    }
    engine.wait_until(|counters| counters.cancelled == 2).await;
}

#[tokio::test]
async fn a_stalled_request_is_cancelled_when_its_client_leaves() {
    let engine = engine("a", "decode").await;
    for (fault, cancelled) in [(Fault::Stall, 1), (Fault::StallMidBody, 2)] {
        engine.fail_next(1, fault);
        let mut client = Client::to(&engine).await;
        let mut posting = JoinSet::new();
        let mut connection = std::mem::take(&mut client.connection);
        posting.spawn(async move {
            let response = client.post(CHAT, &json!({})).await.unwrap();
            response.into_body().collect().await
        });
        engine.wait_until(|counters| counters.faulted == cancelled).await;
        assert_eq!(engine.counters().in_flight(), 1);
        connection.shutdown().await;
        let counters =
            timeout(BOUND, engine.wait_until(|counters| counters.cancelled == cancelled)).await.unwrap();
        assert_eq!(counters.in_flight(), 0);
    }
}

#[tokio::test]
async fn down_refuses_and_up_serves_again() {
    let engine = engine("a", "decode").await;
    let mut client = Client::to(&engine).await;
    assert_eq!(client.json(CHAT, &json!({})).await.0, StatusCode::OK);
    engine.down().await.unwrap();
    assert!(client.post(CHAT, &json!({})).await.is_err());
    let refused = TcpStream::connect(engine.address()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    engine.up().await.unwrap();
    assert_eq!(Client::to(&engine).await.json(CHAT, &json!({})).await.0, StatusCode::OK);
    assert_eq!(engine.counters().connections, 2);
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let engine = with("a", "decode", |behaviour| {
        behaviour.first_byte_delay = Duration::from_millis(150);
    })
    .await;
    let mut client = Client::to(&engine).await;
    engine.update(|behaviour| behaviour.idle_close = Some(Duration::from_millis(20)));
    assert_eq!(client.json(CHAT, &json!({})).await.0, StatusCode::OK);
    timeout(BOUND, client.connection.join_next()).await.unwrap().unwrap().unwrap().unwrap();
    engine.wait_until(|counters| counters.open_connections() == 0).await;
}

#[tokio::test]
async fn stopping_finishes_open_answers() {
    let engine = with("a", "decode", |behaviour| behaviour.token_delay = Duration::from_millis(5)).await;
    let mut client = Client::to(&engine).await;
    let response = client.post(CHAT, &json!({"stream": true})).await.unwrap();
    let (body, ()) = tokio::join!(response.into_body().collect(), engine.stop(BOUND));
    assert!(body.unwrap().to_bytes().ends_with(b"[DONE]\n\n"));
}

#[tokio::test]
async fn requests_are_kept_as_they_arrived() {
    let engine = with("a", "decode", |behaviour| behaviour.record = 2).await;
    let mut client = Client::to(&engine).await;
    for user in ["one", "two", "three"] {
        client.json(&format!("{CHAT}?x=1"), &json!({"user": user})).await;
    }
    let recorded = engine.recorded();
    let users: Vec<Value> =
        recorded.iter().map(|r| serde_json::from_slice::<Value>(&r.body).unwrap()["user"].clone()).collect();
    assert_eq!(users, ["two", "three"]);
    assert_eq!(
        (recorded[0].uri.query(), &recorded[0].headers["host"]),
        (Some("x=1"), &"engine".parse().unwrap())
    );
}

#[tokio::test]
async fn the_cheap_mode_answers_pipelined_requests_with_the_same_bytes() {
    let engine = with("a", "decode", |behaviour| behaviour.fixed_body = Some(1024)).await;
    let mut stream = TcpStream::connect(engine.address()).await.unwrap();
    stream
        .write_all(b"GET /bench HTTP/1.1\r\nhost: e\r\n\r\nPOST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nab")
        .await
        .unwrap();
    engine.wait_until(|counters| counters.completed == 1).await;
    stream.write_all(b"c").await.unwrap();
    engine.wait_until(|counters| counters.completed == 2).await;
    stream.shutdown().await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 2);
    assert_eq!(answers.matches("content-length: 1024\r\n").count(), 2);
    assert_eq!(answers.matches("kv_transfer_params").count(), 2);
}

#[tokio::test]
async fn the_cheap_mode_streams_events_that_tell_when_they_were_sent_at_a_pace() {
    let engine = with("a", "decode", |behaviour| {
        behaviour.fixed_body = Some(1024);
        behaviour.fixed_stream = Some(Pace::new(1000).unwrap());
    })
    .await;
    let began = now();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Client::to(&engine).await;
        let response = client.post(CHAT, &json!({"stream": true})).await.unwrap();
        clients.push((client, response.into_body()));
    }
    for _ in 0..10 {
        // In turns.
        for (_, body) in &mut clients {
            let event = body.frame().await.unwrap().unwrap().into_data().unwrap();
            let (_, sent) = std::str::from_utf8(&event).unwrap().split_once(SENT).unwrap();
            let sent: u64 = sent.trim_end_matches("}\n\n").parse().unwrap();
            assert!(began < sent && sent <= now(), "{began} {sent}");
        }
    }
    // Nineteen steps between twenty turns, each half a millisecond at least.
    assert!(now() - began >= 19 * 500_000);
    drop(clients);
    timeout(BOUND, engine.wait_until(|counters| counters.cancelled == 2)).await.unwrap();
    let (status, answer) = Client::to(&engine).await.json(CHAT, &json!({"stream": false})).await;
    assert_eq!((status, answer["id"].as_str()), (StatusCode::OK, Some("fixed")));
}

#[test]
fn a_fleet_runs_many_engines_on_addresses_of_their_own() {
    let fleet = Fleet::new().unwrap();
    let first = fleet.handle().block_on(async {
        let mut engines = Vec::new();
        let first = fleet.start(EngineConfig::new(([127, 78, 0, 1], 0).into(), "a", "decode")).await.unwrap();
        let port = first.address().port();
        for host in 2..20 {
            let config = EngineConfig::new(([127, 78, 0, host], port).into(), "a", "decode");
            engines.push(fleet.start(config).await.unwrap());
        }
        for engine in &engines {
            let (status, _) = Client::to(engine).await.json(CHAT, &json!({})).await;
            assert_eq!((status, engine.counters().local), (StatusCode::OK, 1));
        }
        first
    });
    drop(fleet);
    assert!(std::net::TcpStream::connect(first.address()).is_err());
}
