//! What a request's headers ask for, and which headers stay on one hop (H3, H12, G6).

#[cfg(feature = "fuzz")]
pub(super) mod fuzz;

use std::net::SocketAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri, Version,
    header::{
        CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
        TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
    request, response,
};

use super::{choose::Want, error::ProxyError, steering::OF_ROUTERS};
use crate::{
    config::{DECISION_HEADER, HeaderSelector, REASON_HEADER},
    gating::Ask,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What is meant for one hop (RFC 9110, 7.6.1), and `Trailer`, as trailers are dropped. The first two say more.
static HOP: [HeaderName; 9] = [
    CONNECTION,
    TRANSFER_ENCODING,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    UPGRADE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
];

/// What a request says about its revision. A name wins over a decision id; empty values count as absent.
pub(super) fn ask<'h>(headers: &'h HeaderMap, revision_header: &HeaderName) -> Result<Ask<'h>, ProxyError> {
    match one_value(headers, revision_header) {
        Ok(Some(name)) => return Ok(Ask::Named(name)),
        Ok(None) => {}
        Err(NotOne::NoText) => return Err(ProxyError::BadRequest("the revision header is not text")),
        Err(NotOne::Several) => {
            return Err(ProxyError::ConflictingRevision { header: revision_header.clone() });
        }
    }
    Ok(match headers.get(DECISION_HEADER).map(HeaderValue::as_bytes) {
        Some(id) if !id.is_empty() => Ask::DecisionId(id),
        _ => Ask::Any,
    })
}

/// The labels that a request asks for by the headers of selectors; empty values count as absent.
pub(super) fn wants(headers: &HeaderMap, selectors: &[HeaderSelector]) -> Result<Vec<Want>, ProxyError> {
    let mut wants = Vec::new();
    for selector in selectors {
        let value = one_value(headers, &selector.header).map_err(|_| {
            ProxyError::BadRequest("a selector's header is not text, or has two different values")
        })?;
        if let Some(value) = value {
            wants.push(Want::Label {
                label: selector.label.clone(),
                value: value.into(),
                mode: selector.mode,
            });
        }
    }
    Ok(wants)
}

/// Why a header does not say one thing.
enum NotOne {
    /// It is not text.
    NoText,
    /// It has different values.
    Several,
}

/// The one value that a header has, in however many lines and list items it says so.
fn one_value<'h>(headers: &'h HeaderMap, header: &HeaderName) -> Result<Option<&'h str>, NotOne> {
    let mut one = None;
    for value in headers.get_all(header) {
        let value = value.to_str().map_err(|_| NotOne::NoText)?;
        for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            match one {
                Some(other) if other != item => return Err(NotOne::Several),
                _ => one = Some(item),
            }
        }
    }
    Ok(one)
}

/// Makes the head of a request fit for an HTTP/1.1 engine, in place, but for the `Host` that a request of HTTP/1.0
/// may lack: whoever sends it gives it one ([`name_host`]) when this says false.
pub(super) fn to_endpoint(
    parts: &mut request::Parts,
    revision_header: &HeaderName,
    selectors: &[HeaderSelector],
) -> Result<bool, ProxyError> {
    if parts.method == Method::CONNECT {
        return Err(ProxyError::Connect);
    }
    let has_host = to_origin_form(parts)?;
    strip_hop_by_hop(&mut parts.headers);
    strip(&mut parts.headers, &OF_ROUTERS);
    // hyper has answered `100-continue` by the time that the body is read.
    parts.headers.remove(EXPECT);
    parts.headers.remove(revision_header);
    for selector in selectors {
        parts.headers.remove(&selector.header);
    }
    if parts.version == Version::HTTP_2 {
        join_cookies(&mut parts.headers);
    }
    parts.version = Version::HTTP_11;
    // Upgrade handles of a protocol that is not offered to the endpoint.
    parts.extensions.clear();
    Ok(has_host)
}

/// Names the endpoint itself as the host, which HTTP/1.1 does not do without (RFC 9112, 3.2).
pub(super) fn name_host(headers: &mut HeaderMap, address: SocketAddr) {
    if let Ok(host) = HeaderValue::from_str(&address.to_string()) {
        headers.insert(HOST, host);
    }
}

/// Makes the head of an endpoint's response fit for the client, in place, whatever version the client speaks.
pub(super) fn to_client(parts: &mut response::Parts) {
    strip_hop_by_hop(&mut parts.headers);
    // Only a response that is not from an endpoint carries a reason.
    parts.headers.remove(REASON_HEADER);
    parts.version = Version::HTTP_11;
    parts.extensions.clear();
}

/// Removes what is meant for one hop, and what `Connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let found = find(headers, &HOP);
    if found == 0 {
        return;
    }
    if let Some(connection) = headers.get(CONNECTION) {
        let plain = connection == "keep-alive" || connection == "close";
        if plain && headers.get_all(CONNECTION).iter().count() == 1 {
            headers.remove(CONNECTION);
        } else {
            strip_named(headers);
        }
    }
    // A message that is chunked has no length (RFC 9112, 6.3); one that says both must not be passed on with both.
    if headers.remove(TRANSFER_ENCODING).is_some() {
        headers.remove(CONTENT_LENGTH);
    }
    remove(headers, &HOP, found);
}

