//! Configuration of a source in a cluster: credentials, Services, InferencePools (F3, C6, C8).
#![cfg(test)]

use std::{path::Path, time::Duration};

use revgate::{
    cluster::ObjectName,
    config::{Loaded, PortRef, SourceConfig, VipAddress, load, parse, print},
};

const SCREENER: &str = "
---
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: app=a}
    revisionGating: {mode: max-role, requiredRoles: [prefill, decode]}
";

fn cluster() -> Loaded {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/config/cluster.yaml");
    load(Path::new(file), None).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn c8_services_and_pools_are_named_and_take_the_sets_only_namespace() {
    let Loaded { config, warnings, .. } = cluster();
    assert!(warnings.is_empty(), "{warnings:?}");
    let object = |namespace: &str, name: &str| ObjectName { namespace: namespace.into(), name: name.into() };
    let SourceConfig::Kubernetes(kubernetes) = &config.agent.source else {
        panic!("{:?}", config.agent.source)
    };
    assert_eq!(kubernetes.kubeconfig.as_deref(), Some(Path::new("/etc/revgate/kubeconfig")));
    assert_eq!(kubernetes.stale_after, Duration::from_mins(5));
    assert_eq!(config.sets[0].pool, Some(object("llm", "my-pool")));
    assert_eq!(config.sets[0].ports, [vec![PortRef::Number(9000)], Vec::new()], "the others are the pool's");
    let at: Vec<_> = config.agent.vips.iter().map(|vip| vip.at.clone()).collect();
    let service = |service, port| VipAddress::Service { service, port };
    assert_eq!(
        at,
        [
            service(object("llm", "prefill"), None),
            service(object("other", "decode"), Some(PortRef::Name("http".into()))),
            service(object("llm", "decode"), Some(PortRef::Number(8000))),
        ]
    );
    assert_eq!(parse(Path::new("printed"), print(&config).unwrap().as_bytes(), None).unwrap().config, config);
}

/// Each line: the agent's document, and a part of the one message.
#[test]
fn f4_bad_cluster_fields_are_refused() {
    for (agent, expected) in [
        (
            "source: {kubernetes: {}, file: {path: /p}}",
            "source: both `file` and `kubernetes`: Pods come from one source",
        ),
        ("source: {kubernetes: {staleAfter: 10ms}}", "source.kubernetes.staleAfter: `10ms` is out of range"),
        ("source: {kubernetes: {context: a}}", "unknown field `context`"),
        (
            "vips: [{service: {name: a, namespace: n}, role: a}]",
            "vips[0].service: a Service needs `source.kubernetes`; with a Pod file, give the VIP's `address`",
        ),
        (
            "source: {kubernetes: {}}\nvips: [{service: {name: a}, role: a}]",
            "vips[0].service: the field `namespace` is missing",
        ),
        (
            "source: {kubernetes: {}}\nvips: [{service: {name: A_, namespace: n}, role: a}]",
            "vips[0].service.name: bad value `A_`",
        ),
        (
            "source: {kubernetes: {}}\nvips: [{service: {name: a, namespace: n, port: 0}, role: a}]",
            "vips[0].service.port: expected a port number",
        ),
        (
            "source: {kubernetes: {}}\nvips: [{service: {name: a, namespace: n}, address: '1.2.3.4:1', role: a}]",
            "vips[0]: exactly one of `address` and `service`",
        ),
        (
            "source: {kubernetes: {}}\nvips: [{service: {name: a, namespace: n}, role: a}, \
             {service: {name: a, namespace: n}, role: b}]",
            "vips[1].service: this port of the Service is a VIP already",
        ),
        (
            "sets: [{namespaces: [n], inferencePool: {name: p}}]",
            "sets[0].inferencePool: an InferencePool needs `source.kubernetes`",
        ),
        (
            "source: {kubernetes: {}}\nsets: [{namespaces: [n, m], inferencePool: {name: p}}]",
            "sets[0].inferencePool: the field `namespace` is missing",
        ),
    ] {
        let text = format!("apiVersion: revgate.dev/v1alpha1\nkind: AgentConfig\n{agent}\n{SCREENER}");
        let error = parse(Path::new("revgate.yaml"), text.as_bytes(), None).expect_err(agent).to_string();
        assert!(error.contains(expected), "{agent}\ngave {error}\nnot {expected}");
        assert_eq!(error.matches("revgate.yaml:").count(), 1, "one message for {agent}:\n{error}");
    }
}
