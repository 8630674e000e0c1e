//! From text to trees of nodes that know their place. YAML, and JSON as the part of YAML that it is.
//!
//! The file may come from anywhere, so its cost is bounded before its meaning is asked: size, depth, and the number
//! of nodes after aliases are copied (an alias bomb is a small text with an immense tree). The parser is the one below
//! serde-saphyr, whose own data model has no places.

use std::{borrow::Cow, collections::HashMap};

use serde_saphyr::granit_parser::{self, Event, Marker, Parser, ScalarStyle, Span, StrInput, Tag};

use super::problem::{Position, Problems};

/// Most bytes of a file: what a ConfigMap can hold.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Most nodes of a file, aliases copied.
const MAX_NODES: usize = 100_000;
/// Deepest nesting.
const MAX_DEPTH: usize = 64;

/// A value and its place.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Node {
    /// Where it starts.
    pub(super) at: Position,
    /// What it is.
    pub(super) kind: Kind,
}

/// What a node is.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Kind {
    /// A scalar; `plain` is one without quotes, whose text may stand for null, a boolean or a number.
    Scalar {
        /// The text, escapes resolved.
        text: String,
        /// Not quoted.
        plain: bool,
    },
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the text, keys unique.
    Map(Vec<Entry>),
}

/// One key of a mapping and its value.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Entry {
    /// Where the key starts.
    pub(super) at: Position,
    /// The key.
    pub(super) key: String,
    /// The value.
    pub(super) value: Node,
}

impl Node {
    /// Whether it says nothing: `null`, `~`, or no text at all.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// The number of nodes and the depth of the tree.
    fn extent(&self) -> (usize, usize) {
        let over = |children: &mut dyn Iterator<Item = &Node>| {
            children
                .map(Node::extent)
                .fold((1, 1), |(size, depth), child| (size + child.0, depth.max(child.1 + 1)))
        };
        match &self.kind {
            Kind::Scalar { .. } => (1, 1),
            Kind::List(items) => over(&mut items.iter()),
            Kind::Map(entries) => over(&mut entries.iter().map(|entry| &entry.value)),
        }
    }
}

/// Parses all documents of a text; empty ones are left out. A fault in the syntax ends the text there.
pub(super) fn parse(text: &str, problems: &Problems) -> Vec<Node> {
    let mut options =
        granit_parser::options! { flow_nesting_limit: MAX_DEPTH, block_nesting_limit: MAX_DEPTH };
    options.set_emit_comments(false);
    let parser = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder { parser, anchors: HashMap::new(), nodes: 0, problems };
    let mut documents = Vec::new();
    while let Ok((event, span)) = builder.next() {
        match event {
            Event::StreamEnd => break,
            Event::DocumentStart(..) => builder.anchors.clear(),
            event if event.is_node() => {
                let Ok(node) = builder.node(event, span, 1) else { break };
                if !node.is_null() {
                    documents.push(node);
                }
            }
            _ => {}
        }
    }
    documents
}

/// The text cannot be read on; the reason is among the problems.
struct Stop;

struct Builder<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    problems: &'t Problems,
}

