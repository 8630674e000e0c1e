//! What is tried again and what is not, and which endpoints rest (H4 to H7).

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Channel;
use revgate::config::HttpConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{
    Client, Engine, Gate, endpoint, endpoint_of, http, nobody, request, soon, until, whole,
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Reads one request whose body has a `!`, or what there is of it.
async fn read_request(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.contains(&b'!') && stream.read_buf(&mut read).await.is_ok_and(|n| n > 0) {}
    read
}

/// An engine that answers the first request of each connection, and does `then` with the second.
async fn once(then: &'static [u8]) -> (Engine, Arc<Mutex<Vec<Vec<u8>>>>) {
    let requests: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let log = Arc::clone(&requests);
    let engine = Engine::raw(move |mut stream| {
        let log = Arc::clone(&log);
        async move {
            for answer in [OK, then] {
                let request = read_request(&mut stream).await;
                if request.is_empty() {
                    return;
                }
                log.lock().unwrap().push(request);
                let _ = stream.write_all(answer).await;
            }
        }
    })
    .await;
    (engine, requests)
}

#[tokio::test]
async fn h6_a_refused_connection_goes_to_another_endpoint_of_the_revision() {
    let a = Engine::named("a").await;
    let gate = Gate::with(
        HttpConfig { breaker_failures: 0, ..http() },
        &[endpoint("a", nobody()), endpoint("a", a.address)],
    );
    for _ in 0..40 {
        assert_eq!(gate.get(&[]).await.text(), "a");
    }
    assert!(gate.metric(r#"proxy_retries_total{listener="decode"}"#) > 0);
}

#[tokio::test]
async fn h6_without_retries_a_refused_connection_is_the_clients_answer() {
    let gate = Gate::with(HttpConfig { retries: 0, ..http() }, &[endpoint("a", nobody())]);
    gate.get(&[]).await.is_refusal(503, "no-endpoint-left");
    assert_eq!(gate.metric(r#"proxy_retries_total{listener="decode"}"#), 0);
}

#[tokio::test]
async fn h6_an_idle_connection_that_breaks_as_it_is_used_again_costs_no_request() {
    let (engine, requests) = once(b"").await;
    let endpoint = endpoint("a", engine.address);
    let gate = Gate::new(&[Arc::clone(&endpoint)]);
    let mut client = Client::connect(gate.address).await;
    for n in 0..20 {
        let body = format!("prompt {n}!");
        let reply = client.send(request(&[], body.clone())).await;
        assert_eq!((reply.status, reply.text()), (StatusCode::OK, "ok"));
        assert!(
            requests.lock().unwrap().last().unwrap().ends_with(body.as_bytes()),
            "the body is sent again, whole"
        );
    }
    assert!(gate.metric(r#"proxy_retries_total{listener="decode"}"#) > 0);
    assert_eq!(endpoint.vitals.failures.load(SeqCst), 0, "closing an idle connection is no failure");
}

#[tokio::test]
async fn h6_connections_that_the_engine_closed_while_idle_cost_no_request() {
    let engine = Engine::raw(|mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(OK).await;
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    for _ in 0..200 {
        assert_eq!(client.send(request(&[], "prompt!")).await.text(), "ok");
    }
    assert_eq!(engine.connections(), 200);
}

#[tokio::test]
async fn h6_a_fresh_connection_that_breaks_may_have_been_served_and_is_not_tried_again() {
    let engine = Engine::raw(|mut stream| async move {
        read_request(&mut stream).await;
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    gate.send(request(&[], "prompt!")).await.is_refusal(502, "endpoint-reset");
    assert_eq!(engine.connections(), 1);
}

#[tokio::test]
async fn h6_a_reset_that_comes_late_may_have_been_served_and_is_not_tried_again() {
    let engine = Engine::raw(|mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(OK).await;
        read_request(&mut stream).await;
        // The work that it began.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    assert_eq!(client.send(request(&[], "prompt!")).await.text(), "ok");
    client.send(request(&[], "prompt!")).await.is_refusal(502, "endpoint-reset");
    assert_eq!(engine.connections(), 1);
}

#[tokio::test]
async fn h6_nothing_is_tried_again_after_the_first_byte_of_a_response() {
    let (engine, requests) = once(b"HTTP/1.1 20").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    assert_eq!(client.send(request(&[], "prompt!")).await.text(), "ok");
    client.send(request(&[], "prompt!")).await.is_refusal(502, "endpoint-reset");
    assert_eq!((engine.connections(), requests.lock().unwrap().len()), (1, 2));
}

#[tokio::test]
async fn h6_a_body_too_long_to_keep_goes_on_a_fresh_connection() {
    let engine = Engine::named("a").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    client.send(request(&[], "short")).await;
    client.send(request(&[], "short")).await;
    assert_eq!(engine.connections(), 1);
    client.send(request(&[], vec![b'x'; 65 * 1024])).await;
    assert_eq!(engine.connections(), 2);
    assert_eq!(engine.seen.lock().unwrap().last().unwrap().body.len(), 65 * 1024);
}

#[tokio::test]
async fn h6_a_body_of_unknown_length_that_outgrew_what_is_kept_is_not_tried_again() {
    let (engine, requests) = once(b"").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    assert_eq!(gate.send(request(&[], "prompt!")).await.text(), "ok");
    let mut client: Client<Channel<Bytes>> = Client::connect(gate.address).await;
    let (mut sender, body) = Channel::new(1);
    let sending = async {
        for _ in 0..9 {
            sender.send_data(Bytes::from(vec![b'x'; 8 * 1024])).await.unwrap();
        }
        sender.send_data(Bytes::from_static(b"!")).await.unwrap();
        drop(sender);
    };
    let (reply, ()) = tokio::join!(client.send(request(&[], "").map(|_| body)), sending);
    reply.is_refusal(502, "endpoint-reset");
    assert_eq!(requests.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn h5_a_pooled_connection_is_used_again_but_not_for_a_successor_at_the_same_address() {
    let engine = Engine::named("a").await;
    let gate = Gate::new(&[endpoint_of("a", engine.address, "first", false)]);
    let mut client = Client::connect(gate.address).await;
    for _ in 0..10 {
        client.send(request(&[], "")).await;
    }
    assert_eq!(engine.connections(), 1);
    assert_eq!(gate.metric(r#"proxy_reused_total{listener="decode"}"#), 9);
    gate.publish(&[endpoint_of("a", engine.address, "second", false)]);
    client.send(request(&[], "")).await;
    assert_eq!(engine.connections(), 2, "another Pod has the address");
    gate.publish(&[endpoint_of("b", engine.address, "second", false)]);
    assert_eq!(client.send(request(&[], "")).await.header(crate::support::NAME), "b");
    assert_eq!(engine.connections(), 3, "the Pod has another revision");
}

#[tokio::test]
async fn h5_connections_to_an_endpoint_that_left_are_closed() {
    let closed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&closed);
    let engine = Engine::raw(move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            while !read_request(&mut stream).await.is_empty() {
                stream.write_all(OK).await.unwrap();
            }
            count.fetch_add(1, SeqCst);
        }
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    gate.send(request(&[], "prompt!")).await;
    gate.publish(&[]);
    until(|| closed.load(SeqCst) == 1).await;
}

#[tokio::test]
async fn h7_an_idle_connection_is_closed_when_its_time_is_over() {
    let engine = Engine::named("a").await;
    let http = HttpConfig { pool_idle_timeout: Duration::ZERO, ..http() };
    let gate = Gate::with(http, &[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    for _ in 0..3 {
        client.send(request(&[], "")).await;
    }
    assert_eq!(engine.connections(), 3);
}

#[tokio::test]
async fn h7_failures_in_a_row_rest_an_endpoint() {
    let engine = Engine::new(|_| Response::builder().status(500).body(whole("")).unwrap()).await;
    let endpoint = endpoint("a", engine.address);
    let open = HttpConfig { breaker_open: Duration::from_mins(10), ..http() };
    let gate = Gate::with(open, &[Arc::clone(&endpoint)]);
    for _ in 0..3 {
        assert_eq!(
            gate.get(&[]).await.status,
            StatusCode::INTERNAL_SERVER_ERROR,
            "the engine's answer is passed on"
        );
    }
    gate.get(&[]).await.is_refusal(503, "breakers-open");
    assert_eq!(engine.requests(), 3);
    assert_eq!(gate.metric(r#"proxy_breaker_opens_total{listener="decode"}"#), 1);
    assert!(endpoint.vitals.is_open());
}

#[tokio::test]
async fn h7_a_rested_endpoint_that_answers_its_probe_serves_again() {
    let broken = Arc::new(AtomicBool::new(true));
    let state = Arc::clone(&broken);
    let engine = Engine::new(move |_| {
        let status = if state.load(SeqCst) { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
        Response::builder().status(status).body(whole("")).unwrap()
    })
    .await;
    let endpoint = endpoint("a", engine.address);
    let brief = HttpConfig { breaker_open: Duration::from_millis(1), ..http() };
    let gate = Gate::with(brief, &[Arc::clone(&endpoint)]);
    soon(async {
        while !endpoint.vitals.is_open() {
            gate.get(&[]).await;
        }
    })
    .await;
    broken.store(false, SeqCst);
    soon(async { while gate.get(&[]).await.status != StatusCode::OK {} }).await;
    assert!(!endpoint.vitals.is_open());
    for _ in 0..10 {
        assert_eq!(gate.get(&[]).await.status, StatusCode::OK);
    }
    assert_eq!(endpoint.vitals.failures.load(SeqCst), 0);
}

#[tokio::test]
async fn h7_statuses_below_500_never_count() {
    let engine = Engine::new(|_| Response::builder().status(429).body(whole("slow down")).unwrap()).await;
    let endpoint = endpoint("a", engine.address);
    let gate = Gate::new(&[Arc::clone(&endpoint)]);
    for _ in 0..10 {
        assert_eq!(gate.get(&[]).await.status, StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(endpoint.vitals.failures.load(SeqCst), 0);
    assert_eq!(engine.requests(), 10, "and none is tried again");
}

#[tokio::test]
async fn h4_an_endpoint_of_this_node_comes_first_while_it_is_not_busier() {
    let here = Engine::named("here").await;
    let away = Engine::named("away").await;
    let gate = Gate::new(&[
        endpoint_of("a", here.address, "here", true),
        endpoint_of("a", away.address, "away", false),
    ]);
    for _ in 0..20 {
        assert_eq!(gate.get(&[]).await.text(), "here");
    }
}

#[tokio::test]
async fn h6_an_early_answer_reaches_the_client_though_the_connection_broke_and_nobody_else_is_asked() {
    let serve = |mut stream: TcpStream| async move {
        let _ = stream.read(&mut [0; 64]).await;
        // What is unread then resets the connection.
        let _ = stream.write_all(b"HTTP/1.1 413 Large\r\ncontent-length: 2\r\n\r\nno").await;
    };
    let (first, second) = (Engine::raw(serve).await, Engine::raw(serve).await);
    let gate = Gate::new(&[endpoint("a", first.address), endpoint("a", second.address)]);
    for asked in 1..=20 {
        let mut client = TcpStream::connect(gate.address).await.unwrap();
        let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n";
        let part = [head.as_bytes(), &vec![b'x'; 100_000]].concat();
        let _ = client.write_all(&part).await;
        let mut answer = Vec::new();
        while !answer.ends_with(b"no") && soon(client.read_buf(&mut answer)).await.is_ok_and(|n| n > 0) {}
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 413") && answer.ends_with("no"), "{answer}");
        assert_eq!(first.connections() + second.connections(), asked);
    }
}

#[tokio::test]
async fn h6_a_connection_with_an_unfinished_upload_is_not_used_again() {
    let engine = Engine::raw(|mut stream| async move {
        read_request(&mut stream).await;
        let _ = stream.write_all(OK).await;
        while stream.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {}
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
    let mut client: Client<Channel<Bytes, std::io::Error>> = Client::connect(gate.address).await;
    let sending = async { sender.send_data(Bytes::from_static(b"half!")).await.unwrap() };
    let (reply, ()) = tokio::join!(client.start(request(&[], "").map(|_| body)), sending);
    assert_eq!(reply.unwrap().status(), StatusCode::OK);
    assert_eq!(soon(gate.send(request(&[], "whole!"))).await.text(), "ok");
    assert_eq!(engine.connections(), 2);
    drop(sender);
}
