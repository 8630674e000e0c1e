//! Configuration from files as users have them (F1 to F5).
#![cfg(test)]

use std::{path::Path, time::Duration};

use revgate::config::{
    AgentGone, Config, ConfigError, FenceMode, GatingMode, HttpConfig, KernelMode, Loaded, LogFormat,
    PortRef, SelectorMode, Serves, SourceConfig, VipAddress, load, parse, print,
};

fn fixture(name: &str) -> String {
    format!("{}/tests/fixtures/config/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn loaded(name: &str) -> Loaded {
    load(Path::new(&fixture(name)), None).unwrap_or_else(|error| panic!("{error}"))
}

fn parsed(text: &str) -> Result<Loaded, ConfigError> {
    parse(Path::new("revgate.yaml"), text.as_bytes(), Some("this-node"))
}

fn ports(config: &Config, set: usize, role: &str) -> Vec<PortRef> {
    let set = &config.sets[set];
    set.ports[set.roles.iter().position(|known| &**known == role).unwrap()].clone()
}

const SCREENER: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: app=a}
    revisionGating: {mode: max-role, requiredRoles: [prefill, decode]}
";

fn with_agent(agent: &str) -> String {
    format!("{SCREENER}---\napiVersion: revgate.dev/v1alpha1\nkind: AgentConfig\n{agent}\n")
}

#[test]
fn f1_the_present_shape_is_read_and_foreign_plugins_are_named_and_left_alone() {
    let loaded = loaded("present.yaml");
    let [set] = loaded.config.sets.as_slice() else { panic!("one set") };
    assert_eq!(&*set.name, "rollout-screener");
    assert_eq!(set.scope.to_string(), "disaggregatedset.x-k8s.io/name=my-set");
    assert_eq!(set.mode, GatingMode::MaxRole);
    assert_eq!(set.required_roles, ["prefill".into(), "decode".into()]);
    assert_eq!(set.roles, set.required_roles);
    assert_eq!(set.revision_header, "x-llm-d-disagg-revision", "lower-cased");
    assert_eq!(set.ports, vec![vec![PortRef::Number(8000)]; 2]);
    assert_eq!(loaded.ignored_plugins, ["prefill-filter", "weighted-random-picker"]);
    assert_eq!(loaded.warnings, ["no listener and no VIP: no traffic comes through revgate"]);
}

#[test]
fn f2_the_earlier_shape_gives_the_revision_header_and_the_other_selectors() {
    let loaded = loaded("earlier.yaml");
    let set = &loaded.config.sets[0];
    assert_eq!(set.mode, GatingMode::Sum);
    assert_eq!(set.required_roles, ["prefill".into(), "decode".into()]);
    assert_eq!(set.revision_header, "x-disagg-revision");
    let selectors: Vec<_> =
        set.selectors.iter().map(|s| (&*s.name, s.header.as_str(), &*s.label, s.mode)).collect();
    assert_eq!(
        selectors,
        [
            ("slice", "x-disagg-slice", "disaggregatedset.x-k8s.io/slice", SelectorMode::Prefer),
            ("zone", "x-zone", "topology.kubernetes.io/zone", SelectorMode::Strict),
        ]
    );
}

