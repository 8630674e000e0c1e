//! From a file to a [`Config`], or to everything that is wrong with the file.

use std::{fs::File, io::Read, path::Path};

use super::{
    AgentConfig, Config, ConfigError, PortRef, Position, SetConfig, agent, defaults,
    document::{self, MAX_BYTES},
    picker,
    problem::Problems,
    reader::{Fields, Value},
};

/// `kind` of llm-d's document.
pub(super) const PICKER_KIND: &str = "EndpointPickerConfig";
/// Its versions, the present one first.
pub(super) const PICKER_VERSIONS: [&str; 2] = ["llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1"];
/// `kind` of revgate's document.
pub(super) const AGENT_KIND: &str = "AgentConfig";
/// Its version.
pub(super) const AGENT_VERSIONS: [&str; 1] = ["revgate.dev/v1alpha1"];

/// A configuration, and what is to be said about its file.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The types of the plugin entries that are left alone, in the order of the file; worth one log line.
    pub ignored_plugins: Vec<String>,
    /// What is allowed and yet probably not meant; a log line each.
    pub warnings: Vec<String>,
}

/// Reads a file. `node` is the name of this node, which a `nodeName` in the file overrides; an empty one is none.
pub fn load(file: &Path, node: Option<&str>) -> Result<Loaded, ConfigError> {
    let read_error = |source| ConfigError::Read { file: file.to_owned(), source };
    let mut bytes = Vec::new();
    // One byte more than is allowed tells that the file is larger, without reading all of it.
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let _ = File::open(file).map_err(read_error)?.take(limit).read_to_end(&mut bytes).map_err(read_error)?;
    parse(file, &bytes, node)
}

/// Reads the bytes of a file; its name is only used in messages.
pub fn parse(file: &Path, bytes: &[u8], node: Option<&str>) -> Result<Loaded, ConfigError> {
    let problems = Problems::default();
    let mut loaded = Loaded {
        config: Config {
            sets: Vec::new(),
            agent: AgentConfig {
                node: node.filter(|node| !node.is_empty()).map(Into::into),
                ..AgentConfig::default()
            },
        },
        ignored_plugins: Vec::new(),
        warnings: Vec::new(),
    };
    match text(bytes) {
        Ok(text) => documents(text, &problems, &mut loaded),
        Err((at, message)) => problems.at(at, message),
    }
    let problems = problems.into_sorted();
    if problems.is_empty() {
        Ok(loaded)
    } else {
        Err(ConfigError::Invalid { file: file.to_owned(), problems })
    }
}

fn text(bytes: &[u8]) -> Result<&str, (Position, String)> {
    if bytes.len() > MAX_BYTES {
        let at = Position { line: 1, column: 1 };
        return Err((at, format!("larger than {MAX_BYTES} bytes, which is what a ConfigMap can hold")));
    }
    str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(bytes.get(..error.valid_up_to()).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        (Position { line, column }, "not UTF-8 text".to_owned())
    })
}

fn documents(text: &str, problems: &Problems, loaded: &mut Loaded) {
    let nodes = document::parse(text, problems);
    let (mut picker, mut agent) = (None, None);
    for node in &nodes {
        let root = Value::root(node, problems);
        let Some((kind, fields)) = identify(&root) else { continue };
        let slot = if kind == PICKER_KIND { &mut picker } else { &mut agent };
        if slot.is_some() {
            root.wrong(format!("a second document of kind `{kind}`"));
        } else {
            *slot = Some(fields);
        }
    }
    // The sets come first: the other document speaks of them.
    match picker {
        Some(fields) => picker::read(fields, loaded),
        None => problems.at(
            Position { line: 1, column: 1 },
            format!("no document of kind `{PICKER_KIND}` ({})", PICKER_VERSIONS[0]),
        ),
    }
    if let Some(fields) = agent {
        agent::read(fields, loaded);
    }
    for set in &mut loaded.config.sets {
        set.fill_ports();
    }
    warn(loaded);
}

/// The kind of a document, one of the two, and its fields.
fn identify<'a>(root: &Value<'a>) -> Option<(&'static str, Fields<'a>)> {
    let mut fields = root.fields()?;
    let kind = fields.required("kind").and_then(|value| {
        let kind = value.name()?;
        match [PICKER_KIND, AGENT_KIND].into_iter().find(|known| *known == kind) {
            None if kind == "ConfigMap" => {
                value.wrong("this is a ConfigMap: give the file that is inside its `data`");
                None
            }
            None => {
                value.unknown("kind", kind, &[PICKER_KIND, AGENT_KIND]);
                None
            }
            known => known,
        }
    });
    let version = fields.required("apiVersion");
    let kind = kind?;
    let versions: &[&str] = if kind == PICKER_KIND { &PICKER_VERSIONS } else { &AGENT_VERSIONS };
    if let Some(version) = version
        && let Some(text) = version.name()
        && !versions.contains(&text)
    {
        version.unknown("apiVersion", text, versions);
    }
    Some((kind, fields))
}

fn warn(loaded: &mut Loaded) {
    let config = &loaded.config;
    if config.agent.listeners.is_empty() && config.agent.vips.is_empty() {
        loaded.warnings.push("no listener and no VIP: no traffic comes through revgate".to_owned());
    }
    for (index, set) in config.sets.iter().enumerate() {
        if let Some(other) = config.sets.iter().take(index).find(|other| overlap(set, other)) {
            loaded.warnings.push(format!(
                "the sets `{}` and `{}` select the same Pods: `{}`",
                other.name, set.name, set.scope
            ));
        }
    }
}

fn overlap(a: &SetConfig, b: &SetConfig) -> bool {
    let everywhere = a.namespaces.is_empty() || b.namespaces.is_empty();
    a.scope == b.scope && (everywhere || a.namespaces.iter().any(|name| b.namespaces.contains(name)))
}

impl SetConfig {
    /// Gives every role that has no ports the default one, or leaves them to the pool.
    pub(super) fn fill_ports(&mut self) {
        let unsaid = if self.pool.is_some() { Vec::new() } else { vec![PortRef::Number(defaults::PORT)] };
        self.ports.resize(self.roles.len(), unsaid);
    }

    /// The set with a port in every role: those that have none take the pool's, or without those the default one.
    #[must_use]
    pub fn with_pool_ports(&self, target_ports: &[u16]) -> Self {
        let target_ports = if target_ports.is_empty() { &[defaults::PORT] } else { target_ports };
        let mut set = self.clone();
        for ports in set.ports.iter_mut().filter(|ports| ports.is_empty()) {
            *ports = target_ports.iter().copied().map(PortRef::Number).collect();
        }
        set
    }
}
