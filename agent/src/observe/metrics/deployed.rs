//! What `deploy/` asks Prometheus for is what the agent exposes.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use super::{PREFIX, StrictNoMatch, registry};
use crate::{
    observe::{
        exposition,
        testing::{self, SetBuilder},
    },
    proxy::metrics::{ListenerLabels, Metrics, RequestLabels},
};

/// Labels that the scrape adds, and one that a histogram has.
const OF_THE_SCRAPE: [&str; 3] = ["node", "instance", "le"];

/// The names of the series and labels of an agent at work.
fn exposed() -> BTreeSet<String> {
    let scene = testing::scene(testing::snapshot(7, vec![SetBuilder::rollout().build()]));
    let no_match = StrictNoMatch::default();
    drop(no_match.of_set(&"chat".into()));
    let mut registry = registry(&scene, &no_match);
    let proxy = Metrics::register(registry.sub_registry_with_prefix(PREFIX), no_match);
    // A family shows with its first series.
    let (listener, revision) = ("decode".to_owned(), "5c9d7a1b".to_owned());
    drop(proxy.requests.get_or_create(&RequestLabels {
        listener: listener.clone(),
        revision,
        code: "2xx",
        reason: "",
    }));
    let labels = ListenerLabels { listener };
    drop(proxy.latency.get_or_create(&labels));
    for gauge in [&proxy.in_flight, &proxy.connections] {
        drop(gauge.get_or_create(&labels));
    }
    let counters = [
        &proxy.retries,
        &proxy.dials,
        &proxy.repicked,
        &proxy.reused,
        &proxy.broken,
        &proxy.breaker_opens,
        &proxy.crossed,
    ];
    for counter in counters {
        drop(counter.get_or_create(&labels));
    }
    let text = exposition::encode(&registry, exposition::Format::Prometheus).unwrap();
    // A family without a series has a line with its type.
    let parts = text.lines().filter_map(|line| match line.strip_prefix("# ") {
        Some(comment) => comment.strip_prefix("TYPE "),
        None => Some(line),
    });
    parts.flat_map(|part| words(part.rsplit_once(' ').unwrap().0)).map(str::to_owned).collect()
}

/// The words that can be a name, of a text without what stands in quotes.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let bare = text.split('"').step_by(2);
    bare.flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
}

/// Every expression in a document, by the fields that hold one.
fn expressions(document: &Value, found: &mut Vec<String>) {
    match document {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if ["expr", "definition"].contains(&name.as_str()) => {
                        found.push(text.clone());
                    }
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

#[test]
fn every_name_in_the_rules_and_the_dashboard_is_one_that_the_agent_exposes() {
    let exposed = exposed();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/components/monitoring");
    for file in ["prometheusrule.yaml", "dashboard.json"] {
        let document: Value =
            serde_saphyr::from_str(&fs::read_to_string(folder.join(file)).unwrap()).unwrap();
        let mut found = Vec::new();
        expressions(&document, &mut found);
        assert!(found.len() > 10, "{file}: {found:?}");
        for expression in found {
            for word in words(&expression) {
                let of_the_language = [
                    "absent",
                    "and",
                    "avg",
                    "by",
                    "count",
                    "group_left",
                    "histogram_quantile",
                    "ignoring",
                    "increase",
                    "label_values",
                    "max",
                    "min",
                    "on",
                    "or",
                    "rate",
                    "sum",
                    "vector",
                    "__rate_interval",
                ];
                let known = exposed.contains(word)
                    || of_the_language.contains(&word)
                    || OF_THE_SCRAPE.contains(&word);
                assert!(known, "{file}: the agent exposes no `{word}`: {expression}");
            }
        }
    }
}
