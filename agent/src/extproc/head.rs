//! What a message's headers, metadata and attributes say (E3).

use std::net::SocketAddr;

use bytes::Bytes;
use prost_types::{Struct, Value, value::Kind};

use super::proto::envoy::config::core::v3::{HeaderMap, HeaderValue, Metadata};

/// The metadata that belongs to load balancing: what is picked, and what served.
pub const NAMESPACE: &str = "envoy.lb";
/// Names the endpoints picked, in headers and in metadata.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
/// Names the endpoint that served, in metadata.
pub const SERVED: &str = "x-gateway-destination-endpoint-served";
/// The metadata that restricts the choice.
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
/// Names the endpoints to choose from, in that metadata.
pub const SUBSET: &str = "x-gateway-destination-endpoint-subset";
/// Whose attributes they are that Envoy's filter sends.
pub const ATTRIBUTES: &str = "envoy.filters.http.ext_proc";
/// The attribute that says how a response came about.
const DETAILS: &str = "response.code_details";
/// Its value where an endpoint made it.
const OF_AN_ENDPOINT: &str = "via_upstream";
/// The attribute that says to which endpoint the proxy was connected.
const UPSTREAM: &str = "upstream.address";

/// The headers of a request or response, in the order of the message.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Head(HeaderMap);

impl Head {
    /// Of a message.
    #[must_use]
    pub fn new(headers: Option<HeaderMap>) -> Self {
        Self(headers.unwrap_or_default())
    }

    /// Each header: its name, in lower case, and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.headers.iter().map(|header| (&*header.key, value(header)))
    }

    /// The first value of a header; empty where there is none.
    #[must_use]
    pub fn first(&self, name: &str) -> &[u8] {
        self.iter().find(|(key, _)| *key == name).map_or(&[], |(_, value)| value)
    }

    /// The length of the body, where it is announced.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        std::str::from_utf8(self.first("content-length")).ok()?.parse().ok()
    }

    /// The status of a response, if it has one.
    #[must_use]
    pub fn status(&self) -> Option<http::StatusCode> {
        http::StatusCode::from_bytes(self.first(":status")).ok()
    }
}

/// Envoy writes one of the two fields, older ones the other.
fn value(header: &HeaderValue) -> &[u8] {
    if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value }
}

/// The endpoints to choose from; `None`: any. What is no address is no endpoint either.
#[must_use]
pub fn subset(metadata: Option<&Metadata>) -> Option<Vec<SocketAddr>> {
    let hint = field(metadata?, SUBSET_NAMESPACE, SUBSET)?;
    let mut subset = Vec::new();
    match &hint.kind {
        Some(Kind::StringValue(text)) => subset.extend(text.split(',').filter_map(address)),
        Some(Kind::ListValue(list)) => {
            subset.extend(list.values.iter().filter_map(|value| address(text(value)?)));
        }
        _ => {}
    }
    Some(subset)
}

/// Who made a response, as far as the proxy says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// It does not say.
    Unsaid,
    /// The endpoint at this address.
    By(SocketAddr),
    /// Somebody, and what is said of the address is none.
    Unclear,
    /// No endpoint: the proxy itself.
    Proxy {
        /// Because the endpoint failed.
        failed: bool,
    },
}

/// Whether a response of Envoy's own is one because an endpoint could not be reached, broke off, or took too long
/// (`response_code_details` in Envoy's documentation). That all connections are taken (`overflow`) is no fault of it.
fn tells_of_an_endpoint(details: &str) -> bool {
    (details.starts_with("upstream_") || details == "response_timeout") && !details.contains("overflow")
}

/// Who made a response: by the metadata of the endpoint picker protocol, or else by Envoy's attributes. A metadata
/// filter cannot tell a response of Envoy's own from an endpoint's, so the attribute that can goes first.
#[must_use]
pub fn served(metadata: Option<&Metadata>, attributes: Option<&Struct>) -> Served {
    let attribute = |name: &str| text(attributes?.fields.get(name)?);
    let details = attribute(DETAILS);
    if let Some(own) = details.filter(|details| *details != OF_AN_ENDPOINT) {
        return Served::Proxy { failed: tells_of_an_endpoint(own) };
    }
    let told = metadata.and_then(|metadata| field(metadata, NAMESPACE, SERVED));
    match (told, details) {
        (Some(told), _) => text(told).and_then(address).map_or(Served::Unclear, Served::By),
        (None, Some(_)) => attribute(UPSTREAM).and_then(address).map_or(Served::Unsaid, Served::By),
        (None, None) => Served::Unsaid,
    }
}

fn field<'m>(metadata: &'m Metadata, namespace: &str, name: &str) -> Option<&'m Value> {
    metadata.filter_metadata.get(namespace)?.fields.get(name)
}

fn text(value: &Value) -> Option<&str> {
    match value.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

/// IPv4-mapped IPv6 is IPv4, as in the snapshot.
#[must_use]
pub fn address(text: &str) -> Option<SocketAddr> {
    let address: SocketAddr = text.trim().parse().ok()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// A header as it is sent.
pub(super) fn header(name: &str, value: Bytes) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value: String::new(), raw_value: value }
}