#[test]
fn f3_every_field_of_the_agent_document_is_read() {
    let Loaded { config, ignored_plugins, warnings } = loaded("full.yaml");
    assert!(ignored_plugins.is_empty() && warnings.is_empty(), "{warnings:?}");
    let agent = &config.agent;
    assert_eq!(agent.node.as_deref(), Some("gpu-node-7"));
    assert_eq!(agent.source, SourceConfig::File { path: "/var/lib/revgate/pods.json".into() });
    assert_eq!(config.sets[0].namespaces, ["inference".into(), "staging".into()]);
    assert_eq!(config.sets[0].roles, ["prefill".into(), "decode".into(), "encode".into()]);
    assert_eq!(config.sets[1].roles, ["router".into(), "decode".into()], "those of listeners, VIPs, ports");
    assert_eq!(ports(&config, 0, "prefill"), [PortRef::Name("http".into())]);
    assert_eq!(
        ports(&config, 0, "decode"),
        [PortRef::Number(8000), PortRef::Number(8001), PortRef::Name("metrics".into())]
    );
    assert_eq!(ports(&config, 1, "decode"), [PortRef::Number(8100)]);
    assert_eq!(ports(&config, 1, "router"), [PortRef::Number(8000)]);
    assert_eq!(
        agent
            .listeners
            .iter()
            .take(3)
            .map(|l| (&*l.name, l.address.to_string(), l.set, l.serves.clone()))
            .collect::<Vec<_>>(),
        [
            ("chat-prefill", "0.0.0.0:8081".into(), 0, Serves::Role(0)),
            ("chat-decode", "[::1]:8082".into(), 0, Serves::Role(1)),
            ("embed-router", "127.0.0.1:8083".into(), 1, Serves::Role(0)),
        ]
    );
    assert_eq!(agent.listeners[1].tls.as_ref().unwrap().key, Path::new("/etc/revgate/tls/tls.key"));
    assert_eq!(
        agent
            .vips
            .iter()
            .map(|v| (v.at.clone(), v.set, v.role, v.members_only, v.agent_gone))
            .collect::<Vec<_>>(),
        [
            (VipAddress::Fixed("10.96.0.10:8000".parse().unwrap()), 0, 0, false, AgentGone::Keep),
            (VipAddress::Fixed("[fd00::10]:8000".parse().unwrap()), 1, 1, true, AgentGone::Deny),
        ]
    );
    assert_eq!((agent.kernel.mode, agent.kernel.fence), (KernelMode::Required, FenceMode::Audit));
    assert_eq!(agent.kernel.cgroup.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
    assert_eq!(agent.kernel.bpffs, Path::new("/run/revgate/bpf"));
    assert_eq!((agent.kernel.lease, agent.kernel.trace), (Duration::from_mins(2), true));
    assert_eq!(
        agent.http,
        HttpConfig {
            workers: 3,
            busy_poll: false,
            max_body: 128 << 20,
            max_head: 32 << 10,
            head_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(90),
            max_connections: 1000,
            max_requests: 2000,
            connect_timeout: Duration::from_millis(1500),
            response_timeout: Duration::from_hours(1),
            stream_idle_timeout: Duration::from_secs(45),
            pool_idle_timeout: Duration::from_millis(4500),
            pool_max_idle: 8,
            retries: 1,
            local_factor: 2.5,
            prefer_factor: 3.5,
            breaker_failures: 0,
            breaker_open: Duration::from_secs(20),
            access_log: true,
        }
    );
    assert_eq!(agent.admin.to_string(), "0.0.0.0:9902");
    assert_eq!((agent.shutdown.delay, agent.shutdown.deadline), (Duration::ZERO, Duration::from_mins(5)));
    assert_eq!((agent.log.format, agent.log.filter.as_str()), (LogFormat::Json, "info,revgate=debug"));
}

#[test]
fn f3_the_node_of_the_caller_is_the_default_and_the_file_overrides_it() {
    let node = |agent| parsed(&with_agent(agent)).unwrap().config.agent.node;
    assert_eq!(node("").as_deref(), Some("this-node"));
    assert_eq!(node("nodeName: other").as_deref(), Some("other"));
    assert_eq!(node("nodeName: null").as_deref(), Some("this-node"));
}

#[test]
fn off_is_understood_as_text_and_as_the_false_that_yaml_1_1_tools_make_of_it() {
    for off in ["off", "'off'", "false"] {
        let kernel = parsed(&with_agent(&format!("kernel: {{mode: {off}, fence: {off}}}")))
            .unwrap()
            .config
            .agent
            .kernel;
        assert_eq!((kernel.mode, kernel.fence), (KernelMode::Off, FenceMode::Off));
    }
}

#[test]
fn json_is_read_and_listeners_take_the_name_of_their_role_and_the_only_set() {
    let text = r#"{"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": [
        {"type": "disaggregatedset-rollout-screener", "parameters": {
            "scope": {"labelSelector": "a"},
            "revisionGating": {"mode": "disabled"}}}]}
