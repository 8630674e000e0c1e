//! The objects that are watched, reduced while they are parsed: what is not named here is skipped, never kept.

use std::sync::Arc;

use serde::{Deserialize, de::DeserializeOwned};

use crate::cluster::{
    ObjectName, Pod, Service, ServicePort,
    intern::Interner,
    manifest::{self, Metadata, PodObject},
};

/// An object as the API server sends it.
pub(super) trait Object: DeserializeOwned + Clone + Send + 'static {
    /// Its version.
    fn version(&self) -> Option<&str>;
    /// What matters of it, or why it cannot be used.
    fn into_item(self) -> Result<Item, Unusable>;
}

/// What matters of an object.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Item {
    Pod(Arc<Pod>),
    Service(ObjectName, Service),
    Pool(ObjectName, Vec<u16>),
}

impl Item {
    /// Makes what others have in common with it one.
    pub(super) fn share(&mut self, interner: &mut Interner) {
        if let Self::Pod(pod) = self {
            interner.share(pod);
        }
    }
}

/// An object that makes no sense. It counts as absent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unusable {
    /// Its name, where it has one.
    pub(super) name: Option<ObjectName>,
    /// Why.
    pub(super) why: String,
}

fn version(metadata: Option<&Metadata>) -> Option<&str> {
    metadata?.resource_version.as_deref().filter(|version| !version.is_empty())
}

fn name(metadata: Option<&Metadata>) -> Option<ObjectName> {
    let metadata = metadata?;
    let name = metadata.name.as_deref().filter(|name| !name.is_empty())?;
    let namespace = metadata.namespace.as_deref().unwrap_or(manifest::DEFAULT_NAMESPACE);
    Some(ObjectName { namespace: namespace.into(), name: name.into() })
}

fn named(metadata: Option<&Metadata>) -> Result<ObjectName, Unusable> {
    name(metadata).ok_or_else(|| Unusable { name: None, why: "it has no `metadata.name`".to_owned() })
}

impl Object for PodObject {
    fn version(&self) -> Option<&str> {
        version(self.metadata.as_ref())
    }

    fn into_item(self) -> Result<Item, Unusable> {
        let name = name(self.metadata.as_ref());
        match self.into_pod() {
            Ok(pod) => Ok(Item::Pod(Arc::new(pod))),
            Err(problem) => Err(Unusable { name, why: problem.to_string() }),
        }
    }
}

/// A Service.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ServiceObject {
    metadata: Option<Metadata>,
    spec: Option<ServiceSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ServiceSpec {
    /// `None` where it is headless, empty where it is an external name.
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Option<Vec<String>>,
    ports: Option<Vec<ServicePortObject>>,
}

#[derive(Clone, Debug, Deserialize)]
struct ServicePortObject {
    name: Option<String>,
    port: u16,
    protocol: Option<String>,
}

impl Object for ServiceObject {
    fn version(&self) -> Option<&str> {
        version(self.metadata.as_ref())
    }

    fn into_item(self) -> Result<Item, Unusable> {
        let name = named(self.metadata.as_ref())?;
        let spec = self.spec.unwrap_or_default();
        let written = spec.cluster_ip.into_iter().chain(spec.cluster_ips.into_iter().flatten());
        let addresses = manifest::unique(written.filter_map(|ip| ip.parse().ok()).collect());
        let tcp =
            |port: &ServicePortObject| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
        let port = |port: ServicePortObject| ServicePort {
            name: port.name.filter(|name| !name.is_empty()).map(Into::into),
            number: port.port,
        };
        let ports = spec.ports.into_iter().flatten().filter(|port| port.port != 0 && tcp(port));
        let ports = ports.map(port).collect();
        Ok(Item::Service(name, Service { addresses, ports }))
    }
}

/// An InferencePool of either group.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PoolObject {
    metadata: Option<Metadata>,
    spec: Option<PoolSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PoolSpec {
    target_ports: Option<Vec<TargetPort>>,
    /// The older group has one.
    target_port_number: Option<u16>,
}

#[derive(Clone, Debug, Deserialize)]
struct TargetPort {
    number: u16,
}

impl Object for PoolObject {
    fn version(&self) -> Option<&str> {
        version(self.metadata.as_ref())
    }

    fn into_item(self) -> Result<Item, Unusable> {
        let name = named(self.metadata.as_ref())?;
        let spec = self.spec.unwrap_or_default();
        let ports = spec.target_ports.into_iter().flatten().map(|port| port.number);
        let mut ports: Vec<u16> = ports.chain(spec.target_port_number).filter(|port| *port != 0).collect();
        ports.dedup();
        Ok(Item::Pool(name, ports))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn item<O: Object>(object: Value) -> Item {
        serde_json::from_value::<O>(object).unwrap().into_item().unwrap()
    }

    fn service(spec: &Value) -> (Vec<String>, Vec<String>) {
        let object = json!({"metadata": {"name": "decode", "namespace": "llm"}, "spec": spec});
        let Item::Service(name, service) = item::<ServiceObject>(object) else { panic!("a Service") };
        assert_eq!(name.to_string(), "llm/decode");
        (
            service.addresses.iter().map(ToString::to_string).collect(),
            service.ports.iter().map(ToString::to_string).collect(),
        )
    }

    #[test]
    fn a_service_is_where_its_cluster_ips_are() {
        let ports =
            json!([{"name": "http", "port": 80, "targetPort": "http"}, {"port": 53, "protocol": "UDP"}]);
        assert_eq!(
            service(&json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ports": ports})),
            (vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()], vec!["http (80)".to_owned()])
        );
        assert_eq!(service(&json!({"clusterIP": "None", "clusterIPs": ["None"]})).0.len(), 0, "headless");
        assert_eq!(service(&json!({"type": "ExternalName", "clusterIP": ""})).0.len(), 0);
    }

    #[test]
    fn both_groups_pools_have_target_ports() {
        for (spec, expected) in [
            (json!({"targetPorts": [{"number": 8000}, {"number": 8001}]}), vec![8000, 8001]),
            (json!({"targetPortNumber": 8200}), vec![8200]),
            (json!({}), vec![]),
        ] {
            let pool =
                item::<PoolObject>(json!({"metadata": {"name": "p", "namespace": "llm"}, "spec": spec}));
            let Item::Pool(_, ports) = pool else { panic!("a pool") };
            assert_eq!(ports, expected);
        }
    }

    #[test]
    fn a_pod_that_makes_no_sense_is_named() {
        let pod = json!({"metadata": {"name": "p", "namespace": "llm"}, "status": {"podIP": "10.0.0.300"}});
        let unusable = serde_json::from_value::<PodObject>(pod).unwrap().into_item().unwrap_err();
        assert_eq!(unusable.name.unwrap().to_string(), "llm/p");
        assert!(unusable.why.contains("10.0.0.300"));
    }
}
