//! `docs/configuration.md` says what the code does (F3): every field, every default, every example.
#![cfg(test)]

use std::{collections::BTreeMap, fs, path::Path};

use revgate::config::{
    AgentConfig, Config, KubernetesConfig, SourceConfig, load, parse, print, reload::restart_needed,
};
use serde_json::Value;

fn root() -> String {
    env!("CARGO_MANIFEST_DIR").to_owned()
}

fn reference() -> String {
    fs::read_to_string(format!("{}/../docs/configuration.md", root())).unwrap()
}

fn config(name: &str) -> Config {
    load(Path::new(&format!("{}/tests/fixtures/config/{name}", root())), None).unwrap().config
}

/// Field to default, as the tables say it.
fn documented() -> BTreeMap<String, String> {
    let mut rows = BTreeMap::new();
    let mut table_of_fields = false;
    for line in reference().lines() {
        if !line.starts_with('|') {
            table_of_fields = false;
        } else if line.starts_with("| field | default |") {
            table_of_fields = true;
        } else if table_of_fields && !line.starts_with("|---") {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let field = cells[1].trim_matches('`').to_owned();
            assert!(cells[3].len() > 5, "{field} has a meaning");
            assert!(rows.insert(field.clone(), cells[2].to_owned()).is_none(), "{field} is there once");
        }
    }
    rows
}

/// Every field that is printed, in the words of the reference, with its value.
fn printed(config: &Config) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    for document in print(config).unwrap().split("---\n") {
        let value: Value = serde_saphyr::from_str(document).unwrap();
        walk("", &value, &mut fields);
    }
    for envelope in ["apiVersion", "kind", "plugins", "parameters"] {
        let _ = fields.remove(envelope);
    }
    fields
}

fn walk(path: &str, value: &Value, fields: &mut BTreeMap<String, String>) {
    let path = if path.starts_with("sets[].ports.") { "sets[].ports.<role>" } else { path };
    let path = path.strip_prefix("plugins[].").unwrap_or(path);
    let text = match value {
        Value::Object(object) => {
            for (key, value) in object {
                let separator = if path.is_empty() { "" } else { "." };
                walk(&format!("{path}{separator}{key}"), value, fields);
            }
            if path != "listeners[].tls" {
                return;
            }
            String::new()
        }
        Value::Array(items) => {
            for item in items.iter().filter(|item| item.is_object()) {
                walk(&format!("{path}[]"), item, fields);
            }
            if items.is_empty() { "`[]`".to_owned() } else { String::new() }
        }
        Value::Null => "none".to_owned(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    };
    let _ = fields.insert(path.to_owned(), text);
}

#[test]
fn every_field_is_in_the_reference_and_nothing_else_is() {
    // One file cannot have every field: Pods come from one source, and a VIP is at one place.
    let mut code = printed(&config("full.yaml"));
    code.extend(printed(&config("cluster.yaml")));
    let code: Vec<String> = code.into_keys().collect();
    let reference: Vec<String> = documented().into_keys().collect();
    assert_eq!(code, reference);
}

#[test]
fn every_default_of_the_reference_is_what_is_printed_for_a_minimal_file() {
    let minimal = parse(
        Path::new("minimal.yaml"),
        b"
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: a=b}
    revisionGating: {mode: sum, requiredRoles: [prefill, decode]}
---
apiVersion: revgate.dev/v1alpha1
kind: AgentConfig
listeners: [{address: '127.0.0.1:1', role: decode}, {address: '127.0.0.1:2', pair: {}}, {endpointPicker: {}}]
vips: [{address: '127.0.0.2:1', role: decode}]
",
        None,
    )
    .unwrap();
    let mut fields = printed(&minimal.config);
    let kubernetes = Config {
        agent: AgentConfig {
            source: SourceConfig::Kubernetes(KubernetesConfig::default()),
            ..minimal.config.agent
        },
        sets: Vec::new(),
    };
    fields.extend(printed(&kubernetes));
    let mut printed = fields;
    // These two are there only to show the defaults of their entries.
    for list in ["listeners", "vips", "sets"] {
        let _ = printed.insert(list.to_owned(), "`[]`".to_owned());
    }
    let mut compared = 0;
    for (field, default) in documented() {
        let derived = [
            "required",
            "the type",
            "the only set",
            "the role",
            "one of the two",
            "the set's only namespace",
            "the only port",
        ]
        .contains(&default.as_str());
        if let (Some(printed), false) = (printed.get(&field), derived) {
            assert_eq!(*printed, default, "{field}");
            compared += 1;
        } else {
            assert!(derived, "{field}: {default}");
        }
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn every_example_loads_but_the_one_that_shows_errors() {
    let text = reference();
    let blocks: Vec<&str> =
        text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 4);
    for block in &blocks[..3] {
        assert!(parse(Path::new("x"), block.as_bytes(), None).is_ok(), "{block}");
    }
    let error = parse(Path::new("bad.yaml"), blocks[3].as_bytes(), None).unwrap_err().to_string();
    assert!(text.contains(&error), "the reference shows\n{error}");
}

#[test]
fn the_fields_that_need_a_restart_are_listed() {
    let text = reference();
    let changes = text.split("## Changes").nth(1).unwrap();
    let fields = restart_needed(&config("present.yaml"), &config("full.yaml"));
    assert_eq!(changes.matches('`').count(), 2 * fields.len(), "only those");
    for field in fields {
        assert!(changes.contains(&format!("`{field}`")), "{field}");
    }
}
