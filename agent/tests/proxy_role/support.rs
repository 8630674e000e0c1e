//! What every test here needs: engines that do what a test says, snapshots made by hand, a proxy over them, clients.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus_client::registry::Registry;
use revgate::{
    cluster::{Pod, PodKey},
    config::{
        AgentConfig, Config, FenceMode, GatingMode, HttpConfig, KernelConfig, KernelMode, ListenerConfig,
        LogConfig, LogFormat, Selector, Serves, SetConfig, ShutdownConfig, SourceConfig,
    },
    gating::{Census, Distribution, Gating},
    kernel::Pinner,
    proxy::{Metrics, Proxy},
    snapshot::{Endpoint, RevisionView, SetView, Snapshot, Vitals, owner::Published},
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

pub(crate) const REVISION: HeaderName = HeaderName::from_static("x-llm-d-disagg-revision");
pub(crate) const NAME: &str = "x-llm-d-disagg-revision";
pub(crate) const ID: &str = "x-llm-d-revision-decision-id";
pub(crate) const REASON: &str = "x-llm-d-request-dropped-reason";

/// Longest wait for anything; never a condition for passing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Fails the test instead of hanging it.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it takes too long")
}

/// Waits for a condition that nothing announces.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub(crate) type EngineBody = UnsyncBoxBody<Bytes, std::io::Error>;

pub(crate) fn whole(bytes: impl Into<Bytes>) -> EngineBody {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// What an engine saw of a request.
pub(crate) struct Seen {
    pub(crate) method: http::Method,
    pub(crate) uri: http::Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An engine on 127.0.0.1, gone when dropped.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Arc<AtomicUsize>,
    pub(crate) seen: Arc<Mutex<Vec<Seen>>>,
    _tasks: JoinSet<()>,
}

impl Engine {
    /// Answers each request, once its body is there, with what `answer` makes of it.
    pub(crate) async fn new<A>(answer: A) -> Self
    where
        A: Fn(&Seen) -> Response<EngineBody> + Send + Sync + Clone + 'static,
    {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let mut engine = Self::raw(move |stream| {
            let (answer, log) = (answer.clone(), Arc::clone(&log));
            async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let (answer, log) = (answer.clone(), Arc::clone(&log));
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await.map(http_body_util::Collected::to_bytes)?;
                        let seen =
                            Seen { method: parts.method, uri: parts.uri, headers: parts.headers, body };
                        let response = answer(&seen);
                        log.lock().unwrap().push(seen);
                        Ok::<_, hyper::Error>(response)
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            }
        })
        .await;
        engine.seen = seen;
        engine
    }

    /// Answers 200 with its name.
    pub(crate) async fn named(name: &'static str) -> Self {
        Self::new(move |_| Response::new(whole(name))).await
    }

    /// Does as it is told with each connection.
    pub(crate) async fn raw<S, F>(serve: S) -> Self
    where
        S: Fn(TcpStream) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                open.spawn(serve(stream));
            }
        });
        Self { address, connections, seen: Arc::default(), _tasks: tasks }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// An address on which nobody listens.
pub(crate) fn nobody() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A Ready Pod's endpoint of the one role `decode`.
pub(crate) fn endpoint(revision: &str, address: SocketAddr) -> Arc<Endpoint> {
    endpoint_of(revision, address, &format!("uid-{address}"), false)
}

pub(crate) fn endpoint_of(revision: &str, address: SocketAddr, uid: &str, local: bool) -> Arc<Endpoint> {
    let pod = Pod {
        ips: vec![address.ip()],
        labels: [("slice".into(), format!("slice-of-{revision}").into())].into_iter().collect(),
        ready: true,
        ..Pod::new(PodKey {
            namespace: "default".into(),
            name: format!("pod-{address}").into(),
            uid: uid.into(),
        })
    };
    Arc::new(Endpoint {
        address,
        pod: Arc::new(pod),
        revision: revision.into(),
        role: 0,
        local,
        vitals: Arc::new(Vitals::default()),
    })
}

/// A synced snapshot of one set with one required role.
pub(crate) fn snapshot(mode: GatingMode, endpoints: &[Arc<Endpoint>]) -> Snapshot {
    let mut census = Census::new(1);
    let mut revisions: Vec<RevisionView> = Vec::new();
    let mut sorted = endpoints.to_vec();
    sorted.sort_by(|a, b| (&a.revision, a.address).cmp(&(&b.revision, b.address)));
    for endpoint in &sorted {
        census.count(&endpoint.revision, 0, 1);
        if revisions.last().is_none_or(|last| last.name != endpoint.revision) {
            revisions.push(RevisionView {
                name: Arc::clone(&endpoint.revision),
                slot: u16::try_from(revisions.len()).unwrap(),
                epoch: 1,
                endpoints: vec![Vec::new()],
                members: Vec::new(),
            });
        }
        revisions.last_mut().unwrap().endpoints[0].push(Arc::clone(endpoint));
    }
    Snapshot {
        generation: 1,
        synced: true,
        sets: vec![SetView {
            name: "set".into(),
            mode,
            required: 1,
            revision_header: REVISION,
            selectors: Arc::new([]),
            roles: Arc::new(["decode".into()]),
            distribution: Distribution::of(&census, Gating { mode, required: 1 }),
            revisions,
            left_out: Vec::new(),
        }],
        vips: Vec::new(),
        missing_vips: Vec::new(),
        sources: Vec::new(),
    }
}

