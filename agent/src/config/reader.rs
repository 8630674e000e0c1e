//! Typed reading of nodes. A reader says what is wrong and goes on: one pass finds every fault of a file.
//!
//! [`Value`] is one node with its path; [`Fields`] is a mapping that remembers which fields were asked for, so that
//! the others can be called unknown and the nearest known name be suggested.

use std::{net::SocketAddr, num::NonZero, ops::RangeInclusive, path::PathBuf, time::Duration};

use http::HeaderName;

use super::{
    PortRef, Position, Problem,
    document::{Entry, Kind, Node},
    names,
    problem::{Problems, closest},
    units,
};

/// A node, and where it is in its document.
#[derive(Clone, Debug)]
pub(super) struct Value<'a> {
    at: Position,
    node: &'a Node,
    path: String,
    problems: &'a Problems,
}

impl<'a> Value<'a> {
    /// The root of a document.
    pub(super) fn root(node: &'a Node, problems: &'a Problems) -> Self {
        Self { at: node.at, node, path: String::new(), problems }
    }

    /// Where it starts.
    pub(super) fn at(&self) -> Position {
        self.at
    }

    /// Reports a problem with this value.
    pub(super) fn wrong(&self, message: impl Into<String>) {
        self.report(message.into(), None, None);
    }

    /// Reports a problem and says what is allowed.
    pub(super) fn not_allowed(&self, message: impl Into<String>, allowed: impl Into<String>) {
        self.report(message.into(), Some(allowed.into()), None);
    }

    /// Reports a name that is none of the known ones.
    pub(super) fn unknown(&self, what: &str, found: &str, names: &[&str]) {
        if self.problems.is_full() {
            return;
        }
        let suggestion = closest(found, names.iter().copied()).map(str::to_owned);
        self.report(format!("unknown {what} `{found}`"), Some(names.join(", ")), suggestion);
    }

    fn report(&self, message: String, allowed: Option<String>, suggestion: Option<String>) {
        self.problems.add(Problem { at: self.at, path: self.path.clone(), message, allowed, suggestion });
    }

    fn expected(&self, expected: &str) {
        let found = match &self.node.kind {
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a mapping".to_owned(),
            Kind::Scalar { .. } if self.node.is_null() => "nothing".to_owned(),
            Kind::Scalar { text, plain: true } => format!("`{text}`"),
            Kind::Scalar { text, plain: false } => format!("the text {text:?}"),
        };
        self.wrong(format!("expected {expected}, found {found}"));
    }

