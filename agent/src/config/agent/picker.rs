//! `listeners[].endpointPicker`: which endpoints a proxy is told of.

use std::sync::Arc;

use super::super::{
    PickerConfig, Serves, SetConfig, Trust, defaults, names,
    reader::{Fields, Value},
};
use super::{frontends::role_index, pair};

/// More than any proxy tries.
const MOST_ENDPOINTS: u64 = 16;

/// Reads the field, of a listener of that set: the set, what the listener serves, and its name. With a `role` the
/// destination has that role, and there is no prefill.
pub(super) fn read(
    listener: &mut Fields<'_>,
    value: &Value<'_>,
    set: Option<(usize, &mut SetConfig)>,
) -> Option<(usize, Serves, Arc<str>)> {
    if let Some(other) = listener.get("pair") {
        other.wrong("a listener has a `pair` or an `endpointPicker`, not both");
    }
    let mut fields = value.fields()?;
    let only =
        listener.get("role").map(|value| (value.checked(names::is_label_value, names::LABEL_VALUE), value));
    let mut role = |field, default: &'static str| {
        let given = fields.get(field);
        if let (Some(given), Some(_)) = (&given, &only) {
            given.wrong("a listener with a `role` names that role alone");
        }
        let name = given.as_ref().map(|value| value.checked(names::is_label_value, names::LABEL_VALUE));
        (name.unwrap_or(Some(default)), given.unwrap_or_else(|| value.clone()))
    };
    let pair = [role("prefill", defaults::PREFILL), role("decode", defaults::DECODE)];
    // Who asks for one role is a coordinator; who asks for pairs speaks for anybody.
    let trust = if only.is_some() { Trust::Always } else { Trust::Never };
    let trust = fields.or("trust", trust, pair::trust);
    let endpoints =
        fields.or("endpoints", defaults::PICKER_ENDPOINTS, |value| value.integer(1..=MOST_ENDPOINTS));
    fields.finish();
    let (index, set) = set?;
    let [prefill, decode] = &pair;
    let mut place = |(name, value): &(Option<&str>, Value<'_>)| role_index(set, (*name)?, value);
    let (prefill, decode) = match &only {
        Some(role) => (None, place(role)?),
        None => (Some(place(prefill)?), place(decode)?),
    };
    if prefill == Some(decode) {
        value.wrong("`prefill` and `decode` are the same role");
    }
    let picker = PickerConfig { decode, prefill, trust, endpoints };
    Some((index, Serves::Picker(picker), "endpoint-picker".into()))
}