impl<'t> Builder<'t> {
    fn stop(&self, at: Position, message: impl Into<String>) -> Stop {
        self.problems.at(at, message);
        Stop
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Stop> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => {
                Err(self.stop(position(*error.marker()), format!("not valid YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Counts nodes against the budget.
    fn charge(&mut self, nodes: usize, at: Position) -> Result<(), Stop> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            return Err(self.stop(at, format!("more than {MAX_NODES} values, aliases counted as copies")));
        }
        Ok(())
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Stop> {
        let at = position(span.start);
        if depth > MAX_DEPTH {
            return Err(self.stop(at, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.charge(1, at)?;
        let (anchor, kind) = match event {
            Event::Scalar(text, style, anchor, tag) => (anchor, scalar(text, style, tag.as_deref())),
            Event::SequenceStart(_, anchor, _) => (anchor, self.list(depth)?),
            Event::MappingStart(_, anchor, _) => (anchor, self.map(depth)?),
            Event::Alias(anchor) => return self.alias(anchor, at, depth),
            _ => return Err(self.stop(at, "a value was expected here")),
        };
        let node = Node { at, kind };
        if anchor != 0 {
            // The kept copy costs as much as the node itself.
            self.charge(node.extent().0, at)?;
            let _ = self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Kind, Stop> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Kind::List(items)),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Kind, Stop> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, span) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Kind::Map(entries)),
                next => next,
            };
            let key = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            let Kind::Scalar { text, .. } = key.kind else {
                self.problems.at(key.at, "a key must be plain text, not a list or a mapping");
                continue;
            };
            if let Some(line) = seen.get(&text) {
                self.problems.at(key.at, format!("duplicate key `{text}`, already on line {line}"));
                continue;
            }
            let _ = seen.insert(text.clone(), key.at.line);
            entries.push(Entry { at: key.at, key: text, value });
        }
    }

    /// A copy of the anchored node, at the place of the alias: that is the line to mend.
    fn alias(&mut self, anchor: usize, at: Position, depth: usize) -> Result<Node, Stop> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(self.stop(at, "an alias inside the value that it names"));
        };
        let (size, height) = node.extent();
        if depth + height > MAX_DEPTH {
            return Err(self.stop(at, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.charge(size, at)?;
        self.anchors.get(&anchor).map(|node| Node { at, kind: node.kind.clone() }).ok_or(Stop)
    }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Kind {
    let forced = tag.is_some_and(|tag| tag.core_suffix() == Some("str"));
    Kind::Scalar { text: text.into_owned(), plain: style == ScalarStyle::Plain && !forced }
}

fn position(marker: Marker) -> Position {
    Position { line: marker.line().max(1), column: marker.col() + 1 }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn problems_of(text: &str) -> Vec<String> {
        let problems = Problems::default();
        let _ = parse(text, &problems);
        problems
            .into_sorted()
            .into_iter()
            .map(|problem| format!("{}:{} {}", problem.at.line, problem.at.column, problem.message))
            .collect()
    }

    #[test]
    fn several_documents_and_empty_ones() {
        let problems = Problems::default();
        let documents = parse("---\na: 1\n---\n---\n# only a comment\n---\n{\"b\": [2, \"x\"]}\n", &problems);
        assert!(problems.into_sorted().is_empty());
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[1].at, Position { line: 7, column: 1 });
    }

    #[test]
    fn a_duplicate_key_is_an_error_with_both_places() {
        assert_eq!(problems_of("a: 1\nb: 2\na: 3\n"), ["3:1 duplicate key `a`, already on line 1"]);
    }

    #[test]
    fn an_alias_is_a_copy_at_its_own_place() {
        let problems = Problems::default();
        let documents = parse("a: &x [1]\nb: *x\n", &problems);
        let Kind::Map(entries) = &documents[0].kind else { panic!("a mapping") };
        assert_eq!(entries[1].value.at, Position { line: 2, column: 4 });
        assert_eq!(entries[0].value.kind, entries[1].value.kind);
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..20 {
            let previous = format!("*a{}", level - 1);
            writeln!(bomb, "a{level}: &a{level} [{}]", [previous.as_str(); 10].join(", ")).unwrap();
        }
        let found = problems_of(&bomb);
        assert!(found[0].contains("more than 100000 values"), "{found:?}");
    }

    #[test]
    fn a_chain_of_aliases_cannot_nest_without_bound() {
        let mut chain = String::from("a0: &a0 [x]\n");
        for level in 1..200 {
            writeln!(chain, "a{level}: &a{level} [*a{}]", level - 1).unwrap();
        }
        assert!(problems_of(&chain)[0].contains("nested deeper than 64 levels"));
    }

    #[test]
    fn deep_nesting_is_refused() {
        for text in
            ["[".repeat(100_000), "- ".repeat(10_000), "{a: ".repeat(1000), format!("{}x", "a:\n ".repeat(3))]
        {
            assert!(!problems_of(&text).is_empty(), "{}", &text[..20.min(text.len())]);
        }
    }

    #[test]
    fn an_alias_of_itself_is_refused() {
        assert!(!problems_of("a: &a [*a]\n").is_empty());
    }
}