/// Removes headers that are seldom there.
fn strip(headers: &mut HeaderMap, names: &[HeaderName]) {
    let found = find(headers, names);
    remove(headers, names, found);
}

/// Which of these are there, one bit each: comparing a few names is cheaper than hashing each of these.
fn find(headers: &HeaderMap, names: &[HeaderName]) -> u32 {
    let mut found = 0_u32;
    for present in headers.keys() {
        for (index, name) in names.iter().enumerate() {
            if present == name {
                found |= 1 << index;
            }
        }
    }
    found
}

/// Removes those that were found.
fn remove(headers: &mut HeaderMap, names: &[HeaderName], found: u32) {
    if found != 0 {
        for (_, name) in names.iter().enumerate().filter(|(index, _)| found & (1 << index) != 0) {
            headers.remove(name);
        }
    }
}

/// Removes `Connection` and the headers that it names, but for those that frame and address the message.
fn strip_named(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|name| !name.eq_ignore_ascii_case("close") && !name.eq_ignore_ascii_case("keep-alive"))
        .filter_map(|name| name.parse().ok())
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH && *name != TRANSFER_ENCODING)
        .collect();
    headers.remove(CONNECTION);
    for name in named {
        headers.remove(name);
    }
}

/// HTTP/2 and absolute-form targets name the host in the target: it moves to `Host`, and the path stays. False:
/// no host is named, as HTTP/1.0 may.
fn to_origin_form(parts: &mut request::Parts) -> Result<bool, ProxyError> {
    let authority = parts.uri.authority().map(|a| HeaderValue::from_str(a.as_str()));
    if let Some(host) = authority {
        let host = host.map_err(|_| ProxyError::BadRequest("the request target's host is not valid"))?;
        parts.headers.insert(HOST, host);
        parts.uri = match parts.uri.path_and_query() {
            Some(path) => Uri::from(path.clone()),
            None => Uri::from_static("/"),
        };
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), None) => Ok(true),
        (None, _) if parts.version < Version::HTTP_11 => Ok(false),
        (None, _) => Err(ProxyError::BadRequest("the request has no Host header")),
        (Some(_), Some(_)) => Err(ProxyError::BadRequest("the request has two Host headers")),
    }
}

/// HTTP/2 may split cookies over lines; HTTP/1.1 may not (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    if let (Some(first), Some(second)) = (cookies.next(), cookies.next()) {
        let all = [first, second].into_iter().chain(cookies).map(HeaderValue::as_bytes);
        // An empty one would leave a blank at the end, where no value has one.
        let joined = all.filter(|cookie| !cookie.is_empty()).collect::<Vec<_>>().join(&b"; "[..]);
        if let Ok(joined) = HeaderValue::from_bytes(&joined) {
            headers.insert(COOKIE, joined);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REVISION: HeaderName = HeaderName::from_static("x-llm-d-disagg-revision");

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn an_empty_revision_is_absent_and_one_value_may_come_twice() {
        let named = |lines: &[(&str, &str)]| {
            let headers = map(lines);
            ask(&headers, &REVISION).map(|ask| format!("{ask:?}")).map_err(|e| e.reason().word())
        };
        let header = &REVISION.to_string()[..];
        assert_eq!(named(&[]).unwrap(), "Any");
        assert_eq!(named(&[(header, "")]).unwrap(), "Any");
        assert_eq!(named(&[(header, " "), (header, "a")]).unwrap(), r#"Named("a")"#);
        assert_eq!(named(&[(header, "a"), (header, "a")]).unwrap(), r#"Named("a")"#);
        assert_eq!(named(&[(header, "a"), (header, "b")]), Err("conflicting-revision"));
        assert_eq!(named(&[(header, "a, b")]), Err("conflicting-revision"));
    }

    #[test]
    fn a_name_wins_over_a_decision_id() {
        let headers = map(&[(DECISION_HEADER.as_str(), "id"), (REVISION.as_str(), "a")]);
        assert_eq!(ask(&headers, &REVISION).unwrap(), Ask::Named("a"));
        let headers = map(&[(DECISION_HEADER.as_str(), "id")]);
        assert_eq!(ask(&headers, &REVISION).unwrap(), Ask::DecisionId(b"id"));
    }

    #[test]
    fn hop_by_hop_headers_and_those_that_connection_names_go() {
        let mut headers = map(&[
            ("connection", "close, X-Private, host"),
            ("connection", "te"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("trailer", "x-sum"),
            ("upgrade", "websocket"),
            ("host", "h"),
            ("traceparent", "00-1"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("host", "h"), ("traceparent", "00-1")]));
    }

    #[test]
    fn a_chunked_message_loses_its_length() {
        let mut headers = map(&[("transfer-encoding", "chunked"), ("content-length", "5")]);
        strip_hop_by_hop(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn cookies_of_http2_become_one_line() {
        let mut headers = map(&[("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3")]);
        join_cookies(&mut headers);
        assert_eq!(headers, map(&[("cookie", "a=1; b=2; c=3")]));
        let mut headers = map(&[("cookie", "a=1"), ("cookie", "")]);
        join_cookies(&mut headers);
        assert_eq!(headers, map(&[("cookie", "a=1")]));
    }
}
