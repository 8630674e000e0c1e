//! Listeners that serve pairs or pick them, in files (F3, F4).
#![cfg(test)]

use std::{path::Path, time::Duration};

use revgate::config::{
    ConfigError, ConnectorKind, Loaded, PairConfig, PickerConfig, Serves, Trust, load, parse,
};

fn parsed(agent: &str) -> Result<Loaded, ConfigError> {
    let text = format!(
        "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {{labelSelector: a=b}}
    revisionGating: {{mode: sum, requiredRoles: [prefill, decode]}}
---
apiVersion: revgate.dev/v1alpha1
kind: AgentConfig
{agent}
"
    );
    parse(Path::new("revgate.yaml"), text.as_bytes(), None)
}

#[test]
fn a_pair_needs_no_word_more_and_learns_the_roles_that_it_names() {
    let loaded = parsed("listeners: [{address: '127.0.0.1:1', pair: {}}]").unwrap();
    let listener = &loaded.config.agent.listeners[0];
    assert_eq!((&*listener.name, &listener.serves), ("pair", &Serves::Pair(PairConfig::between(0, 1))));
    let loaded =
        parsed("listeners: [{address: '127.0.0.1:1', pair: {prefill: early, decode: late}}]").unwrap();
    assert_eq!(loaded.config.sets[0].roles, ["prefill", "decode", "early", "late"].map(Into::into));
    assert_eq!(loaded.config.agent.listeners[0].serves, Serves::Pair(PairConfig::between(2, 3)));
}

#[test]
fn every_field_of_a_pair_is_read() {
    let file = format!("{}/tests/fixtures/config/full.yaml", env!("CARGO_MANIFEST_DIR"));
    let loaded = load(Path::new(&file), None).unwrap();
    let listener = &loaded.config.agent.listeners[3];
    let networks = ["10.0.0.0/8", "fd00::1/128"].map(|network| network.parse().unwrap());
    let pair = PairConfig {
        prefill: 2,
        decode: 0,
        connector: ConnectorKind::SharedStorage,
        bootstrap_port: 9000,
        decode_only_fallback: true,
        trust: Trust::Networks(networks.into()),
        prefill_retries: 1,
        prefill_backoff: Duration::from_millis(100),
        max_prefill_reply: 1 << 20,
    };
    assert_eq!((&*listener.name, &listener.serves), ("chat", &Serves::Pair(pair)));
}

#[test]
fn e1_a_picker_needs_no_word_more_and_listens_where_gateways_expect_it() {
    let read = |entry: &str| {
        let loaded = parsed(&format!("listeners: [{entry}]")).unwrap();
        let listener = loaded.config.agent.listeners[0].clone();
        let Serves::Picker(picker) = listener.serves else { panic!("{listener:?}") };
        (listener.name.to_string(), listener.address.to_string(), picker)
    };
    let pairs = PickerConfig { decode: 1, prefill: Some(0), trust: Trust::Never, endpoints: 1 };
    assert_eq!(
        read("{endpointPicker: {}}"),
        ("endpoint-picker".into(), "0.0.0.0:9002".into(), pairs.clone())
    );
    let (name, address, picker) =
        read("{name: p, address: '127.0.0.1:1', role: decode, endpointPicker: {endpoints: 2}}");
    let alone = PickerConfig { prefill: None, trust: Trust::Always, endpoints: 2, ..pairs };
    assert_eq!(
        (&*name, &*address, picker),
        ("p", "127.0.0.1:1", alone),
        "who asks for one role is a coordinator"
    );
}

#[test]
fn every_field_of_a_picker_is_read() {
    let file = format!("{}/tests/fixtures/config/full.yaml", env!("CARGO_MANIFEST_DIR"));
    let loaded = load(Path::new(&file), None).unwrap();
    let picker = PickerConfig { decode: 0, prefill: Some(2), trust: Trust::Always, endpoints: 3 };
    assert_eq!(loaded.config.agent.listeners[4].serves, Serves::Picker(picker));
}

#[test]
fn the_files_of_llm_d_md_load_without_a_warning() {
    let page = std::fs::read_to_string(format!("{}/../docs/llm-d.md", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let files: Vec<&str> = blocks.filter(|block| block.contains("kind: AgentConfig")).collect();
    assert_eq!(files.len(), 3);
    for file in files {
        let loaded = parse(Path::new("llm-d.md"), file.as_bytes(), None).unwrap();
        assert!(loaded.warnings.is_empty() && !loaded.config.agent.listeners.is_empty(), "{file}");
    }
}

#[test]
fn f4_bad_pairs_are_refused() {
    for (agent, expected) in [
        (
            "listeners: [{address: '1.2.3.4:1', role: a, pair: {}}]",
            "listeners[0].role: a listener has a `role` or a `pair`, not both",
        ),
        (
            "listeners: [{address: '1.2.3.4:1', pair: {prefill: a, decode: a}}]",
            "listeners[0].pair: `prefill` and `decode` are the same role",
        ),
        (
            "listeners: [{address: '1.2.3.4:1', pair: {connector: nixl}}]",
            "listeners[0].pair.connector: unknown connector `nixl`",
        ),
        (
            "listeners: [{address: '1.2.3.4:1', pair: {connector: sglang, decodeOnlyFallback: true}}]",
            "listeners[0].pair.decodeOnlyFallback: with `sglang` both legs begin at once",
        ),
        (
            "listeners: [{address: '1.2.3.4:1', pair: {trust: sometimes}}]",
            "listeners[0].pair.trust: bad network `sometimes`",
        ),
        (
            "listeners: [{address: '1.2.3.4:1', pair: {trust: [10.0.0.0/8, never]}}]",
            "listeners[0].pair.trust[1]: bad network `never`",
        ),
        (
            "listeners: [{endpointPicker: {}, pair: {}}]",
            "listeners[0].pair: a listener has a `pair` or an `endpointPicker`, not both",
        ),
        (
            "listeners: [{endpointPicker: {prefill: a}, role: a}]",
            "listeners[0].endpointPicker.prefill: a listener with a `role` names that role alone",
        ),
        (
            "listeners: [{endpointPicker: {prefill: a, decode: a}}]",
            "listeners[0].endpointPicker: `prefill` and `decode` are the same role",
        ),
        (
            "listeners: [{endpointPicker: {}}, {address: '127.0.0.1:9002', role: a}]",
            "listeners[1].address: `127.0.0.1:9002` is taken by a listener on `0.0.0.0:9002`",
        ),
    ] {
        let error = parsed(agent).expect_err(agent).to_string();
        assert!(error.contains(expected), "{agent}\ngave {error}\nnot {expected}");
        assert_eq!(error.matches("revgate.yaml:").count(), 1, "one message for {agent}:\n{error}");
    }
}
