//! What is answered: header changes, bodies in pieces, and responses that no endpoint made (E2, E4, E5).

use std::{fmt::Write as _, net::SocketAddr};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use prost::Message as _;
use prost_types::{Struct, Value, value::Kind};

use super::{
    head::{DESTINATION, NAMESPACE, header},
    proto::envoy::{
        config::core::v3::{HeaderValueOption, header_value_option::HeaderAppendAction},
        service::ext_proc::v3::{
            BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeadersResponse, ImmediateResponse,
            StreamedBodyResponse, TrailersResponse, body_mutation::Mutation,
        },
        r#type::v3::HttpStatus,
    },
};

/// Longest piece of a body, bytes: Envoy takes messages of 64 KiB, their other fields included.
pub const PIECE: usize = 62_000;

/// The header by which llm-d's sidecar learns the prefill endpoint.
pub const PREFILLER: &str = "x-prefiller-host-port";

/// Endpoints, in the order in which they are to be tried: as a header names them, and as metadata do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Named {
    /// Joined by commas.
    header: Bytes,
    /// What is under [`NAMESPACE`], as it is sent.
    pub(super) metadata: Bytes,
}

impl Named {
    /// By their addresses.
    pub fn of(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        let mut text = String::new();
        for address in addresses {
            let comma = if text.is_empty() { "" } else { "," };
            // A string takes whatever is written.
            let _ = write!(text, "{comma}{address}");
        }
        let of = |name: &str, kind| Struct { fields: [(name.to_owned(), Value { kind: Some(kind) })].into() };
        let endpoints = of(DESTINATION, Kind::StringValue(text.clone()));
        let metadata = of(NAMESPACE, Kind::StructValue(endpoints)).encode_to_vec().into();
        Self { header: text.into(), metadata }
    }
}

/// Where a request goes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Destination {
    /// The endpoints.
    pub endpoints: Named,
    /// The prefill endpoint, over whatever the client says.
    pub prefill: Option<Named>,
    /// Headers of the client that go no further.
    pub remove: Vec<String>,
}

/// Changes to a response's headers: a value, or none.
pub type Headers = Vec<(HeaderName, Option<HeaderValue>)>;

/// The answer to a response's headers, as it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stamps(pub(super) Bytes);

impl Stamps {
    /// That changes these.
    #[must_use]
    pub fn of(headers: &[(HeaderName, Option<HeaderValue>)]) -> Self {
        let header_mutation = (!headers.is_empty()).then(|| mutation(headers));
        let common = CommonResponse { header_mutation, ..CommonResponse::default() };
        Self(HeadersResponse { response: Some(common) }.encode_to_vec().into())
    }
}

impl Destination {
    /// The answer to the request's headers.
    pub(super) fn into_response(self) -> (HeadersResponse, Bytes) {
        let Self { endpoints, prefill, mut remove } = self;
        // Removed before it is set: however many lines of it there were, one is left.
        if prefill.is_some() && !remove.iter().any(|name| name == PREFILLER) {
            remove.push(PREFILLER.to_owned());
        }
        let mut set_headers = vec![overwrite(DESTINATION, endpoints.header)];
        set_headers.extend(prefill.map(|prefill| overwrite(PREFILLER, prefill.header)));
        let common = CommonResponse {
            header_mutation: Some(HeaderMutation { set_headers, remove_headers: remove }),
            body_mutation: None,
            clear_route_cache: true,
        };
        (HeadersResponse { response: Some(common) }, endpoints.metadata)
    }
}

fn overwrite(name: &str, value: Bytes) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(header(name, value)),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    }
}

/// As a message has them.
fn mutation(headers: &[(HeaderName, Option<HeaderValue>)]) -> HeaderMutation {
    let mut mutation = HeaderMutation::default();
    for (name, value) in headers {
        // Removed first in any case: one value is left, whatever the engine sent.
        mutation.remove_headers.push(name.as_str().to_owned());
        if let Some(value) = value {
            let value = Bytes::copy_from_slice(value.as_bytes());
            mutation.set_headers.push(overwrite(name.as_str(), value));
        }
    }
    mutation
}

/// Lets a body go on as it is, where the proxy keeps it.
pub(super) fn unchanged() -> BodyResponse {
    BodyResponse { response: Some(CommonResponse::default()) }
}

/// Sends a body on, in pieces; the last one ends it with `end`. One piece at least.
pub(super) fn pieces(mut body: Bytes, end: bool) -> impl Iterator<Item = BodyResponse> {
    let mut done = false;
    std::iter::from_fn(move || {
        if std::mem::replace(&mut done, body.len() <= PIECE) {
            return None;
        }
        let piece = body.split_to(body.len().min(PIECE));
        let streamed = StreamedBodyResponse { body: piece, end_of_stream: end && done };
        let body_mutation = Some(BodyMutation { mutation: Some(Mutation::StreamedResponse(streamed)) });
        Some(BodyResponse { response: Some(CommonResponse { body_mutation, ..CommonResponse::default() }) })
    })
}

/// Lets trailers go on.
pub(super) fn trailers() -> TrailersResponse {
    TrailersResponse { header_mutation: None }
}

/// A response that no endpoint made. `details` is for the proxy's log.
pub(super) fn immediate(status: StatusCode, details: &str, head: &Headers, body: Bytes) -> ImmediateResponse {
    ImmediateResponse {
        status: Some(HttpStatus { code: status.as_u16().into() }),
        headers: Some(mutation(head)),
        body,
        details: details.to_owned(),
    }
}
