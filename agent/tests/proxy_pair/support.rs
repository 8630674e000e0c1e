//! A pair listener over two roles whose endpoints are engines of the test.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use prometheus_client::registry::Registry;
use revgate::{
    config::{
        Config, ConnectorKind, GatingMode, HeaderSelector, HttpConfig, ListenerConfig, PairConfig, Serves,
    },
    gating::{Census, Distribution, Gating},
    kernel::Pinner,
    observe::metrics::StrictNoMatch,
    proxy::{Metrics, Proxy},
    snapshot::{Endpoint, RevisionView, Snapshot, owner::Published},
};
use serde_json::{Value, json};

use crate::base::{self, Client, EngineBody, REVISION, Reply, whole};

pub(crate) const ROLES: [&str; 2] = ["prefill", "decode"];
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const PATHS: [&str; 5] =
    [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"];

/// What an engine saw of a request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Seen {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// An engine on 127.0.0.1 whose answers may take their time.
pub(crate) struct Engine {
    inner: base::Engine,
    seen: Arc<Mutex<Vec<Seen>>>,
    in_flight: Arc<AtomicUsize>,
}

/// A request that an engine works on, until its answer or its client is gone.
struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Engine {
    /// Answers each request, once its body is there, with what comes of `answer`.
    pub(crate) async fn new<A, F>(answer: A) -> Self
    where
        A: Fn(Seen) -> F + Send + Sync + Clone + 'static,
        F: Future<Output = Response<EngineBody>> + Send + 'static,
    {
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let in_flight: Arc<AtomicUsize> = Arc::default();
        let (log, count) = (Arc::clone(&seen), Arc::clone(&in_flight));
        let inner = base::Engine::raw(move |stream| {
            let (answer, log, count) = (answer.clone(), Arc::clone(&log), Arc::clone(&count));
            async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    count.fetch_add(1, SeqCst);
                    let in_flight = InFlight(Arc::clone(&count));
                    let (answer, log) = (answer.clone(), Arc::clone(&log));
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await.map(http_body_util::Collected::to_bytes)?;
                        let target = parts.uri.to_string();
                        let seen = Seen { target, headers: parts.headers, body };
                        log.lock().unwrap_or_else(PoisonError::into_inner).push(seen.clone());
                        let response = answer(seen).await;
                        drop(in_flight);
                        Ok::<_, hyper::Error>(response)
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            }
        })
        .await;
        Self { inner, seen, in_flight }
    }

    /// Answers every request at once.
    pub(crate) async fn says(status: u16, body: Value) -> Self {
        Self::new(move |_| {
            let body = body.clone();
            async move { answer(status, &body) }
        })
        .await
    }

    /// Does nothing for a minute, and then answers.
    pub(crate) async fn sleeps() -> Self {
        Self::new(|_| async {
            tokio::time::sleep(Duration::from_mins(1)).await;
            answer(200, &json!({}))
        })
        .await
    }

    /// A prefill engine of nixlv2 with so many cached tokens.
    pub(crate) async fn prefills(cached: u64) -> Self {
        Self::says(200, prefilled(cached)).await
    }

    /// A decode engine that had the whole prompt from elsewhere.
    pub(crate) async fn decodes() -> Self {
        Self::says(200, json!({"id": "d", "usage": {"prompt_tokens_details": {"cached_tokens": 99}}})).await
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.inner.address
    }

    pub(crate) fn connections(&self) -> usize {
        self.inner.connections()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn calls(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Requests that it works on.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(SeqCst)
    }
}

/// A whole JSON answer.
pub(crate) fn answer(status: u16, body: &Value) -> Response<EngineBody> {
    let mut response = Response::new(whole(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

/// The reply of a prefill.
pub(crate) fn prefilled(cached: u64) -> Value {
    json!({"id": "p", "kv_transfer_params": {"remote_block_ids": [1, 2], "remote_host": "10.0.0.9"},
           "usage": {"prompt_tokens_details": {"cached_tokens": cached}}})
}

/// A Ready Pod's endpoint: revision, role, address.
pub(crate) fn endpoint(revision: &str, role: usize, address: SocketAddr) -> Arc<Endpoint> {
    labelled(revision, role, address, &[])
}

pub(crate) fn labelled(
    revision: &str,
    role: usize,
    address: SocketAddr,
    labels: &[(&str, &str)],
) -> Arc<Endpoint> {
    let fresh = base::endpoint_of(revision, address, &format!("uid-{address}"), false);
    let mut endpoint = Arc::into_inner(fresh).expect("nobody else has it");
    let mut pod = Arc::unwrap_or_clone(endpoint.pod);
    pod.labels = labels.iter().map(|(label, value)| ((*label).into(), (*value).into())).collect();
    endpoint.pod = Arc::new(pod);
    endpoint.role = role;
    Arc::new(endpoint)
}

/// A synced snapshot of one set whose two roles are required.
pub(crate) fn snapshot(endpoints: &[Arc<Endpoint>], selectors: &[HeaderSelector]) -> Snapshot {
    let mut snapshot = base::snapshot(GatingMode::MaxRole, &[]);
    let mut sorted = endpoints.to_vec();
    sorted.sort_by(|a, b| (&a.revision, a.address).cmp(&(&b.revision, b.address)));
    let mut census = Census::new(2);
    let mut revisions: Vec<RevisionView> = Vec::new();
    for endpoint in &sorted {
        let role = endpoint.role;
        census.count(&endpoint.revision, role, 1);
        if revisions.last().is_none_or(|last| last.name != endpoint.revision) {
            revisions.push(RevisionView {
                name: Arc::clone(&endpoint.revision),
                slot: u16::try_from(revisions.len()).unwrap(),
                epoch: 1,
                endpoints: vec![Vec::new(), Vec::new()],
                members: Vec::new(),
            });
        }
        revisions.last_mut().unwrap().endpoints[role].push(Arc::clone(endpoint));
    }
    let set = &mut snapshot.sets[0];
    set.required = 2;
    set.roles = ROLES.map(Arc::from).into();
    set.selectors = selectors.into();
    set.distribution = Distribution::of(&census, Gating { mode: GatingMode::MaxRole, required: 2 });
    set.revisions = revisions;
    snapshot
}

/// The same where nothing gates.
pub(crate) fn ungated(endpoints: &[Arc<Endpoint>]) -> Snapshot {
    let mut snapshot = snapshot(endpoints, &[]);
    let mut census = Census::new(2);
    for endpoint in endpoints {
        census.count(&endpoint.revision, endpoint.role, 1);
    }
    let set = &mut snapshot.sets[0];
    set.mode = GatingMode::Disabled;
    set.distribution = Distribution::of(&census, Gating { mode: GatingMode::Disabled, required: 2 });
    snapshot
}

/// A configuration of these listeners on two roles.
pub(crate) fn config(http: HttpConfig, listeners: &[Serves]) -> Config {
    let mut config = base::config(http);
    config.sets[0].roles = ROLES.map(Arc::from).into();
    config.sets[0].required_roles = config.sets[0].roles.clone();
    config.sets[0].ports = vec![Vec::new(); 2];
    let listener = |(number, serves): (usize, &Serves)| ListenerConfig {
        name: if listeners.len() == 1 { "pair".into() } else { ROLES[number].into() },
        serves: serves.clone(),
        ..config.agent.listeners[0].clone()
    };
    let listeners = listeners.iter().enumerate().map(listener).collect();
    config.agent.listeners = listeners;
    config
}

pub(crate) fn nixlv2() -> PairConfig {
    PairConfig::between(0, 1)
}

pub(crate) fn of(connector: ConnectorKind) -> PairConfig {
    PairConfig { connector, ..nixlv2() }
}

/// An agent whose snapshot the test publishes.
pub(crate) struct Rig {
    pub(crate) proxy: Proxy,
    pub(crate) published: Published,
    registry: Registry,
}

impl Rig {
    /// With a pair listener.
    pub(crate) fn new(pair: PairConfig, endpoints: &[Arc<Endpoint>]) -> Self {
        Self::with(base::http(), pair, endpoints)
    }

    pub(crate) fn with(http: HttpConfig, pair: PairConfig, endpoints: &[Arc<Endpoint>]) -> Self {
        Self::over(&config(http, &[Serves::Pair(pair)]), snapshot(endpoints, &[]))
    }

    /// One prefill engine and one decode engine of one revision.
    pub(crate) fn between(pair: PairConfig, prefill: &Engine, decode: &Engine) -> Self {
        Self::new(pair, &[endpoint("a", 0, prefill.address()), endpoint("a", 1, decode.address())])
    }

    pub(crate) fn over(config: &Config, snapshot: Snapshot) -> Self {
        let published: Published = Arc::new(ArcSwap::from_pointee(snapshot));
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, StrictNoMatch::default());
        let proxy = Proxy::start(config, Arc::clone(&published), &Pinner::user_space(), metrics).unwrap();
        Self { proxy, published, registry }
    }

    /// Where a listener listens, by its number.
    pub(crate) fn address(&self, listener: usize) -> SocketAddr {
        self.proxy.addresses().nth(listener).unwrap().1
    }

    pub(crate) async fn client<B>(&self) -> Client<B>
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Client::connect(self.address(0)).await
    }

    /// A chat on a connection of its own, answered whole.
    pub(crate) async fn chat(&self, body: impl ToString) -> Reply {
        self.send(post(CHAT, &[], body.to_string())).await
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        self.client().await.send(request).await
    }

    pub(crate) fn metric(&self, line: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {line} in:\n{text}")).parse().unwrap()
    }
}

pub(crate) fn post(path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let mut builder = Request::post(path).header("host", "model.example");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(body.into())).unwrap()
}

/// A request that every connector takes.
pub(crate) fn ask() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
}

/// The revision that served.
pub(crate) fn revision(reply: &Reply) -> &str {
    reply.header(REVISION.as_str())
}

/// A body of these pieces.
pub(crate) fn chunks(chunks: Vec<Result<Bytes, std::io::Error>>) -> EngineBody {
    let frames = chunks.into_iter().map(|chunk| chunk.map(http_body::Frame::data));
    http_body_util::StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync()
}

/// A stream of events with a content type that says so.
pub(crate) fn events(body: EngineBody) -> Response<EngineBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
    response
}