---
{"apiVersion": "revgate.dev/v1alpha1", "kind": "AgentConfig",
 "listeners": [{"address": "127.0.0.1:0", "role": "decode"}, {"address": "127.0.0.1:0", "role": "prefill"}]}"#;
    let config = parsed(text).unwrap_or_else(|error| panic!("{error}")).config;
    assert_eq!(&*config.sets[0].name, "disaggregatedset-rollout-screener");
    let listeners: Vec<_> = config.agent.listeners.iter().map(|l| (&*l.name, l.serves.clone())).collect();
    assert_eq!(listeners, [("decode", Serves::Role(0)), ("prefill", Serves::Role(1))]);
}

#[test]
fn f4_all_errors_of_a_file_are_told_at_once_with_place_path_allowed_values_and_suggestion() {
    let text = std::fs::read_to_string(fixture("bad.yaml")).unwrap();
    let expected = std::fs::read_to_string(fixture("bad.txt")).unwrap();
    let message = parse(Path::new("bad.yaml"), text.as_bytes(), None).unwrap_err().to_string();
    assert_eq!(message, expected.trim_end(), "\n{message}\n");
}

/// Each line: what stands in AgentConfig, and a part of the one message that it must give.
#[test]
fn f4_bad_agent_fields_are_refused() {
    for (agent, expected) in [
        ("listener: []", "5:1: listener: unknown field `listener`"),
        ("http: {maxBodySize: 1}", "http.maxBodySize: unknown field `maxBodySize`"),
        ("http: {workers: -1}", "http.workers: expected an integer, found `-1`"),
        ("http: {workers: 1025}", "`1025` is out of range\n    allowed: 0 to 1024"),
        ("http: {maxHead: 4KiB}", "`4KiB` is out of range\n    allowed: 8KiB to 1MiB"),
        ("http: {headTimeout: 0s}", "`0s` is out of range"),
        ("http: {headTimeout: 10}", "expected a duration such as"),
        ("http: {poolIdleTimeout: 5s}", "`5s` is out of range\n    allowed: 1ms to 4999ms"),
        ("http: {localFactor: .nan}", "http.localFactor: expected a number"),
        ("http: {localFactor: NaN}", "http.localFactor"),
        ("http: {accessLog: yes}", "expected `true` or `false`, found `yes`"),
        ("http: 5", "http: expected a mapping, found `5`"),
        ("kernel: {mode: Off}", "allowed: auto, required, off\n    did you mean `off`?"),
        ("kernel: {bpffs: run/bpf}", "allowed: an absolute path"),
        ("kernel: {lease: 10ms}", "kernel.lease"),
        ("vips: [{address: '1.2.3.4:1', role: a, whenAgentGone: stop}]", "allowed: keep, deny"),
        ("log: {format: yaml}", "unknown format `yaml`\n    allowed: text, json"),
        ("log: {filter: 'revgate=loud'}", "log.filter: bad log filter"),
        ("shutdown: {delay: 30s}", "shutdown: `delay` is longer than `deadline`"),
        ("source: {file: {}}", "source.file: the field `path` is missing"),
        ("source: {kubernets: {}}", "did you mean `kubernetes`?"),
        ("nodeName: 17", "nodeName: expected text, found `17`: put it in quotes"),
        ("nodeName: ''", "nodeName: must not be empty"),
        ("nodeName: [a]", "nodeName: expected text, found a list"),
        ("admin: {address: localhost:9901}", "admin.address: expected an IP address and port"),
        ("listeners: [{role: decode}]", "listeners[0]: the field `address` is missing"),
        ("listeners: [{address: '1.2.3.4:1'}]", "listeners[0]: the field `role` is missing"),
        ("listeners: [{address: '1.2.3.4:1', role: a b}]", "listeners[0].role: bad value `a b`"),
        ("listeners: [{address: '1.2.3.4:1', role: decode, set: x}]", "listeners[0].set: unknown set `x`"),
        (
            "listeners: [{address: '1.2.3.4:1', role: a}, {address: '1.2.3.4:2', role: a}]",
            "listeners[1]: duplicate listener name `a`, already on line 5",
        ),
        (
            "listeners: [{address: '1.2.3.4:1', role: a}, {address: '1.2.3.4:1', role: b}]",
            "listeners[1].address: `1.2.3.4:1` is taken by a listener on `1.2.3.4:1`",
        ),
        (
            "listeners: [{address: '1.2.3.4:1', role: a}, {address: '[::]:1', role: b}]",
            "`[::]:1` is taken by a listener",
        ),
        ("listeners: [{address: '0.0.0.0:9901', role: a}]", "taken by the admin server on `127.0.0.1:9901`"),
        (
            "admin: {address: '127.0.0.1:7'}\nlisteners: [{address: '0.0.0.0:7', role: a}]",
            "admin.address: `127.0.0.1:7` is taken by a listener",
        ),
        (
            "listeners: [{address: '1.2.3.4:1', role: a, tls: {certificate: /a}}]",
            "listeners[0].tls: the field `key` is missing",
        ),
        ("vips: [{address: '1.2.3.4:0', role: a}]", "vips[0].address: `1.2.3.4:0` has no port"),
        (
            "vips: [{address: '0.0.0.0:1', role: a}]",
            "vips[0].address: `0.0.0.0:1` is no address of one service",
        ),
        ("vips: [{role: a}]", "vips[0]: exactly one of `address` and `service`"),
        ("vips: [{address: '127.127.0.1:9', role: a}]", "is in 127.127.0.0/16"),
        (
            "vips: [{address: '1.2.3.4:1', role: a}, {address: '[::ffff:1.2.3.4]:1', role: b}]",
            "vips[1].address: `1.2.3.4:1` is taken by a VIP",
        ),
        (
            "listeners: [{address: '1.2.3.4:1', role: a}]\nvips: [{address: '1.2.3.4:1', role: a}]",
            "vips[0].address: `1.2.3.4:1` is taken by a listener",
        ),
        ("vips: [{address: '1.2.3.4:1', role: a, membersOnly: 1}]", "vips[0].membersOnly: expected `true`"),
        ("sets: [{ports: {decode: 0}}]", "sets[0].ports.decode: expected a port number from 1 to 65535"),
        ("sets: [{ports: {decode: 65536}}]", "sets[0].ports.decode: expected a port number"),
        ("sets: [{ports: {decode: Http}}]", "sets[0].ports.decode: expected a port number"),
        ("sets: [{ports: {decode: []}}]", "sets[0].ports.decode: no port"),
        ("sets: [{ports: {decode: [1, 1]}}]", "sets[0].ports.decode[1]: duplicate port"),
        ("sets: [{ports: {'-': 1}}]", "bad role `-`"),
        ("sets: [{namespaces: [A]}]", "sets[0].namespaces[0]: bad value `A`"),
        ("sets: [{namespaces: [a, a]}]", "sets[0].namespaces[1]: duplicate namespace `a`"),
        (
            "sets: [{ports: {a1: 1, a2: 1, a3: 1, a4: 1, a5: 1, a6: 1, a7: 1, a8: 1, a9: 1, b1: 1, b2: 1, b3: 1, b4: 1, b5: 1, b6: 1}}]",
            "sets[0].ports.b6: more than 16 roles in the set",
        ),
        ("sets: [{}, {}]", "sets[1]: duplicate settings of the set"),
        (
            "sets: [{name: disaggregatedset-rollout-screner}]",
            "did you mean `disaggregatedset-rollout-screener`?",
        ),
    ] {
        let text = format!("{}\n---{SCREENER}", with_agent(agent).split_once("---\n").unwrap().1);
        let error = parsed(text.trim_start()).expect_err(agent).to_string();
        // The agent document is first here, so that its lines are small.
        let expected = expected.replacen("5:1", "3:1", 1).replace("on line 5", "on line 3");
        assert!(error.contains(&expected), "{agent}\ngave {error}\nnot {expected}");
        assert_eq!(error.matches("revgate.yaml:").count(), 1, "one message for {agent}:\n{error}");
    }
}

