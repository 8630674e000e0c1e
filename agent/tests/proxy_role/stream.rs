//! Bodies in both directions: flushed as they come, bounded, never ended cleanly when they broke (H10).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Channel};
use revgate::config::HttpConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Mutex, mpsc},
};

use crate::support::{Client, Engine, Gate, endpoint, http, request, soon, until, whole};

/// Reads until what was read has that in it.
async fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut read = Vec::new();
    soon(async {
        while !read.windows(end.len()).any(|part| part == end) {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{}", String::from_utf8_lossy(&read));
        }
    })
    .await;
    read
}

/// An engine that answers each request with a stream of what the test sends.
async fn streaming() -> (Engine, mpsc::Sender<Option<Bytes>>) {
    let (feed, chunks) = mpsc::channel::<Option<Bytes>>(16);
    let chunks = Arc::new(Mutex::new(chunks));
    let engine = Engine::new(move |_| {
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
        let chunks = Arc::clone(&chunks);
        #[expect(clippy::disallowed_methods, reason = "ends with the response")]
        tokio::spawn(async move {
            let mut chunks = chunks.lock().await;
            while let Some(Some(chunk)) = chunks.recv().await {
                if sender.send_data(chunk).await.is_err() {
                    return;
                }
            }
        });
        Response::new(body.boxed_unsync())
    })
    .await;
    (engine, feed)
}

#[tokio::test]
async fn h10_each_chunk_reaches_the_client_before_the_next_is_made() {
    let (engine, feed) = streaming().await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = Client::connect(gate.address).await;
    let mut body = client.start(request(&[], "")).await.unwrap().into_body();
    for n in 0..5 {
        let chunk = Bytes::from(format!("data: {n}\n\n"));
        feed.send(Some(chunk.clone())).await.unwrap();
        let frame = soon(body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), chunk);
    }
    feed.send(None).await.unwrap();
    assert!(soon(body.frame()).await.is_none());
    assert_eq!(engine.connections(), 1);
    feed.send(None).await.unwrap();
    assert_eq!(client.send(request(&[], "")).await.text(), "");
    assert_eq!(engine.connections(), 1, "a stream that ended leaves its connection to the next request");
}

