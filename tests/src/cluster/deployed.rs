//! A node with revgate deployed on it as its users do, and proof of who steers.

use serde_json::Value;

use super::{
    api::{AGENT, ENGINES},
    images,
    node::Node,
    process::eventually,
    tools::repository,
    workload::Workload,
};

/// The nftables table that counts what nobody steered.
const SEEN: &str = "revgate_seen";

/// Starts a node with the namespace of the engines, its Services and the agent's role, but not the agent. `None`: it
/// cannot run here, and the test is skipped.
///
/// # Panics
///
/// As [`Node::start`].
#[must_use]
pub fn node() -> Option<Node> {
    let node = Node::start(&images())?;
    node.kubectl().apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {ENGINES}}}}}"));
    apply(&node, "deploy/base/inference");
    Some(node)
}

/// `kubectl apply -k deploy/base`, as it stands; returns when the agent's Pod is Ready.
///
/// # Panics
///
/// When it does not become Ready.
pub fn agent(node: &Node) {
    apply(node, "deploy/base");
    agent_is_ready(node);
}

fn apply(node: &Node, folder: &str) {
    let folder = repository().join(folder).display().to_string();
    node.kubectl().run(&["apply", "--validate=strict", "-k", &folder]);
}

/// Waits until one agent runs, Ready, and none ends.
///
/// # Panics
///
/// When it does not come to that.
pub fn agent_is_ready(node: &Node) {
    let kubectl = node.kubectl();
    let look = || {
        let pods = kubectl.get(&["--namespace", AGENT, "pods"]);
        let events = kubectl.read(&["--namespace", AGENT, "get", "events"]);
        (pods["items"].as_array().cloned().unwrap_or_default(), events)
    };
    let one = |(pods, _): &(Vec<Value>, String)| {
        let ready = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|of| of["type"] == "Ready" && of["status"] == "True"))
                && pod["metadata"]["deletionTimestamp"].is_null()
        };
        pods.len() == 1 && pods.iter().all(ready)
    };
    let _ = eventually("one agent, Ready", look, one);
}

/// Runs revgate in the agent's container: what it printed.
///
/// # Panics
///
/// When it fails.
#[must_use]
pub fn revgate(node: &Node, arguments: &[&str]) -> String {
    let all = [&["--namespace", AGENT, "exec", "daemonset/revgate", "--", "revgate"], arguments].concat();
    node.kubectl().read(&all)
}

/// `revgate status -o json` in the agent's container.
///
/// # Panics
///
/// When it fails.
#[must_use]
pub fn status(node: &Node) -> Value {
    serde_json::from_str(&revgate(node, &["status", "--output", "json"])).expect("JSON")
}

/// The `ClusterIP` of a Service.
///
/// # Panics
///
/// When there is none.
#[must_use]
pub fn cluster_ip(node: &Node, namespace: &str, service: &str) -> String {
    let service = node.kubectl().get(&["--namespace", namespace, "service", service]);
    service["spec"]["clusterIP"].as_str().expect("an address").to_owned()
}

/// Counts packets to the VIPs that come by on the node: to an address that the kernel steers there are none, as the
/// connect goes to an endpoint from the start. What is counted is on its way to kube-proxy's rules.
///
/// # Panics
///
/// When the rules are refused.
pub fn watch_vips(node: &Node) {
    let vips = ["prefill", "decode"].map(|role| cluster_ip(node, ENGINES, role)).join(", ");
    let rules = format!(
        "table inet {SEEN} {{
            counter vips {{}}
            chain pods {{ type filter hook prerouting priority raw; ip daddr {{ {vips} }} counter name vips; }}
            chain host {{ type filter hook output priority raw; ip daddr {{ {vips} }} counter name vips; }}
        }}"
    );
    let file = node.folder().join("seen.nft");
    std::fs::write(&file, rules).expect("written");
    let _ = node.read("/usr/sbin/nft", &["--file", &file.display().to_string()]);
}

/// The packets counted since the last call.
///
/// # Panics
///
/// When they cannot be read.
#[must_use]
pub fn unsteered(node: &Node) -> u64 {
    let said = node.read("/usr/sbin/nft", &["--json", "reset", "counter", "inet", SEEN, "vips"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let counters = said["nftables"].as_array().expect("a list").iter();
    counters.filter_map(|object| object["counter"]["packets"].as_u64()).sum()
}

/// Every client has seen its own revision only, or has no revision; none had a failure. Says how many answers they had.
///
/// A revision that ends between the legs of a request has it begun anew (docs/llm-d.md): at most `between` were.
///
/// # Panics
///
/// When a pair was mixed or a request failed, or too many were begun anew.
#[must_use]
pub fn nothing_went_wrong(workload: &Workload<'_>, between: u64) -> u64 {
    let reports = workload.reports();
    assert!(reports.values().map(|report| report.begun_anew).sum::<u64>() <= between, "{reports:?}");
    for (pod, report) in &reports {
        assert_eq!(report.mixed, 0, "{pod}: {report:?}");
        assert!(report.failed.is_empty(), "{pod}: {report:?}");
    }
    reports.values().map(|report| report.answered).sum()
}