pub(crate) fn http() -> HttpConfig {
    HttpConfig {
        workers: 1,
        busy_poll: true,
        max_body: 64 << 20,
        max_head: 64 << 10,
        head_timeout: PATIENCE,
        idle_timeout: PATIENCE * 2,
        max_connections: 4096,
        max_requests: 4096,
        connect_timeout: Duration::from_secs(5),
        response_timeout: PATIENCE,
        stream_idle_timeout: PATIENCE * 2,
        pool_idle_timeout: Duration::from_secs(4),
        pool_max_idle: 64,
        retries: 2,
        local_factor: 2.0,
        prefer_factor: 2.0,
        breaker_failures: 3,
        breaker_open: Duration::from_millis(200),
        access_log: false,
    }
}

pub(crate) fn config(http: HttpConfig) -> Config {
    let any = "127.0.0.1:0".parse().unwrap();
    Config {
        sets: vec![SetConfig {
            name: "set".into(),
            scope: Selector::default(),
            namespaces: Vec::new(),
            mode: GatingMode::MaxRole,
            required_roles: vec!["decode".into()],
            roles: vec!["decode".into()],
            ports: vec![Vec::new()],
            pool: None,
            revision_header: REVISION,
            revision_label: "revision".into(),
            role_label: "role".into(),
            selectors: Vec::new(),
        }],
        agent: AgentConfig {
            node: None,
            source: SourceConfig::File { path: "pods.yaml".into() },
            listeners: vec![ListenerConfig {
                name: "decode".into(),
                address: any,
                set: 0,
                serves: Serves::Role(0),
                tls: None,
            }],
            vips: Vec::new(),
            kernel: KernelConfig { mode: KernelMode::Off, fence: FenceMode::Off, ..KernelConfig::default() },
            http,
            admin: any,
            shutdown: ShutdownConfig { delay: Duration::ZERO, deadline: PATIENCE },
            log: LogConfig { format: LogFormat::Text, filter: String::new() },
        },
    }
}

/// A proxy with one role listener over a set whose snapshot the test publishes.
pub(crate) struct Gate {
    pub(crate) proxy: Proxy,
    pub(crate) address: SocketAddr,
    pub(crate) published: Published,
    pub(crate) registry: Registry,
}

impl Gate {
    pub(crate) fn new(endpoints: &[Arc<Endpoint>]) -> Self {
        Self::with(http(), endpoints)
    }

    pub(crate) fn with(http: HttpConfig, endpoints: &[Arc<Endpoint>]) -> Self {
        Self::over(&config(http), snapshot(GatingMode::MaxRole, endpoints))
    }

    pub(crate) fn over(config: &Config, snapshot: Snapshot) -> Self {
        let published: Published = Arc::new(ArcSwap::from_pointee(snapshot));
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, revgate::observe::metrics::StrictNoMatch::default());
        let proxy = Proxy::start(config, Arc::clone(&published), &Pinner::user_space(), metrics)
            .expect("the proxy starts");
        let address = proxy.addresses().next().unwrap().1;
        Self { proxy, address, published, registry }
    }

    pub(crate) fn publish(&self, endpoints: &[Arc<Endpoint>]) {
        self.published.store(Arc::new(snapshot(GatingMode::MaxRole, endpoints)));
    }

    pub(crate) fn metric(&self, line: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let found = text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {line} in:\n{text}")).parse().unwrap()
    }

    /// One request on a connection of its own, answered whole.
    pub(crate) async fn get(&self, headers: &[(&str, &str)]) -> Reply {
        self.send(request(headers, "")).await
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        Client::connect(self.address).await.send(request).await
    }
}

pub(crate) fn request(headers: &[(&str, &str)], body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let mut builder = Request::post("/v1/completions?q=1").header("host", "model.example");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::new(body.into())).unwrap()
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Asserts a refusal: the status, the reason in header and body, the OpenAI error shape.
    #[track_caller]
    pub(crate) fn is_refusal(&self, status: u16, reason: &str) {
        assert_eq!((self.status.as_u16(), self.header(REASON)), (status, reason), "{self:?}");
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(body["error"]["code"], reason);
        assert!(body["error"]["message"].is_string() && body["error"]["type"].is_string(), "{body}");
        assert!(body["error"]["param"].is_null());
        assert_eq!(self.headers.contains_key("retry-after"), status == 503);
        assert!(!self.headers.contains_key(REVISION), "only an endpoint's response is stamped");
    }
}

/// A client connection.
pub(crate) struct Client<B = Full<Bytes>> {
    sender: Sender<B>,
    _driver: JoinSet<()>,
}

enum Sender<B> {
    Http1(hyper::client::conn::http1::SendRequest<B>),
    Http2(hyper::client::conn::http2::SendRequest<B>),
}

impl<B> Client<B>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap()).await
    }

    pub(crate) async fn over<S>(stream: S) -> Self
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Self { sender: Sender::Http1(sender), _driver: driver }
    }

    pub(crate) async fn http2<S>(stream: S) -> Self
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ = connection.await;
        });
        Self { sender: Sender::Http2(sender), _driver: driver }
    }

    /// The response once its head is there.
    pub(crate) async fn start(&mut self, request: Request<B>) -> hyper::Result<Response<Incoming>> {
        match &mut self.sender {
            Sender::Http1(sender) => {
                soon(sender.ready()).await?;
                soon(sender.send_request(request)).await
            }
            Sender::Http2(sender) => soon(sender.send_request(request)).await,
        }
    }

    /// The response once all of it is there.
    pub(crate) async fn send(&mut self, request: Request<B>) -> Reply {
        let (parts, body) = self.start(request).await.expect("a response").into_parts();
        let body = soon(body.collect()).await.expect("a whole body").to_bytes();
        Reply { status: parts.status, headers: parts.headers, body }
    }
}
