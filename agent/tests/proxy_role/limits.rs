//! Limits, new configurations and the end (H14).

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use prometheus_client::registry::Registry;
use revgate::{
    config::{GatingMode, HttpConfig, ShutdownConfig},
    kernel::Pinner,
    observe::metrics::StrictNoMatch,
    proxy::{Metrics, Proxy},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
};

use crate::support::{
    Client, Engine, Gate, PATIENCE, config, endpoint, http, nobody, request, snapshot, soon, until, whole,
};

/// An engine that sends one chunk at once and the last when told.
async fn held() -> (Engine, Arc<Notify>) {
    let release = Arc::new(Notify::new());
    let wait = Arc::clone(&release);
    let engine = Engine::raw(move |mut stream| {
        let wait = Arc::clone(&wait);
        async move {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await;
            wait.notified().await;
            let _ = stream.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await;
            let _ = stream.read(&mut [0; 1024]).await;
        }
    })
    .await;
    (engine, release)
}

async fn first_chunk(client: &mut Client) -> hyper::body::Incoming {
    let mut body = client.start(request(&[], "")).await.unwrap().into_body();
    assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "one");
    body
}

#[tokio::test]
async fn h14_a_head_that_is_too_large_is_431() {
    let engine = Engine::named("a").await;
    let gate = Gate::with(HttpConfig { max_head: 16 * 1024, ..http() }, &[endpoint("a", engine.address)]);
    let fits = "x".repeat(12 * 1024);
    assert_eq!(gate.get(&[("x-long", &fits)]).await.text(), "a");
    let too_large = "x".repeat(17 * 1024);
    assert_eq!(gate.get(&[("x-long", &too_large)]).await.status, 431);
    assert_eq!(engine.requests(), 1);
    let counted = r#"proxy_requests_total{listener="decode",revision="",code="4xx",reason="head-too-large"}"#;
    until(|| gate.metric(counted) == 1).await;
}

