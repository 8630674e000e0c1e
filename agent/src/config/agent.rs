//! `kind: AgentConfig`: what is revgate's own. Everything is optional; `defaults` holds what is not said.

mod frontends;
mod pair;
mod picker;

use std::{ops::RangeInclusive, time::Duration};

use revgate_common::layout::{MAX_ROLES, MAX_SETS};
use tracing_subscriber::EnvFilter;

use super::{
    AgentConfig, AgentGone, ConnectorKind, FenceMode, HttpConfig, KernelConfig, KernelMode, KubernetesConfig,
    Loaded, LogConfig, LogFormat, SetConfig, ShutdownConfig, SourceConfig,
    addresses::{self, Place, Use},
    problem,
    reader::{Fields, Value},
};

/// The words for the kernel modes.
pub(super) const KERNEL_MODES: [(&str, KernelMode); 3] =
    [("auto", KernelMode::Auto), ("required", KernelMode::Required), ("off", KernelMode::Off)];
/// The words for the fence modes.
pub(super) const FENCE_MODES: [(&str, FenceMode); 3] =
    [("enforce", FenceMode::Enforce), ("audit", FenceMode::Audit), ("off", FenceMode::Off)];
/// The words for what a VIP does without an agent.
pub(super) const AGENT_GONE: [(&str, AgentGone); 2] = [("keep", AgentGone::Keep), ("deny", AgentGone::Deny)];
/// The words for the connectors.
pub(super) const CONNECTORS: [(&str, ConnectorKind); 3] = [
    ("nixlv2", ConnectorKind::NixlV2),
    ("shared-storage", ConnectorKind::SharedStorage),
    ("sglang", ConnectorKind::Sglang),
];
/// The words for whom a pair listener believes, where they are no networks: nobody, everybody.
pub(super) const TRUST: [&str; 2] = ["never", "always"];
/// The words for the log formats.
pub(super) const LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

const DAY: Duration = Duration::from_hours(24);
/// Each role of each set may have one of its own.
const MOST_FRONTENDS: usize = MAX_SETS * MAX_ROLES;
const MOST: RangeInclusive<u64> = 1..=10_000_000;
const LEAST: Duration = Duration::from_millis(1);
/// A third of it is the time between two renewals, which must outlast a table swap.
const LEAST_LEASE: Duration = Duration::from_secs(1);
/// Below it every pause between two events would be one too long.
const LEAST_STALE: Duration = Duration::from_secs(1);
/// The engines' servers close idle connections at 5 s; a connection kept as long loses requests to that race.
const LONGEST_POOL_IDLE: Duration = Duration::from_millis(4_999);

/// Reads the document into `loaded.config`, whose sets are known already.
pub(super) fn read(mut document: Fields<'_>, loaded: &mut Loaded) {
    let config = &mut loaded.config;
    let defaults = AgentConfig::default();
    if let Some(node) = document.get("nodeName").and_then(|value| value.name()) {
        config.agent.node = Some(node.into());
    }
    config.agent.source = document.or("source", defaults.source, source);
    let mut places: Vec<Place<'_>> = Vec::new();
    frontends::listeners(document.list("listeners", MOST_FRONTENDS), config, &mut places);
    let services = frontends::vips(document.list("vips", MOST_FRONTENDS), config, &mut places);
    frontends::sets(document.list("sets", MAX_SETS), config);
    frontends::services(services, config);
    config.agent.kernel = document.or("kernel", defaults.kernel, kernel);
    config.agent.http = document.or("http", defaults.http, http);
    config.agent.admin = document.or("admin", defaults.admin, |value| {
        let mut fields = value.fields()?;
        let address = fields.get("address").and_then(|value| {
            let address = value.address()?;
            places.push((Use::Admin, address, value));
            Some(address)
        });
        fields.finish();
        address
    });
    config.agent.shutdown = document.or("shutdown", defaults.shutdown, shutdown);
    config.agent.log = document.or("log", defaults.log, log);
    document.finish();
    addresses::check(&places, config.agent.admin);
    for set in &config.sets {
        warn_of_close_roles(set, &mut loaded.warnings);
    }
}

fn source(value: &Value<'_>) -> Option<SourceConfig> {
    let mut fields = value.fields()?;
    let file = fields.get("file");
    let kubernetes = fields.get("kubernetes");
    fields.finish();
    match (file, kubernetes) {
        (Some(file), None) => {
            let mut file = file.fields()?;
            let path = file.required("path").and_then(|path| path.name());
            file.finish();
            Some(SourceConfig::File { path: path?.into() })
        }
        (None, Some(kubernetes)) => {
            let mut fields = kubernetes.fields()?;
            let d = KubernetesConfig::default();
            let kubernetes = KubernetesConfig {
                kubeconfig: fields.or("kubeconfig", d.kubeconfig, |value| Some(Some(value.name()?.into()))),
                stale_after: fields
                    .or("staleAfter", d.stale_after, |value| value.duration(LEAST_STALE..=DAY)),
            };
            fields.finish();
            Some(SourceConfig::Kubernetes(kubernetes))
        }
        (Some(_), Some(_)) => {
            value.wrong("both `file` and `kubernetes`: Pods come from one source");
            None
        }
        // An empty mapping says as little as none at all.
        (None, None) => None,
    }
}

