//! The parts of AgentConfig that speak of sets and roles: listeners, VIPs, ports, namespaces.

use std::{collections::HashMap, sync::Arc};

use revgate_common::layout::MAX_ROLES;

use super::super::{
    AgentGone, Config, ListenerConfig, PortRef, Serves, SetConfig, SourceConfig, TlsConfig, VipAddress,
    VipConfig,
    addresses::{Place, Use},
    defaults, names,
    reader::{Fields, Value},
};
use super::{AGENT_GONE, pair, picker};
use crate::cluster::ObjectName;

/// Far more than a set has; a bound on what a file can ask for.
const MOST_NAMESPACES: usize = 256;
/// Data-parallel ranks of one Pod: an InferencePool takes 8.
const MOST_PORTS: usize = 64;

/// The set that an entry names; the only one where it names none.
fn set_of<'c>(
    fields: &mut Fields<'_>,
    name: &'static str,
    sets: &'c mut [SetConfig],
) -> Option<(usize, &'c mut SetConfig)> {
    let found = match (fields.get(name), sets.len()) {
        // There is no set only when the other document is wrong, which has been said.
        (_, 0) => return None,
        (None, 1) => 0,
        (None, _) => {
            let names = set_names(sets).join(", ");
            fields
                .whole()
                .not_allowed(format!("the field `{name}` is missing, and there are several sets"), names);
            return None;
        }
        (Some(value), _) => {
            let name = value.name()?;
            let found = sets.iter().position(|set| &*set.name == name);
            if found.is_none() {
                value.unknown("set", name, &set_names(sets));
            }
            found?
        }
    };
    sets.get_mut(found).map(|set| (found, set))
}

fn set_names(sets: &[SetConfig]) -> Vec<&str> {
    sets.iter().map(|set| &*set.name).collect()
}

/// The index of a role in its set, which learns it here if it is new.
pub(super) fn role_index(set: &mut SetConfig, role: &str, value: &Value<'_>) -> Option<usize> {
    if let Some(index) = set.roles.iter().position(|known| &**known == role) {
        return Some(index);
    }
    if set.roles.len() == MAX_ROLES {
        value.wrong(format!("more than {MAX_ROLES} roles in the set `{}`", set.name));
        return None;
    }
    set.roles.push(role.into());
    Some(set.roles.len() - 1)
}

fn role_of(
    fields: &mut Fields<'_>,
    set: Option<(usize, &mut SetConfig)>,
) -> Option<(usize, usize, Arc<str>)> {
    let value = fields.required("role")?;
    let role = value.checked(names::is_label_value, names::LABEL_VALUE)?;
    let (index, set) = set?;
    Some((index, role_index(set, role, &value)?, role.into()))
}

/// Reads `listeners`.
pub(super) fn listeners<'a>(items: Vec<Value<'a>>, config: &mut Config, places: &mut Vec<Place<'a>>) {
    let mut seen: HashMap<Arc<str>, usize> = HashMap::new();
    for item in items {
        let Some(mut fields) = item.fields() else { continue };
        let name = fields.get("name").map(|value| (value.name(), value));
        let picker = fields.get("endpointPicker");
        let given = if picker.is_some() { fields.get("address") } else { fields.required("address") };
        let address = match given {
            Some(value) => value.address().map(|address| (address, value)),
            None => picker.clone().map(|value| (defaults::PICKER_ADDRESS, value)),
        };
        let address = address.map(|(address, value)| {
            places.push((Use::Listener, address, value));
            address
        });
        let set = set_of(&mut fields, "set", &mut config.sets);
        let serves = match (picker, fields.get("pair")) {
            (Some(value), _) => picker::read(&mut fields, &value, set),
            (None, Some(value)) => pair::read(&mut fields, &value, set),
            (None, None) => {
                role_of(&mut fields, set).map(|(set, role, name)| (set, Serves::Role(role), name))
            }
        };
        let tls = fields.get("tls").and_then(|value| tls(&value));
        fields.finish();
        let (place, name) = match (name, &serves) {
            (Some((name, value)), _) => (value, name.map(Arc::from)),
            (None, Some((_, _, name))) => (item.clone(), Some(name.clone())),
            (None, None) => continue,
        };
        let Some(name) = name else { continue };
        if let Some(line) = seen.insert(name.clone(), place.at().line) {
            place.wrong(format!(
                "duplicate listener name `{name}`, already on line {line}: give each its own `name`"
            ));
        }
        if let (Some(address), Some((set, serves, _))) = (address, serves) {
            config.agent.listeners.push(ListenerConfig { name, address, set, serves, tls });
        }
    }
}

fn tls(value: &Value<'_>) -> Option<TlsConfig> {
    let mut fields = value.fields()?;
    let certificate = fields.required("certificate").and_then(|value| value.name());
    let key = fields.required("key").and_then(|value| value.name());
    fields.finish();
    Some(TlsConfig { certificate: certificate?.into(), key: key?.into() })
}

/// Where the file names the Service of a VIP, and the index of that VIP.
pub(super) type ServicePlace<'a> = (usize, Value<'a>);

