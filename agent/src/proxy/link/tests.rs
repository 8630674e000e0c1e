//! The client beside hyper's, over real sockets: whatever it takes for a response, hyper takes for the same one.

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use proptest::{prelude::*, sample::select};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

const HEADS: &[&str] = &[
    "HTTP/1.1 200 OK",
    "HTTP/1.1 200 OK",
    "HTTP/1.1 404",
    "HTTP/1.1 204 No Content",
    "HTTP/1.1 304 Not Modified",
    "HTTP/1.0 200 OK",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK",
    "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 500 No",
    "HTTP/1.2 200 OK",
    "\r\nHTTP/1.1 200 OK",
    "HTTP/1.1  200 OK",
];

const FIELDS: &[&str] = &[
    "content-length: 5",
    "Content-Length: 5",
    "content-length: 5, 5",
    "content-length: 11",
    "content-length: 5x",
    "transfer-encoding: chunked",
    "Transfer-Encoding: gzip, Chunked",
    "transfer-encoding: chunked, gzip",
    "transfer-encoding: gzip",
    "connection: close",
    "connection: keep-alive",
    "x-a: 1",
    "x-a: \x7e\u{e9}",
    "x-b:  padded \t",
    "x-c:",
    "x-d : 1",
    " folded",
    "nothing",
];

const BODIES: &[&str] = &[
    "",
    "hello",
    "hello world",
    "5\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n6;a=\"b\"\r\n world\r\n0\r\nx-sum: 1\r\n\r\n",
    "5\r\nhel",
    "5\nhello\r\n0\r\n\r\n",
    "0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "FFFFFFFFFFFFFFFFF\r\nhello",
];

/// What a client made of a response.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
    /// None: it broke off.
    body: Option<Vec<u8>>,
}

/// All but the length, which is said once where it came twice.
fn fields(headers: &http::HeaderMap) -> Vec<(String, Vec<u8>)> {
    let all = headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    all.filter(|(name, _)| name != "content-length").collect()
}

/// An endpoint that answers with these bytes in pieces, and closes.
async fn endpoint(answer: Vec<u8>, cut: usize) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut peer, _) = listener.accept().await.unwrap();
    tokio::task::spawn_local(async move {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") && peer.read_buf(&mut request).await.is_ok_and(|n| n > 0) {}
        for piece in answer.chunks(cut) {
            let _ = peer.write_all(piece).await;
            tokio::task::yield_now().await;
        }
        let _ = peer.shutdown().await;
        while peer.read_buf(&mut request).await.is_ok_and(|n| n > 0) {}
    });
    stream
}

/// Everything in a task's world, and a lost wake-up fails.
pub(super) fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let patient = async { tokio::time::timeout(Duration::from_secs(30), future).await };
    tokio::task::LocalSet::new().block_on(&runtime, patient).unwrap()
}

/// Sends a request without a body.
pub(super) async fn ask(link: &mut Link, method: &Method) -> Result<Response<Download>, ExchangeError> {
    let (deadlines, ticker) = (Deadlines::default(), Ticker::default());
    let patience = Patience {
        deadlines: &deadlines,
        ticker: &ticker,
        response: Duration::from_mins(1),
        stalled: Duration::from_mins(1),
    };
    let request =
        http::Request::builder().method(method.clone()).uri("/").header("host", "a").body(()).unwrap();
    link.exchange(&mut request.into_parts().0, RequestBody::Empty, None, patience).await
}

/// A body to its end. None: it broke off.
pub(super) async fn read(link: &mut Link, download: &mut Download) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(data) = poll_fn(|cx| download.poll_data(Some(link), cx)).await {
        body.extend_from_slice(&data.ok()?);
    }
    Some(body)
}

async fn own(method: &Method, answer: Vec<u8>, cut: usize) -> Option<Seen> {
    let mut link = Link::new(endpoint(answer, cut).await);
    let (head, mut download) = ask(&mut link, method).await.ok()?.into_parts();
    let body = read(&mut link, &mut download).await;
    Some(Seen { status: head.status.as_u16(), fields: fields(&head.headers), body })
}

