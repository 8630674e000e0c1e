//! Engines of two revisions, an agent that picks among them, and an Envoy that asks it.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use revgate_engine::{Engine, EngineConfig, Fleet};
use revgate_tests::{
    agent::{Agent, Pod},
    echo::PATIENCE,
    envoy::{self, Bodies, Envoy, Fallback, Route},
    require,
};
use tokio::task::JoinSet;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const REVISION: &str = "x-llm-d-disagg-revision";
pub(crate) const REASON: &str = "x-llm-d-request-dropped-reason";
pub(crate) const PREFILLER: &str = "x-prefiller-host-port";
const PORT: u16 = 8000;

/// Of each revision a prefill, and so many decodes.
pub(crate) const DECODES: u8 = 2;

/// How a scene is set up.
pub(crate) struct Setup {
    /// Where its addresses lie: 127.61.x.0, one for each test.
    pub(crate) net: u8,
    pub(crate) bodies: Bodies,
    /// The fields of `endpointPicker`.
    pub(crate) picker: &'static str,
    /// Envoy knows the engines, and tries those that are named in turn.
    pub(crate) fallback: bool,
}

pub(crate) struct Scene {
    pub(crate) envoy: Envoy,
    pub(crate) agent: Agent,
    pub(crate) engines: HashMap<SocketAddr, Engine>,
    net: u8,
    _fleet: Fleet,
}

/// Whose address that is.
pub(crate) fn revision_of(address: SocketAddr) -> &'static str {
    match address.ip() {
        IpAddr::V4(ip) if ip.octets()[3] < 100 => "a",
        _ => "b",
    }
}

impl Scene {
    /// `None`: there is no Envoy here, which has been said.
    pub(crate) async fn set(setup: &Setup) -> Option<Self> {
        let Some(program) = envoy::program() else {
            require::skip("envoy", "no Envoy: .ci/setup envoy installs it");
            return None;
        };
        let fleet = Fleet::new().unwrap();
        let mut engines = HashMap::new();
        for (revision, role, ip) in pods(setup.net, &["a", "b"]) {
            let mut config = EngineConfig::new(SocketAddr::new(ip, PORT), revision, role);
            config.behaviour.reveal = true;
            config.behaviour.record = 1024;
            // What a proxy must overwrite.
            config.behaviour.headers = vec![(REVISION.parse().unwrap(), "forged".parse().unwrap())];
            let engine = fleet.start(config).await.unwrap();
            engines.insert(engine.address(), engine);
        }
        let picker = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let line = format!("- {{name: picker, address: '{picker}', endpointPicker: {{{}}}}}", setup.picker);
        let mut agent = Agent::prepare_listeners(env!("CARGO_BIN_EXE_revgate-under-test"), &line);
        agent.pods(&pods(setup.net, &["a", "b"]));
        agent.start();
        let route = Route::Picker(picker, setup.bodies);
        let fallback = Fallback { endpoints: engines.keys().copied().collect() };
        let envoy = Envoy::start(&program, &route, setup.fallback.then_some(&fallback));
        Some(Self { envoy, agent, engines, net: setup.net, _fleet: fleet })
    }

    /// Only Pods of these revisions.
    pub(crate) fn only(&self, revisions: &[&'static str]) {
        if revisions.is_empty() {
            self.agent.write_pods("[]\n");
        } else {
            self.agent.pods(&pods(self.net, revisions));
        }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.envoy.address()).await
    }

    /// The engine that an answer is from.
    pub(crate) fn server(&self, reply: &Reply) -> &Engine {
        &self.engines[&reply.server()]
    }

    /// How many requests the engines have seen.
    pub(crate) fn served(&self) -> usize {
        self.engines.values().map(|engine| engine.recorded().len()).sum()
    }
}

fn pods(net: u8, revisions: &[&'static str]) -> Vec<Pod<'static>> {
    let ip = |last| IpAddr::V4(Ipv4Addr::new(127, 61, net, last));
    let mut pods = Vec::new();
    for revision in revisions {
        let first = if *revision == "a" { 1 } else { 101 };
        pods.push((*revision, "prefill", ip(first)));
        pods.extend((1..=DECODES).map(|at| (*revision, "decode", ip(first + at))));
    }
    pods
}

/// Bounds a wait for what comes by itself.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
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
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Self { sender, _driver: driver }
    }

    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Reply {
        self.sender.ready().await.unwrap();
        let (head, body) = self.sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn get(&mut self, headers: &[(&str, &str)]) -> Reply {
        self.send(request("GET", "/v1/models", headers, Bytes::new())).await
    }

    pub(crate) async fn chat(&mut self, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        self.send(request("POST", CHAT, headers, body.into())).await
    }
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: Bytes) -> Request<Full<Bytes>> {
    let mut builder = Request::builder().method(method).uri(path).header("host", "model.example");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(body)).unwrap()
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