#[tokio::test]
async fn h14_a_client_that_is_slow_with_its_head_is_closed() {
    let http = HttpConfig { head_timeout: Duration::from_millis(1), ..http() };
    let gate = Gate::with(http, &[]);
    for sent in [&b""[..], b"P", b"GET / HTTP/1.1\r\nhost:"] {
        let mut client = TcpStream::connect(gate.address).await.unwrap();
        client.write_all(sent).await.unwrap();
        assert_eq!(soon(client.read(&mut [0; 64])).await.unwrap_or(0), 0);
    }
    until(|| gate.metric(r#"proxy_connections{listener="decode"}"#) == 0).await;
}

#[tokio::test]
async fn h14_a_connection_that_idles_is_closed_and_one_that_waits_for_its_answer_is_not() {
    let (engine, release) = held().await;
    let http = HttpConfig { idle_timeout: Duration::from_millis(1), ..http() };
    let gate = Gate::with(http, &[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    let body = first_chunk(&mut client).await;
    let mut idle = Client::connect(gate.address).await;
    // Two sweeps at least: the other connection is looked at as well.
    gate.publish(&[endpoint("b", nobody())]);
    assert_eq!(idle.send(request(&[], "")).await.status, 503);
    soon(async {
        while idle.start(request(&[], "")).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    release.notify_one();
    assert_eq!(soon(body.collect()).await.unwrap().to_bytes(), "two");
}

#[tokio::test]
async fn h14_more_requests_than_allowed_are_refused() {
    let (engine, release) = held().await;
    let gate = Gate::with(HttpConfig { max_requests: 1, ..http() }, &[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    let body = first_chunk(&mut client).await;
    gate.get(&[]).await.is_refusal(503, "overloaded");
    release.notify_one();
    soon(body.collect()).await.unwrap();
    until(|| gate.proxy.in_flight() == 0).await;
    release.notify_one();
    assert_eq!(gate.get(&[]).await.status, 200);
}

#[tokio::test]
async fn h14_more_connections_than_allowed_wait_for_their_turn() {
    let engine = Engine::named("a").await;
    let gate = Gate::with(HttpConfig { max_connections: 1, ..http() }, &[endpoint("a", engine.address)]);
    let mut first = Client::connect(gate.address).await;
    assert_eq!(first.send(request(&[], "")).await.text(), "a");
    let mut second = Client::connect(gate.address).await;
    let waiting = second.send(request(&[], ""));
    let turn = async {
        assert_eq!(first.send(request(&[], "")).await.text(), "a");
        assert_eq!(engine.requests(), 2, "the second connection is not served yet");
        drop(first);
    };
    let (reply, ()) = tokio::join!(waiting, turn);
    assert_eq!(reply.text(), "a");
}

#[tokio::test]
async fn h14_a_listener_without_connections_leaves_the_room_to_others() {
    let engine = Engine::named("a").await;
    let mut config = config(HttpConfig { max_connections: 1, ..http() });
    let mut other = config.agent.listeners[0].clone();
    other.name = "other".into();
    config.agent.listeners.push(other);
    let gate = Gate::over(&config, snapshot(GatingMode::MaxRole, &[endpoint("a", engine.address)]));
    let addresses: Vec<_> = gate.proxy.addresses().map(|(_, address)| address).collect();
    for address in [addresses[0], addresses[1], addresses[0]] {
        assert_eq!(Client::connect(address).await.send(request(&[], "")).await.text(), "a");
    }
}

#[tokio::test]
async fn h14_a_lower_limit_of_connections_is_kept_once_enough_have_gone() {
    let engine = Engine::named("a").await;
    let mut gate = Gate::with(HttpConfig { max_connections: 3, ..http() }, &[endpoint("a", engine.address)]);
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(gate.address).await;
        assert_eq!(client.send(request(&[], "")).await.text(), "a");
        clients.push(client);
    }
    gate.proxy.reconfigure(&config(HttpConfig { max_connections: 1, ..http() })).unwrap();
    let mut first = clients.swap_remove(0);
    drop(clients);
    until(|| gate.metric(r#"proxy_connections{listener="decode"}"#) == 1).await;
    let mut next = Client::connect(gate.address).await;
    let waiting = next.send(request(&[], ""));
    let turn = async {
        assert_eq!(first.send(request(&[], "")).await.text(), "a");
        assert_eq!(engine.requests(), 4, "the next connection is not served yet");
        drop(first);
    };
    let (reply, ()) = tokio::join!(waiting, turn);
    assert_eq!(reply.text(), "a");
}

#[tokio::test]
async fn h14_an_http2_client_that_does_not_answer_is_closed() {
    let times = HttpConfig {
        head_timeout: Duration::from_millis(1),
        idle_timeout: Duration::from_millis(1),
        ..http()
    };
    let gate = Gate::with(times, &[]);
    let mut client = TcpStream::connect(gate.address).await.unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    soon(async { while client.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {} }).await;
}

#[tokio::test]
async fn h14_an_http2_client_that_takes_nothing_of_its_response_is_closed() {
    // More than the window of a stream.
    let engine = Engine::new(|_| Response::new(whole(vec![b'x'; 8 << 20]))).await;
    let times = HttpConfig { idle_timeout: Duration::from_millis(300), ..http() };
    let gate = Gate::with(times, &[endpoint("a", engine.address)]);
    let mut client: Client = Client::http2(TcpStream::connect(gate.address).await.unwrap()).await;
    let body = client.start(request(&[], "")).await.unwrap().into_body();
    until(|| gate.proxy.in_flight() == 0).await;
    assert!(soon(body.collect()).await.is_err());
}

#[tokio::test]
async fn h14_an_endpoint_that_falls_silent_breaks_the_stream_and_that_is_a_failure() {
    let (engine, _release) = held().await;
    let endpoint = endpoint("a", engine.address);
    let times = HttpConfig { stream_idle_timeout: Duration::from_millis(100), ..http() };
    let gate = Gate::with(times, &[Arc::clone(&endpoint)]);
    let http1: Client = Client::connect(gate.address).await;
    let http2: Client = Client::http2(TcpStream::connect(gate.address).await.unwrap()).await;
    for (times, mut client) in [(1, http1), (2, http2)] {
        let body = client.start(request(&[], "")).await.unwrap().into_body();
        assert!(soon(body.collect()).await.is_err());
        assert_eq!(gate.metric(r#"proxy_responses_broken_total{listener="decode"}"#), times);
        until(|| gate.proxy.in_flight() == 0).await;
    }
    assert_eq!(endpoint.vitals.failures.load(SeqCst), 2);
}

#[tokio::test]
async fn h14_a_response_that_does_not_come_is_504_and_a_failure() {
    let engine =
        Engine::raw(
            |mut stream| async move { while stream.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {} },
        )
        .await;
    let endpoint = endpoint("a", engine.address);
    let http = HttpConfig { response_timeout: Duration::from_millis(50), ..http() };
    let gate = Gate::with(http, &[Arc::clone(&endpoint)]);
    gate.get(&[]).await.is_refusal(504, "response-timeout");
    assert_eq!(endpoint.vitals.failures.load(SeqCst), 1);
    gate.send(request(&[], "with a body")).await.is_refusal(504, "response-timeout");
    assert_eq!(engine.connections(), 2, "a request that may have been served is not tried again");
}

#[tokio::test]
async fn h14_a_client_that_stops_in_its_body_is_408() {
    let engine =
        Engine::raw(
            |mut stream| async move { while stream.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {} },
        )
        .await;
    let endpoint = endpoint("a", engine.address);
    let http = HttpConfig { idle_timeout: Duration::from_millis(200), ..http() };
    let gate = Gate::with(http, &[Arc::clone(&endpoint)]);
    let mut client = TcpStream::connect(gate.address).await.unwrap();
    client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf").await.unwrap();
    let mut read = Vec::new();
    let _ = soon(client.read_to_end(&mut read)).await;
    assert!(read.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&read));
    assert_eq!(endpoint.vitals.failures.load(SeqCst), 0);
}

#[tokio::test]
async fn h14_draining_finishes_streams_and_refuses_new_connections() {
    let (engine, release) = held().await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    let body = first_chunk(&mut client).await;
    let mut idle = TcpStream::connect(gate.address).await.unwrap();
    let address = gate.address;
    let drain = gate.proxy.drain(&ShutdownConfig { delay: Duration::ZERO, deadline: PATIENCE });
    let finish = async {
        assert_eq!(idle.read(&mut [0; 64]).await.unwrap_or(0), 0, "an idle connection is closed at once");
        soon(async {
            while TcpStream::connect(address).await.is_ok() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        release.notify_one();
        assert_eq!(soon(body.collect()).await.unwrap().to_bytes(), "two");
    };
    let (drained, ()) = tokio::join!(drain, finish);
    assert!(drained);
    assert!(client.start(request(&[], "")).await.is_err(), "the connection went with its stream");
}

#[tokio::test]
async fn h14_a_stream_that_outlasts_the_deadline_is_broken() {
    let (engine, _release) = held().await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    let body = first_chunk(&mut client).await;
    let shutdown = ShutdownConfig { delay: Duration::ZERO, deadline: Duration::from_millis(50) };
    assert!(!soon(gate.proxy.drain(&shutdown)).await);
    assert!(soon(body.collect()).await.is_err());
}

#[tokio::test]
async fn h14_during_the_delay_new_connections_are_served() {
    let engine = Engine::named("a").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let address = gate.address;
    let day = Duration::from_hours(24);
    let shutdown = ShutdownConfig { delay: day, deadline: day };
    let reply = tokio::select! {
        biased;
        _ = gate.proxy.drain(&shutdown) => panic!("the delay is long"),
        reply = async { Client::connect(address).await.send(request(&[], "")).await } => reply,
    };
    assert_eq!(reply.text(), "a");
}

#[tokio::test]
async fn f5_a_new_configuration_opens_listeners_and_lets_old_ones_finish() {
    let (held, release) = held().await;
    let mut gate = Gate::new(&[endpoint("a", held.address)]);
    let mut client = Client::connect(gate.address).await;
    let body = first_chunk(&mut client).await;

    let mut new = config(HttpConfig { max_body: 3, ..http() });
    new.agent.listeners[0].name = "other".into();
    gate.proxy.reconfigure(&new).unwrap();
    let old = gate.address;
    soon(async {
        while TcpStream::connect(old).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let engine = Engine::named("b").await;
    gate.publish(&[endpoint("a", engine.address)]);
    gate.address = gate.proxy.addresses().next().unwrap().1;
    assert_eq!(gate.send(request(&[], "123")).await.text(), "b");
    gate.send(request(&[], Bytes::from_static(b"1234"))).await.is_refusal(413, "body-too-large");

    release.notify_one();
    assert_eq!(soon(body.collect()).await.unwrap().to_bytes(), "two");
}

#[tokio::test]
async fn f5_a_listener_that_changes_keeps_its_address_and_no_other_agent_gets_it() {
    let engine = Engine::named("a").await;
    let fixed = |name: &str, address| {
        let mut config = config(http());
        config.agent.listeners[0].name = name.into();
        config.agent.listeners[0].address = address;
        config
    };
    let mut gate = Gate::new(&[endpoint("a", engine.address)]);
    let start = |config| {
        let metrics = Metrics::register(&mut Registry::default(), StrictNoMatch::default());
        Proxy::start(config, Arc::clone(&gate.published), &Pinner::user_space(), metrics).map(drop)
    };
    let error = start(&fixed("decode", gate.address)).unwrap_err().to_string();
    assert!(error.contains(&format!("listener decode: cannot listen on {}", gate.address)), "{error}");
    gate.proxy.reconfigure(&fixed("other", gate.address)).unwrap();
    assert_eq!(gate.get(&[]).await.text(), "a");
}

#[tokio::test]
async fn f5_a_configuration_that_cannot_be_served_changes_nothing() {
    let engine = Engine::named("a").await;
    let mut gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut new = config(http());
    new.agent.listeners[0].address = "192.0.2.1:1".parse().unwrap();
    let error = gate.proxy.reconfigure(&new).unwrap_err().to_string();
    assert!(error.contains("listener decode: cannot listen on 192.0.2.1:1"), "{error}");
    assert_eq!(gate.get(&[]).await.text(), "a");
}
