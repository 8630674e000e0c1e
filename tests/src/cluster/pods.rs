//! Pods as a kubelet leaves them, on an API server that has none: made, and their status written, with `kubectl`.

use serde_json::{Value, json};

use super::kubectl::Kubectl;

/// The label of the `DisaggregatedSet`'s name.
pub const SET: &str = "disaggregatedset.x-k8s.io/name";
/// The label of the revision.
pub const REVISION: &str = "disaggregatedset.x-k8s.io/revision";
/// The label of the role.
pub const ROLE: &str = "disaggregatedset.x-k8s.io/role";

/// Pods of one namespace.
#[derive(Clone, Debug)]
pub struct Pods {
    kubectl: Kubectl,
    namespace: String,
}

impl Pods {
    /// In this namespace, which is made if it is not there, with the `ServiceAccount` that its Pods have.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    #[must_use]
    pub fn of(kubectl: &Kubectl, namespace: &str) -> Self {
        kubectl.apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}\n---\n\
             {{apiVersion: v1, kind: ServiceAccount, metadata: {{name: default, namespace: {namespace}}}}}"
        ));
        Self { kubectl: kubectl.clone(), namespace: namespace.to_owned() }
    }

    fn run(&self, arguments: &[&str]) {
        self.kubectl.run(&[&["--namespace", &self.namespace], arguments].concat());
    }

    /// Makes a Pod of the set `my-set`; nothing runs it.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn create(&self, name: &str, revision: &str, role: &str) {
        self.create_with(name, &json!({SET: "my-set", REVISION: revision, ROLE: role}));
    }

    /// Makes a Pod with these labels.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn create_with(&self, name: &str, labels: &Value) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
            "spec": {
                "nodeName": "elsewhere",
                // Nobody is there to end it, so it stays while it terminates until it is deleted by force.
                "terminationGracePeriodSeconds": 3600,
                "containers": [{"name": "engine", "image": "engine", "ports": [{"name": "http", "containerPort": 8000}]}],
            },
        });
        self.kubectl.apply(&pod.to_string());
    }

    /// Writes its status: an address, and Ready or not.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn status(&self, name: &str, ip: &str, ready: bool) {
        let ready = if ready { "True" } else { "False" };
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": ready}],
        }});
        self.run(&["patch", "pod", name, "--subresource=status", "--patch", &status.to_string()]);
    }

    /// Makes a Pod that is Ready.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn ready(&self, name: &str, revision: &str, role: &str, ip: &str) {
        self.create(name, revision, role);
        self.status(name, ip, true);
    }

    /// Changes a label.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn label(&self, name: &str, label: &str, value: &str) {
        self.run(&["label", "--overwrite", "pod", name, &format!("{label}={value}")]);
    }

    /// Asks for its end, which nobody brings about: it stays, Ready, with a `deletionTimestamp`.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn terminate(&self, name: &str) {
        self.run(&["delete", "pod", name, "--wait=false"]);
    }

    /// Removes it at once.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub fn delete(&self, name: &str) {
        self.run(&["delete", "pod", name, "--grace-period=0", "--force"]);
    }
}
