//! Trailers of requests and responses, by HTTP/2 on both sides (E1).

use std::{convert::Infallible, net::SocketAddr, vec};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client, server,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use revgate_tests::envoy::Bodies;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{
    client::{CHAT, REVISION, chat_of, revision_of, soon},
    scene::{Scene, Setup},
};

/// The trailer.
const SUM: &str = "x-sum";

type Body = StreamBody<stream::Iter<vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

/// A body that ends with a trailer.
fn body(bytes: Bytes, sum: &str) -> Body {
    let trailers = HeaderMap::from_iter([(SUM.parse().unwrap(), sum.parse().unwrap())]);
    let data = (!bytes.is_empty()).then(|| Ok(Frame::data(bytes)));
    let frames: Vec<_> = data.into_iter().chain([Ok(Frame::trailers(trailers))]).collect();
    StreamBody::new(stream::iter(frames))
}

/// Reads a body and its trailer.
async fn read(body: Incoming) -> (Bytes, String) {
    let whole = body.collect().await.unwrap();
    let sum = whole.trailers().and_then(|trailers| trailers.get(SUM)).map(|sum| sum.to_str().unwrap().into());
    (whole.to_bytes(), sum.unwrap_or_default())
}

/// Instead of an engine: answers with what it was sent.
async fn echo(listener: TcpListener) {
    let address = listener.local_addr().unwrap();
    let mut open = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request: Request<Incoming>| async move {
            let (bytes, sum) = read(request.into_body()).await;
            let response = Response::builder().header("x-engine", address.to_string());
            Ok::<_, Infallible>(response.body(body(bytes, &format!("of {sum}"))).unwrap())
        });
        open.spawn(async move {
            let server = server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

#[tokio::test]
async fn e1_trailers_pass_both_ways() {
    for bodies in [Bodies::FullDuplex, Bodies::Streamed, Bodies::Buffered, Bodies::HeadersOnly] {
        let setup = Setup { bodies, http2: true, ..Setup::default() };
        let Some(scene) = Scene::set(&setup).await else { return };
        let mut tasks = JoinSet::new();
        for engine in scene.decodes() {
            engine.down().await.unwrap();
            tasks.spawn(echo(TcpListener::bind(engine.address()).await.unwrap()));
        }
        let stream = TcpStream::connect(scene.envoy.address()).await.unwrap();
        let handshake = client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.unwrap();
        tasks.spawn(async move {
            let _ = connection.await;
        });
        // The first is read before it is known where it goes, of the others each part goes on as it comes.
        for (path, sent) in [
            (CHAT, chat_of(300, false)),
            (CHAT, chat_of(130_000, false)),
            ("/tokenize", Bytes::new()),
            ("/tokenize", Bytes::from_static(b"one")),
            ("/tokenize", vec![b'x'; 130_000].into()),
        ] {
            let request = Request::post(format!("http://model.example{path}"));
            let request = request.body(body(sent.clone(), "7")).unwrap();
            let (head, received) = soon(sender.send_request(request)).await.unwrap().into_parts();
            assert_eq!(head.status, 200, "{bodies:?} {path} {}", sent.len());
            let (received, sum) = soon(read(received)).await;
            assert!(received == sent, "{bodies:?}: {} of {} bytes", received.len(), sent.len());
            assert_eq!(sum, "of 7", "{bodies:?} {path} {}", sent.len());
            let server: SocketAddr = head.headers["x-engine"].to_str().unwrap().parse().unwrap();
            assert_eq!(head.headers[REVISION], revision_of(server));
        }
    }
}
