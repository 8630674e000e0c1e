//! One connection over its life: used again where that is safe, and only there.

use http::StatusCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{
    tests::{ask, read, run},
    *,
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Both ends of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (stream, listener.accept().await.unwrap().0)
}

/// An endpoint that answers one request after another with these, and stays.
async fn serving(answers: Vec<&'static [u8]>) -> Link {
    let (stream, mut peer) = pair().await;
    tokio::task::spawn_local(async move {
        let mut request = Vec::new();
        for answer in answers {
            request.clear();
            while !request.ends_with(b"\r\n\r\n") && peer.read_buf(&mut request).await.is_ok_and(|n| n > 0) {}
            peer.write_all(answer).await.unwrap();
        }
        while peer.read_buf(&mut request).await.is_ok_and(|n| n > 0) {}
    });
    Link::new(stream)
}

#[test]
fn a_connection_serves_one_request_after_another_in_any_framing() {
    run(async {
        let chunked: &[u8] =
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n";
        let mut link = serving(vec![OK, chunked, chunked, OK]).await;
        for _ in 0..4 {
            let mut download = ask(&mut link, &Method::GET).await.unwrap().into_body();
            assert_eq!(read(&mut link, &mut download).await.unwrap(), b"ok");
            assert!(download.leaves_idle(&link));
        }
    });
}

#[test]
fn a_connection_on_which_more_comes_than_the_response_is_not_used_again() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ] {
        run(async {
            let mut link = serving(vec![answer]).await;
            let mut download = ask(&mut link, &Method::GET).await.unwrap().into_body();
            assert!(!download.leaves_idle(&link));
            assert_eq!(read(&mut link, &mut download).await.unwrap(), b"ok");
            assert!(!download.leaves_idle(&link));
        });
    }
}

#[test]
fn what_a_waiting_stream_came_with_is_held_no_longer() {
    run(async {
        let head: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n";
        let mut link = serving(vec![head]).await;
        let mut download = ask(&mut link, &Method::GET).await.unwrap().into_body();
        let data = poll_fn(|cx| download.poll_data(Some(&mut link), cx)).await.unwrap().unwrap();
        let waits = poll_fn(|cx| Poll::Ready(download.poll_data(Some(&mut link), cx).is_pending())).await;
        assert!(waits && data.is_unique(), "nobody else holds its memory");
    });
}

#[test]
fn nothing_is_sent_where_something_came_unasked_or_the_end_did() {
    for unasked in [OK, b""] {
        run(async {
            let (stream, mut peer) = pair().await;
            peer.write_all(unasked).await.unwrap();
            peer.shutdown().await.unwrap();
            stream.readable().await.unwrap();
            let outcome = ask(&mut Link::new(stream), &Method::GET).await;
            assert!(matches!(outcome, Err(ExchangeError::NotSent)));
            let mut request = Vec::new();
            let _ = peer.read_to_end(&mut request).await;
            assert!(request.is_empty());
        });
    }
}

#[test]
fn an_answer_that_came_before_the_connection_broke_is_read() {
    run(async {
        let (mut stream, mut peer) = pair().await;
        // Closing with unread data resets the connection. The runtime has not seen it when the request is written.
        stream.write_all(b"x").await.unwrap();
        peer.write_all(b"HTTP/1.1 413 No\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        drop(peer);
        let response = ask(&mut Link::new(stream), &Method::GET).await.unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    });
}

#[test]
fn a_head_has_a_bound_however_it_comes() {
    let mut heads = Heads::default();
    let mut add = |bytes: Vec<u8>| heads.add(bytes.into(), false, &mut HeaderMap::new());
    assert!(add(b"HTTP/1.1 200 OK\r\nx: ".to_vec()).unwrap().is_none());
    for _ in 0..head::MAX_HEAD / 1024 - 1 {
        assert!(add(vec![b'a'; 1024]).unwrap().is_none());
    }
    assert!(matches!(add(vec![b'a'; 1024]), Err(LinkError::NotHttp(_))));
}