async fn hypers(method: &Method, answer: Vec<u8>, cut: usize) -> Option<Seen> {
    let stream = TokioIo::new(endpoint(answer, cut).await);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    tokio::task::spawn_local(connection);
    let request = http::Request::builder().method(method.clone()).uri("/").header("host", "a");
    let (head, body) =
        sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.ok()?.into_parts();
    let body = body.collect().await.ok().map(|body| body.to_bytes().to_vec());
    Some(Seen { status: head.status.as_u16(), fields: fields(&head.headers), body })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn what_it_takes_hyper_takes_for_the_same(
        head in select(HEADS),
        lines in proptest::collection::vec(select(FIELDS), 0..4),
        body in select(BODIES),
        method in select(&[Method::GET, Method::GET, Method::HEAD]),
        cut in select(&[1_usize, 3, 7, 1000]),
        flip in proptest::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let lines: String = lines.into_iter().flat_map(|line| [line, "\r\n"]).collect();
        let mut answer = format!("{head}\r\n{lines}\r\n{body}").into_bytes();
        if let Some((at, byte)) = flip {
            let at = at.index(answer.len());
            answer[at] = byte;
        }
        let (own, hypers) = run(async {
            (own(&method, answer.clone(), cut).await, hypers(&method, answer.clone(), cut).await)
        });
        // Stricter it may be.
        if let Some(own) = own {
            let Some(mut hypers) = hypers else { return Err(TestCaseError::fail(format!("hyper refuses {own:?}"))) };
            if own.body.is_none() {
                hypers.body = None;
            }
            prop_assert_eq!(own, hypers, "{}", String::from_utf8_lossy(&answer));
        }
    }

    #[test]
    fn what_is_well_formed_is_taken_whole(
        early in select(&["", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"]),
        status in select(&[200_u16, 201, 404, 429, 500, 503]),
        fields in proptest::collection::vec(("[a-z][a-z0-9-]{0,20}", "[!-~]([ -~]{0,40}[!-~])?"), 0..8),
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..600), 0..6),
        framing in 0..3,
        extension in select(&["", "  ", ";a", "; a=\"b\""]),
        trailer in select(&["", "x-sum: 1\r\n", "x-sum: 1\r\nX-Other:  2 \r\n"]),
        cut in 1_usize..200,
    ) {
        let mut answer = format!("{early}HTTP/1.1 {status} Said\r\n");
        for (name, value) in &fields {
            answer.extend(["x-", name, ": ", value, "\r\n"]);
        }
        let body = pieces.concat();
        let length = format!("content-length: {}\r\n\r\n", body.len());
        answer.push_str(match framing {
            0 => &length,
            1 => "transfer-encoding: chunked\r\n\r\n",
            _ => "connection: close\r\n\r\n",
        });
        let mut answer = answer.into_bytes();
        if framing == 1 {
            for piece in &pieces {
                answer.extend(format!("{:X}{extension}\r\n", piece.len()).into_bytes());
                answer.extend([&piece[..], b"\r\n"].concat());
            }
            answer.extend(format!("0\r\n{trailer}\r\n").into_bytes());
        } else {
            answer.extend_from_slice(&body);
        }
        let seen = run(own(&Method::GET, answer, cut)).unwrap();
        prop_assert_eq!((seen.status, seen.body), (status, Some(body)));
        for (name, value) in fields {
            let field = (format!("x-{name}"), value.into_bytes());
            prop_assert!(seen.fields.contains(&field));
        }
    }
}

#[test]
fn a_plain_response_comes_through_in_every_framing_and_cut() {
    for framed in [
        "content-length: 11\r\n\r\nhello world",
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
        "\r\nhello world",
    ] {
        for cut in [1, 2, 5, 1000] {
            let answer = format!("HTTP/1.1 200 OK\r\nx-a: 1\r\n{framed}").into_bytes();
            let seen = run(own(&Method::GET, answer, cut)).unwrap();
            assert_eq!((seen.status, seen.body.as_deref()), (200, Some(&b"hello world"[..])), "{framed}");
        }
    }
}
