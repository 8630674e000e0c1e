//! Every default that is not derived from another value, with its reason. `docs/configuration.md` lists them; a test
//! compares.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    path::PathBuf,
    time::Duration,
};

use http::HeaderName;

use super::{
    AgentConfig, ConnectorKind, FenceMode, HttpConfig, KernelConfig, KernelMode, KubernetesConfig, LogConfig,
    LogFormat, PairConfig, ShutdownConfig, SourceConfig, Trust,
};

/// The header by which llm-d names a revision.
pub(super) const REVISION_HEADER: HeaderName = HeaderName::from_static("x-llm-d-disagg-revision");
/// The label by which the DisaggregatedSet controller names a revision.
pub(super) const REVISION_LABEL: &str = "disaggregatedset.x-k8s.io/revision";
/// The label by which the DisaggregatedSet controller names a role.
pub(super) const ROLE_LABEL: &str = "disaggregatedset.x-k8s.io/role";
/// The port on which vLLM and `SGLang`'s routers expect an engine.
pub(super) const PORT: u16 = 8000;
/// The role of a pair's first leg, as llm-d names it.
pub(super) const PREFILL: &str = "prefill";
/// The role of its second leg.
pub(super) const DECODE: &str = "decode";

impl PairConfig {
    /// Between two roles of a set, by their indices, with everything else as it is by default.
    #[must_use]
    pub fn between(prefill: usize, decode: usize) -> Self {
        Self {
            prefill,
            decode,
            // What llm-d's sidecar does unless told otherwise.
            connector: ConnectorKind::NixlV2,
            // SGLang's disaggregation_bootstrap_port.
            bootstrap_port: 8998,
            // A decode engine that computes prompts starves those that it streams to: ask for it.
            decode_only_fallback: false,
            trust: Trust::Never,
            prefill_retries: 2,
            // An engine that says 503 is full or starting: another may do at once, the same one soon.
            prefill_backoff: Duration::from_millis(25),
            // As for request bodies: with logprobs of the prompt a reply is about as long as its request.
            max_prefill_reply: 64 << 20,
        }
    }
}

/// Where an endpoint picker listens: on the port at which gateways expect one.
pub(super) const PICKER_ADDRESS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 9002));

/// Some gateways read only one endpoint.
pub(super) const PICKER_ENDPOINTS: usize = 1;

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            node: None,
            source: SourceConfig::File { path: PathBuf::from("/etc/revgate/pods.yaml") },
            listeners: Vec::new(),
            vips: Vec::new(),
            kernel: KernelConfig::default(),
            http: HttpConfig::default(),
            // Localhost: the answers name Pods. A DaemonSet opens what its probes need.
            admin: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9901)),
            shutdown: ShutdownConfig::default(),
            log: LogConfig::default(),
        }
    }
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            // The API server sends a bookmark about every minute: two were missed, and a new watch and a new list had
            // their chance.
            stale_after: Duration::from_mins(3),
        }
    }
}

impl Default for KernelConfig {
    fn default() -> Self {
        Self {
            mode: KernelMode::Auto,
            fence: FenceMode::Enforce,
            cgroup: None,
            bpffs: PathBuf::from("/sys/fs/bpf"),
            // A restart or an upgrade of a DaemonSet's Pod takes less; an endpoint's end is noticed about as late.
            lease: Duration::from_secs(30),
            trace: false,
        }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            workers: 0,
            busy_poll: true,
            max_body: 64 << 20,
            // Envoy allows 60 KiB of headers, nginx 32 KiB.
            max_head: 64 << 10,
            head_timeout: Duration::from_secs(10),
            // nginx keeps idle clients 75 s; most load balancers in front end theirs at 60 s.
            idle_timeout: Duration::from_mins(1),
            max_connections: 16_384,
            max_requests: 16_384,
            // One lost SYN is sent again after 1 s, the next after 3 s: time for one loss, then another endpoint.
            connect_timeout: Duration::from_secs(3),
            // The time to the first byte of a long prompt in a queue; 10 minutes is what OpenAI's clients wait.
            response_timeout: Duration::from_mins(10),
            // Envoy's stream_idle_timeout. Between two tokens passes far less, preemption and a long tool call included.
            stream_idle_timeout: Duration::from_mins(5),
            // uvicorn, which serves vLLM and SGLang, closes idle connections at 5 s: be first, by a margin.
            pool_idle_timeout: Duration::from_secs(4),
            pool_max_idle: 64,
            retries: 2,
            local_factor: 1.25,
            // A KV transfer out of a slice leaves the fast fabric, which costs more than a hop to another node.
            prefer_factor: 2.0,
            // Envoy's outlier detection: 5 consecutive failures.
            breaker_failures: 5,
            // nginx's fail_timeout.
            breaker_open: Duration::from_secs(10),
            access_log: false,
        }
    }
}

impl Default for ShutdownConfig {
    fn default() -> Self {
        Self {
            // Long enough for the endpoints of a Service to follow unreadiness.
            delay: Duration::from_secs(5),
            // Within the 30 s of grace that Kubernetes gives by default.
            deadline: Duration::from_secs(25),
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}
