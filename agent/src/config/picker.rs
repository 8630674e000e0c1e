//! `kind: EndpointPickerConfig`, as llm-d's users have it: its screener entries become sets.
//!
//! The fields and their rules are those of llm-d's `disaggregatedset-rollout-screener`, both of its present shape
//! (`requiredRoles`, `revisionHeaderName`) and of the earlier one (`headerSelectors`, `requireRoles.values`); a file
//! that llm-d refuses is refused here too.

use std::{collections::HashSet, sync::Arc};

use http::{HeaderName, header};
use revgate_common::layout::{MAX_ROLES, MAX_SETS};

use super::{
    DECISION_HEADER, GatingMode, HeaderSelector, Loaded, REASON_HEADER, Selector, SelectorMode, SetConfig,
    defaults, names, problem,
    reader::{Fields, Value},
};

/// The type of the entries that are revgate's.
pub(super) const PLUGIN: &str = "disaggregatedset-rollout-screener";
/// The words for the gating modes.
pub(super) const GATING_MODES: [(&str, GatingMode); 3] =
    [("max-role", GatingMode::MaxRole), ("sum", GatingMode::Sum), ("disabled", GatingMode::Disabled)];
/// The words for the selector modes.
pub(super) const SELECTOR_MODES: [(&str, SelectorMode); 2] =
    [("strict", SelectorMode::Strict), ("prefer", SelectorMode::Prefer)];

/// Far more than anyone compares; every one costs on every request.
const MOST_SELECTORS: usize = 16;
/// Headers that mean something to HTTP itself or to revgate, so they can name neither revision nor label.
const RESERVED_HEADERS: [HeaderName; 11] = [
    header::HOST,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::TRANSFER_ENCODING,
    header::TRAILER,
    header::TE,
    header::UPGRADE,
    header::AUTHORIZATION,
    DECISION_HEADER,
    REASON_HEADER,
];

/// Reads the document into the sets of `loaded`. Other top-level fields than `plugins` are llm-d's.
pub(super) fn read(mut document: Fields<'_>, loaded: &mut Loaded) {
    let Some(plugins) = document.required("plugins") else { return };
    let mut names: HashSet<Arc<str>> = HashSet::new();
    for plugin in plugins.items(usize::MAX).unwrap_or_default() {
        let Some(mut fields) = plugin.fields() else { continue };
        let Some(kind) = fields.required("type").and_then(|kind| kind.name()) else { continue };
        if kind != PLUGIN {
            if problem::closest(kind, [PLUGIN]).is_some() {
                loaded.warnings.push(format!(
                    "line {}: the plugin type `{kind}` is not revgate's; if it should be, it is spelt `{PLUGIN}`",
                    plugin.at().line
                ));
            }
            loaded.ignored_plugins.push(kind.to_owned());
            continue;
        }
        let name_field = fields.get("name");
        // llm-d names an entry without a name after its type.
        let name: Arc<str> = name_field.as_ref().and_then(Value::name).unwrap_or(PLUGIN).into();
        if !names.insert(name.clone()) {
            let place = name_field.as_ref().unwrap_or(&plugin);
            place.wrong(format!("duplicate name `{name}`: every `{PLUGIN}` entry needs its own `name`"));
        }
        let parameters = fields.required("parameters").and_then(|parameters| parameters.fields());
        fields.finish();
        loaded.config.sets.push(set(name, parameters));
        if loaded.config.sets.len() == MAX_SETS + 1 {
            plugin.wrong(format!("more than {MAX_SETS} sets"));
            break;
        }
    }
    if loaded.config.sets.is_empty() {
        plugins.wrong(format!("no entry of type `{PLUGIN}`: there is nothing to gate"));
    }
}

fn set(name: Arc<str>, parameters: Option<Fields<'_>>) -> SetConfig {
    let mut set = SetConfig {
        name,
        scope: Selector::default(),
        namespaces: Vec::new(),
        mode: GatingMode::Disabled,
        required_roles: Vec::new(),
        roles: Vec::new(),
        ports: Vec::new(),
        pool: None,
        revision_header: defaults::REVISION_HEADER,
        revision_label: defaults::REVISION_LABEL.into(),
        role_label: defaults::ROLE_LABEL.into(),
        selectors: Vec::new(),
    };
    let Some(mut parameters) = parameters else { return set };
    if let Some(mut scope) = parameters.required("scope").and_then(|scope| scope.fields()) {
        if let Some(selector) = scope.required("labelSelector") {
            set.scope = scope_selector(&selector).unwrap_or_default();
        }
        scope.finish();
    }
    let header_field = parameters
        .required("revisionGating")
        .and_then(|gating| gating.fields())
        .and_then(|gating| revision_gating(gating, &mut set));
    header_selectors(parameters.list("headerSelectors", MOST_SELECTORS), header_field.as_ref(), &mut set);
    parameters.finish();
    set.roles.clone_from(&set.required_roles);
    set
}

fn scope_selector(value: &Value<'_>) -> Option<Selector> {
    let text = value.name()?;
    match text.parse::<Selector>() {
        Ok(selector) if selector.is_empty() => value.wrong("must not be empty: it would match every Pod"),
        Ok(selector) => return Some(selector),
        Err(error) => value.not_allowed(
            format!("bad label selector `{text}`: {error}"),
            "requirements joined by `,`: `key=value`, `key==value`, `key!=value`, `key in (a,b)`, \
             `key notin (a,b)`, `key`, `!key`",
        ),
    }
    None
}

