//! `listeners[].pair`: the two legs of a request, and who may say where they go.

use std::sync::Arc;

use super::super::{
    ConnectorKind, PairConfig, Serves, SetConfig, Trust, defaults, names,
    reader::{Fields, Value},
};
use super::{CONNECTORS, DAY, LEAST, TRUST, frontends::role_index};

/// Far more than there are routers in front; a bound on what a file can ask for.
const MOST_NETWORKS: usize = 256;

/// Reads the field, of a listener of that set: the set, what the listener serves, and its name.
pub(super) fn read(
    listener: &mut Fields<'_>,
    value: &Value<'_>,
    set: Option<(usize, &mut SetConfig)>,
) -> Option<(usize, Serves, Arc<str>)> {
    if let Some(role) = listener.get("role") {
        role.wrong("a listener has a `role` or a `pair`, not both");
    }
    let mut fields = value.fields()?;
    let mut name = |field, default: &'static str| {
        let value = fields.get(field);
        let role = value.as_ref().map(|value| value.checked(names::is_label_value, names::LABEL_VALUE));
        (value, role.unwrap_or(Some(default)))
    };
    let roles = [name("prefill", defaults::PREFILL), name("decode", defaults::DECODE)];
    let mut pair = PairConfig::between(0, 0);
    pair.connector = fields.or("connector", pair.connector, |value| value.one_of("connector", &CONNECTORS));
    pair.bootstrap_port =
        fields.or("bootstrapPort", pair.bootstrap_port, |value| value.integer(1..=u64::from(u16::MAX)));
    let fallback = fields.get("decodeOnlyFallback");
    if let Some(value) = &fallback {
        pair.decode_only_fallback = value.boolean().unwrap_or(false);
        if pair.decode_only_fallback && pair.connector == ConnectorKind::Sglang {
            value.wrong("with `sglang` both legs begin at once: there is no decode to fall back to");
        }
    }
    pair.trust = fields.or("trust", pair.trust, trust);
    pair.prefill_retries = fields.or("prefillRetries", pair.prefill_retries, |value| value.integer(0..=10));
    pair.prefill_backoff =
        fields.or("prefillBackoff", pair.prefill_backoff, |value| value.duration(LEAST..=DAY));
    pair.max_prefill_reply =
        fields.or("maxPrefillReply", pair.max_prefill_reply, |value| value.size(1 << 10..=1 << 30));
    fields.finish();
    let (index, set) = set?;
    let mut role = |(given, name): &(Option<Value<'_>>, Option<&str>)| {
        role_index(set, (*name)?, given.as_ref().unwrap_or(value))
    };
    let [prefill, decode] = &roles;
    (pair.prefill, pair.decode) = (role(prefill)?, role(decode)?);
    if pair.prefill == pair.decode {
        value.wrong("`prefill` and `decode` are the same role");
    }
    Some((index, Serves::Pair(pair), "pair".into()))
}

pub(super) fn trust(value: &Value<'_>) -> Option<Trust> {
    const ALLOWED: &str = "`never`, `always`, or a list of networks such as `10.0.0.0/8`";
    let mut networks = Vec::new();
    for item in value.one_or_more(MOST_NETWORKS)? {
        let text = item.name()?;
        match (TRUST.iter().position(|word| *word == text), value.is_list()) {
            (Some(0), false) => return Some(Trust::Never),
            (Some(_), false) => return Some(Trust::Always),
            _ => {}
        }
        let Ok(network) = text.parse() else {
            item.not_allowed(format!("bad network `{text}`"), ALLOWED);
            return None;
        };
        networks.push(network);
    }
    Some(Trust::Networks(networks))
}
