//! Clients of Envoy, and what they see.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const REVISION: &str = "x-llm-d-disagg-revision";
pub(crate) const PREFILLER: &str = "x-prefiller-host-port";
pub(crate) const DESTINATION: &str = "x-gateway-destination-endpoint";
const REASON: &str = "x-llm-d-request-dropped-reason";

/// Longest wait for anything; never a condition for passing.
const PATIENCE: Duration = Duration::from_mins(1);

/// Fails the test instead of hanging it.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// Waits for what nothing announces.
pub(crate) async fn until(mut holds: impl FnMut() -> bool) {
    soon(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Whose address that is.
pub(crate) fn revision_of(address: SocketAddr) -> &'static str {
    match address.ip() {
        IpAddr::V4(ip) if ip.octets()[3] >= 100 => "b",
        _ => "a",
    }
}

/// A client's connection to Envoy.
pub(crate) struct Client {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    _driver: JoinSet<()>,
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = soon(tokio::net::TcpStream::connect(address)).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Self { sender, _driver: driver }
    }

    /// The response once its head is there.
    pub(crate) async fn start(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.try_start(request).await.unwrap()
    }

    pub(crate) async fn try_start(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        soon(self.sender.ready()).await?;
        soon(self.sender.send_request(request)).await
    }

    /// The response once it is whole.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Reply {
        let (head, body) = self.start(request).await.into_parts();
        let body = soon(body.collect()).await.unwrap().to_bytes();
        Reply { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn get(&mut self, headers: &[(&str, &str)]) -> Reply {
        self.send(request("GET", "/v1/models", headers, Bytes::new())).await
    }

    pub(crate) async fn chat(&mut self, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        self.send(request("POST", CHAT, headers, body.into())).await
    }
}

pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Request<Full<Bytes>> {
    let mut builder = Request::builder().method(method).uri(path).header("host", "model.example");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(body.into())).unwrap()
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next().map_or("", |value| value.to_str().unwrap());
        assert!(values.next().is_none(), "{name} once");
        value
    }

    /// The engine's address.
    pub(crate) fn server(&self) -> SocketAddr {
        self.header("x-engine").parse().unwrap_or_else(|_| panic!("{} {:?}", self.status, self.headers))
    }

    /// Sees that it is an engine's answer with the stamp of that engine's revision, and says which.
    pub(crate) fn served(&self) -> &'static str {
        let revision = revision_of(self.server());
        assert_eq!((self.status, self.header(REVISION)), (StatusCode::OK, revision));
        revision
    }

    pub(crate) fn is_refusal(&self, status: u16, reason: &str) {
        assert_eq!((self.status.as_u16(), self.header(REASON)), (status, reason), "{:?}", self.body);
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(
            (body["error"]["code"].as_str(), self.header("content-type")),
            (Some(reason), "application/json")
        );
    }
}

/// A chat of that many bytes.
pub(crate) fn chat_of(length: usize, stream: bool) -> Bytes {
    let head = format!(r#"{{"model": "m", "stream": {stream}, "messages": [{{"role": "user", "content": ""#);
    let tail = r#""}]}"#;
    let fill = length.saturating_sub(head.len() + tail.len());
    format!("{head}{}{tail}", "x".repeat(fill)).into()
}
