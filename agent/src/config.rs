//! Everything that a user can set, parsed and checked into one value before anything starts.
//!
//! [`Config`] is the result; nothing else in the agent reads a file of configuration or an environment variable.

mod addresses;
mod agent;
mod defaults;
mod document;
mod load;
mod names;
mod network;
mod picker;
mod print;
mod problem;
mod reader;
pub mod reload;
pub mod selector;
mod units;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use http::HeaderName;

use crate::cluster::ObjectName;
pub use load::{Loaded, load, parse};
pub use network::{Network, Trust};
pub use print::print;
pub use problem::{ConfigError, Position, Problem};
pub use selector::Selector;

/// The whole effective configuration.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// One per screener entry, in file order. The index is the set's index everywhere, the kernel included.
    pub sets: Vec<SetConfig>,
    /// What is revgate's own.
    pub agent: AgentConfig,
}

/// How revisions share traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GatingMode {
    /// Weight: Ready Pods in the dominant role.
    MaxRole,
    /// Weight: Ready Pods over all required roles.
    Sum,
    /// No eligibility and no weights; the header is honoured and stamped.
    Disabled,
}

/// One set: a DisaggregatedSet's Pods and how they are gated.
#[derive(Clone, PartialEq, Debug)]
pub struct SetConfig {
    /// The screener entry's name, unique.
    pub name: Arc<str>,
    /// Which Pods.
    pub scope: Selector,
    /// In which namespaces; empty: all that the source shows.
    pub namespaces: Vec<Arc<str>>,
    /// How revisions share.
    pub mode: GatingMode,
    /// Required roles, in the order that breaks ties. Empty only where the mode is `disabled`.
    pub required_roles: Vec<Arc<str>>,
    /// Every role that takes traffic: the required ones first, then those that a listener, VIP or port names.
    /// The index is the role's index everywhere, the kernel included; at most `MAX_ROLES`.
    pub roles: Vec<Arc<str>>,
    /// The ports of each role, same order as `roles`. Empty inside only with a pool, which then says them.
    pub ports: Vec<Vec<PortRef>>,
    /// The InferencePool whose target ports the roles without ports have (default: 8000).
    pub pool: Option<ObjectName>,
    /// The header that names the revision.
    pub revision_header: HeaderName,
    /// The label that holds the revision.
    pub revision_label: Arc<str>,
    /// The label that holds the role.
    pub role_label: Arc<str>,
    /// Selectors other than the revision's.
    pub selectors: Vec<HeaderSelector>,
}

/// A port of an endpoint.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PortRef {
    /// By number.
    Number(u16),
    /// By the name of a container port.
    Name(Arc<str>),
}

/// How a header selector acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SelectorMode {
    /// Only endpoints whose label has the header's value.
    Strict,
    /// Those first.
    Prefer,
}

/// A header whose value selects endpoints by a label (a slice, say), and is stamped on responses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeaderSelector {
    /// Its name, unique in the set.
    pub name: Arc<str>,
    /// The header.
    pub header: HeaderName,
    /// The Pod label.
    pub label: Arc<str>,
    /// Strict or prefer.
    pub mode: SelectorMode,
}

/// What is revgate's own (`kind: AgentConfig`).
#[derive(Clone, PartialEq, Debug)]
pub struct AgentConfig {
    /// The node that this agent runs on; endpoints on it come first.
    pub node: Option<Arc<str>>,
    /// Where Pods come from.
    pub source: SourceConfig,
    /// HTTP listeners.
    pub listeners: Vec<ListenerConfig>,
    /// VIPs steered in the kernel.
    pub vips: Vec<VipConfig>,
    /// The kernel part.
    pub kernel: KernelConfig,
    /// HTTP limits and timeouts, for all listeners.
    pub http: HttpConfig,
    /// The admin server.
    pub admin: SocketAddr,
    /// Shutdown.
    pub shutdown: ShutdownConfig,
    /// Logs.
    pub log: LogConfig,
}

/// Where Pods come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceConfig {
    /// A YAML or JSON file of Pods.
    File {
        /// Its path.
        path: PathBuf,
    },
    /// The Kubernetes API.
    Kubernetes(KubernetesConfig),
}

/// How the Kubernetes API is reached and watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KubernetesConfig {
    /// The kubeconfig; unset: `KUBECONFIG`, else the Pod's own credentials.
    pub kubeconfig: Option<PathBuf>,
    /// How old the view may be, counted from the last event or bookmark, before the agent says that it is stale.
    pub stale_after: Duration,
}

/// An HTTP listener.
#[derive(Clone, PartialEq, Debug)]
pub struct ListenerConfig {
    /// Its name, unique, a metric label.
    pub name: Arc<str>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Index of its set.
    pub set: usize,
    /// What it serves.
    pub serves: Serves,
    /// Serve TLS with this certificate and key.
    pub tls: Option<TlsConfig>,
}

/// What a listener serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Serves {
    /// Endpoints of one role, by its index in the set's `roles`.
    Role(usize),
    /// Pairs of endpoints: a prefill leg and a decode leg for each request.
    Pair(PairConfig),
    /// A proxy that asks which endpoint to take, by the endpoint picker protocol.
    Picker(PickerConfig),
}

/// How an endpoint picker picks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PickerConfig {
    /// Index of the role of the destination.
    pub decode: usize,
    /// Index of the role of the prefill endpoint that is named besides; none: there is only the destination.
    pub prefill: Option<usize>,
    /// Whose clients' routing headers are believed, by the address of the proxy that asks.
    pub trust: Trust,
    /// How many endpoints are named at most: the destination, and those to try after it.
    pub endpoints: usize,
}

