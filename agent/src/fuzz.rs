//! Every parser of what others write, as a function of bytes (R2).
//!
//! A function here calls what the agent calls, and panics where that does, or where what must hold of its result does
//! not. `tests/fuzz` has a libFuzzer target for each of them and a corpus; `tests/tests/fuzz.rs` runs all of them on
//! the corpus and on mutations of it, in every `make test`.

#![allow(clippy::missing_panics_doc, reason = "to panic is how a target fails")]

mod ext_proc;
mod files;

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, LazyLock},
};

pub(crate) use self::files::assert_pod;
pub use self::{
    ext_proc::ext_proc,
    files::{cgroup_path, config, pod_file, selector},
};
use crate::{
    cluster::Change,
    config::{Config, FenceMode, parse},
    kernel::tables::Tables,
    snapshot::{
        Snapshot,
        state::{State, Tenants},
    },
};
pub use crate::{
    cluster::api::fuzz::kubernetes_object,
    kernel::fuzz::kernel_tables,
    proxy::fuzz::{cached_tokens, json_edit, response, routing_headers},
};

/// A parser, and what must hold of its results.
pub type Target = fn(&[u8]);

/// All of them by name.
pub const TARGETS: [(&str, Target); 11] = [
    ("cached_tokens", cached_tokens),
    ("cgroup_path", cgroup_path),
    ("config", config),
    ("ext_proc", ext_proc),
    ("json_edit", json_edit),
    ("kernel_tables", kernel_tables),
    ("kubernetes_object", kubernetes_object),
    ("pod_file", pod_file),
    ("response", response),
    ("routing_headers", routing_headers),
    ("selector", selector),
];

/// The sizes of the pieces in which a stream comes: in whichever, it must come to the same.
pub(crate) const PIECES: [usize; 6] = [1, 2, 3, 7, 16, 250];

/// The configuration under which Pods and tables are looked at.
const CONFIG: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  name: chat
  parameters:
    scope: {labelSelector: 'app in (llm, vllm), !canary, size > 3'}
    revisionGating: {mode: sum, requiredRoles: [prefill, decode], revisionLabelKey: rev, roleLabelKey: role}
---
apiVersion: revgate.dev/v1alpha1
kind: AgentConfig
nodeName: n1
source: {kubernetes: {}}
sets: [{name: chat, namespaces: [llm], inferencePool: {name: pool}, ports: {prefill: http}}]
vips: [{service: {name: decode, port: http}, role: decode}]
";

/// Read once: a target is run very often.
pub(crate) static WORLD: LazyLock<Arc<Config>> =
    LazyLock::new(|| match parse(Path::new("world"), CONFIG.as_bytes(), None) {
        Ok(loaded) => Arc::new(loaded.config),
        Err(error) => unreachable!("{error}"),
    });

/// What the owner publishes after these changes, on what an agent before left in the kernel.
pub(crate) fn publish(
    left: HashMap<u64, Tenants>,
    generation: u64,
    changes: Vec<Change>,
) -> (Snapshot, Tables) {
    let mut state = State::new(Arc::clone(&WORLD), left, generation);
    state.apply(Change::Replace(Vec::new()));
    for change in changes {
        state.apply(change);
    }
    let snapshot = state.build();
    let tables = Tables::of(&snapshot, FenceMode::Enforce);
    let tables = tables.unwrap_or_else(|error| unreachable!("what is too much is left out before: {error}"));
    (snapshot, tables)
}