/// Reads `revisionGating`; gives the field of the revision header, where there is one.
fn revision_gating<'a>(mut gating: Fields<'a>, set: &mut SetConfig) -> Option<Value<'a>> {
    let mode = gating.required("mode").and_then(|mode| mode.one_of("mode", &GATING_MODES));
    set.mode = mode.unwrap_or(GatingMode::Disabled);
    set.required_roles = required_roles(&mut gating, set.mode);
    let (revision, role) = (gating.get("revisionLabelKey"), gating.get("roleLabelKey"));
    set.revision_label = label_key(revision.as_ref(), defaults::REVISION_LABEL);
    set.role_label = label_key(role.as_ref(), defaults::ROLE_LABEL);
    if set.role_label == set.revision_label {
        role.as_ref().unwrap_or(gating.whole()).wrong("one label cannot hold the revision and the role");
    }
    let header_field = gating.get("revisionHeaderName").filter(|value| !value.is_empty_text());
    if let Some(header) = header_field.as_ref().and_then(own_header) {
        set.revision_header = header;
    }
    gating.finish();
    header_field
}

/// Only `disabled` may do without required roles.
fn required_roles(gating: &mut Fields<'_>, mode: GatingMode) -> Vec<Arc<str>> {
    let present = gating.get("requiredRoles");
    let earlier = gating.get("requireRoles");
    if let (Some(_), Some(earlier)) = (&present, &earlier) {
        earlier.wrong("`requireRoles` is the earlier form of `requiredRoles`: give one of them");
    }
    let earlier_values = earlier.and_then(|earlier| earlier.fields()).and_then(|mut fields| {
        let values = fields.required("values");
        fields.finish();
        values
    });
    let Some(list) = present.or(earlier_values) else {
        if mode != GatingMode::Disabled {
            gating.whole().wrong("the field `requiredRoles` is missing, such as `[prefill, decode]`");
        }
        return Vec::new();
    };
    let items = list.items(MAX_ROLES);
    if items.as_ref().is_some_and(Vec::is_empty) && mode != GatingMode::Disabled {
        list.wrong("must name at least one role, such as `[prefill, decode]`");
    }
    let mut roles: Vec<Arc<str>> = Vec::new();
    for item in items.unwrap_or_default() {
        let Some(role) = item.checked(names::is_label_value, names::LABEL_VALUE) else { continue };
        if roles.iter().any(|known| &**known == role) {
            item.wrong(format!("duplicate role `{role}`"));
        } else {
            roles.push(role.into());
        }
    }
    roles
}

fn label_key(value: Option<&Value<'_>>, default: &str) -> Arc<str> {
    // llm-d takes an empty key for an absent one.
    let given = value.filter(|value| !value.is_empty_text());
    given.and_then(|value| value.checked(names::is_label_key, names::LABEL_KEY)).unwrap_or(default).into()
}

/// A header that may carry a revision or a label.
fn own_header(value: &Value<'_>) -> Option<HeaderName> {
    let header = value.header()?;
    if RESERVED_HEADERS.contains(&header) {
        value.wrong(format!("the header `{header}` has a meaning of its own"));
        return None;
    }
    Some(header)
}

/// Reads `headerSelectors`. A strict one on the revision label is how the earlier shape names the revision header.
fn header_selectors(items: Vec<Value<'_>>, revision_header: Option<&Value<'_>>, set: &mut SetConfig) {
    let mut revision_selector = false;
    let mut headers: Vec<(HeaderName, Value<'_>)> = Vec::new();
    for item in items {
        let Some(selector) = header_selector(&item, set) else { continue };
        if selector.label != set.revision_label {
            headers.push((selector.header.clone(), item));
            set.selectors.push(selector);
        } else if selector.mode == SelectorMode::Prefer {
            item.wrong("the revision cannot be a preference: use `mode: strict`");
        } else if revision_selector {
            item.wrong("a second strict selector on the revision label");
        } else {
            revision_selector = true;
            if revision_header.is_some() && selector.header != set.revision_header {
                item.wrong(format!(
                    "names the revision header `{}`, but `revisionHeaderName` says `{}`",
                    selector.header, set.revision_header
                ));
            }
            set.revision_header = selector.header;
        }
    }
    let mut seen = HashSet::from([set.revision_header.clone()]);
    for (header, item) in headers {
        if !seen.insert(header.clone()) {
            item.wrong(format!("the header `{header}` is used twice in this set"));
        }
    }
}

fn header_selector(item: &Value<'_>, set: &SetConfig) -> Option<HeaderSelector> {
    let mut fields = item.fields()?;
    let name = fields.required("name");
    let header = fields.required("headerName").and_then(|value| own_header(&value));
    let label =
        fields.required("labelKey").and_then(|value| value.checked(names::is_label_key, names::LABEL_KEY));
    let mode = fields.required("mode").and_then(|value| value.one_of("mode", &SELECTOR_MODES));
    fields.finish();
    let name_text = name.as_ref().and_then(Value::name)?;
    if set.selectors.iter().any(|known| &*known.name == name_text) {
        name?.wrong(format!("duplicate name `{name_text}`"));
    }
    Some(HeaderSelector { name: name_text.into(), header: header?, label: label?.into(), mode: mode? })
}
