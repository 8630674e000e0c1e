//! The Pod file's grammar: full Pod objects, lists of them, and a short form, in any mixture. Pure.
//!
//! ```yaml
//! - {name: prefill-0, ip: 127.0.1.1, labels: {role: prefill}}   # the short form
//! - apiVersion: v1                                              # as `kubectl get pods -o yaml` prints it
//!   kind: Pod
//!   metadata: {name: decode-0, namespace: llm}
//! ```
//!
//! One struct, `Fields`, takes every form: they are disjoint, so no guess is needed and each error keeps its line. It is
//! made a Pod as soon as it is read, so that of a long list only what is kept is in memory.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_saphyr::{Location, Spanned};

use super::{
    intern::Strings,
    manifest::{self, Metadata, PodObject, Port, Spec, Status},
    pod::Pod,
};

/// The fields of the short form.
const SHORT_FIELDS: [&str; 13] = [
    "name",
    "namespace",
    "uid",
    "ip",
    "ips",
    "labels",
    "annotations",
    "ready",
    "terminating",
    "node",
    "hostNetwork",
    "ports",
    "cgroup",
];

/// The kinds that a document or a list item may have.
const KINDS: &str = "Pod, PodList, List";

/// Deeper than any Pod object, shallow enough for any stack.
const MAX_DEPTH: usize = 64;

/// So many times its own length may a file come to with all that its aliases stand for.
const MOST_REPEATED: usize = 8;

/// A Pod of the list, and the cgroup that its short form names (not looked up yet).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The Pod.
    pub pod: Arc<Pod>,
    /// A path below the cgroup2 root, or an absolute one.
    pub cgroup: Option<String>,
}

/// What is wrong with a list, and where: line and column count from 1, and are 1 where unknown.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{line}:{column}: {what}")]
pub struct Invalid {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
    /// What is wrong, and what is allowed.
    pub what: String,
}

/// Parses a whole file. Work and memory are bounded by a multiple of its length, whatever it holds.
///
/// Text without any document is an error: it is what a half-written file looks like. `[]` says "no Pods".
pub fn parse(text: &str) -> Result<Vec<Listed>, Invalid> {
    let options = serde_saphyr::options! {
        // No document has more nodes than bytes. Aliases have limits of their own, which stay, but for what they repeat.
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_documents: usize::MAX,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: MOST_REPEATED * text.len() + (1 << 20),
        },
        with_snippet: false,
    };
    let list: List = serde_saphyr::from_str_multiple_with_options::<Spanned<Document>, _>(text, options)
        .map_err(|error| {
            let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
            Invalid { line, column, what: message(&error) }
        })?;
    list.finish()
}

/// The error without the place that its text ends with; the place is reported apart.
fn message(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let text = text.lines().next().unwrap_or_default();
    match text.rfind(" at line ") {
        Some(end) => text.get(..end).unwrap_or(text).to_owned(),
        None => text.to_owned(),
    }
}

/// What is read so far.
#[derive(Default)]
struct List {
    /// Up to what is wrong.
    pods: Vec<(Listed, Location)>,
    /// Told when all is read: what is no YAML comes first.
    wrong: Option<Invalid>,
    /// What the Pods have in common.
    strings: Strings,
    has_document: bool,
}

impl List {
    fn add(&mut self, fields: Fields, at: Location) -> Result<(), Invalid> {
        match fields.kind.as_deref() {
            Some("Pod") | None => {}
            Some("PodList" | "List") => return self.append(fields.items.unwrap_or_default()),
            Some(other) => {
                return Err(invalid(at, format!("kind `{other}` is not read here; allowed: {KINDS}")));
            }
        }
        let (mut pod, cgroup) = if fields.kind.is_some() || fields.metadata.is_some() {
            let object = PodObject { metadata: fields.metadata, spec: fields.spec, status: fields.status };
            (object.into_pod().map_err(|problem| invalid(at, problem.to_string()))?, None)
        } else if let Some(items) = fields.items {
            return self.append(items);
        } else if let Some((field, at)) = fields.unknown {
            return Err(invalid(at, unknown_field(&field)));
        } else {
            fields.short.into_pod(at)?
        };
        self.strings.share(&mut pod);
        self.pods.push((Listed { pod: Arc::new(pod), cgroup }, at));
        Ok(())
    }

    fn append(&mut self, mut other: Self) -> Result<(), Invalid> {
        self.pods.append(&mut other.pods);
        other.wrong.map_or(Ok(()), Err)
    }

    fn finish(self) -> Result<Vec<Listed>, Invalid> {
        if !self.has_document {
            return Err(Invalid {
                line: 1,
                column: 1,
                what: "no document; write `[]` for no Pods".to_owned(),
            });
        }
        let mut lines = HashMap::with_capacity(self.pods.len());
        for (Listed { pod, .. }, at) in &self.pods {
            let (namespace, name) = (&pod.key.namespace, &pod.key.name);
            if let Some(first) = lines.insert((namespace, name), at.line()) {
                return Err(invalid(*at, format!("Pod {namespace}/{name} is already on line {first}")));
            }
        }
        match self.wrong {
            Some(wrong) => Err(wrong),
            None => Ok(self.pods.into_iter().map(|(listed, _)| listed).collect()),
        }
    }
}

impl Extend<Spanned<Document>> for List {
    fn extend<I: IntoIterator<Item = Spanned<Document>>>(&mut self, documents: I) {
        for document in documents {
            self.has_document = true;
            if self.wrong.is_none() {
                let added = match document.value {
                    Document::One(fields) => self.add(*fields, document.referenced),
                    Document::Many(list) => self.append(list),
                };
                self.wrong = added.err();
            }
        }
    }
}

fn invalid(at: Location, what: String) -> Invalid {
    Invalid { line: at.line(), column: at.column(), what }
}

