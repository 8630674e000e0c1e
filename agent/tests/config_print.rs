//! What `config print` shows reads back as the same configuration, whatever the configuration is (F3).
#![cfg(test)]

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use proptest::{collection, option, prelude::*, sample::select};
use revgate::config::{
    AgentConfig, AgentGone, Config, ConnectorKind, FenceMode, GatingMode, HeaderSelector, HttpConfig,
    KernelConfig, KernelMode, ListenerConfig, LogConfig, LogFormat, PairConfig, PickerConfig, PortRef,
    SelectorMode, Serves, SetConfig, ShutdownConfig, SourceConfig, TlsConfig, Trust, VipAddress, VipConfig,
    parse, print,
};

/// Text that is hard for YAML: it looks like something else, or needs escapes.
fn hard_text() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec![
            "null",
            "~",
            "true",
            "off",
            "0x10",
            "1e3",
            "- a",
            "a: b",
            "#c",
            "'",
            "\"",
            " x ",
            "{",
            "é\u{1F600}",
            "a\n b\n",
            "\u{85}",
            "a\u{2028}b",
            "\u{feff}x",
            "\t",
            "\r\n",
            "\u{7}",
            "\u{7f}",
            "\0",
            "*a",
            "&a",
            "!b",
            "%c",
            "@d",
            "? e",
            "---",
            "..."
        ])
        .prop_map(str::to_owned),
        "\\PC{1,12}",
    ]
}

fn path() -> impl Strategy<Value = PathBuf> {
    hard_text().prop_map(|text| PathBuf::from(format!("/{text}")))
}