/// Reads `vips`. The namespaces of Services that name none are for [`services`] to fill in.
pub(super) fn vips<'a>(
    items: Vec<Value<'a>>,
    config: &mut Config,
    places: &mut Vec<Place<'a>>,
) -> Vec<ServicePlace<'a>> {
    let mut services = Vec::new();
    for item in items {
        let Some(mut fields) = item.fields() else { continue };
        let (address, service) = (fields.get("address"), fields.get("service"));
        let at = match (&address, &service) {
            (Some(value), None) => value.address().map(|address| {
                places.push((Use::Vip, address, value.clone()));
                VipAddress::Fixed(address)
            }),
            (None, Some(value)) => service_of(value),
            _ => {
                item.wrong("exactly one of `address` and `service` says where a VIP is");
                None
            }
        };
        let set = set_of(&mut fields, "set", &mut config.sets);
        let role = role_of(&mut fields, set);
        let members_only = fields.or("membersOnly", false, Value::boolean);
        let agent_gone =
            fields.or("whenAgentGone", AgentGone::Keep, |value| value.one_of("action", &AGENT_GONE));
        fields.finish();
        if let (Some(at), Some((set, role, _))) = (at, role) {
            services.extend(service.map(|value| (config.agent.vips.len(), value)));
            config.agent.vips.push(VipConfig { at, set, role, members_only, agent_gone });
        }
    }
    services
}

fn service_of(value: &Value<'_>) -> Option<VipAddress> {
    let mut fields = value.fields()?;
    let service = object_of(&mut fields);
    let port = fields.get("port");
    let bad_port = port.is_some();
    let port = port.and_then(|value| value.port());
    fields.finish();
    let service = service.filter(|_| port.is_some() || !bad_port)?;
    Some(VipAddress::Service { service, port })
}

/// An object's name and namespace; the namespace is empty where it is not said.
fn object_of(fields: &mut Fields<'_>) -> Option<ObjectName> {
    let name = fields.required("name").and_then(|value| value.checked(names::is_object, names::OBJECT));
    let namespace = fields.get("namespace").map(|value| value.checked(names::is_namespace, names::NAMESPACE));
    let namespace = namespace.unwrap_or(Some(""))?;
    Some(ObjectName { namespace: namespace.into(), name: name?.into() })
}

/// Gives an object that names no namespace the only one of its set.
fn fill_namespace(object: &mut ObjectName, namespaces: &[Arc<str>], value: &Value<'_>) {
    match namespaces {
        _ if !object.namespace.is_empty() => {}
        [only] => object.namespace = Arc::clone(only),
        _ => value.wrong("the field `namespace` is missing, and its set has not just one namespace"),
    }
}

/// What [`vips`] left open, once the sets' namespaces are known.
pub(super) fn services(places: Vec<ServicePlace<'_>>, config: &mut Config) {
    let from_file = matches!(config.agent.source, SourceConfig::File { .. });
    let Config { sets, agent } = config;
    let mut seen = Vec::new();
    for (index, value) in places {
        let Some(vip) = agent.vips.get_mut(index) else { continue };
        if from_file {
            value.wrong("a Service needs `source.kubernetes`; with a Pod file, give the VIP's `address`");
        } else if let (VipAddress::Service { service, .. }, Some(set)) = (&mut vip.at, sets.get(vip.set)) {
            fill_namespace(service, &set.namespaces, &value);
        }
        if seen.contains(&vip.at) {
            value.wrong("this port of the Service is a VIP already");
        }
        seen.push(vip.at.clone());
    }
}

/// Per-set settings: namespaces, pool and ports. Read after listeners and VIPs, which come first in the order of roles.
pub(super) fn sets(items: Vec<Value<'_>>, config: &mut Config) {
    let mut seen = Vec::new();
    let from_file = matches!(config.agent.source, SourceConfig::File { .. });
    for item in items {
        let Some(mut fields) = item.fields() else { continue };
        let set = set_of(&mut fields, "name", &mut config.sets);
        let namespaces = namespaces(fields.list("namespaces", MOST_NAMESPACES));
        let pool = fields.get("inferencePool").and_then(|value| {
            let mut fields = value.fields()?;
            let mut pool = object_of(&mut fields);
            fields.finish();
            fill_namespace(pool.as_mut()?, &namespaces, &value);
            if from_file {
                value.wrong("an InferencePool needs `source.kubernetes`; with a Pod file, give the `ports`");
            }
            pool
        });
        let ports = fields.get("ports").and_then(|ports| ports.entries()).unwrap_or_default();
        fields.finish();
        let ports: Vec<_> =
            ports.into_iter().filter_map(|(role, value)| Some((role, port_list(&value)?, value))).collect();
        let Some((index, set)) = set else { continue };
        if seen.contains(&index) {
            item.wrong(format!("duplicate settings of the set `{}`", set.name));
            continue;
        }
        seen.push(index);
        set.namespaces = namespaces;
        set.pool = pool;
        for (role, list, value) in ports {
            if role.is_empty() || !names::is_label_value(role) {
                value.not_allowed(format!("bad role `{role}`"), names::LABEL_VALUE);
            } else if let Some(index) = role_index(set, role, &value) {
                set.fill_ports();
                if let Some(ports) = set.ports.get_mut(index) {
                    *ports = list;
                }
            }
        }
    }
}

fn namespaces(items: Vec<Value<'_>>) -> Vec<Arc<str>> {
    let mut namespaces: Vec<Arc<str>> = Vec::new();
    for item in items {
        let Some(namespace) = item.checked(names::is_namespace, names::NAMESPACE) else { continue };
        if namespaces.iter().any(|known| &**known == namespace) {
            item.wrong(format!("duplicate namespace `{namespace}`"));
        } else {
            namespaces.push(namespace.into());
        }
    }
    namespaces
}

fn port_list(value: &Value<'_>) -> Option<Vec<PortRef>> {
    let items = value.one_or_more(MOST_PORTS)?;
    if items.is_empty() {
        value.not_allowed("no port", names::PORT_NAME);
    }
    let mut ports = Vec::new();
    for item in items {
        let port = item.port()?;
        if ports.contains(&port) {
            item.wrong("duplicate port");
        }
        ports.push(port);
    }
    (!ports.is_empty()).then_some(ports)
}
