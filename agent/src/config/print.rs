//! The whole effective configuration as the two documents that would say it, so that it can be read, compared, and
//! fed back: what is printed loads as an equal [`Config`].

use std::path::Path;

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{
    Config, HttpConfig, KernelConfig, ListenerConfig, PairConfig, PortRef, Serves, SetConfig, SourceConfig,
    Trust, VipAddress, VipConfig,
    agent::{AGENT_GONE, CONNECTORS, FENCE_MODES, KERNEL_MODES, LOG_FORMATS, TRUST},
    load::{AGENT_KIND, AGENT_VERSIONS, PICKER_KIND, PICKER_VERSIONS},
    picker::{GATING_MODES, PLUGIN, SELECTOR_MODES},
    units,
};
use crate::cluster::ObjectName;

/// The configuration as YAML, every field shown, `null` where there is no value.
///
/// # Errors
///
/// When the YAML writer fails, which no configuration makes it do.
pub fn print(config: &Config) -> Result<String, serde_saphyr::SerializeError> {
    let picker = Picker {
        api_version: PICKER_VERSIONS[0],
        kind: PICKER_KIND,
        plugins: config.sets.iter().map(plugin).collect(),
    };
    let agent = agent(config);
    Ok(format!("{}---\n{}", serde_saphyr::to_string(&picker)?, serde_saphyr::to_string(&agent)?))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Picker<'c> {
    api_version: &'static str,
    kind: &'static str,
    plugins: Vec<Plugin<'c>>,
}

#[derive(Serialize)]
struct Plugin<'c> {
    r#type: &'static str,
    name: &'c str,
    parameters: Parameters<'c>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Parameters<'c> {
    scope: Scope,
    header_selectors: Vec<HeaderSelector<'c>>,
    revision_gating: Gating<'c>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Scope {
    label_selector: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HeaderSelector<'c> {
    name: &'c str,
    header_name: &'c str,
    label_key: &'c str,
    mode: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Gating<'c> {
    mode: &'static str,
    required_roles: Vec<&'c str>,
    revision_header_name: &'c str,
    revision_label_key: &'c str,
    role_label_key: &'c str,
}

fn plugin(set: &SetConfig) -> Plugin<'_> {
    let selectors = set.selectors.iter().map(|selector| HeaderSelector {
        name: &selector.name,
        header_name: selector.header.as_str(),
        label_key: &selector.label,
        mode: word(&SELECTOR_MODES, &selector.mode),
    });
    Plugin {
        r#type: PLUGIN,
        name: &set.name,
        parameters: Parameters {
            scope: Scope { label_selector: set.scope.to_string() },
            header_selectors: selectors.collect(),
            revision_gating: Gating {
                mode: word(&GATING_MODES, &set.mode),
                required_roles: set.required_roles.iter().map(|role| &**role).collect(),
                revision_header_name: set.revision_header.as_str(),
                revision_label_key: &set.revision_label,
                role_label_key: &set.role_label,
            },
        },
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Agent<'c> {
    api_version: &'static str,
    kind: &'static str,
    node_name: Option<&'c str>,
    source: Source<'c>,
    sets: Vec<Set<'c>>,
    listeners: Vec<Listener<'c>>,
    vips: Vec<Vip<'c>>,
    kernel: Kernel<'c>,
    http: Http,
    admin: Admin,
    shutdown: Shutdown,
    log: Log<'c>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Source<'c> {
    File {
        path: &'c Path,
    },
    #[serde(rename_all = "camelCase")]
    Kubernetes {
        kubeconfig: Option<&'c Path>,
        stale_after: String,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Set<'c> {
    name: &'c str,
    namespaces: Vec<&'c str>,
    inference_pool: Option<Object<'c>>,
    ports: Ports<'c>,
}

#[derive(Serialize)]
struct Object<'c> {
    name: &'c str,
    namespace: &'c str,
}

fn object(object: &ObjectName) -> Object<'_> {
    Object { name: &object.name, namespace: &object.namespace }
}

/// A mapping from role to ports, in the order of the roles.
struct Ports<'c>(&'c SetConfig);

impl Serialize for Ports<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (role, ports) in self.0.roles.iter().zip(&self.0.ports) {
            match ports.as_slice() {
                // The pool says them.
                [] => {}
                [port] => map.serialize_entry(&**role, &Port(port))?,
                ports => map.serialize_entry(&**role, &ports.iter().map(Port).collect::<Vec<_>>())?,
            }
        }
        map.end()
    }
}