fn milliseconds(range: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

fn port() -> impl Strategy<Value = PortRef> {
    prop_oneof![
        (1..=u16::MAX).prop_map(PortRef::Number),
        "[a-z][a-z0-9]{0,14}".prop_map(|name| PortRef::Name(name.into())),
    ]
}

/// Required roles are a prefix of the roles; a label and a header for each index keep them apart.
fn set(index: usize) -> impl Strategy<Value = SetConfig> {
    let ports = collection::vec(collection::hash_set(port(), 1..4), 2..6);
    let modes = select(vec![GatingMode::MaxRole, GatingMode::Sum, GatingMode::Disabled]);
    let scopes = select(vec!["a", "a=b,c!=d", "x in (a,b),!y", "e.f/g notin (1,2)", "n>5", "v="]);
    let selectors = collection::vec(select(vec![SelectorMode::Strict, SelectorMode::Prefer]), 0..3);
    (hard_text(), scopes, modes, ports, 1..=2_usize, selectors, any::<bool>()).prop_map(
        move |(name, scope, mode, ports, required, selectors, everywhere)| {
            let roles: Vec<Arc<str>> = (0..ports.len()).map(|role| format!("role{role}").into()).collect();
            let selector = |(number, mode)| HeaderSelector {
                name: format!("null{number}").into(),
                header: format!("x-{number}").parse().unwrap_or_else(|_| panic!("a header")),
                label: format!("label{number}").into(),
                mode,
            };
            SetConfig {
                name: format!("{name}{index}").into(),
                scope: scope.parse().unwrap_or_else(|error| panic!("{error}")),
                namespaces: if everywhere { vec![] } else { vec!["null".into(), "n1".into()] },
                mode,
                required_roles: roles.iter().take(required).cloned().collect(),
                roles,
                ports: ports.into_iter().map(|ports| ports.into_iter().collect()).collect(),
                pool: None,
                revision_header: "x-rev".parse().unwrap_or_else(|_| panic!("a header")),
                revision_label: "rev".into(),
                role_label: "role".into(),
                selectors: selectors.into_iter().enumerate().map(selector).collect(),
            }
        },
    )
}

fn http() -> impl Strategy<Value = HttpConfig> {
    let sizes = (0..=1024_usize, 1024..=1_u64 << 34, 8192..=1_usize << 20, 1..=1000_usize, 1..=1000_usize);
    let times = collection::vec(milliseconds(1..=86_400_000), 6);
    let factors = (0.0..=1000.0, 0.0..=1000.0);
    let rest = (
        milliseconds(1..=4999),
        0..=100_usize,
        0..=10_u32,
        factors,
        0..=100_u32,
        any::<bool>(),
        any::<bool>(),
    );
    (sizes, times, rest).prop_map(|(sizes, times, rest)| {
        let time = |index: usize| times.get(index).copied().unwrap_or_default();
        HttpConfig {
            workers: sizes.0,
            busy_poll: rest.6,
            max_body: sizes.1,
            max_head: sizes.2,
            head_timeout: time(0),
            idle_timeout: time(1),
            max_connections: sizes.3,
            max_requests: sizes.4,
            connect_timeout: time(2),
            response_timeout: time(3),
            stream_idle_timeout: time(5),
            pool_idle_timeout: rest.0,
            pool_max_idle: rest.1,
            retries: rest.2,
            local_factor: rest.3.0,
            prefer_factor: rest.3.1,
            breaker_failures: rest.4,
            breaker_open: time(4),
            access_log: rest.5,
        }
    })
}

fn pair() -> impl Strategy<Value = PairConfig> {
    let connectors = select(vec![ConnectorKind::NixlV2, ConnectorKind::SharedStorage, ConnectorKind::Sglang]);
    let networks =
        ["10.0.0.0/8", "fd00::/8", "::1/128"].map(|network| network.parse().unwrap_or_else(|()| panic!()));
    let trust = select(vec![Trust::Never, Trust::Always, Trust::Networks(networks.into())]);
    let numbers = (1..=u16::MAX, 0..=10_u32, milliseconds(1..=86_400_000), 1024..=1_u64 << 30);
    (connectors, trust, any::<bool>(), numbers).prop_map(|(connector, trust, fallback, numbers)| PairConfig {
        connector,
        bootstrap_port: numbers.0,
        decode_only_fallback: fallback && connector != ConnectorKind::Sglang,
        trust,
        prefill_retries: numbers.1,
        prefill_backoff: numbers.2,
        max_prefill_reply: numbers.3,
        ..PairConfig::between(1, 0)
    })
}

fn picker() -> impl Strategy<Value = PickerConfig> {
    let trust = select(vec![Trust::Never, Trust::Always]);
    let pairs = any::<bool>().prop_map(|pairs| pairs.then_some(1));
    (pairs, trust, 1..=16_usize).prop_map(|(prefill, trust, endpoints)| PickerConfig {
        decode: 0,
        prefill,
        trust,
        endpoints,
    })
}

/// Listeners on every role of every set, in an order that makes the roles come in theirs, one on a pair, and a picker.
fn listeners(
    sets: &[SetConfig],
    pair: PairConfig,
    picker: PickerConfig,
    tls: Option<&TlsConfig>,
) -> Vec<ListenerConfig> {
    let places = sets
        .iter()
        .enumerate()
        .flat_map(|(set, config)| (0..config.roles.len()).map(move |role| (set, role)));
    places
        .map(|(set, role)| (set, Serves::Role(role)))
        .chain([(0, Serves::Pair(pair)), (0, Serves::Picker(picker))])
        .zip(1..)
        .map(|((set, serves), port)| ListenerConfig {
            name: format!("{port}").into(),
            address: SocketAddr::new(IpAddr::from([0_u16; 8]), port),
            set,
            serves,
            tls: tls.cloned(),
        })
        .collect()
}

fn config() -> impl Strategy<Value = Config> {
    let kernel = (
        select(vec![KernelMode::Auto, KernelMode::Required, KernelMode::Off]),
        select(vec![FenceMode::Off, FenceMode::Audit, FenceMode::Enforce]),
        option::of(path()),
        path(),
        (1000..=100_000_u64).prop_map(Duration::from_millis),
        any::<bool>(),
    )
        .prop_map(|(mode, fence, cgroup, bpffs, lease, trace)| KernelConfig {
            mode,
            fence,
            cgroup,
            bpffs,
            lease,
            trace,
        });
    let shutdown = (0..=1000_u64, 0..=1000_u64).prop_map(|(delay, more)| ShutdownConfig {
        delay: Duration::from_millis(delay),
        deadline: Duration::from_millis(delay + more),
    });
    let tls = option::of((path(), path()).prop_map(|(certificate, key)| TlsConfig { certificate, key }));
    let sets = prop_oneof![set(0).prop_map(|a| vec![a]), (set(0), set(1)).prop_map(|(a, b)| vec![a, b])];
    let log =
        (select(vec![LogFormat::Text, LogFormat::Json]), select(vec!["off", "info", "revgate=debug,warn"]))
            .prop_map(|(format, filter)| LogConfig { format, filter: filter.to_owned() });
    (sets, option::of(hard_text()), hard_text(), tls, (pair(), picker()), kernel, http(), shutdown, log)
        .prop_map(|(sets, node, source, tls, (pair, picker), kernel, http, shutdown, log)| Config {
            agent: AgentConfig {
                node: node.map(Into::into),
                source: SourceConfig::File { path: source.into() },
                listeners: listeners(&sets, pair, picker, tls.as_ref()),
                vips: vec![VipConfig {
                    at: VipAddress::Fixed(SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 1)),
                    set: 0,
                    role: 1,
                    members_only: true,
                    agent_gone: AgentGone::Deny,
                }],
                kernel,
                http,
                admin: SocketAddr::new(IpAddr::from([127, 0, 0, 1]), 0),
                shutdown,
                log,
            },
            sets,
        })
}

proptest! {
    #[test]
    fn what_is_printed_reads_back_as_the_same_configuration(config in config()) {
        let text = print(&config).unwrap_or_else(|error| panic!("{error}"));
        let again = parse(Path::new("printed"), text.as_bytes(), None);
        prop_assert_eq!(again.unwrap_or_else(|error| panic!("{error}\n{text}")).config, config);
    }
}
