//! The overlay's configuration is one that Envoy takes (O5), and has what a picker needs of its gateway. That it works is
//! shown by all other tests here: theirs is made from it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use revgate_tests::{envoy, require};
use serde_json::{Value, json};

use crate::client::{DESTINATION, PREFILLER};

const OVERLAY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/overlays/envoy");
/// How long engines keep a connection that is idle.
const ENGINES_WAIT: Duration = Duration::from_secs(5);

#[test]
fn the_overlays_file_is_one_that_envoy_takes() {
    let Some(program) = envoy::program() else {
        return require::skip("envoy", "no Envoy: .ci/setup envoy installs it");
    };
    let file = Path::new(OVERLAY).join("envoy.yaml");
    let output =
        Command::new(program).args(["--mode", "validate", "--config-path"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What a cluster says of the connections to its hosts.
fn protocol(cluster: &Value) -> &Value {
    &cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
}

fn seconds(duration: &Value) -> Duration {
    let number = duration.as_str().and_then(|text| text.strip_suffix('s')).unwrap();
    Duration::from_secs(number.parse().unwrap())
}

#[test]
fn the_overlay_fails_closed_and_keeps_to_what_agent_and_engines_do() {
    let config = envoy::deployed();
    let resources = &config["static_resources"];
    let manager = &resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    let [mutation, asks, _router] = &manager["http_filters"].as_array().unwrap()[..] else {
        panic!("{manager}")
    };
    let removed = json!([{"remove": DESTINATION}, {"remove": PREFILLER}]);
    assert_eq!(
        mutation["typed_config"]["mutations"]["request_mutations"], removed,
        "before anybody is asked"
    );
    assert_eq!(asks["typed_config"]["failure_mode_allow"], false);
    let route = &manager["route_config"]["virtual_hosts"][0]["routes"][1]["route"];
    assert_eq!(route["retry_policy"], json!({"retry_on": "reset-before-request", "num_retries": 1}));

    let agent = revgate::config::load(&Path::new(OVERLAY).join("revgate.yaml"), Some("node-a")).unwrap();
    let clusters = resources["clusters"].as_array().unwrap();
    for cluster in clusters {
        for limit in ["max_connections", "max_pending_requests", "max_requests"] {
            let limit = cluster["circuit_breakers"]["thresholds"][0][limit].as_u64();
            assert!(
                limit >= Some(agent.config.agent.http.max_requests as u64),
                "the agent's own limit is the one"
            );
        }
    }
    let of = |name: &str| clusters.iter().find(|cluster| cluster["name"] == name).unwrap();
    let idle = &protocol(of("engines"))["common_http_protocol_options"]["idle_timeout"];
    assert!(seconds(idle) < ENGINES_WAIT);
    let picker = of("revgate");
    // One host, behind which are many: its health would be that of any of them.
    assert!(picker["type"] == "STRICT_DNS" && picker["health_checks"].is_null());
    let alive = &protocol(picker)["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"];
    // And 15 % of the interval, by chance: the 5 s that the documents name.
    assert!(seconds(&alive["interval"]) + seconds(&alive["timeout"]) <= Duration::from_secs(4));
    assert!(!protocol(picker)["common_http_protocol_options"]["max_connection_duration"].is_null());
}

/// The Rust files below a path.
fn sources(path: PathBuf) -> Vec<PathBuf> {
    match fs::read_dir(&path) {
        Ok(entries) => entries.flat_map(|entry| sources(entry.unwrap().path())).collect(),
        Err(_) => vec![path],
    }
}

#[test]
fn every_test_that_the_document_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = ["agent/src/extproc", "agent/tests/proxy_picker", "tests/tests/envoy"];
    let files = folders.iter().flat_map(|folder| sources(root.join(folder)));
    let tests: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();
    let document = fs::read_to_string(root.join("docs/endpoint-picker.md")).unwrap();
    let is_test = |word: &&str| {
        word.matches('_').count() > 3 && word.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
    };
    let named: Vec<&str> = document.split('`').filter(is_test).collect();
    assert!(named.len() > 25, "{named:?}");
    for name in named {
        assert!(tests.contains(&format!("fn {name}(")), "{name}");
    }
}
