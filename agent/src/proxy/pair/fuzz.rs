//! Bodies of requests and answers as JSON: every edit that a leg or an answer gets, beside the same edit of
//! `serde_json`'s values.

#![allow(clippy::missing_panics_doc, reason = "to panic is how a target fails")]

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Map, Value, value::RawValue};

use super::{
    Bytes, PairConfig,
    cached::{CachedTokens, Form},
    check,
    connector::{self, Api, Meeting},
    json::{Edit, Edits, Object},
};
use crate::{config::ConnectorKind, fuzz::PIECES, proxy::reply::told};

const MEETING: Meeting = Meeting { prefill: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), room: 77 };

const APIS: [Api; 5] = [Api::Chat, Api::Completions, Api::Responses, Api::Messages, Api::Generate];

/// The bytes are a client's body, and then a prefill's reply too. What each leg of each connector sends is JSON, and
/// differs from the client's in what was edited.
pub fn json_edit(data: &[u8]) {
    let text = Bytes::copy_from_slice(data);
    let object = object(data);
    match check(&text) {
        Ok(()) => {
            let model = |object: &Map<String, Value>| object.get("model")?.as_str().map(str::len);
            assert!(object.as_ref().is_none_or(|object| model(object) > Some(0)), "no model");
        }
        Err(error) => assert!(told(&error).0.is_client_error()),
    }
    for kind in [ConnectorKind::NixlV2, ConnectorKind::SharedStorage, ConnectorKind::Sglang] {
        let connector = connector::of(&PairConfig { connector: kind, ..PairConfig::between(0, 1) });
        let Ok(scanned) = Object::scan(&text, connector.fields()) else { continue };
        let handover = connector.hand_over().map(|read| read(&text)).unwrap_or_default();
        assert!(handover.kv.as_ref().is_none_or(|kv| is_json(kv)));
        let mut all = vec![connector.decode(MEETING, &handover), connector.decode_only()];
        all.extend(APIS.map(|api| connector.prefill(api, MEETING)));
        for edits in all {
            let rope = scanned.edit(&text, &edits);
            let edited = rope.whole();
            assert_eq!(rope.length(), edited.len() as u64);
            assert!(!edits.is_empty() || edited == text, "edited without an edit");
            assert!(is_json(&edited), "{}", String::from_utf8_lossy(&edited));
            if let Some(mut object) = object.clone() {
                apply(&mut object, &edits);
                assert_eq!(members(&edited), Some(object), "{}", String::from_utf8_lossy(&edited));
            }
        }
    }
}

/// The bytes are an answer. In whatever pieces it comes it is the same, and no more is changed in it than one number.
pub fn cached_tokens(data: &[u8]) {
    let [events, one] = [Form::Events, Form::Object].map(|form| {
        let whole = stream(data, form, usize::MAX, usize::MAX);
        for size in PIECES {
            assert_eq!(stream(data, form, size, usize::MAX), whole, "in pieces of {size}");
            // What is too long is not looked at, and not lost.
            let short = stream(data, form, size, 100);
            assert!(whole != data || short == data, "changed in pieces of {size}");
        }
        whole
    });
    changed(data, &one, "");
    let lines = |text| <[u8]>::split_inclusive(text, |byte| matches!(byte, b'\n' | b'\r'));
    assert_eq!(lines(data).count(), lines(&events[..]).count(), "lines come or go");
    for (before, after) in lines(data).zip(lines(&events[..])) {
        changed(before, after, "data:");
    }
}

fn stream(data: &[u8], form: Form, size: usize, limit: usize) -> Vec<u8> {
    let mut edit = CachedTokens::new(Bytes::from_static(b"3"), form, limit);
    let mut out = Vec::new();
    for piece in data.chunks(size) {
        out.extend_from_slice(&edit.push(Bytes::copy_from_slice(piece)));
    }
    out.extend_from_slice(&edit.finish());
    out
}

/// Sees that one object, or one line of events, has the number, if it is one that has a usage.
fn changed(before: &[u8], after: &[u8], prefix: &str) {
    let json = |text| match <[u8]>::strip_prefix(text, prefix.as_bytes()) {
        Some(line) if !prefix.is_empty() => Some(line.trim_ascii_end()),
        other => other,
    };
    let Some(mut object) = json(before).and_then(object) else {
        // What these values cannot tell, such as 1e400, is JSON for an engine.
        assert!(before == after || json(before).is_some_and(is_json) && json(after).is_some_and(is_json));
        return;
    };
    if !object.contains_key("usage") {
        assert_eq!(before, after);
        return;
    }
    let escaped = !String::from_utf8_lossy(before).contains("\"usage\"");
    let number = vec![("cached_tokens", Edit::Put(Bytes::from_static(b"3")))];
    let details = vec![("prompt_tokens_details", Edit::Within(number))];
    apply(&mut object, &vec![("usage", Edit::WithinPresent(details))]);
    let is_edited = json(after).and_then(members) == Some(object);
    assert!(is_edited || escaped && before == after, "{}", String::from_utf8_lossy(after));
}

/// A text as the values of `serde_json`, unless it is something else for these: a number that is too large, half of a
/// surrogate pair, too deep a nesting, or the names by which `serde_json` speaks to itself. Nor where a member may
/// stand so often that it is not looked at.
fn object(text: &[u8]) -> Option<Map<String, Value>> {
    if memchr::memmem::find(text, b"$serde_json").is_some() || memchr::memchr_iter(b':', text).count() > 64 {
        return None;
    }
    members(text)
}

fn members(text: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(text).ok()
}

fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(text).is_ok()
}

/// The same edits of values.
fn apply(object: &mut Map<String, Value>, edits: &Edits) {
    for (name, edit) in edits {
        match edit {
            Edit::Put(value) => drop(object.insert((*name).to_owned(), put(value))),
            Edit::Replace(value) => {
                if let Some(old) = object.get_mut(*name) {
                    *old = put(value);
                }
            }
            Edit::Remove => drop(object.remove(*name)),
            Edit::Within(inner) => {
                let value = object.entry(*name).or_insert(Value::Null);
                if value.is_null() {
                    *value = Value::Object(Map::new());
                }
                within(value, inner);
            }
            Edit::WithinPresent(inner) => {
                if let Some(value) = object.get_mut(*name) {
                    within(value, inner);
                }
            }
        }
    }
}

fn within(value: &mut Value, edits: &Edits) {
    if let Value::Object(object) = value {
        apply(object, edits);
    }
}

fn put(value: &Bytes) -> Value {
    serde_json::from_slice(value).unwrap_or_else(|error| unreachable!("{value:?}: {error}"))
}