/// Each line: a text to replace in a good screener entry, its replacement, and a part of the one message.
#[test]
fn f4_bad_screener_entries_are_refused() {
    for (good, bad, expected) in [
        (
            "llm-d.ai/v1alpha1",
            "llm-d.ai/v1",
            "apiVersion: unknown apiVersion `llm-d.ai/v1`\n    allowed: llm-d.ai/v1alpha1,",
        ),
        ("EndpointPickerConfig", "EndpointPickerConfg", "did you mean `EndpointPickerConfig`?"),
        (
            "EndpointPickerConfig",
            "ConfigMap",
            "kind: this is a ConfigMap: give the file that is inside its `data`",
        ),
        ("parameters:", "params:", "plugins[0]"),
        (
            "labelSelector: app=a",
            "labelSelector: ''",
            "plugins[0].parameters.scope.labelSelector: must not be empty",
        ),
        ("labelSelector: app=a", "labelSelector: ' '", "it would match every Pod"),
        ("labelSelector: app=a", "labelSelector: app=a=b", "found `=`, expected `,` or the end at byte 5"),
        (
            "scope: {labelSelector: app=a}",
            "scope: {}",
            "parameters.scope: the field `labelSelector` is missing",
        ),
        (
            "scope: {labelSelector: app=a}",
            "scope: {selector: x, labelSelector: a}",
            "unknown field `selector`",
        ),
        ("mode: max-role, ", "", "revisionGating: the field `mode` is missing"),
        ("mode: max-role", "mode: max_role", "did you mean `max-role`?"),
        (
            "requiredRoles: [prefill, decode]",
            "requiredRoles: []",
            "requiredRoles: must name at least one role",
        ),
        (", requiredRoles: [prefill, decode]", "", "the field `requiredRoles` is missing"),
        ("[prefill, decode]", "[prefill, prefill]", "requiredRoles[1]: duplicate role `prefill`"),
        ("[prefill, decode]", "[prefill, '']", "requiredRoles[1]: must not be empty"),
        ("[prefill, decode]", "[prefill, a/b]", "requiredRoles[1]: bad value `a/b`"),
        ("[prefill, decode]", "prefill", "requiredRoles: expected a list, found `prefill`"),
        (
            "[prefill, decode]",
            "[a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q]",
            "requiredRoles: 17 entries, at most 16 are possible",
        ),
        ("[prefill, decode]", "[a], requireRoles: {values: [a]}", "is the earlier form of `requiredRoles`"),
        ("[prefill, decode]", "[a], revisionHeaderName: 'a b'", "`a b` is not a header name"),
        ("[prefill, decode]", "[a], revisionHeaderName: Host", "the header `host` has a meaning of its own"),
        ("[prefill, decode]", "[a], revisionLabelKey: a/b/c", "revisionLabelKey: bad value `a/b/c`"),
        ("[prefill, decode]", "[a], revisionLabelKey: r, roleLabelKey: r", "one label cannot hold"),
        (
            "    scope:",
            "    headerSelectors: [{name: a, headerName: x-llm-d-disagg-revision, labelKey: z, mode: strict}]\n    scope:",
            "headerSelectors[0]: the header `x-llm-d-disagg-revision` is used twice",
        ),
        (
            "    scope:",
            "    headerSelectors: [{name: a, headerName: x, labelKey: disaggregatedset.x-k8s.io/revision, mode: prefer}]\n    scope:",
            "the revision cannot be a preference",
        ),
        (
            "    scope:",
            "    headerSelectors: [{name: a, headerName: x, labelKey: y, mode: prefers}]\n    scope:",
            "headerSelectors[0].mode: unknown mode `prefers`\n    allowed: strict, prefer\n    did you mean `prefer`?",
        ),
        (
            "    scope:",
            "    headerSelectors: [{name: a, headerName: x, labelKey: y, mode: strict}, {name: a, headerName: z, labelKey: z, mode: strict}]\n    scope:",
            "headerSelectors[1].name: duplicate name `a`",
        ),
        (
            "type: disaggregatedset-rollout-screener",
            "type: something-else",
            "no entry of type `disaggregatedset-rollout-screener`",
        ),
        ("plugins:", "plugns:", "the field `plugins` is missing"),
    ] {
        let text = SCREENER.replacen(good, bad, 1);
        assert_ne!(text, SCREENER, "{good} is there");
        let error = parsed(&text).expect_err(bad).to_string();
        assert!(error.contains(expected), "{bad}\ngave {error}\nnot {expected}");
    }
}

