//! Which headers of a client are believed, and what a leg carries (H3, H12, H13).

use std::net::SocketAddr;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    config::HeaderSelector,
    extproc::head,
    proxy::{
        error::ProxyError,
        steering::{self, PREFILLER},
    },
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Most prefill endpoints that are looked at.
const MOST: usize = 16;

/// Removes what a client that is not trusted may not say: all that steers.
pub(in crate::proxy) fn distrust(
    headers: &mut HeaderMap,
    revision: &HeaderName,
    selectors: &[HeaderSelector],
) {
    steering::remove_all(headers);
    headers.remove(revision);
    for selector in selectors {
        headers.remove(&selector.header);
    }
}

/// The prefill endpoints that a trusted router names, the best one first; `None` where it names none. Values that are
/// no address are passed over, as are the scheme that old routers write.
pub(in crate::proxy) fn prefillers(headers: &HeaderMap) -> Option<Vec<SocketAddr>> {
    let mut named = false;
    let mut addresses = Vec::new();
    for value in headers.get_all(PREFILLER) {
        for item in value.to_str().unwrap_or("?").split(',').map(str::trim).filter(|item| !item.is_empty()) {
            named = true;
            addresses.extend(head::address(item.strip_prefix("http://").unwrap_or(item)));
        }
    }
    addresses.truncate(MOST);
    named.then_some(addresses)
}

/// Gives a request the one id that both legs carry: its own first one, or else `fresh`.
pub(in crate::proxy) fn name_request(
    headers: &mut HeaderMap,
    fresh: impl FnOnce() -> u128,
) -> Result<(), ProxyError> {
    let own = headers.get(REQUEST_ID).filter(|id| !id.is_empty());
    let id = match own {
        Some(id) => id.clone(),
        None => HeaderValue::from_str(&format!("{:032x}", fresh()))
            .map_err(|_| ProxyError::BadRequest("the request id is not text"))?,
    };
    headers.insert(REQUEST_ID, id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SelectorMode;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn h3_an_untrusted_client_steers_nothing() {
        let mut headers = map(&[
            ("x-rev", "b"),
            ("x-slice", "1"),
            ("x-prefiller-host-port", "10.0.0.1:8000"),
            ("x-prefiller-host-port", "10.0.0.2:8000"),
            ("x-llm-d-revision-decision-id", "id"),
            ("x-gateway-destination-endpoint", "10.0.0.1:8000"),
            ("x-gateway-destination-endpoint-served", "10.0.0.1:8000"),
            ("traceparent", "00-1"),
            ("authorization", "Bearer x"),
        ]);
        let selector = HeaderSelector {
            name: "slice".into(),
            header: HeaderName::from_static("x-slice"),
            label: "slice".into(),
            mode: SelectorMode::Prefer,
        };
        distrust(&mut headers, &HeaderName::from_static("x-rev"), &[selector]);
        assert_eq!(headers, map(&[("traceparent", "00-1"), ("authorization", "Bearer x")]));
    }

    #[test]
    fn h13_several_prefillers_are_one_list_and_what_is_no_address_is_passed_over() {
        let of = |lines: &[(&str, &str)]| prefillers(&map(lines));
        let header = "x-prefiller-host-port";
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(header, " , ")]), None, "empty is absent");
        assert_eq!(of(&[(header, "pod-1:8000")]), Some(Vec::new()), "a name is none of ours");
        let found =
            of(&[(header, "x, 10.0.0.1:8000"), (header, "http://10.0.0.2:8000,[::ffff:10.0.0.3]:80")]);
        let found: Vec<_> = found.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:80"]);
    }

    #[test]
    fn h8_a_request_has_one_id_its_own_or_a_fresh_one() {
        let named = |lines: &[(&str, &str)]| {
            let mut headers = map(lines);
            name_request(&mut headers, || 7).unwrap();
            let ids: Vec<_> =
                headers.get_all(REQUEST_ID).iter().map(|id| id.to_str().unwrap().to_owned()).collect();
            ids
        };
        assert_eq!(named(&[("x-request-id", "a"), ("x-request-id", "b")]), ["a"]);
        assert_eq!(named(&[]), [format!("{:032x}", 7)]);
        assert_eq!(named(&[("x-request-id", "")]), [format!("{:032x}", 7)]);
    }
}
