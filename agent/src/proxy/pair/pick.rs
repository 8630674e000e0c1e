//! The endpoints of a pair: a prefill of the revision, and a decode beside it. Shared by pair listeners, which run the
//! legs, and endpoint pickers, which only name them.

use std::sync::Arc;

use crate::{
    config::{HeaderSelector, SelectorMode},
    proxy::{
        choose::{Rules, Want},
        error::ProxyError,
        table::{Chosen, RoleTable},
    },
};

/// An endpoint of the revision (of any, with `None`).
pub(in crate::proxy) fn first(
    table: &mut RoleTable,
    revision: Option<&str>,
    wants: &[Want],
    rules: Rules,
) -> Result<Chosen, ProxyError> {
    let role = table.role();
    table.choose(revision, &[], wants, rules)?.ok_or(ProxyError::NoEndpoint { role })
}

/// How many prefill endpoints count, if a decode endpoint does.
pub(in crate::proxy) fn of_both(
    prefills: &RoleTable,
    decodes: &RoleTable,
    count: impl Fn(&RoleTable) -> usize,
) -> usize {
    if count(decodes) == 0 { 0 } else { count(prefills) }
}

/// A decode endpoint of the prefill's revision, and what was asked of it. The KV cache goes from one to the other:
/// what is preferred is preferred to be the same. Where there is none, nothing is asked of the prefill either.
pub(in crate::proxy) fn beside(
    prefill: &Chosen,
    decodes: &mut RoleTable,
    mut wants: Vec<Want>,
    selectors: &[HeaderSelector],
    rules: Rules,
) -> Result<(Chosen, Vec<Want>), ProxyError> {
    let endpoint = &prefill.target.endpoint;
    for selector in selectors.iter().filter(|selector| selector.mode == SelectorMode::Prefer) {
        let value = endpoint.pod.labels.get(&selector.label);
        if let Some(value) = value.filter(|_| !wants.iter().any(|want| want.is_of(&selector.label))) {
            let (label, value) = (Arc::clone(&selector.label), Box::from(&**value));
            wants.push(Want::Label { label, value, mode: SelectorMode::Prefer });
        }
    }
    let decode =
        first(decodes, Some(&endpoint.revision), &wants, rules).inspect_err(|_| prefill.give_back(rules))?;
    Ok((decode, wants))
}