#[test]
fn f4_sets_and_documents_must_be_distinct() {
    let entry = SCREENER.split_once("plugins:\n").unwrap().1;
    let error = parsed(&format!("{SCREENER}{entry}")).unwrap_err().to_string();
    assert!(error.contains("plugins[1]: duplicate name `disaggregatedset-rollout-screener`"), "{error}");
    let error = parsed(&format!("{SCREENER}---{SCREENER}")).unwrap_err().to_string();
    assert!(error.contains("a second document of kind `EndpointPickerConfig`"), "{error}");
    let error = parsed("").unwrap_err().to_string();
    assert!(error.contains("revgate.yaml:1:1: no document of kind `EndpointPickerConfig`"), "{error}");
    let many: String =
        (0..65).map(|n| entry.replacen("parameters", &format!("name: s{n}\n  parameters"), 1)).collect();
    let error =
        parsed(&format!("{}plugins:\n{many}", SCREENER.split_once("plugins:").unwrap().0)).unwrap_err();
    assert!(error.to_string().contains("plugins[64]: more than 64 sets"), "{error}");
}

#[test]
fn f4_with_several_sets_an_entry_must_name_its_own() {
    let entry =
        SCREENER.split_once("plugins:\n").unwrap().1.replace("  parameters", "  name: b\n  parameters");
    let agent = with_agent("listeners: [{address: '1.2.3.4:1', role: a}]");
    let text = agent.replacen("---", &format!("{entry}---"), 1);
    let error = parsed(&text).unwrap_err().to_string();
    assert!(
        error.contains(
            "listeners[0]: the field `set` is missing, and there are several sets\n    allowed: \
                        disaggregatedset-rollout-screener, b"
        ),
        "{error}"
    );
}