struct Port<'c>(&'c PortRef);

impl Serialize for Port<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            PortRef::Number(number) => serializer.serialize_u16(*number),
            PortRef::Name(name) => serializer.serialize_str(name),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listener<'c> {
    name: &'c str,
    address: String,
    set: &'c str,
    role: Option<&'c str>,
    pair: Option<Pair<'c>>,
    endpoint_picker: Option<EndpointPicker<'c>>,
    tls: Option<Tls<'c>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Pair<'c> {
    prefill: &'c str,
    decode: &'c str,
    connector: &'static str,
    bootstrap_port: u16,
    decode_only_fallback: bool,
    trust: Trusted,
    prefill_retries: u32,
    prefill_backoff: String,
    max_prefill_reply: String,
}

#[derive(Serialize)]
struct EndpointPicker<'c> {
    prefill: Option<&'c str>,
    decode: Option<&'c str>,
    trust: Trusted,
    endpoints: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Trusted {
    Word(&'static str),
    Networks(Vec<String>),
}

#[derive(Serialize)]
struct Tls<'c> {
    certificate: &'c Path,
    key: &'c Path,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Vip<'c> {
    #[serde(flatten)]
    at: At<'c>,
    set: &'c str,
    role: &'c str,
    members_only: bool,
    when_agent_gone: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum At<'c> {
    Address(String),
    Service {
        #[serde(flatten)]
        service: Object<'c>,
        port: Option<Port<'c>>,
    },
}

#[derive(Serialize)]
struct Kernel<'c> {
    mode: &'static str,
    fence: &'static str,
    cgroup: Option<&'c Path>,
    bpffs: &'c Path,
    lease: String,
    trace: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Http {
    workers: usize,
    busy_poll: bool,
    max_body: String,
    max_head: String,
    head_timeout: String,
    idle_timeout: String,
    max_connections: usize,
    max_requests: usize,
    connect_timeout: String,
    response_timeout: String,
    stream_idle_timeout: String,
    pool_idle_timeout: String,
    pool_max_idle: usize,
    retries: u32,
    local_factor: f64,
    prefer_factor: f64,
    breaker_failures: u32,
    breaker_open: String,
    access_log: bool,
}

#[derive(Serialize)]
struct Admin {
    address: String,
}

#[derive(Serialize)]
struct Shutdown {
    delay: String,
    deadline: String,
}

#[derive(Serialize)]
struct Log<'c> {
    format: &'static str,
    filter: &'c str,
}

fn agent(config: &Config) -> Agent<'_> {
    let agent = &config.agent;
    Agent {
        api_version: AGENT_VERSIONS[0],
        kind: AGENT_KIND,
        node_name: agent.node.as_deref(),
        source: source(&agent.source),
        sets: config.sets.iter().map(set).collect(),
        listeners: agent.listeners.iter().filter_map(|listener| print_listener(config, listener)).collect(),
        vips: agent.vips.iter().filter_map(|vip| print_vip(config, vip)).collect(),
        kernel: kernel(&agent.kernel),
        http: http(&agent.http),
        admin: Admin { address: agent.admin.to_string() },
        shutdown: Shutdown {
            delay: units::print_duration(agent.shutdown.delay),
            deadline: units::print_duration(agent.shutdown.deadline),
        },
        log: Log { format: word(&LOG_FORMATS, &agent.log.format), filter: &agent.log.filter },
    }
}

fn source(source: &SourceConfig) -> Source<'_> {
    match source {
        SourceConfig::File { path } => Source::File { path },
        SourceConfig::Kubernetes(kubernetes) => Source::Kubernetes {
            kubeconfig: kubernetes.kubeconfig.as_deref(),
            stale_after: units::print_duration(kubernetes.stale_after),
        },
    }
}

fn set(set: &SetConfig) -> Set<'_> {
    Set {
        name: &set.name,
        namespaces: set.namespaces.iter().map(|namespace| &**namespace).collect(),
        inference_pool: set.pool.as_ref().map(object),
        ports: Ports(set),
    }
}

/// The names behind the indices of a listener or VIP; none only in a hand-made configuration that is wrong.
fn names(config: &Config, set: usize, role: usize) -> Option<(&str, &str)> {
    let set = config.sets.get(set)?;
    Some((&set.name, set.roles.get(role)?))
}

