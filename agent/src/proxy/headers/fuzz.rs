//! What a request's head asks for, whom it is believed, and what goes on of it to an engine; and of an answer to a
//! client.

#![allow(clippy::missing_panics_doc, reason = "to panic is how a target fails")]

use http::Request;

use super::{
    Ask, HOP, HOST, HeaderMap, HeaderName, HeaderSelector, HeaderValue, Method, OF_ROUTERS, REASON_HEADER,
    Uri, Version, ask, name_host, request, response, to_client, to_endpoint, wants,
};
use crate::{
    config::SelectorMode,
    proxy::{link, pair::trust, reply::told, steering},
};

const REVISION: HeaderName = HeaderName::from_static("x-llm-d-disagg-revision");

/// The first line is a method and a target, each other one a header; what is no header is left out.
pub fn routing_headers(data: &[u8]) {
    let Some(request) = request(data) else { return };
    let selector = |name: &'static str, mode| HeaderSelector {
        name: name.into(),
        header: HeaderName::from_static(name),
        label: name.into(),
        mode,
    };
    let selectors = [selector("x-slice", SelectorMode::Strict), selector("x-zone", SelectorMode::Prefer)];
    for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
        for trusted in [true, false] {
            let mut request = request.clone();
            request.version = version;
            pass_on(request, trusted, &selectors);
        }
    }
}

fn request(data: &[u8]) -> Option<request::Parts> {
    let mut lines = data.split(|byte| *byte == b'\n');
    let mut first = lines.next()?.splitn(2, |byte| *byte == b' ');
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = Method::from_bytes(first.next()?).ok()?;
    parts.uri = Uri::try_from(first.next()?.trim_ascii_end()).ok()?;
    for line in lines {
        let mut halves = line.splitn(2, |byte| *byte == b':');
        let name = HeaderName::from_bytes(halves.next().unwrap_or_default());
        let value = HeaderValue::from_bytes(halves.next().unwrap_or_default().trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value)
            && parts.headers.try_append(name, value).is_err()
        {
            break;
        }
    }
    Some(parts)
}

fn pass_on(mut request: request::Parts, trusted: bool, selectors: &[HeaderSelector]) {
    if !trusted {
        trust::distrust(&mut request.headers, &REVISION, selectors);
        assert!(matches!(ask(&request.headers, &REVISION), Ok(Ask::Any)), "a stranger steers by revision");
        assert!(wants(&request.headers, selectors).is_ok_and(|wants| wants.is_empty()), "or by labels");
        assert_eq!(trust::prefillers(&request.headers), None, "or names its prefill endpoint");
    }
    match ask(&request.headers, &REVISION) {
        Ok(Ask::Named(name)) => assert!(!name.is_empty() && !name.contains(',') && name.trim() == name),
        Ok(Ask::DecisionId(id)) => assert!(!id.is_empty()),
        Ok(Ask::Any) => {}
        Err(error) => assert!(told(&error).0.is_client_error()),
    }
    if let Err(error) = wants(&request.headers, selectors) {
        assert!(told(&error).0.is_client_error());
    }
    let named = trust::prefillers(&request.headers).unwrap_or_default();
    assert!(named.iter().all(|address| address.ip().to_canonical() == address.ip()), "{named:?}");
    steering::remove_all(&mut request.headers);
    assert!(trust::name_request(&mut request.headers, || 7).is_ok());

    match to_endpoint(&mut request, &REVISION, selectors) {
        Ok(has_host) => {
            let selectors = selectors.iter().map(|selector| selector.header.clone());
            let kept = HOP.iter().chain(&OF_ROUTERS).cloned().chain([REVISION]).chain(selectors);
            assert_none_of(&request.headers, kept);
            assert!(request.headers.keys().all(|name| !steering::is_taken_out(name.as_str(), false, true)));
            assert_eq!(request.headers.get_all(HOST).iter().count(), usize::from(has_host));
            assert!(request.uri.authority().is_none(), "{}", request.uri);
            if !has_host {
                name_host(&mut request.headers, ([10, 0, 0, 1], 8000).into());
            }
            link::fuzz::reads_back(&request);
        }
        Err(error) => assert!(told(&error).0.is_client_error()),
    }
}

/// What an engine says goes to the client without what is of one hop, or revgate's own to say.
pub(in crate::proxy) fn answers(mut answer: response::Parts) {
    to_client(&mut answer);
    assert_none_of(&answer.headers, HOP.iter().cloned().chain([REASON_HEADER]));
}

fn assert_none_of(headers: &HeaderMap, mut names: impl Iterator<Item = HeaderName>) {
    assert_eq!(names.find(|name| headers.contains_key(name)), None, "is passed on");
}