#[test]
fn a_slip_in_a_role_or_a_plugin_type_is_warned_of() {
    let loaded = parsed(&with_agent("listeners: [{address: '1.2.3.4:1', role: decod}]")).unwrap();
    assert!(loaded.warnings[0].contains("was `decode` meant?"), "{:?}", loaded.warnings);
    let text = format!("{SCREENER}- type: disaggregatedset-rollout-scener\n");
    let loaded = parsed(&text).unwrap();
    assert!(
        loaded.warnings[0].contains("it is spelt `disaggregatedset-rollout-screener`"),
        "{:?}",
        loaded.warnings
    );
}

#[test]
fn a_missing_file_a_large_one_and_a_binary_one_are_told() {
    let error = load(Path::new("/nonexistent/revgate.yaml"), None).unwrap_err();
    assert!(error.to_string().starts_with("/nonexistent/revgate.yaml: cannot read the configuration: "));
    let error = load(Path::new("/dev/zero"), None).unwrap_err();
    assert!(error.to_string().contains("larger than 1048576 bytes"), "{error}");
    let error = parse(Path::new("x"), b"a: 1\nb: \xff", None).unwrap_err();
    assert_eq!(error.to_string(), "x:2:4: not UTF-8 text");
    let error = parsed("a: [1\nb: 2\n").unwrap_err();
    assert!(error.to_string().contains("not valid YAML: "), "{error}");
}

#[test]
fn what_is_printed_loads_as_the_same_configuration() {
    for name in ["present.yaml", "earlier.yaml", "full.yaml"] {
        let config = loaded(name).config;
        let text = print(&config).unwrap();
        let again = parsed(&text).map(|loaded| Config {
            agent: revgate::config::AgentConfig { node: config.agent.node.clone(), ..loaded.config.agent },
            ..loaded.config
        });
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}\n{text}")), config, "{text}");
    }
}