fn print_listener<'c>(config: &'c Config, listener: &'c ListenerConfig) -> Option<Listener<'c>> {
    let of = |role: usize| Some(names(config, listener.set, role)?.1);
    let (role, pair, endpoint_picker) = match &listener.serves {
        Serves::Role(role) => (of(*role), None, None),
        Serves::Pair(pair) => (None, Some(print_pair(config, listener.set, pair)?), None),
        Serves::Picker(picker) => {
            let role = if picker.prefill.is_none() { of(picker.decode) } else { None };
            let decode = if picker.prefill.is_some() { of(picker.decode) } else { None };
            let (prefill, trust) = (picker.prefill.and_then(of), print_trust(&picker.trust));
            (role, None, Some(EndpointPicker { prefill, decode, trust, endpoints: picker.endpoints }))
        }
    };
    let tls = listener.tls.as_ref().map(|tls| Tls { certificate: &tls.certificate, key: &tls.key });
    let set = config.sets.get(listener.set)?;
    let address = listener.address.to_string();
    Some(Listener { name: &listener.name, address, set: &set.name, role, pair, endpoint_picker, tls })
}

fn print_pair<'c>(config: &'c Config, set: usize, pair: &PairConfig) -> Option<Pair<'c>> {
    Some(Pair {
        prefill: names(config, set, pair.prefill)?.1,
        decode: names(config, set, pair.decode)?.1,
        connector: word(&CONNECTORS, &pair.connector),
        bootstrap_port: pair.bootstrap_port,
        decode_only_fallback: pair.decode_only_fallback,
        trust: print_trust(&pair.trust),
        prefill_retries: pair.prefill_retries,
        prefill_backoff: units::print_duration(pair.prefill_backoff),
        max_prefill_reply: units::print_size(pair.max_prefill_reply),
    })
}

fn print_trust(trust: &Trust) -> Trusted {
    match trust {
        Trust::Networks(networks) => Trusted::Networks(networks.iter().map(ToString::to_string).collect()),
        Trust::Never => Trusted::Word(TRUST[0]),
        Trust::Always => Trusted::Word(TRUST[1]),
    }
}

fn print_vip<'c>(config: &'c Config, vip: &'c VipConfig) -> Option<Vip<'c>> {
    let (set, role) = names(config, vip.set, vip.role)?;
    Some(Vip {
        at: match &vip.at {
            VipAddress::Fixed(address) => At::Address(address.to_string()),
            VipAddress::Service { service, port } => {
                At::Service { service: object(service), port: port.as_ref().map(Port) }
            }
        },
        set,
        role,
        members_only: vip.members_only,
        when_agent_gone: word(&AGENT_GONE, &vip.agent_gone),
    })
}

fn kernel(kernel: &KernelConfig) -> Kernel<'_> {
    Kernel {
        mode: word(&KERNEL_MODES, &kernel.mode),
        fence: word(&FENCE_MODES, &kernel.fence),
        cgroup: kernel.cgroup.as_deref(),
        bpffs: &kernel.bpffs,
        lease: units::print_duration(kernel.lease),
        trace: kernel.trace,
    }
}

fn http(http: &HttpConfig) -> Http {
    Http {
        workers: http.workers,
        busy_poll: http.busy_poll,
        max_body: units::print_size(http.max_body),
        max_head: units::print_size(u64::try_from(http.max_head).unwrap_or(u64::MAX)),
        head_timeout: units::print_duration(http.head_timeout),
        idle_timeout: units::print_duration(http.idle_timeout),
        max_connections: http.max_connections,
        max_requests: http.max_requests,
        connect_timeout: units::print_duration(http.connect_timeout),
        response_timeout: units::print_duration(http.response_timeout),
        stream_idle_timeout: units::print_duration(http.stream_idle_timeout),
        pool_idle_timeout: units::print_duration(http.pool_idle_timeout),
        pool_max_idle: http.pool_max_idle,
        retries: http.retries,
        local_factor: http.local_factor,
        prefer_factor: http.prefer_factor,
        breaker_failures: http.breaker_failures,
        breaker_open: units::print_duration(http.breaker_open),
        access_log: http.access_log,
    }
}

/// The word for a value, from the same table that reads it.
fn word<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, known)| known == value).map_or("", |(word, _)| word)
}
