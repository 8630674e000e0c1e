//! A Service, reduced to where it is, and the name of an object.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use crate::config::PortRef;

/// The name of a namespaced object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectName {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Where a Service is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Service {
    /// Its cluster IPs, one of each family at most; none of a headless Service.
    pub addresses: Vec<IpAddr>,
    /// Its TCP ports, in order.
    pub ports: Vec<ServicePort>,
}

/// A port of a Service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServicePort {
    /// The name, where it has one.
    pub name: Option<Arc<str>>,
    /// The port, not the target port.
    pub number: u16,
}

impl Service {
    /// The addresses at one of its ports, or why there is none, as in "it is headless".
    pub fn at(&self, port: Option<&PortRef>) -> Result<Vec<SocketAddr>, String> {
        if self.addresses.is_empty() {
            return Err("it has no cluster IP (a headless Service has none)".to_owned());
        }
        let found = match port {
            None => match self.ports.as_slice() {
                [only] => Some(only),
                ports => return Err(format!("it has {} TCP ports; name one with `port`", ports.len())),
            },
            Some(PortRef::Number(number)) => self.ports.iter().find(|port| port.number == *number),
            Some(PortRef::Name(name)) => self.ports.iter().find(|port| port.name.as_ref() == Some(name)),
        };
        let Some(found) = found else {
            let ports: Vec<String> = self.ports.iter().map(ToString::to_string).collect();
            return Err(format!("it has no such TCP port; it has {}", ports.join(", ")));
        };
        Ok(self.addresses.iter().map(|ip| SocketAddr::new(*ip, found.number)).collect())
    }
}

impl fmt::Display for ServicePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}
