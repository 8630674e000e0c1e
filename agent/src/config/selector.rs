//! Kubernetes label selectors, the whole grammar, matching exactly as apimachinery's `labels` package does.
//!
//! ```text
//! selector    = [ requirement { "," requirement } ]
//! requirement = [ "!" ] key
//!             | key ( "=" | "==" | "!=" ) [ value ]
//!             | key ( "in" | "notin" ) "(" [ value ] { "," [ value ] } ")"
//!             | key ( ">" | "<" ) integer
//! ```
//!
//! Spaces separate and mean nothing else. `in` and `notin` are also good keys and values, as in apimachinery.

mod parse;

use std::{collections::BTreeSet, fmt, str::FromStr, sync::Arc};

use crate::cluster::pod::Labels;

/// A parsed label selector. The default has no requirement and matches everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

/// One requirement on one label.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Requirement {
    key: Arc<str>,
    test: Test,
}

/// What a label must be.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Test {
    /// Present, with one of the values: `=`, `==`, `in`.
    In(BTreeSet<Arc<str>>),
    /// Absent, or present with none of the values: `!=`, `notin`.
    NotIn(BTreeSet<Arc<str>>),
    /// Present.
    Exists,
    /// Absent.
    NotExists,
    /// Present, an integer, and larger.
    Above(i64),
    /// Present, an integer, and smaller.
    Below(i64),
}

/// Why a text is no selector.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message} at byte {position}")]
pub struct SelectorError {
    /// Where, in bytes from 0.
    pub position: usize,
    /// What is wrong there.
    pub message: String,
}

impl Selector {
    /// Whether the labels satisfy every requirement.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.test.holds(labels.get(&requirement.key).map(AsRef::as_ref)))
    }

    /// With a requirement more: the label is present.
    #[must_use]
    pub fn with_label(mut self, key: &Arc<str>) -> Self {
        let requirement = Requirement { key: Arc::clone(key), test: Test::Exists };
        if !self.requirements.contains(&requirement) {
            self.requirements.push(requirement);
        }
        self
    }

    /// The requirements that both have. What either matches, it matches.
    #[must_use]
    pub fn in_common(mut self, other: &Self) -> Self {
        self.requirements.retain(|requirement| other.requirements.contains(requirement));
        self
    }

    /// Without `>` and `<`, which not every API server knows. What this matches, it matches.
    #[must_use]
    pub fn for_server(mut self) -> Self {
        self.requirements.retain(|requirement| !matches!(requirement.test, Test::Above(_) | Test::Below(_)));
        self
    }

    /// Whether there is no requirement, so that everything matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Exists => value.is_some(),
            Self::NotExists => value.is_none(),
            Self::Above(bound) => number().is_some_and(|number| number > *bound),
            Self::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        parse::selector(text)
    }
}

/// The selector as text that parses to an equal one.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.test {
            Test::In(values) => write_values(f, key, "=", "in", values),
            Test::NotIn(values) => write_values(f, key, "!=", "notin", values),
            Test::Exists => write!(f, "{key}"),
            Test::NotExists => write!(f, "!{key}"),
            Test::Above(bound) => write!(f, "{key}>{bound}"),
            Test::Below(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

fn write_values(
    f: &mut fmt::Formatter<'_>,
    key: &str,
    one: &str,
    many: &str,
    values: &BTreeSet<Arc<str>>,
) -> fmt::Result {
    if values.len() == 1 {
        return values.iter().try_for_each(|value| write!(f, "{key}{one}{value}"));
    }
    write!(f, "{key} {many} (")?;
    for (index, value) in values.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        write!(f, "{comma}{value}")?;
    }
    f.write_str(")")
}

#[cfg(test)]
mod tests;