#[tokio::test]
async fn h10_the_request_body_streams_too() {
    let (seen, mut arrivals) = mpsc::channel(16);
    let engine = Engine::raw(move |mut stream| {
        let seen = seen.clone();
        async move {
            for piece in [b"one", b"two"] {
                read_until(&mut stream, piece).await;
                seen.send(piece).await.unwrap();
            }
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let mut client: Client<Channel<Bytes>> = Client::connect(gate.address).await;
    let sending = async {
        for piece in [b"one", b"two"] {
            sender.send_data(Bytes::from_static(piece)).await.unwrap();
            assert_eq!(soon(arrivals.recv()).await.unwrap(), piece);
        }
        drop(sender);
    };
    let (reply, ()) = tokio::join!(client.send(request(&[], "").map(|_| body)), sending);
    assert_eq!(reply.status, 204);
}

#[tokio::test]
async fn h10_a_stream_that_breaks_breaks_the_clients_stream() {
    for head in ["transfer-encoding: chunked\r\n\r\n3\r\none\r\n", "content-length: 10\r\n\r\none"] {
        let (seen, wait) = mpsc::channel::<()>(1);
        let wait = Arc::new(Mutex::new(wait));
        let engine = Engine::raw(move |mut stream| {
            let wait = Arc::clone(&wait);
            async move {
                read_until(&mut stream, b"\r\n\r\n").await;
                stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes()).await.unwrap();
                wait.lock().await.recv().await;
            }
        })
        .await;
        let endpoint = endpoint("a", engine.address);
        let gate = Gate::new(&[Arc::clone(&endpoint)]);
        let mut client = Client::connect(gate.address).await;
        let mut body = client.start(request(&[], "")).await.unwrap().into_body();
        assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), "one");
        drop(seen);
        assert!(soon(body.frame()).await.unwrap().is_err(), "no clean end after {head}");
        assert_eq!(gate.metric(r#"proxy_responses_broken_total{listener="decode"}"#), 1);
        assert_eq!(endpoint.vitals.failures.load(SeqCst), 1);
    }
}

#[tokio::test]
async fn h10_where_only_the_close_ends_a_body_a_broken_one_is_reset() {
    let engine = Engine::raw(|mut stream| async move {
        read_until(&mut stream, b"\r\n\r\n").await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await.unwrap();
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = TcpStream::connect(gate.address).await.unwrap();
    client.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let error = soon(client.read_to_end(&mut Vec::new())).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn h10_a_body_that_says_it_is_too_long_reaches_nobody() {
    let engine = Engine::named("a").await;
    let gate = Gate::with(HttpConfig { max_body: 100, ..http() }, &[endpoint("a", engine.address)]);
    assert_eq!(gate.send(request(&[], vec![b'x'; 100])).await.text(), "a");
    gate.send(request(&[], vec![b'x'; 101])).await.is_refusal(413, "body-too-large");
    assert_eq!(engine.connections(), 1);
}

#[tokio::test]
async fn h10_a_body_that_turns_out_too_long_is_refused_and_is_no_failure_of_the_engine() {
    let engine = Engine::named("a").await;
    let endpoint = endpoint("a", engine.address);
    let gate = Gate::with(HttpConfig { max_body: 100, ..http() }, &[Arc::clone(&endpoint)]);
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let mut client: Client<Channel<Bytes>> = Client::connect(gate.address).await;
    let sending = async {
        for _ in 0..101 {
            if sender.send_data(Bytes::from_static(b"x")).await.is_err() {
                break;
            }
        }
        drop(sender);
    };
    let (reply, ()) = tokio::join!(client.send(request(&[], "").map(|_| body)), sending);
    reply.is_refusal(413, "body-too-large");
    assert_eq!((engine.requests(), endpoint.vitals.failures.load(SeqCst)), (0, 0));
}

#[tokio::test]
async fn h9_a_client_that_leaves_frees_the_engine() {
    let gone = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&gone);
    let engine = Engine::raw(move |mut stream| {
        let count = Arc::clone(&count);
        async move {
            read_until(&mut stream, b"\r\n\r\n").await;
            while stream.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {}
            count.fetch_add(1, SeqCst);
        }
    })
    .await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = TcpStream::connect(gate.address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    until(|| engine.connections() == 1).await;
    drop(client);
    until(|| gone.load(SeqCst) == 1).await;
    until(|| gate.proxy.in_flight() == 0).await;
}

#[tokio::test]
async fn h14_a_thousand_requests_half_of_them_abandoned_leave_nothing_in_flight() {
    let (engine, feed) = streaming().await;
    drop(feed);
    let slow = Engine::raw(|mut stream| async move {
        read_until(&mut stream, b"\r\n\r\n").await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await.unwrap();
        while stream.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {}
    })
    .await;
    let endpoints = [endpoint("a", engine.address), endpoint("b", slow.address)];
    let gate = Gate::new(&endpoints);
    for n in 0..1000 {
        let revision = if n % 2 == 0 { "a" } else { "b" };
        let mut client = Client::connect(gate.address).await;
        let request = request(&[(crate::support::NAME, revision)], "");
        if revision == "a" {
            client.send(request).await;
        } else {
            // The client goes with its response half read.
            let mut body = client.start(request).await.unwrap().into_body();
            soon(body.frame()).await.unwrap().unwrap();
        }
    }
    until(|| gate.proxy.in_flight() == 0).await;
    for endpoint in &endpoints {
        until(|| endpoint.vitals.outstanding.load(SeqCst) == 0).await;
    }
    until(|| gate.metric(r#"proxy_requests_in_flight{listener="decode"}"#) == 0).await;
    until(|| gate.metric(r#"proxy_connections{listener="decode"}"#) == 0).await;
}

#[tokio::test]
async fn h12_a_client_that_waits_for_100_continue_gets_it() {
    let engine = Engine::named("a").await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let mut client = TcpStream::connect(gate.address).await.unwrap();
    client
        .write_all(b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 6\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut client, b"HTTP/1.1 100 Continue\r\n\r\n").await;
    client.write_all(b"prompt").await.unwrap();
    let reply = read_until(&mut client, b"a").await;
    assert!(reply.starts_with(b"HTTP/1.1 200"));
    let seen = engine.seen.lock().unwrap();
    assert_eq!(seen[0].body, "prompt");
    assert!(!seen[0].headers.contains_key("expect"));
}

#[tokio::test]
async fn h10_a_head_request_keeps_the_length_and_has_no_body() {
    let engine = Engine::new(|_| Response::new(whole("12345"))).await;
    let gate = Gate::new(&[endpoint("a", engine.address)]);
    let request = Request::head("/").header("host", "a").body(http_body_util::Full::default()).unwrap();
    let mut client = Client::connect(gate.address).await;
    let reply = client.send(request).await;
    assert_eq!((reply.header("content-length"), reply.text()), ("5", ""));
    assert_eq!(client.send(self::request(&[], "")).await.text(), "12345");
    assert_eq!(engine.connections(), 1);
}
