//! Bodies at the limit and beyond what anyone should send (H10, H11, R2).

use bytes::Bytes;
use http_body_util::Channel;
use revgate::config::{ConnectorKind, HttpConfig};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    base::{Client, http, soon, until},
    support::{CHAT, Engine, Rig, ask, endpoint, nixlv2, of, post},
};

const LIMIT: usize = 64 * 1024;

async fn limited() -> (Engine, Engine, Rig) {
    let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
    let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, decode.address())];
    let rig = Rig::with(HttpConfig { max_body: LIMIT as u64, ..http() }, nixlv2(), &endpoints);
    (prefill, decode, rig)
}

/// A body of exactly so many bytes.
fn body(length: usize) -> String {
    let bare = json!({"model": "m", "prompt": ""}).to_string();
    json!({"model": "m", "prompt": "x".repeat(length - bare.len())}).to_string()
}

#[tokio::test]
async fn h10_a_body_just_under_and_at_the_limit_is_served_and_over_it_refused() {
    let (prefill, decode, rig) = limited().await;
    for length in [LIMIT - 1, LIMIT] {
        assert_eq!(rig.chat(body(length)).await.status, 200);
    }
    rig.chat(body(LIMIT + 1)).await.is_refusal(413, "body-too-large");
    assert_eq!((prefill.calls(), decode.calls()), (2, 2));
}

#[tokio::test]
async fn h10_the_limit_holds_for_a_body_of_unknown_length() {
    let (prefill, decode, rig) = limited().await;
    for (length, status) in [(LIMIT, 200), (LIMIT + 1, 413)] {
        let text = body(length);
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let mut client: Client<Channel<Bytes>> = rig.client().await;
        let request = http::Request::post(CHAT).header("host", "x").body(body).unwrap();
        let sending = async {
            for piece in text.as_bytes().chunks(1000) {
                if sender.send_data(Bytes::copy_from_slice(piece)).await.is_err() {
                    break;
                }
            }
            drop(sender);
        };
        let (reply, ()) = tokio::join!(client.send(request), sending);
        assert_eq!(reply.status, status);
    }
    assert_eq!(prefill.seen()[0].body.len() - decode.seen()[0].body.len(), {
        let (prefill, decode) = (prefill.seen()[0].json(), decode.seen()[0].json());
        prefill.to_string().len() - decode.to_string().len()
    });
    assert_eq!((prefill.calls(), decode.calls()), (1, 1));
}

