//! Kubernetes Pod objects, as far as they matter here. The one place that knows where in a Pod object a field is.
//!
//! Unknown fields are ignored and every field may be absent or null, so that any Pod which an API server has ever
//! accepted is read. The field names are those of `core/v1`.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use serde::Deserialize;

use super::{
    identity::is_hash,
    pod::{ContainerPort, Labels, Pod, PodKey},
};

/// The annotations that narrow the ports of a Pod, the one that wins first.
pub const ACTIVE_PORTS: [&str; 2] = ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];

/// The annotations of a static Pod's object in the API: that it is one, and the UID that the kubelet gave it.
pub const MIRROR: [&str; 2] = ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"];

/// The namespace of an object that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A Pod object.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodObject {
    /// Name, labels and the like.
    pub metadata: Option<Metadata>,
    /// What should run.
    pub spec: Option<Spec>,
    /// What runs.
    pub status: Option<Status>,
}

/// `metadata` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Name, unique in the namespace.
    pub name: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
    /// UID, unique for ever.
    pub uid: Option<String>,
    /// Labels.
    pub labels: Option<BTreeMap<String, Option<String>>>,
    /// Annotations.
    pub annotations: Option<BTreeMap<String, Option<String>>>,
    /// What it belongs to: a mirror belongs to its node.
    pub owner_references: Option<Vec<Owner>>,
    /// RFC 3339.
    pub creation_timestamp: Option<String>,
    /// RFC 3339; set once somebody has asked for deletion.
    pub deletion_timestamp: Option<String>,
    /// The version of the object, opaque.
    pub resource_version: Option<String>,
}

/// What an object belongs to.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Owner {
    /// Its kind.
    pub kind: Option<String>,
    /// Its name.
    pub name: Option<String>,
}

/// `spec` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The node, once scheduled.
    pub node_name: Option<String>,
    /// The Pod is in its node's network namespace.
    pub host_network: Option<bool>,
    /// What runs it, where that is not the node's default.
    pub runtime_class_name: Option<String>,
    /// Containers.
    pub containers: Option<Vec<Container>>,
    /// Init containers; those that restart always are sidecars, and llm-d's routing proxy is one.
    pub init_containers: Option<Vec<Container>>,
}

/// A container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its ports.
    pub ports: Option<Vec<Port>>,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: Option<String>,
}

/// A container port.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Its name.
    pub name: Option<String>,
    /// Its number.
    pub container_port: u16,
    /// `TCP` where absent.
    pub protocol: Option<String>,
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The primary address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// All addresses, at most one of each family.
    #[serde(rename = "podIPs")]
    pub pod_ips: Option<Vec<PodIp>>,
    /// Conditions.
    pub conditions: Option<Vec<Condition>>,
    /// `Succeeded` and `Failed` Pods have given their addresses back, though these still stand here.
    pub phase: Option<String>,
}

/// One address.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodIp {
    /// The address; empty in Pods that an old kubelet wrote.
    pub ip: Option<String>,
}

/// One condition.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Condition {
    /// Its type, `Ready` say.
    pub r#type: Option<String>,
    /// `True`, `False` or `Unknown`.
    pub status: Option<String>,
}

/// Why an object is no Pod that can be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PodProblem {
    /// It has no name.
    #[error("a Pod needs `metadata.name`")]
    NoName,
    /// One of its addresses is none.
    #[error("Pod {pod}: `{value}` is no IP address (in `status.podIP` or `status.podIPs`)")]
    Address {
        /// Namespace and name.
        pod: String,
        /// What stands there.
        value: String,
    },
    /// Its creation time is none.
    #[error("Pod {pod}: `metadata.creationTimestamp` is `{value}`, not a time like 2026-01-31T08:00:00Z")]
    Created {
        /// Namespace and name.
        pod: String,
        /// What stands there.
        value: String,
    },
}