/// How a listener runs the two legs of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairConfig {
    /// Index of the role of the prefill leg.
    pub prefill: usize,
    /// Index of the role of the decode leg, and of requests with one leg.
    pub decode: usize,
    /// How the engines hand the KV cache on.
    pub connector: ConnectorKind,
    /// The port of a prefill endpoint's bootstrap server.
    pub bootstrap_port: u16,
    /// When the prefill leg fails, let the decode endpoint do all the work.
    pub decode_only_fallback: bool,
    /// Whose routing headers are believed.
    pub trust: Trust,
    /// More tries of a prefill leg after a 502, 503 or 504.
    pub prefill_retries: u32,
    /// Before the first of them; twice as long before each next one.
    pub prefill_backoff: Duration,
    /// Longest reply of a prefill endpoint, bytes.
    pub max_prefill_reply: u64,
}

/// How engines hand a KV cache on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectorKind {
    /// vLLM's `NixlConnector`: the prefill's reply tells the decode where the cache lies.
    NixlV2,
    /// Through storage that all engines share.
    SharedStorage,
    /// `SGLang`: both legs at once, meeting at the prefill's bootstrap server.
    Sglang,
}

/// A certificate and key, PEM files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsConfig {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
}

/// A VIP: an address on which nobody listens, steered by the kernel to endpoints of one role.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VipConfig {
    /// Where.
    pub at: VipAddress,
    /// Index of its set.
    pub set: usize,
    /// Index of its role in the set's `roles`.
    pub role: usize,
    /// Deny clients that are not members of the set.
    pub members_only: bool,
    /// What it does while no agent runs.
    pub agent_gone: AgentGone,
}

/// Where a VIP is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VipAddress {
    /// At this address.
    Fixed(SocketAddr),
    /// At the cluster IPs of a Service, wherever these are.
    Service {
        /// Which.
        service: ObjectName,
        /// Which of its ports; none: its only one.
        port: Option<PortRef>,
    },
}

/// What a VIP does once the agent is gone for longer than [`KernelConfig::lease`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentGone {
    /// Steers by the last tables: endpoints that ended since may be dialled.
    Keep,
    /// Denies every connect.
    Deny,
}

/// Whether the kernel part runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelMode {
    /// With eBPF where it works, else in user space, said once.
    Auto,
    /// With eBPF, or the agent does not start.
    Required,
    /// In user space.
    Off,
}

/// What the fence does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceMode {
    /// Nothing.
    Off,
    /// Counts and reports what it would deny.
    Audit,
    /// Denies.
    Enforce,
}

/// The kernel part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelConfig {
    /// Whether it runs.
    pub mode: KernelMode,
    /// The fence.
    pub fence: FenceMode,
    /// The cgroup to attach to; unset: the cgroup2 root that is found on the machine.
    pub cgroup: Option<PathBuf>,
    /// The bpffs mount.
    pub bpffs: PathBuf,
    /// How long the tables count as current after the agent's last sign of life.
    pub lease: Duration,
    /// The programs write a line for every connect that they decide on.
    pub trace: bool,
}

/// HTTP limits and timeouts.
#[derive(Clone, PartialEq, Debug)]
pub struct HttpConfig {
    /// Worker threads, one runtime each; 0: one per CPU that the process may use.
    pub workers: usize,
    /// A worker with nothing to do may look for the next event without sleeping, where that costs little CPU more.
    pub busy_poll: bool,
    /// Longest request body, bytes.
    pub max_body: u64,
    /// Largest request head, bytes.
    pub max_head: usize,
    /// Longest time for a client to send a request head.
    pub head_timeout: Duration,
    /// Longest idle time of a client connection.
    pub idle_timeout: Duration,
    /// Most client connections.
    pub max_connections: usize,
    /// Most requests in flight.
    pub max_requests: usize,
    /// Longest time to connect to an endpoint.
    pub connect_timeout: Duration,
    /// Longest time from the end of the request to the head of the response.
    pub response_timeout: Duration,
    /// Longest time that an endpoint sends nothing in the middle of a response.
    pub stream_idle_timeout: Duration,
    /// How long an idle connection to an endpoint is kept; below 5 s.
    pub pool_idle_timeout: Duration,
    /// Most idle connections per endpoint and worker.
    pub pool_max_idle: usize,
    /// More tries after a connect failure or a reset of a reused connection.
    pub retries: u32,
    /// Same-node endpoints come first while they have at most this many times the load of the other candidate;
    /// 0: no preference.
    pub local_factor: f64,
    /// The same for endpoints that a `prefer` selector asks for.
    pub prefer_factor: f64,
    /// Consecutive failures that open an endpoint's breaker; 0: no breaker.
    pub breaker_failures: u32,
    /// How long a breaker stays open before one request probes the endpoint.
    pub breaker_open: Duration,
    /// Write an access log line per request.
    pub access_log: bool,
}

/// Shutdown on SIGTERM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShutdownConfig {
    /// From unready to closing the listeners.
    pub delay: Duration,
    /// From SIGTERM to the end of the last stream.
    pub deadline: Duration,
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Logs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// Text or JSON.
    pub format: LogFormat,
    /// A tracing filter, such as `info` or `revgate=debug`.
    pub filter: String,
}

/// The header of G9, the same for every set.
pub const DECISION_HEADER: HeaderName = HeaderName::from_static("x-llm-d-revision-decision-id");

/// The header that names the reason of a refusal (G7).
pub const REASON_HEADER: HeaderName = HeaderName::from_static("x-llm-d-request-dropped-reason");
