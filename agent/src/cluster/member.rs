//! What a Pod is to a set: its revision, its role, whether it counts, and its endpoints.

use std::{net::SocketAddr, sync::Arc};

use super::Pod;
use crate::config::{PortRef, SetConfig};

/// The label of a Pod in a LeaderWorkerSet group; `0` is the leader.
pub const WORKER_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";

/// A Pod seen by one set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// The revision label's value, not empty.
    pub revision: Arc<str>,
    /// The role label's value, not empty.
    pub role: Arc<str>,
    /// It counts for (revision, role): it is Ready and not terminating (G1, C3).
    pub counts: bool,
    /// Where it takes requests, in the order of the configured ports. Empty unless it counts, has an address and
    /// a configured role; always empty for followers of a LeaderWorkerSet group (C4).
    pub endpoints: Vec<SocketAddr>,
    /// What is wrong with its ports and makes it less than it could be. It does not depend on readiness, so that a
    /// flapping Pod is not reported again and again.
    pub warning: Option<String>,
}

/// What `pod` is to `set`, or `None` when it is no member: out of scope, or without one of the two labels.
#[must_use]
pub fn member(pod: &Pod, set: &SetConfig) -> Option<Member> {
    let label = |key: &str| pod.labels.get(key).filter(|value| !value.is_empty());
    if !set.namespaces.is_empty() && !set.namespaces.contains(&pod.key.namespace) {
        return None;
    }
    let revision = label(&set.revision_label)?;
    let role = label(&set.role_label)?;
    if !set.scope.matches(&pod.labels) {
        return None;
    }
    let follower = pod.labels.get(WORKER_INDEX).is_some_and(|index| index.as_ref() != "0");
    let ports = set.roles.iter().position(|r| r == role).filter(|_| !follower);
    let ports = ports.and_then(|index| set.ports.get(index)).map(Vec::as_slice).unwrap_or_default();
    let (ports, warning) = match ports_of(pod, ports) {
        Ok(resolved) => resolved,
        Err(warning) => (Vec::new(), Some(warning)),
    };
    let counts = pod.is_ready();
    let endpoints = match pod.ips.first() {
        Some(ip) if counts => ports.iter().map(|port| SocketAddr::new(*ip, *port)).collect(),
        _ => Vec::new(),
    };
    Some(Member { revision: Arc::clone(revision), role: Arc::clone(role), counts, endpoints, warning })
}

/// The port numbers that `configured` means on this Pod, narrowed by the Pod's annotation (C6); the warning names a
/// port that the Pod does not have. An annotation that cannot be followed is an error: no port at all is safer than
/// one that its owner has taken out.
fn ports_of(pod: &Pod, configured: &[PortRef]) -> Result<(Vec<u16>, Option<String>), String> {
    let mut ports = Vec::with_capacity(configured.len());
    let mut warning = None;
    for port in configured {
        match port {
            PortRef::Number(number) => ports.push(*number),
            PortRef::Name(name) => {
                match pod.ports.iter().find(|declared| declared.name.as_ref() == Some(name)) {
                    Some(declared) => ports.push(declared.number),
                    None => warning = Some(no_such_port(pod, name)),
                }
            }
        }
    }
    let mut seen = Vec::with_capacity(ports.len());
    ports.retain(|port| {
        !seen.contains(port) && {
            seen.push(*port);
            true
        }
    });
    let Some(annotation) = pod.active_ports.as_deref().filter(|_| !configured.is_empty()) else {
        return Ok((ports, warning));
    };
    let mut active = Vec::new();
    for value in annotation.split(',').map(str::trim) {
        match value.parse::<u16>() {
            Ok(port) if ports.contains(&port) => active.push(port),
            _ => {
                return Err(format!(
                    "annotation active-ports is `{annotation}`, and `{value}` is none of its ports {ports:?}: \
                     the Pod gets no request"
                ));
            }
        }
    }
    ports.retain(|port| active.contains(port));
    Ok((ports, warning))
}

fn no_such_port(pod: &Pod, wanted: &str) -> String {
    let names: Vec<&str> = pod.ports.iter().filter_map(|port| port.name.as_deref()).collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    format!("no container port is named `{wanted}`; the Pod names {known}")
}

#[cfg(test)]
mod tests;
