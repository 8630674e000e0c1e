//! Edits of a JSON object that leave alone, byte for byte, what they are not about.
//!
//! The text is read once, by `serde_json`, which checks all of it without building anything: numbers stay as they are
//! written (`1e400` too), as do the order of keys, escapes, lone surrogates and unknown fields. Only the places of
//! the few members that matter are kept. An edited text is a [`Rope`]: slices of the original and what stands between
//! them, so that a long prompt is in memory once for both legs. Nesting costs a byte a level, and no stack.

use std::{borrow::Cow, fmt, ops::Range};

use bytes::Bytes;
use serde::{
    Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::rope::Rope;

/// How often the members that matter may stand in one object, all together. Engines take the last of several.
const MOST: usize = 64;

/// Why a text cannot be edited.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonError {
    /// It is empty.
    #[error("it is empty")]
    Empty,
    /// It does not begin as an object does.
    #[error("it is no JSON object")]
    NoObject,
    /// It is not JSON.
    #[error("{0}")]
    Syntax(#[from] serde_json::Error),
}

/// What becomes of a member.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    /// It has this value, wherever it stands; it is added where it is absent.
    Put(Bytes),
    /// It has this value where it is present.
    Replace(Bytes),
    /// It is absent.
    Remove,
    /// It is an object, with these edits: added where it is absent or null, left alone where it is something else.
    Within(Edits),
    /// The same, where it is present and not null.
    WithinPresent(Edits),
}

/// Edits of one object, each member named once.
pub(super) type Edits = Vec<(&'static str, Edit)>;

/// The members that matter of one object, by their places in the text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Object {
    members: Vec<Member>,
    /// Of all members.
    count: usize,
    /// Where the last value ends, or the object begins.
    end: usize,
}

/// A member that matters.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Member {
    name: &'static str,
    /// Its number among all members.
    index: usize,
    /// Where the value before it ends, or the object begins.
    before: usize,
    key: usize,
    value: Range<usize>,
    /// Where the next key begins.
    next: Option<usize>,
}

impl Object {
    /// Reads an object for members of these names.
    pub(super) fn scan(text: &[u8], names: &[&'static str]) -> Result<Self, JsonError> {
        let open = text.iter().position(|byte| !byte.is_ascii_whitespace()).ok_or(JsonError::Empty)?;
        if text.get(open) != Some(&b'{') {
            return Err(JsonError::NoObject);
        }
        let object = Self { end: open + 1, ..Self::default() };
        let mut reader = serde_json::Deserializer::from_slice(text);
        let object = reader.deserialize_map(Scan { start: text.as_ptr().addr(), names, object })?;
        reader.end()?;
        Ok(object)
    }

    /// The place of a member's value: the last one's, as engines have it.
    pub(super) fn value(&self, name: &str) -> Option<Range<usize>> {
        self.members.iter().rev().find(|member| member.name == name).map(|member| member.value.clone())
    }

    /// The text of which this was read, edited. Only names that it was read for can be.
    pub(super) fn edit(&self, text: &Bytes, edits: &Edits) -> Rope {
        let mut cuts = Cuts::default();
        self.cut(text, edits, &mut cuts);
        Rope::spliced(text, cuts.list)
    }

    fn cut(&self, text: &[u8], edits: &Edits, cuts: &mut Cuts) {
        let mut removed = 0;
        for member in &self.members {
            let Some((_, edit)) = edits.iter().find(|(name, _)| *name == member.name) else { continue };
            match edit {
                Edit::Put(value) | Edit::Replace(value) => cuts.add(member.value.clone(), value.clone()),
                Edit::Remove => {
                    cuts.add(member.with_its_comma(removed), Bytes::new());
                    removed += 1;
                }
                Edit::Within(inner) | Edit::WithinPresent(inner) => {
                    let value = text.get(member.value.clone()).unwrap_or_default();
                    let names: Vec<_> = inner.iter().map(|(name, _)| *name).collect();
                    if let Ok(object) = Self::scan(value, &names) {
                        cuts.offset += member.value.start;
                        object.cut(value, inner, cuts);
                        cuts.offset -= member.value.start;
                    } else if value == b"null" && matches!(edit, Edit::Within(_)) {
                        cuts.add(member.value.clone(), written(inner).into());
                    }
                }
            }
        }
        let missing = edits.iter().filter(|(name, _)| self.value(name).is_none());
        let added = members(missing, self.count > removed);
        if !added.is_empty() {
            cuts.add(self.end..self.end, added.into());
        }
    }
}

impl Member {
    /// Its place with a comma beside it, where so many before it go as well.
    fn with_its_comma(&self, removed: usize) -> Range<usize> {
        if self.index > removed {
            return self.before..self.value.end;
        }
        self.key..self.next.unwrap_or(self.value.end)
    }
}

/// Parts of a text with what stands in their place, in order.
#[derive(Default)]
struct Cuts {
    list: Vec<(Range<usize>, Bytes)>,
    /// Where in the text the object begins whose parts are added.
    offset: usize,
}

impl Cuts {
    fn add(&mut self, range: Range<usize>, new: Bytes) {
        self.list.push((range.start + self.offset..range.end + self.offset, new));
    }
}

/// The members that edits add, each with a comma before it but the first of an object.
fn members<'e>(edits: impl Iterator<Item = &'e (&'static str, Edit)>, mut others: bool) -> String {
    let mut text = String::new();
    for (name, edit) in edits {
        let value = match edit {
            Edit::Put(value) => String::from_utf8_lossy(value),
            Edit::Within(inner) => Cow::Owned(written(inner)),
            Edit::Replace(_) | Edit::Remove | Edit::WithinPresent(_) => continue,
        };
        text.extend([if others { ",\"" } else { "\"" }, name, "\":", &value]);
        others = true;
    }
    text
}

/// An object of what edits add.
fn written(edits: &Edits) -> String {
    format!("{{{}}}", members(edits.iter(), false))
}

/// Reads the members of an object.
struct Scan<'n> {
    /// The address of the text.
    start: usize,
    names: &'n [&'static str],
    object: Object,
}

impl<'de> Visitor<'de> for Scan<'_> {
    type Value = Object;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let Self { start, names, mut object } = self;
        let place = |raw: &RawValue| {
            let at = raw.get().as_ptr().addr() - start;
            at..at + raw.get().len()
        };
        while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            let (key_place, value_place) = (place(key), place(value));
            let index = object.count;
            if let Some(last) = object.members.last_mut().filter(|last| last.index + 1 == index) {
                last.next = Some(key_place.start);
            }
            let before = std::mem::replace(&mut object.end, value_place.end);
            object.count += 1;
            let Some(name) = name(key, names)? else { continue };
            if object.members.len() == MOST {
                return Err(A::Error::custom(format_args!("the field `{name}` stands there too often")));
            }
            object.members.push(Member {
                name,
                index,
                before,
                key: key_place.start,
                value: value_place,
                next: None,
            });
        }
        Ok(object)
    }
}

/// Which of the names a key is; it may be written with escapes.
fn name<E: Error>(key: &RawValue, names: &[&'static str]) -> Result<Option<&'static str>, E> {
    let text = key.get();
    let key = if text.contains('\\') {
        Cow::Owned(serde_json::from_str::<String>(text).map_err(E::custom)?)
    } else {
        Cow::Borrowed(text.trim_matches('"'))
    };
    Ok(names.iter().copied().find(|name| *name == key))
}

#[cfg(test)]
mod tests;