impl PodObject {
    /// The fields that decide anything. The cgroup is not in the object, so it is unknown.
    pub fn into_pod(self) -> Result<Pod, PodProblem> {
        let metadata = self.metadata.unwrap_or_default();
        let spec = self.spec.unwrap_or_default();
        let status = self.status.unwrap_or_default();
        let name = metadata.name.filter(|name| !name.is_empty()).ok_or(PodProblem::NoName)?;
        let key = key(metadata.namespace, &name, metadata.uid);
        let pod = || format!("{}/{}", key.namespace, key.name);
        let addresses = status.pod_ips.unwrap_or_default().into_iter().filter_map(|address| address.ip);
        let mut ips = Vec::with_capacity(1);
        for value in status.pod_ip.into_iter().chain(addresses).filter(|value| !value.is_empty()) {
            match value.parse::<IpAddr>() {
                Ok(ip) => ips.push(ip),
                Err(_) => return Err(PodProblem::Address { pod: pod(), value }),
            }
        }
        let created = match metadata.creation_timestamp {
            None => 0,
            Some(value) => match value.parse::<jiff::Timestamp>() {
                Ok(time) => time.as_second(),
                Err(_) => return Err(PodProblem::Created { pod: pod(), value }),
            },
        };
        let sidecars = spec.init_containers.unwrap_or_default();
        let sidecars = sidecars.into_iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let containers = spec.containers.unwrap_or_default().into_iter().chain(sidecars);
        let is_ready =
            |c: &Condition| c.r#type.as_deref() == Some("Ready") && c.status.as_deref() == Some("True");
        let ready = status.conditions.iter().flatten().any(is_ready);
        // A finished Pod has no sandbox any more; its address may be another's. Readiness does not ask for the phase.
        if !ready && matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            ips.clear();
        }
        let node = spec.node_name.filter(|node| !node.is_empty());
        let owners = metadata.owner_references.as_deref().unwrap_or_default();
        let static_uid = metadata.annotations.as_ref().and_then(static_uid);
        let static_uid = static_uid.filter(|_| node.as_deref().is_some_and(|node| is_mirror(owners, node)));
        let labels = metadata.labels.unwrap_or_default();
        Ok(Pod {
            key,
            ips: unique(ips),
            node: node.map(Into::into),
            labels: labels_of(labels.into_iter().map(|(key, value)| (key, value.unwrap_or_default()))),
            active_ports: metadata.annotations.as_ref().and_then(active_ports),
            static_uid,
            runtime_class: spec.runtime_class_name.filter(|class| !class.is_empty()).map(Into::into),
            ready,
            terminating: metadata.deletion_timestamp.is_some(),
            host_network: spec.host_network.unwrap_or(false),
            created,
            ports: ports_of(containers.flat_map(|container| container.ports.unwrap_or_default())),
            cgroup: None,
        })
    }
}

/// A Pod's identity. Without a UID one is derived from the name, so that it is the same at every read.
pub(super) fn key(namespace: Option<String>, name: &str, uid: Option<String>) -> PodKey {
    let namespace =
        namespace.filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    let uid = uid.filter(|uid| !uid.is_empty()).unwrap_or_else(|| format!("{namespace}/{name}"));
    PodKey { namespace: namespace.into(), name: name.into(), uid: uid.into() }
}

/// Each address once, in the order in which they come. IPv4-mapped IPv6 is IPv4: the kernel sees both as one.
pub(super) fn unique(mut ips: Vec<IpAddr>) -> Vec<IpAddr> {
    for ip in &mut ips {
        *ip = ip.to_canonical();
    }
    // Most have one.
    if ips.len() > 1 {
        let mut seen = HashSet::with_capacity(ips.len());
        ips.retain(|ip| seen.insert(*ip));
    }
    ips.shrink_to_fit();
    ips
}

