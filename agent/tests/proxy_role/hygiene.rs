//! Headers, protocols and hostile bytes (H12, R2).

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Channel, Full};
use revgate::config::TlsConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use crate::{
    handshake::{CERTIFICATE, KEY, handshake},
    support::{
        Client, Engine, Gate, ID, NAME, config, endpoint, http, request, snapshot, soon, until, whole,
    },
};

#[tokio::test]
async fn h12_one_hops_headers_stay_on_their_hop_and_the_rest_passes() {
    let engine = Engine::new(|_| {
        Response::builder()
            .header("connection", "x-hop")
            .header("x-hop", "1")
            .header("keep-alive", "timeout=5")
            .header("proxy-authenticate", "Basic")
            .header("trailer", "x-sum")
            .header("x-model", "m")
            .body(whole("a"))
            .unwrap()
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let passes = [
        ("traceparent", "00-01"),
        ("tracestate", "t=1"),
        ("x-request-id", "r"),
        ("authorization", "Bearer k"),
    ];
    let stays = [
        ("connection", "x-private, upgrade"),
        ("x-private", "1"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("trailer", "x-sum"),
        ("upgrade", "websocket"),
        ("proxy-connection", "keep-alive"),
        (NAME, "a"),
        (ID, "id"),
        ("x-gateway-destination-endpoint", "10.0.0.1:8000"),
    ];
    let reply = gate.get(&[&passes[..], &stays[..]].concat()).await;
    for name in ["connection", "x-hop", "keep-alive", "proxy-authenticate", "trailer"] {
        assert!(!reply.headers.contains_key(name), "{name} came back");
    }
    assert_eq!(reply.header("x-model"), "m");
    let seen = engine.seen.lock().unwrap();
    for (name, value) in passes {
        assert_eq!(seen[0].headers[name], value);
    }
    for (name, _) in stays {
        assert!(!seen[0].headers.contains_key(name), "{name} went through");
    }
    assert_eq!(seen[0].headers["host"], "model.example");
    assert_eq!((seen[0].method.as_str(), seen[0].uri.to_string()), ("POST", "/v1/completions?q=1".into()));
}

/// Sends bytes as they are, and reads to the end.
async fn raw(gate: &Gate, bytes: &[u8]) -> String {
    let mut client = TcpStream::connect(gate.address).await.unwrap();
    client.write_all(bytes).await.unwrap();
    let mut read = Vec::new();
    // What the proxy did not read may reset the connection after its answer.
    let _ = soon(client.read_to_end(&mut read)).await;
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn h12_a_length_beside_chunks_is_not_passed_on() {
    let engine = Engine::named("a").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let reply = raw(
        &gate,
        b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 50\r\ntransfer-encoding: chunked\r\n\r\n\
          6\r\nprompt\r\n0\r\n\r\n",
    )
    .await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let seen = engine.seen.lock().unwrap();
    assert_eq!(seen[0].body, "prompt");
    assert!(!seen[0].headers.contains_key("content-length"));
}

#[tokio::test]
async fn h12_what_is_no_request_for_an_engine_is_refused() {
    let engine = Engine::named("a").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    for (request, status, reason) in [
        ("CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\nconnection: close\r\n\r\n", "405", "method-not-allowed"),
        ("GET / HTTP/1.1\r\nconnection: close\r\n\r\n", "400", "bad-request"),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\nconnection: close\r\n\r\n", "400", "bad-request"),
    ] {
        let reply = raw(&gate, request.as_bytes()).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{reply}");
        assert!(reply.contains(&format!("x-llm-d-request-dropped-reason: {reason}")), "{reply}");
    }
    assert_eq!(engine.connections(), 0);
}

#[tokio::test]
async fn h12_an_absolute_target_becomes_a_path_and_its_host() {
    let engine = Engine::named("a").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let reply = raw(
        &gate,
        b"GET http://model.example/v1/models?q=1 HTTP/1.1\r\nhost: other\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let seen = engine.seen.lock().unwrap();
    assert_eq!(
        (seen[0].uri.to_string().as_str(), &seen[0].headers["host"]),
        ("/v1/models?q=1", &"model.example".parse().unwrap())
    );
}

#[tokio::test]
async fn h12_a_request_of_http_1_0_without_a_host_gets_the_endpoints() {
    let engine = Engine::named("a").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let reply = raw(&gate, b"GET / HTTP/1.0\r\n\r\n").await;
    assert!(reply.contains(" 200 OK"), "{reply}");
    assert_eq!(engine.seen.lock().unwrap()[0].headers["host"], engine.address.to_string());
}

#[tokio::test]
async fn h11_a_head_that_is_none_is_refused_and_counted() {
    let gate = Gate::new(&[]);
    assert!(raw(&gate, b"GET\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    let counted = r#"proxy_requests_total{listener="decode",revision="",code="4xx",reason="bad-head"}"#;
    until(|| gate.metric(counted) == 1).await;
}

#[tokio::test]
async fn r2_garbage_is_refused_and_harms_nobody() {
    let engine = Engine::named("a").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let garbage: [&[u8]; 9] = [
        b"\0\0\0\0",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnot frames at all, but many bytes of them",
        b"PRI * HTTP/1.1\r\nconnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx-llm-d-disagg-revision: \xff\xfe\r\nconnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ];
    for bytes in garbage {
        let reply = raw(&gate, bytes).await;
        assert!(!reply.contains("200 OK"), "{reply}");
    }
    let bad = Engine::raw(|mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"\x16\x03garbage\r\n\r\n").await;
    })
    .await;
    gate.publish(&[endpoint("a", engine.address), endpoint("b", bad.address)]);
    gate.get(&[(NAME, "b")]).await.is_refusal(502, "bad-response");
    assert_eq!(gate.get(&[(NAME, "a")]).await.text(), "a");
}

#[tokio::test]
async fn h12_a_protocol_switch_that_nobody_asked_for_is_a_bad_response() {
    let engine = Engine::raw(|mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")
            .await;
        let _ = stream.read(&mut [0; 1024]).await;
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    assert_eq!(gate.get(&[("connection", "upgrade"), ("upgrade", "x")]).await.status, 502);
}

#[tokio::test]
async fn h12_http2_by_prior_knowledge_is_served_with_many_requests_at_once() {
    let engine = Engine::new(|seen| Response::new(whole(seen.body.clone()))).await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = Client::http2(TcpStream::connect(gate.address).await.unwrap()).await;
    let request = |body: &'static str| {
        Request::post("http://model.example/v1/completions?q=1")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(Full::new(Bytes::from_static(body.as_bytes())))
            .unwrap()
    };
    let first = client.start(request("one")).await.unwrap();
    let second = client.start(request("two")).await.unwrap();
    assert_eq!(first.headers()[NAME], "a");
    assert_eq!(second.into_body().collect().await.unwrap().to_bytes(), "two");
    assert_eq!(first.into_body().collect().await.unwrap().to_bytes(), "one");
    let seen = engine.seen.lock().unwrap();
    assert_eq!(seen[0].headers["host"], "model.example");
    assert_eq!(seen[0].headers["cookie"], "a=1; b=2");
    assert_eq!(seen[0].uri, "/v1/completions?q=1");
}

#[tokio::test]
async fn h12_a_stream_that_breaks_resets_its_http2_stream_and_no_other() {
    let engine = Engine::raw(|mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await;
    })
    .await;
    let good = Engine::named("b").await;
    let gate = Gate::new(&[endpoint("a", engine.address), endpoint("b", good.address)]);
    let mut client = Client::http2(TcpStream::connect(gate.address).await.unwrap()).await;
    let broken = async |client: &mut Client| {
        let body = client.start(request(&[(NAME, "a")], "")).await?.into_body();
        soon(body.collect()).await
    };
    assert!(broken(&mut client).await.is_err());
    assert_eq!(client.send(request(&[(NAME, "b")], "")).await.text(), "b");
}

async fn tls(gate: &Gate, protocol: &[u8], trusted: &str) -> std::io::Result<TlsStream<TcpStream>> {
    soon(handshake(gate.address, protocol, trusted)).await
}

#[tokio::test]
async fn h12_a_renewed_certificate_is_served_and_a_bad_one_is_not() {
    const RENEWED: (&str, &str) = ("tests/proxy_role/renewed.pem", "tests/proxy_role/renewed.key");
    let directory = tempfile::tempdir().unwrap();
    let files = TlsConfig { certificate: directory.path().join("crt"), key: directory.path().join("key") };
    let mount = |certificate: &str, key: &str| {
        std::fs::copy(certificate, &files.certificate).unwrap();
        std::fs::copy(key, &files.key).unwrap();
    };
    mount(CERTIFICATE, KEY);
    let mut config = config(http());
    config.agent.listeners[0].tls = Some(files.clone());
    let gate = Gate::over(&config, snapshot(revgate::config::GatingMode::MaxRole, &[]));
    tls(&gate, b"h2", CERTIFICATE).await.unwrap();

    // Half of the change, as it may be seen.
    mount(RENEWED.0, KEY);
    gate.proxy.renew_certificates();
    tls(&gate, b"h2", CERTIFICATE).await.unwrap();
    mount(RENEWED.0, RENEWED.1);
    gate.proxy.renew_certificates();
    tls(&gate, b"h2", RENEWED.0).await.unwrap();
    assert!(tls(&gate, b"h2", CERTIFICATE).await.is_err());
    std::fs::remove_file(&files.key).unwrap();
    gate.proxy.renew_certificates();
    tls(&gate, b"h2", RENEWED.0).await.unwrap();
}

#[tokio::test]
async fn h12_tls_in_speaks_what_alpn_agrees_on() {
    let engine = Engine::named("a").await;
    let mut config = config(http());
    config.agent.listeners[0].tls = Some(TlsConfig { certificate: CERTIFICATE.into(), key: KEY.into() });
    let gate =
        Gate::over(&config, snapshot(revgate::config::GatingMode::MaxRole, &[endpoint("a", engine.address)]));
    let mut client = Client::over(tls(&gate, b"http/1.1", CERTIFICATE).await.unwrap()).await;
    assert_eq!(client.send(request(&[], "")).await.text(), "a");
    let mut client = Client::http2(tls(&gate, b"h2", CERTIFICATE).await.unwrap()).await;
    let request = Request::post("https://localhost/").body(Full::new(Bytes::from_static(b"x"))).unwrap();
    assert_eq!(client.send(request).await.text(), "a");
    // No TLS at all: closed, not answered.
    assert!(!raw(&gate, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.contains("HTTP"));
}

#[tokio::test]
async fn h10_a_body_that_its_client_breaks_off_is_no_failure_of_the_engine() {
    let engine = Engine::named("a").await;
    let endpoint = endpoint("a", engine.address);
    let gate = Gate::new(&[Arc::clone(&endpoint)]);
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
    let mut client: Client<Channel<Bytes, std::io::Error>> = Client::connect(gate.address).await;
    let sending = async {
        sender.send_data(Bytes::from_static(b"half a prom")).await.unwrap();
        until(|| engine.connections() == 1).await;
        sender.abort(std::io::ErrorKind::BrokenPipe.into());
    };
    let (reply, ()) = tokio::join!(client.start(request(&[], "").map(|_| body)), sending);
    assert!(reply.is_err());
    until(|| gate.proxy.in_flight() == 0).await;
    assert_eq!(endpoint.vitals.failures.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(engine.requests(), 0);
}