    /// A mapping.
    pub(super) fn fields(&self) -> Option<Fields<'a>> {
        let Kind::Map(entries) = &self.node.kind else {
            self.expected("a mapping");
            return None;
        };
        Some(Fields { value: self.clone(), entries, known: Vec::new() })
    }

    /// The items of a list of at most `most`.
    pub(super) fn items(&self, most: usize) -> Option<Vec<Value<'a>>> {
        let Kind::List(items) = &self.node.kind else {
            self.expected("a list");
            return None;
        };
        if items.len() > most {
            self.wrong(format!("{} entries, at most {most} are possible", items.len()));
            return None;
        }
        let item = |(index, node): (usize, &'a Node)| Value {
            at: node.at,
            node,
            path: format!("{}[{index}]", self.path),
            problems: self.problems,
        };
        Some(items.iter().enumerate().map(item).collect())
    }

    /// Whether it is a list.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.kind, Kind::List(_))
    }

    /// A list of at most `most`, or one value that stands for a list of one.
    pub(super) fn one_or_more(&self, most: usize) -> Option<Vec<Value<'a>>> {
        if self.is_list() { self.items(most) } else { Some(vec![self.clone()]) }
    }

    /// The entries of a mapping whose keys are data.
    pub(super) fn entries(&self) -> Option<Vec<(&'a str, Value<'a>)>> {
        let fields = self.fields()?;
        Some(fields.entries.iter().map(|entry| (entry.key.as_str(), fields.entry(entry))).collect())
    }

    /// A scalar's text, whatever it stands for.
    fn scalar(&self, expected: &str) -> Option<&'a str> {
        match &self.node.kind {
            Kind::Scalar { text, .. } if !self.node.is_null() => Some(text),
            _ => {
                self.expected(expected);
                None
            }
        }
    }

    /// Text; an unquoted number or boolean is none, as in Kubernetes.
    pub(super) fn text(&self) -> Option<&'a str> {
        let text = self.scalar("text")?;
        let plain = matches!(self.node.kind, Kind::Scalar { plain: true, .. });
        if plain && (parse_boolean(text).is_some() || is_number(text)) {
            self.wrong(format!("expected text, found `{text}`: put it in quotes"));
            return None;
        }
        Some(text)
    }

    /// Whether it is `""`.
    pub(super) fn is_empty_text(&self) -> bool {
        matches!(&self.node.kind, Kind::Scalar { text, .. } if text.is_empty())
    }

    /// Text that is not empty.
    pub(super) fn name(&self) -> Option<&'a str> {
        let text = self.text()?;
        if text.is_empty() {
            self.wrong("must not be empty");
            return None;
        }
        Some(text)
    }

    /// Text that passes a check; `allowed` says what the check asks.
    pub(super) fn checked(&self, check: impl Fn(&str) -> bool, allowed: &str) -> Option<&'a str> {
        let text = self.name()?;
        if !check(text) {
            self.not_allowed(format!("bad value `{text}`"), allowed);
            return None;
        }
        Some(text)
    }

    /// One of a few words.
    pub(super) fn one_of<T: Copy>(&self, what: &str, words: &[(&str, T)]) -> Option<T> {
        let mut found = self.scalar("text")?;
        if found == "false" && words.iter().any(|(word, _)| *word == "off") {
            // To YAML 1.1, which Helm speaks, a bare `off` is a boolean, and it writes `false`.
            found = "off";
        }
        let hit = words.iter().find(|(word, _)| *word == found).map(|(_, value)| *value);
        if hit.is_none() {
            let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.unknown(what, found, &names);
        }
        hit
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self) -> Option<bool> {
        self.parsed("`true` or `false`", parse_boolean)
    }

    /// An integer in a range.
    pub(super) fn integer<T: TryFrom<u64>>(&self, range: RangeInclusive<u64>) -> Option<T> {
        let value: u64 = self.parsed("an integer", |text| text.parse().ok())?;
        self.within(&value, &range, ToString::to_string)?;
        T::try_from(value).ok()
    }

    /// A decimal number in a range.
    pub(super) fn decimal(&self, range: RangeInclusive<f64>) -> Option<f64> {
        let value: f64 = self.parsed("a number", |text| text.parse().ok())?;
        self.within(&value, &range, ToString::to_string)?;
        Some(value)
    }

    /// A duration in a range.
    pub(super) fn duration(&self, range: RangeInclusive<Duration>) -> Option<Duration> {
        let value = self.parsed(units::DURATION, units::parse_duration)?;
        self.within(&value, &range, |bound| units::print_duration(*bound))?;
        Some(value)
    }

    /// A size in a range, bytes.
    pub(super) fn size<T: TryFrom<u64>>(&self, range: RangeInclusive<u64>) -> Option<T> {
        let value = self.parsed(units::SIZE, units::parse_size)?;
        self.within(&value, &range, |bound| units::print_size(*bound))?;
        T::try_from(value).ok()
    }

    /// An IP address and port; IPv4-mapped IPv6 becomes IPv4.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        let mut address: SocketAddr = self.parsed(
            "an IP address and port such as `0.0.0.0:8080`, `10.96.0.10:8000` or `[::]:8080`",
            |text| text.parse().ok(),
        )?;
        address.set_ip(address.ip().to_canonical());
        Some(address)
    }

    /// A port, by number or by the name of a container port.
    pub(super) fn port(&self) -> Option<PortRef> {
        let port = self.scalar(names::PORT_NAME).map(|text| match text.parse::<NonZero<u16>>() {
            Ok(number) => Some(PortRef::Number(number.get())),
            Err(_) => names::is_port_name(text).then(|| PortRef::Name(text.into())),
        })?;
        if port.is_none() {
            self.expected(names::PORT_NAME);
        }
        port
    }

    /// A path from the root.
    pub(super) fn absolute_path(&self) -> Option<PathBuf> {
        self.checked(|path| path.starts_with('/'), "an absolute path").map(PathBuf::from)
    }

    /// The name of an HTTP header, lower-cased.
    pub(super) fn header(&self) -> Option<HeaderName> {
        let text = self.name()?;
        let header = HeaderName::from_bytes(text.as_bytes()).ok();
        if header.is_none() {
            self.not_allowed(format!("`{text}` is not a header name"), "letters, digits and !#$%&'*+-.^_`|~");
        }
        header
    }

    fn parsed<T>(&self, expected: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = parse(self.scalar(expected)?);
        if value.is_none() {
            self.expected(expected);
        }
        value
    }

    fn within<T: PartialOrd>(
        &self,
        value: &T,
        range: &RangeInclusive<T>,
        show: impl Fn(&T) -> String,
    ) -> Option<()> {
        if range.contains(value) {
            return Some(());
        }
        let (start, end) = (show(range.start()), show(range.end()));
        self.not_allowed(format!("`{}` is out of range", show(value)), format!("{start} to {end}"));
        None
    }
}