/// Labels, shared from here on.
pub(super) fn labels_of(labels: impl IntoIterator<Item = (String, String)>) -> Labels {
    labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

/// The value of the annotation that narrows the ports.
pub(super) fn active_ports(annotations: &BTreeMap<String, Option<String>>) -> Option<Arc<str>> {
    let value = ACTIVE_PORTS.iter().find_map(|key| annotations.get(*key))?;
    Some(value.as_deref().unwrap_or_default().into())
}

/// The UID by which the kubelet knows the static Pod that an object mirrors, if it does.
///
/// Only a hash: whoever may create Pods may write this, and must not be taken for a Pod of the API by its UID.
fn static_uid(annotations: &BTreeMap<String, Option<String>>) -> Option<Arc<str>> {
    let [mirror, hash] = MIRROR.map(|key| annotations.get(key).and_then(Option::as_deref));
    mirror.map(|mirror| hash.unwrap_or(mirror)).filter(|uid| is_hash(uid)).map(Into::into)
}

/// Whether an object belongs to the node that it is on, as every mirror does. The annotations alone anybody could write
/// on a Pod that no kubelet ever sees, such as one with scheduling gates; one that a kubelet sees, it removes.
fn is_mirror(owners: &[Owner], node: &str) -> bool {
    let is_node =
        |owner: &Owner| owner.kind.as_deref() == Some("Node") && owner.name.as_deref() == Some(node);
    owners.iter().any(is_node)
}

/// The TCP ports, in order. Port 0 is none, and stands for all of them in the kernel's tables.
pub(super) fn ports_of(ports: impl IntoIterator<Item = Port>) -> Vec<ContainerPort> {
    let tcp = |port: &Port| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
    let port = |port: Port| ContainerPort { name: port.name.map(Into::into), number: port.container_port };
    let ports = ports.into_iter().filter(|port| port.container_port != 0 && tcp(port)).map(port);
    // With no room for more: there are many Pods.
    ports.collect::<Box<[_]>>().into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: serde_json::Value) -> Result<Pod, PodProblem> {
        serde_json::from_value::<PodObject>(json).unwrap().into_pod()
    }

    #[test]
    fn an_object_of_the_api_gives_every_field() {
        let pod = pod(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "decode-0", "namespace": "llm", "uid": "6a1e", "generation": 3, "managedFields": [{"x": 1}],
                "labels": {"app": "vllm"},
                "annotations": {"inference.networking.k8s.io/active-ports": "1", "llm-d.ai/active-ports": "8000,8001"},
                "creationTimestamp": "1970-01-02T00:00:01Z", "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "nodeName": "n1", "hostNetwork": true, "runtimeClassName": "nvidia",
                "initContainers": [
                    {"name": "once", "ports": [{"name": "once", "containerPort": 1}]},
                    {"name": "proxy", "restartPolicy": "Always", "ports": [{"name": "http", "containerPort": 8000}]},
                ],
                "containers": [{"name": "vllm", "ports": [
                    {"name": "metrics", "containerPort": 8200},
                    {"name": "quic", "containerPort": 443, "protocol": "UDP"},
                ]}],
            },
            "status": {
                "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}],
                "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
            },
        }))
        .unwrap();
        let port = |name: &str, number| ContainerPort { name: Some(name.into()), number };
        assert_eq!(
            pod,
            Pod {
                key: PodKey { namespace: "llm".into(), name: "decode-0".into(), uid: "6a1e".into() },
                ips: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
                node: Some("n1".into()),
                labels: labels_of([("app".to_owned(), "vllm".to_owned())]),
                active_ports: Some("8000,8001".into()),
                ready: true,
                terminating: true,
                host_network: true,
                created: 86_401,
                ports: vec![port("metrics", 8200), port("http", 8000)],
                cgroup: None,
                static_uid: None,
                runtime_class: Some("nvidia".into()),
            }
        );
        assert!(!pod.is_ready(), "a terminating Pod is not Ready, whatever its condition says (C3)");
    }

    #[test]
    fn a_pod_that_is_just_created_has_nothing_yet() {
        let pod = pod(serde_json::json!({
            "metadata": {"name": "p", "creationTimestamp": null, "labels": null},
            "spec": {"containers": [{"ports": null}]},
            "status": {"podIP": "", "podIPs": [{}], "conditions": [{"type": "Ready", "status": "False"}]},
        }))
        .unwrap();
        assert_eq!((&*pod.key.namespace, &*pod.key.uid), ("default", "default/p"));
        assert!(pod.ips.is_empty() && !pod.ready && !pod.terminating && pod.created == 0);
    }

    #[test]
    fn a_finished_pod_has_given_its_address_back() {
        let pod = |phase: &str, ready: &str| {
            pod(serde_json::json!({
                "metadata": {"name": "p"},
                "status": {
                    "phase": phase, "podIP": "10.0.0.1",
                    "conditions": [{"type": "Ready", "status": ready}],
                },
            }))
            .unwrap()
        };
        assert!(pod("Failed", "False").ips.is_empty());
        assert!(pod("Succeeded", "False").ips.is_empty());
        assert_eq!(pod("Running", "False").ips.len(), 1);
        assert_eq!(pod("Failed", "True").ips.len(), 1, "the phase is not asked of a Ready Pod");
    }

    #[test]
    fn what_makes_no_pod_says_why() {
        assert_eq!(pod(serde_json::json!({"metadata": {"name": ""}})), Err(PodProblem::NoName));
        let bad = pod(serde_json::json!({"metadata": {"name": "p"}, "status": {"podIP": "10.0.0.300"}}));
        assert_eq!(
            bad.unwrap_err().to_string(),
            "Pod default/p: `10.0.0.300` is no IP address (in `status.podIP` or `status.podIPs`)"
        );
        let bad = pod(serde_json::json!({"metadata": {"name": "p", "creationTimestamp": "yesterday"}}));
        assert!(matches!(bad, Err(PodProblem::Created { .. })), "{bad:?}");
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let pod = pod(serde_json::json!({
            "metadata": {"name": "p"}, "status": {"podIPs": [{"ip": "::ffff:10.0.0.1"}, {"ip": "10.0.0.1"}]},
        }));
        assert_eq!(pod.unwrap().ips, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    }
}
