//! What runs on the node of a test: simulated engines by revision and role, and clients that keep count of who answered
//! them.
//!
//! Clients write their report to a folder of the node, where it outlives their Pod.

use std::{collections::BTreeMap, fs};

use revgate_engine::ClientReport;
use serde_json::{Value, json};

use super::{
    kubectl::Kubectl,
    node::Node,
    pods::{REVISION, ROLE, SET},
    process::eventually,
};

/// Where clients write their reports, on the node.
const REPORTS: &str = "/run/reports";
/// The image of engine and client.
const IMAGE: &str = "docker.io/library/revgate-engine:dev";

/// The answers of the engines of this Deployment.
#[must_use]
pub fn answers(leg: &BTreeMap<String, u64>, deployment: &str) -> u64 {
    leg.iter().filter(|(engine, _)| is_of(engine, deployment)).map(|(_, count)| count).sum()
}

/// Whether a Pod is one of this Deployment.
#[must_use]
pub fn is_of(pod: &str, deployment: &str) -> bool {
    // NAME-HASH-RANDOM
    pod.rsplitn(3, '-').nth(2) == Some(deployment)
}

/// The namespace `llm` of a node.
#[derive(Debug)]
pub struct Workload<'n> {
    node: &'n Node,
    kubectl: Kubectl,
}

impl<'n> Workload<'n> {
    /// On this node.
    #[must_use]
    pub fn on(node: &'n Node) -> Self {
        Self { node, kubectl: node.kubectl() }
    }

    /// `kubectl` in the namespace.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[must_use]
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubectl.read(&[&["--namespace", super::api::ENGINES], arguments].concat())
    }

    /// Deployments of engines, by role, revision and replicas; returns when all their Pods are Ready.
    ///
    /// # Panics
    ///
    /// When they do not become Ready.
    pub fn deploy_all(&self, deployments: &[(&str, &str, u32)]) {
        for (role, revision, replicas) in deployments {
            self.deploy(role, revision, *replicas);
        }
        for (role, revision, replicas) in deployments {
            self.settles(role, revision, *replicas);
        }
    }

    /// A Deployment `ROLE-REVISION` of engines. A Decode Pod has a client beside its engine, which fetches from the
    /// Prefill VIP what its engine then decodes, as the sidecar of such a Pod does.
    fn deploy(&self, role: &str, revision: &str, replicas: u32) {
        let name = format!("{role}-{revision}");
        let labels = json!({SET: "my-set", REVISION: revision, ROLE: role});
        let mut containers = vec![container(
            "engine",
            &[
                "revgate-engine",
                "--reveal",
                "--listen",
                "0.0.0.0:8000",
                "--name",
                "$(NAME)",
                "--revision",
                revision,
                "--role",
                role,
            ],
        )];
        containers[0]["ports"] = json!([{"name": "http", "containerPort": 8000}]);
        containers[0]["readinessProbe"] =
            json!({"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1});
        if role == "decode" {
            containers.push(client(&[
                "--prefill",
                "$(PREFILL_SERVICE_HOST):8000",
                "--decode",
                "127.0.0.1:8000",
                // Longer than the engine takes to be Ready.
                "--delay",
                "2500",
                "--pause",
                "25",
            ]));
        }
        // Pods leave the tables as their end begins. Engines serve on for a while, and a client asks its own for less
        // than that.
        for (container, seconds) in containers.iter_mut().zip([6, 2]) {
            container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": seconds}}});
        }
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": super::api::ENGINES},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod(&containers)},
            },
        });
        self.kubectl.apply(&deployment.to_string());
    }

    /// A Pod with a client that belongs to no set.
    pub fn client(&self, name: &str, arguments: &[&str]) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": super::api::ENGINES},
            "spec": pod(&[client(arguments)]),
        });
        self.kubectl.apply(&pod.to_string());
    }

    /// Scales a Deployment and waits until it has as many Pods, Ready, and no others.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub fn scale(&self, role: &str, revision: &str, replicas: u32) {
        let name = format!("{role}-{revision}");
        let _ = self.kubectl(&["scale", "deployment", &name, &format!("--replicas={replicas}")]);
        self.settles(role, revision, replicas);
    }

    /// Waits until a Deployment has as many Pods, Ready, and no others: none that still ends, either.
    ///
    /// # Panics
    ///
    /// When it does not come to that.
    pub fn settles(&self, role: &str, revision: &str, replicas: u32) {
        let selector = format!("{REVISION}={revision},{ROLE}={role}");
        let pods = || {
            let pods =
                self.kubectl.get(&["--namespace", super::api::ENGINES, "pods", "--selector", &selector]);
            pods["items"].as_array().expect("a list").iter().map(state).collect::<Vec<_>>()
        };
        let as_wanted = |pods: &Vec<(String, bool)>| {
            pods.len() == replicas as usize && pods.iter().all(|(_, ready)| *ready)
        };
        let _ = eventually(&format!("{replicas} Pods of {role}-{revision}"), pods, as_wanted);
    }

    /// What a client has counted so far: by the name of its Pod.
    ///
    /// # Panics
    ///
    /// When a report cannot be read.
    #[must_use]
    pub fn reports(&self) -> BTreeMap<String, ClientReport> {
        let entries = fs::read_dir(self.node.path(REPORTS)).into_iter().flatten().flatten();
        let whole =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "json"));
        whole
            .map(|path| {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let text = fs::read_to_string(&path).expect("a report");
                (name, serde_json::from_str(&text).expect("a report"))
            })
            .collect()
    }

    /// Removes the reports of clients that are gone; those of others come back.
    pub fn forget_reports(&self) {
        for entry in fs::read_dir(self.node.path(REPORTS)).into_iter().flatten().flatten() {
            // One that a client is just replacing is not there for a moment.
            let _ = fs::remove_file(entry.path());
        }
    }

    /// Waits until a client has had some more answers, and returns what it has counted.
    ///
    /// # Panics
    ///
    /// When it gets none.
    #[must_use]
    pub fn goes_on(&self, client: &str, more: u64) -> ClientReport {
        let of_client = || self.reports().remove(client).unwrap_or_default();
        let before = of_client().answered;
        eventually(&format!("{client} is answered"), of_client, |report| report.answered >= before + more)
    }
}

fn pod(containers: &[Value]) -> Value {
    json!({
        "containers": containers,
        "volumes": [{"name": "reports", "hostPath": {"path": REPORTS, "type": "DirectoryOrCreate"}}],
        "terminationGracePeriodSeconds": 10,
    })
}

fn container(name: &str, command: &[&str]) -> Value {
    json!({
        "name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": command,
        "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    })
}

fn client(arguments: &[&str]) -> Value {
    let report = format!("{REPORTS}/$(NAME).json");
    let mut client = container("client", &[&["revgate-client", "--report", &report], arguments].concat());
    client["volumeMounts"] = json!([{"name": "reports", "mountPath": REPORTS}]);
    client
}

/// A Pod's name, and whether it is Ready and stays.
fn state(pod: &Value) -> (String, bool) {
    let conditions = pod["status"]["conditions"].as_array();
    let ready =
        conditions.is_some_and(|all| all.iter().any(|of| of["type"] == "Ready" && of["status"] == "True"));
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    (name, ready && pod["metadata"]["deletionTimestamp"].is_null())
}