fn parse_boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

fn is_number(text: &str) -> bool {
    // Rust also takes words such as `inf` for numbers, YAML does not.
    text.contains(|c: char| c.is_ascii_digit()) && text.parse::<f64>().is_ok()
}

/// A mapping that is being read.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    value: Value<'a>,
    entries: &'a [Entry],
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The mapping itself, to report problems with the whole of it.
    pub(super) fn whole(&self) -> &Value<'a> {
        &self.value
    }

    fn entry(&self, entry: &'a Entry) -> Value<'a> {
        let separator = if self.value.path.is_empty() { "" } else { "." };
        let path = format!("{}{separator}{}", self.value.path, entry.key);
        // A collection is best found by its key, a scalar by itself.
        let scalar = matches!(entry.value.kind, Kind::Scalar { .. }) && !entry.value.is_null();
        let at = if scalar { entry.value.at } else { entry.at };
        Value { at, node: &entry.value, path, problems: self.value.problems }
    }

    /// A field, where it is present and not null.
    pub(super) fn get(&mut self, name: &'static str) -> Option<Value<'a>> {
        self.known.push(name);
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        (!entry.value.is_null()).then(|| self.entry(entry))
    }

    /// A field that must be there.
    pub(super) fn required(&mut self, name: &'static str) -> Option<Value<'a>> {
        let value = self.get(name);
        if value.is_none() {
            self.value.wrong(format!("the field `{name}` is missing"));
        }
        value
    }

    /// A field read by `read`; `default` where it is absent or wrong.
    pub(super) fn or<T>(
        &mut self,
        name: &'static str,
        default: T,
        read: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> T {
        self.get(name).and_then(|value| read(&value)).unwrap_or(default)
    }

    /// The items of a list field, at most `most`; none where it is absent or wrong.
    pub(super) fn list(&mut self, name: &'static str, most: usize) -> Vec<Value<'a>> {
        self.get(name).and_then(|value| value.items(most)).unwrap_or_default()
    }

    /// Ends the reading: what was not asked for is unknown.
    pub(super) fn finish(self) {
        for entry in self.entries.iter().filter(|entry| !self.known.contains(&entry.key.as_str())) {
            let mut value = self.entry(entry);
            value.at = entry.at;
            value.unknown("field", &entry.key, &self.known);
        }
    }
}