fn unknown_field(field: &str) -> String {
    let near = SHORT_FIELDS.iter().map(|known| (strsim::damerau_levenshtein(field, known), known)).min();
    let hint = match near {
        Some((distance, known)) if distance <= 2 => format!("; did you mean `{known}`?"),
        _ => String::new(),
    };
    format!("unknown field `{field}`{hint} (allowed: {})", SHORT_FIELDS.join(", "))
}

/// One YAML document.
enum Document {
    One(Box<Fields>),
    Many(List),
}

/// A Pod object, a list of Pods, or the short form.
#[derive(Default)]
struct Fields {
    kind: Option<String>,
    metadata: Option<Metadata>,
    spec: Option<Spec>,
    status: Option<Status>,
    items: Option<List>,
    short: Short,
    /// The first field that no form has.
    unknown: Option<(String, Location)>,
}

/// The short form.
#[derive(Default)]
struct Short {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    ip: Option<Spanned<String>>,
    ips: Option<Vec<Spanned<String>>>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, Option<String>>>,
    ready: Option<bool>,
    terminating: Option<bool>,
    node: Option<String>,
    host_network: Option<bool>,
    ports: Option<Vec<ShortPort>>,
    cgroup: Option<String>,
}

impl Short {
    /// The Pod, and its cgroup.
    fn into_pod(self, at: Location) -> Result<(Pod, Option<String>), Invalid> {
        let name = self.name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| invalid(at, "a Pod needs a `name`".to_owned()))?;
        let mut ips = Vec::with_capacity(1);
        for Spanned { value, referenced, .. } in self.ip.into_iter().chain(self.ips.into_iter().flatten()) {
            ips.push(value.parse().map_err(|_| {
                invalid(referenced, format!("`{value}` is no IP address (such as 10.0.0.7 or fd00::7)"))
            })?);
        }
        let pod = Pod {
            key: manifest::key(self.namespace, &name, self.uid),
            ips: manifest::unique(ips),
            node: self.node.map(Into::into),
            labels: manifest::labels_of(self.labels.unwrap_or_default()),
            active_ports: self.annotations.as_ref().and_then(manifest::active_ports),
            // A static Pod is named by its `uid` here: that of its cgroup.
            static_uid: None,
            runtime_class: None,
            ready: self.ready.unwrap_or(true),
            terminating: self.terminating.unwrap_or(false),
            host_network: self.host_network.unwrap_or(false),
            created: 0,
            ports: manifest::ports_of(self.ports.into_iter().flatten().map(|port| port.0)),
            cgroup: None,
        };
        Ok((pod, self.cgroup))
    }
}

/// A port of the short form: a number, or an object as in a container.
struct ShortPort(Port);

impl<'de> Deserialize<'de> for ShortPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PortVisitor;

        impl<'de> Visitor<'de> for PortVisitor {
            type Value = ShortPort;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port number, or {name, containerPort, protocol}")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<ShortPort, E> {
                let number = u16::try_from(number).map_err(|_| E::custom(format!("{number} is no port")))?;
                Ok(ShortPort(Port { name: None, container_port: number, protocol: None }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ShortPort, A::Error> {
                Port::deserialize(MapAccessDeserializer::new(map)).map(ShortPort)
            }
        }

        deserializer.deserialize_any(PortVisitor)
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DocumentVisitor;

        impl<'de> Visitor<'de> for DocumentVisitor {
            type Value = Document;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of Pods, or one Pod, PodList or List")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Document, A::Error> {
                ListVisitor.visit_seq(seq).map(Document::Many)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Document, A::Error> {
                FieldsVisitor.visit_map(map).map(Box::new).map(Document::One)
            }
        }

        deserializer.deserialize_any(DocumentVisitor)
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldsVisitor)
    }
}

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor)
    }
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = List;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Pods")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List, A::Error> {
        let mut list = List::default();
        while let Some(fields) = seq.next_element::<Spanned<Fields>>()? {
            if list.wrong.is_none() {
                list.wrong = list.add(fields.value, fields.referenced).err();
            }
        }
        Ok(list)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Pod: an object with `metadata`, or the short form {name, ip, labels, ..}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        let short = &mut fields.short;
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            match key.value.as_str() {
                "apiVersion" => drop(map.next_value::<IgnoredAny>()?),
                "kind" => fields.kind = map.next_value()?,
                "metadata" => fields.metadata = map.next_value()?,
                "spec" => fields.spec = map.next_value()?,
                "status" => fields.status = map.next_value()?,
                "items" => fields.items = map.next_value()?,
                "name" => short.name = map.next_value()?,
                "namespace" => short.namespace = map.next_value()?,
                "uid" => short.uid = map.next_value()?,
                "ip" => short.ip = map.next_value()?,
                "ips" => short.ips = map.next_value()?,
                "labels" => short.labels = map.next_value()?,
                "annotations" => short.annotations = map.next_value()?,
                "ready" => short.ready = map.next_value()?,
                "terminating" => short.terminating = map.next_value()?,
                "node" => short.node = map.next_value()?,
                "hostNetwork" => short.host_network = map.next_value()?,
                "ports" => short.ports = map.next_value()?,
                "cgroup" => short.cgroup = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    fields.unknown.get_or_insert((key.value, key.referenced));
                }
            }
        }
        if fields.metadata.is_some() && fields.items.is_some() && fields.kind.is_none() {
            // A list without a kind has metadata too (a resource version), but nothing that makes it a Pod.
            if fields.metadata.as_ref().is_some_and(|metadata| metadata.name.is_some()) {
                return Err(A::Error::custom("both a Pod (`metadata.name`) and a list (`items`)"));
            }
            fields.metadata = None;
        }
        Ok(fields)
    }
}