#[tokio::test]
async fn h11_what_cannot_be_split_is_told_as_such_and_reaches_nobody() {
    let (prefill, decode, rig) = limited().await;
    let deep = 20_000;
    for bad in [
        String::new(),
        " \r\n".to_owned(),
        "not JSON".to_owned(),
        "[]".to_owned(),
        "\"model\"".to_owned(),
        r#"{"model":"m""#.to_owned(),
        r#"{"model":"m",}"#.to_owned(),
        r#"{"model":"m","n":01}"#.to_owned(),
        r#"{"model":"m"} x"#.to_owned(),
        r#"{"\ud800":1,"model":"m"}"#.to_owned(),
        format!(r#"{{"model":"m","x":{}"#, "[".repeat(deep)),
        format!("{{{}\"model\":\"m\"}}", r#""stream":true,"#.repeat(200)),
    ] {
        let reply = rig.chat(&bad).await;
        reply.is_refusal(400, "bad-json");
        assert!(reply.body.len() < 400, "{}", reply.text());
    }
    for bad in
        [r"{}", r#"{"model":null}"#, r#"{"model":""}"#, r#"{"model":7}"#, r#"{"model":"m","model":null}"#]
    {
        rig.chat(bad).await.is_refusal(400, "no-model");
    }
    let mut invalid = br#"{"model":"m","x":""#.to_vec();
    invalid.extend(b"\xff\"}");
    rig.send(post(CHAT, &[], invalid)).await.is_refusal(400, "bad-json");
    assert_eq!(prefill.connections() + decode.connections(), 0);
}

#[tokio::test]
async fn r2_what_engines_take_is_passed_as_it_is() {
    let (prefill, decode, rig) = limited().await;
    let deep = 20_000;
    for odd in [
        format!(r#"{{"model":"m","x":{}{}}}"#, "[".repeat(deep), "]".repeat(deep)),
        r#"{"model":"a","model":"m","stream":true,"stream":false,"max_tokens":5,"max_tokens":7}"#.to_owned(),
        r#"{"model":"m","x":1e400,"y":-0.0,"z":123456789012345678901234567890}"#.to_owned(),
        r#"{"model":"m","x":"\ud800","y":"\udc00\ud800"}"#.to_owned(),
        r#"{"mod\u0065l":"m"}"#.to_owned(),
        "\t{\"model\":\"m\"}\r\n".to_owned(),
    ] {
        assert_eq!(rig.chat(&odd).await.status, 200, "{odd}");
        let (sent, seen) = (prefill.seen().pop().unwrap(), decode.seen().pop().unwrap());
        let at = odd.rfind('}').unwrap();
        let sent_to_decode = String::from_utf8(seen.body.to_vec()).unwrap();
        assert!(sent_to_decode.starts_with(&odd[..at]), "{sent_to_decode}");
        let sent = String::from_utf8(sent.body.to_vec()).unwrap();
        assert_eq!(
            sent.matches(r#""max_tokens":1"#).count(),
            odd.matches("max_tokens").count().max(1),
            "{sent}"
        );
        assert!(!sent.contains(r#""stream":true"#), "whichever of several an engine takes");
    }
}

#[tokio::test]
async fn h12_a_prompt_of_4_mib_arrives_whole_on_both_legs() {
    for connector in [ConnectorKind::NixlV2, ConnectorKind::Sglang] {
        let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
        let rig = Rig::between(of(connector), &prefill, &decode);
        let body = json!({"model": "m", "prompt": "0123456789abcdef".repeat(1 << 18)});
        assert_eq!(rig.chat(&body).await.status, 200);
        for leg in [&prefill, &decode] {
            assert!(leg.seen()[0].json()["prompt"] == body["prompt"]);
        }
    }
}

#[tokio::test]
async fn r2_a_hundred_thousand_headers_harm_nobody_else() {
    let (prefill, decode, rig) = limited().await;
    let mut stream = TcpStream::connect(rig.address(0)).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(100_000));
    let mut answer = Vec::new();
    soon(async {
        // It may be cut off before it has sent all.
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.read_to_end(&mut answer).await;
    })
    .await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(rig.chat(ask()).await.status, 200);
    assert_eq!((prefill.calls(), decode.calls()), (1, 1));
}

#[tokio::test]
async fn h14_a_body_that_stalls_or_breaks_off_is_given_up() {
    let (prefill, decode) = (Engine::prefills(0).await, Engine::decodes().await);
    let endpoints = [endpoint("a", 0, prefill.address()), endpoint("a", 1, decode.address())];
    let http = HttpConfig { idle_timeout: std::time::Duration::from_millis(300), ..http() };
    let rig = Rig::with(http, nixlv2(), &endpoints);
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let mut client: Client<Channel<Bytes>> = rig.client().await;
    let request = http::Request::post(CHAT).header("host", "x").body(body).unwrap();
    let sending = async {
        sender.send_data(Bytes::from_static(b"{")).await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        reply = client.send(request) => reply.is_refusal(408, "request-timeout"),
        () = sending => {}
    }
    let mut stream = TcpStream::connect(rig.address(0)).await.unwrap();
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{");
    stream.write_all(head.as_bytes()).await.unwrap();
    until(|| rig.proxy.in_flight() == 1).await;
    drop(stream);
    until(|| rig.proxy.in_flight() == 0).await;
    assert_eq!(prefill.connections() + decode.connections(), 0);
}
