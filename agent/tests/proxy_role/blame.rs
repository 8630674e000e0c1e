//! Whose fault it was: only an endpoint's own failures count against it (H7, H11).

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Channel};
use revgate::config::HttpConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{Client, Engine, Gate, endpoint, http, nobody, request, soon, until};

#[tokio::test]
async fn h7_an_engine_that_stops_reading_is_to_blame_not_its_client() {
    let engine = Engine::raw(|stream| async move {
        // Takes the connection, and nothing more.
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let endpoint = endpoint("a", engine.address);
    let brief = Duration::from_millis(200);
    let http = HttpConfig { idle_timeout: brief * 100, response_timeout: brief, ..http() };
    let gate = Gate::with(http, &[Arc::clone(&endpoint)]);
    let (mut client, mut sending) = TcpStream::connect(gate.address).await.unwrap().into_split();
    let upload = async {
        let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 60000000\r\n\r\n";
        sending.write_all(head).await.unwrap();
        while sending.write_all(&[b'x'; 8 * 1024]).await.is_ok() {}
    };
    let mut read = [0; 32];
    let answer = async { soon(client.read_exact(&mut read)).await.unwrap() };
    tokio::select! {
        biased;
        _ = answer => {}
        () = async { upload.await; std::future::pending().await } => {}
    }
    assert!(read.starts_with(b"HTTP/1.1 504"), "{}", String::from_utf8_lossy(&read));
    assert_eq!(endpoint.vitals.failures.load(SeqCst), 1);
}

#[tokio::test]
async fn h7_an_upload_that_fails_under_a_response_is_the_clients_fault() {
    let engine = Engine::raw(|mut stream| async move {
        let _ = stream.read(&mut [0; 1024]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await;
        while stream.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {}
    })
    .await;
    let endpoint = endpoint("a", engine.address);
    let gate = Gate::with(HttpConfig { max_body: 100, ..http() }, &[Arc::clone(&endpoint)]);
    let (mut sender, body) = Channel::<Bytes>::new(1);
    let mut client: Client<Channel<Bytes>> = Client::connect(gate.address).await;
    let first = async { sender.send_data(Bytes::from_static(b"prompt")).await.unwrap() };
    let (reply, ()) = tokio::join!(client.start(request(&[], "").map(|_| body)), first);
    let mut reply = reply.unwrap().into_body();
    assert_eq!(soon(reply.frame()).await.unwrap().unwrap().into_data().unwrap(), "one");
    sender.send_data(Bytes::from(vec![b'x'; 101])).await.unwrap();
    assert!(soon(reply.frame()).await.unwrap().is_err());
    until(|| gate.metric(r#"proxy_responses_broken_total{listener="decode"}"#) == 1).await;
    assert_eq!(endpoint.vitals.failures.load(SeqCst), 0);
}

#[tokio::test]
async fn h7_a_fault_of_this_machine_is_503_and_opens_no_breaker() {
    // A link-local address without an interface: refused before anything is sent.
    let endpoint = endpoint("a", "[fe80::1]:8000".parse().unwrap());
    let gate = Gate::new(&[Arc::clone(&endpoint)]);
    for _ in 0..5 {
        gate.get(&[]).await.is_refusal(503, "local-error");
    }
    assert_eq!(endpoint.vitals.failures.load(SeqCst), 0);
}

#[tokio::test]
async fn h11_when_every_endpoint_was_tried_it_is_503_with_the_last_cause() {
    let gate = Gate::new(&[endpoint("a", nobody()), endpoint("a", nobody())]);
    let reply = gate.get(&[]).await;
    reply.is_refusal(503, "no-endpoint-left");
    assert!(reply.text().contains("cannot be reached"), "{reply:?}");
}

#[tokio::test]
async fn h11_when_the_tries_are_used_up_and_others_are_left_it_is_502() {
    let gate =
        Gate::with(HttpConfig { retries: 0, ..http() }, &[endpoint("a", nobody()), endpoint("a", nobody())]);
    gate.get(&[]).await.is_refusal(502, "endpoint-unreachable");
    assert_eq!(gate.metric(r#"proxy_retries_total{listener="decode"}"#), 0);
}