fn kernel(value: &Value<'_>) -> Option<KernelConfig> {
    let mut fields = value.fields()?;
    let defaults = KernelConfig::default();
    let kernel = KernelConfig {
        mode: fields.or("mode", defaults.mode, |value| value.one_of("mode", &KERNEL_MODES)),
        fence: fields.or("fence", defaults.fence, |value| value.one_of("mode", &FENCE_MODES)),
        cgroup: fields.or("cgroup", defaults.cgroup, |value| Some(Some(value.absolute_path()?))),
        bpffs: fields.or("bpffs", defaults.bpffs, Value::absolute_path),
        lease: fields.or("lease", defaults.lease, |value| value.duration(LEAST_LEASE..=DAY)),
        trace: fields.or("trace", defaults.trace, Value::boolean),
    };
    fields.finish();
    Some(kernel)
}

fn http(value: &Value<'_>) -> Option<HttpConfig> {
    let mut fields = value.fields()?;
    let d = HttpConfig::default();
    let duration = |fields: &mut Fields<'_>, name, default, longest| {
        fields.or(name, default, |value| value.duration(LEAST..=longest))
    };
    let http = HttpConfig {
        workers: fields.or("workers", d.workers, |value| value.integer(0..=1024)),
        busy_poll: fields.or("busyPoll", d.busy_poll, Value::boolean),
        max_body: fields.or("maxBody", d.max_body, |value| value.size(1 << 10..=16 << 30)),
        // hyper needs 8 KiB at least.
        max_head: fields.or("maxHead", d.max_head, |value| value.size(8 << 10..=1 << 20)),
        head_timeout: duration(&mut fields, "headTimeout", d.head_timeout, DAY),
        idle_timeout: duration(&mut fields, "idleTimeout", d.idle_timeout, DAY),
        max_connections: fields.or("maxConnections", d.max_connections, |value| value.integer(MOST)),
        max_requests: fields.or("maxRequests", d.max_requests, |value| value.integer(MOST)),
        connect_timeout: duration(&mut fields, "connectTimeout", d.connect_timeout, DAY),
        response_timeout: duration(&mut fields, "responseTimeout", d.response_timeout, DAY),
        stream_idle_timeout: duration(&mut fields, "streamIdleTimeout", d.stream_idle_timeout, DAY),
        pool_idle_timeout: duration(&mut fields, "poolIdleTimeout", d.pool_idle_timeout, LONGEST_POOL_IDLE),
        pool_max_idle: fields.or("poolMaxIdle", d.pool_max_idle, |value| value.integer(0..=65_536)),
        retries: fields.or("retries", d.retries, |value| value.integer(0..=10)),
        local_factor: fields.or("localFactor", d.local_factor, |value| value.decimal(0.0..=1000.0)),
        prefer_factor: fields.or("preferFactor", d.prefer_factor, |value| value.decimal(0.0..=1000.0)),
        breaker_failures: fields.or("breakerFailures", d.breaker_failures, |value| value.integer(0..=10_000)),
        breaker_open: duration(&mut fields, "breakerOpen", d.breaker_open, DAY),
        access_log: fields.or("accessLog", d.access_log, Value::boolean),
    };
    fields.finish();
    Some(http)
}

fn shutdown(value: &Value<'_>) -> Option<ShutdownConfig> {
    let mut fields = value.fields()?;
    let defaults = ShutdownConfig::default();
    let range = Duration::ZERO..=DAY;
    let shutdown = ShutdownConfig {
        delay: fields.or("delay", defaults.delay, |value| value.duration(range.clone())),
        deadline: fields.or("deadline", defaults.deadline, |value| value.duration(range)),
    };
    if shutdown.delay > shutdown.deadline {
        fields.whole().wrong("`delay` is longer than `deadline`, which counts from the same moment");
    }
    fields.finish();
    Some(shutdown)
}

fn log(value: &Value<'_>) -> Option<LogConfig> {
    let mut fields = value.fields()?;
    let defaults = LogConfig::default();
    let format = fields.or("format", defaults.format, |value| value.one_of("format", &LOG_FORMATS));
    let filter = fields.or("filter", defaults.filter, |value| {
        let filter = value.name()?;
        match EnvFilter::builder().parse(filter) {
            Ok(_) => return Some(filter.to_owned()),
            Err(error) => value.not_allowed(
                format!("bad log filter `{filter}`: {error}"),
                "a level (`error`, `warn`, `info`, `debug`, `trace`), or `target=level` joined by `,`",
            ),
        }
        None
    });
    fields.finish();
    Some(LogConfig { format, filter })
}

/// The roles that llm-d knows. Two of them are close, and both are meant.
const KNOWN_ROLES: [&str; 3] = ["prefill", "decode", "encode"];

/// A role that is almost a required one is probably a slip, but roles may have any name.
fn warn_of_close_roles(set: &SetConfig, warnings: &mut Vec<String>) {
    let required: Vec<&str> = set.required_roles.iter().map(|role| &**role).collect();
    let others = set.roles.iter().skip(required.len());
    for role in others.filter(|role| !KNOWN_ROLES.contains(&&***role)) {
        if let Some(meant) = problem::closest(role, required.iter().copied()) {
            warnings.push(format!(
                "set `{}`: the role `{role}` is not a required one; was `{meant}` meant?",
                set.name
            ));
        }
    }
}