#[cfg(test)]
mod tests {
    use prost_types::ListValue;

    use super::*;

    fn metadata(namespace: &str, name: &str, kind: Kind) -> Metadata {
        let fields = [(name.to_owned(), Value { kind: Some(kind) })].into();
        Metadata { filter_metadata: [(namespace.to_owned(), Struct { fields })].into() }
    }

    fn string(text: &str) -> Kind {
        Kind::StringValue(text.to_owned())
    }

    #[test]
    fn e3_a_header_is_read_from_either_field() {
        let raw = HeaderValue { key: ":status".into(), value: String::new(), raw_value: "503".into() };
        let plain = HeaderValue { key: ":path".into(), value: "/x".into(), raw_value: Bytes::new() };
        let head = Head::new(Some(HeaderMap { headers: vec![raw, plain] }));
        assert_eq!(head.first(":path"), b"/x");
        assert_eq!(head.status(), Some(http::StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!((head.first("x"), Head::default().status()), (&b""[..], None));
    }

    #[test]
    fn a_length_is_a_number_or_none() {
        let of = |value: &str| {
            let length =
                HeaderValue { key: "content-length".into(), value: value.into(), raw_value: Bytes::new() };
            Head::new(Some(HeaderMap { headers: vec![length] })).length()
        };
        assert_eq!((of("7"), of("-7"), of("7, 7"), Head::default().length()), (Some(7), None, None, None));
    }

    #[test]
    fn e3_a_subset_is_a_list_or_a_comma_list_and_an_empty_one_is_not_none() {
        let of = |kind| subset(Some(&metadata("envoy.lb.subset_hint", SUBSET, kind)));
        let list = |texts: &[&str]| {
            let values = texts.iter().map(|text| Value { kind: Some(string(text)) }).collect();
            Kind::ListValue(ListValue { values })
        };
        let two: Vec<SocketAddr> = ["10.0.0.1:1".parse().unwrap(), "[fd00::1]:2".parse().unwrap()].into();
        assert_eq!(of(list(&["10.0.0.1:1", "pod:8000", "[fd00::1]:2"])), Some(two.clone()));
        assert_eq!(of(string("[::ffff:10.0.0.1]:1, [fd00::1]:2")), Some(two));
        for empty in [list(&[]), string(""), Kind::BoolValue(true)] {
            assert_eq!(of(empty), Some(Vec::new()), "nobody, not anybody");
        }
        assert_eq!(subset(None), None);
        assert_eq!(subset(Some(&metadata("envoy.lb", SUBSET, string("10.0.0.1:1")))), None, "elsewhere");
    }

    #[test]
    fn e3_who_served_is_one_address_or_nobody_that_is_known() {
        let of = |kind| served(Some(&metadata("envoy.lb", SERVED, kind)), None);
        assert_eq!(of(string("10.0.0.1:80")), Served::By("10.0.0.1:80".parse().unwrap()));
        for none in [string("pod:80"), string(""), string("10.0.0.1:80,10.0.0.2:80"), Kind::NumberValue(1.0)]
        {
            assert_eq!(of(none), Served::Unclear);
        }
        assert_eq!(served(None, None), Served::Unsaid);
    }

    #[test]
    fn h1_envoys_attributes_tell_its_own_responses_from_those_of_endpoints() {
        let attributes = |lines: &[(&str, &str)]| {
            let value = |text| Value { kind: Some(string(text)) };
            let fields = lines.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
            Struct { fields }
        };
        let (details, upstream) = ("response.code_details", "upstream.address");
        let address = Served::By("10.0.0.1:80".parse().unwrap());
        let of = |lines: &[(&str, &str)]| served(None, Some(&attributes(lines)));
        assert_eq!(of(&[(details, "via_upstream"), (upstream, "10.0.0.1:80")]), address);
        assert_eq!(of(&[(details, "via_upstream")]), Served::Unsaid);
        assert_eq!(of(&[(upstream, "10.0.0.1:80")]), Served::Unsaid, "where it was connected to, at most");
        let own = attributes(&[(details, "response_timeout"), (upstream, "10.0.0.1:80")]);
        assert_eq!(served(None, Some(&own)), Served::Proxy { failed: true });
        for (own, failed) in [
            (
                "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_111}",
                true,
            ),
            ("upstream_reset_before_response_started{overflow}", false),
            ("no_healthy_upstream", false),
            ("fault_filter_abort", false),
        ] {
            assert_eq!(of(&[(details, own)]), Served::Proxy { failed }, "{own}");
        }
        let told = metadata("envoy.lb", SERVED, string("10.0.0.2:80"));
        assert_eq!(served(Some(&told), Some(&own)), Served::Proxy { failed: true });
        let both = attributes(&[(details, "via_upstream"), (upstream, "10.0.0.1:80")]);
        assert_eq!(served(Some(&told), Some(&both)), Served::By("10.0.0.2:80".parse().unwrap()));
    }
}
