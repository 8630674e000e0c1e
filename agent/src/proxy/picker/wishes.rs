//! What the headers of a request say about where it is to go, and which of them go no further (H3, H12, G6).

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    config::{DECISION_HEADER, HeaderSelector},
    extproc::{Head, head::DESTINATION},
    gating::Ask,
    proxy::{choose::Want, error::ProxyError, headers, steering},
};

/// What a request asks for, under the names that the headers had when it began: a configuration that gives them others
/// before its body is there makes no other request of it.
#[derive(Default)]
pub(super) struct Wishes {
    /// The header that names a revision; `None`: the request has not begun.
    revision: Option<HeaderName>,
    selectors: Arc<[HeaderSelector]>,
    /// The headers that count.
    steering: HeaderMap,
    /// Those that are taken out of it.
    pub(super) remove: Vec<String>,
}

impl Wishes {
    /// Of a request's headers, which count where its client is trusted. `pairs`: the prefill endpoint is picked here.
    pub(super) fn of(
        head: &Head,
        revision: &HeaderName,
        selectors: &Arc<[HeaderSelector]>,
        trusted: bool,
        pairs: bool,
    ) -> Result<Self, ProxyError> {
        let (name, selectors) = (Some(revision.clone()), Arc::clone(selectors));
        let mut wishes = Self { revision: name, selectors, ..Self::default() };
        for (name, value) in head.iter() {
            let asks = revision == name || wishes.selectors.iter().any(|selector| selector.header == name);
            // The destination is overwritten.
            if name != DESTINATION
                && (asks || steering::is_taken_out(name, trusted, pairs))
                && !wishes.remove.iter().any(|known| known == name)
            {
                wishes.remove.push(name.to_owned());
            }
            if trusted && (asks || DECISION_HEADER == name) {
                let name = HeaderName::from_bytes(name.as_bytes()).ok();
                let (Some(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) else {
                    return Err(ProxyError::BadRequest("a header that steers is not one that HTTP allows"));
                };
                wishes.steering.append(name, value);
            }
        }
        Ok(wishes)
    }

    /// What it says about its revision.
    pub(super) fn ask(&self) -> Result<Ask<'_>, ProxyError> {
        self.revision.as_ref().map_or(Ok(Ask::Any), |name| headers::ask(&self.steering, name))
    }

    /// What it asks of its endpoints.
    pub(super) fn wants(&self) -> Result<Vec<Want>, ProxyError> {
        headers::wants(&self.steering, &self.selectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extproc::proto::envoy::config::core::v3::{HeaderMap as Lines, HeaderValue as Line};

    const REVISION: HeaderName = HeaderName::from_static("x-rev");

    fn head(lines: &[(&str, &[u8])]) -> Head {
        let line = |(name, value): &(&str, &[u8])| Line {
            key: (*name).to_owned(),
            value: String::new(),
            raw_value: value.to_vec().into(),
        };
        Head::new(Some(Lines { headers: lines.iter().map(line).collect() }))
    }

    fn none() -> Arc<[HeaderSelector]> {
        Arc::new([])
    }

    #[test]
    fn h3_headers_of_nobody_that_is_trusted_are_taken_out_and_not_heard() {
        let head = head(&[
            ("x-rev", b"a"),
            ("x-rev", b"b"),
            ("x-llm-d-revision-decision-id", b"id"),
            ("x-encoder-hosts-ports", b"10.0.0.1:80"),
            ("x-gateway-destination-endpoint", b"10.0.0.1:80"),
            ("accept", b"*/*"),
        ]);
        let of = |trusted| Wishes::of(&head, &REVISION, &none(), trusted, true).unwrap();
        let nobody = of(false);
        assert!(matches!(nobody.ask(), Ok(Ask::Any)));
        assert_eq!(nobody.remove, ["x-rev", "x-llm-d-revision-decision-id", "x-encoder-hosts-ports"]);
        let somebody = of(true);
        assert!(matches!(somebody.ask(), Err(ProxyError::ConflictingRevision { .. })));
        assert_eq!(somebody.remove, ["x-rev", "x-llm-d-revision-decision-id"]);
    }

    #[test]
    fn g6_a_revision_that_http_does_not_allow_is_not_none() {
        let head = head(&[("x-rev", b"a\nb")]);
        let refused = Wishes::of(&head, &REVISION, &none(), true, true).err();
        assert!(matches!(refused, Some(ProxyError::BadRequest(_))), "{refused:?}");
        assert!(Wishes::of(&head, &REVISION, &none(), false, true).is_ok(), "nobody listens");
    }
}
