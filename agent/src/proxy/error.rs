//! Why a request was not answered by an endpoint, and what its client is told (H11).
//!
//! [`ProxyError`] says what happened, with its cause; [`Reason`] is the one word for it that the status, the metric,
//! the log and the header share.

use std::{io, net::SocketAddr, sync::Arc};

use http::StatusCode;

use crate::gating::Refusal;

/// Why a request was not answered by an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The first Pod list has not come yet.
    #[error("no Pod list has been read yet")]
    NotSynced,
    /// No revision may be chosen.
    #[error("no revision has a Ready Pod in every required role")]
    NoEligibleRevision,
    /// The named revision may not be used, and no other takes its place.
    #[error("the revision that the request names has no Ready Pod in some required role")]
    RevisionNotEligible,
    /// The revision has no endpoint of the listener's role (any more).
    #[error("the revision has no endpoint in role {role:?}")]
    NoEndpoint {
        /// The role.
        role: Arc<str>,
    },
    /// No endpoint has the labels that a strict selector's header asks for.
    #[error("no endpoint of the revision in role {role:?} has the labels that the request's headers ask for")]
    NoMatchingEndpoint {
        /// The role.
        role: Arc<str>,
    },
    /// None of the endpoints that a gateway allows is one of the revision and role.
    #[error("no endpoint of the revision in role {role:?} is one of those that the gateway allows")]
    OutsideSubset {
        /// The role.
        role: Arc<str>,
    },
    /// All were tried.
    #[error("no endpoint of the revision is left to try: {last}")]
    NoEndpointLeft {
        /// Why the last try failed.
        last: Box<ProxyError>,
    },
    /// Every endpoint failed too often of late.
    #[error("every endpoint of the revision in role {role:?} failed repeatedly and is being rested")]
    BreakersOpen {
        /// The role.
        role: Arc<str>,
    },
    /// As many requests as are allowed are in flight.
    #[error("{limit} requests are in flight, which is the limit (http.maxRequests)")]
    Overloaded {
        /// The limit.
        limit: usize,
    },
    /// The revision header has two values.
    #[error("header {header} has two different values")]
    ConflictingRevision {
        /// The header.
        header: http::HeaderName,
    },
    /// The request is not one that can be passed on.
    #[error("{0}")]
    BadRequest(&'static str),
    /// The body of a request with two legs cannot be split between them.
    #[error("the request body cannot be read: {0}")]
    BadJson(String),
    /// It names no model.
    #[error("the request body names no `model`")]
    NoModel,
    /// A trusted router names prefill endpoints, and none of them is a Ready one of the revision.
    #[error(
        "no prefill endpoint that the request names is a Ready one of the chosen revision on a known port"
    )]
    TargetNotAllowed,
    /// The prefill's reply is longer than allowed.
    #[error("endpoint {address} replied with more than {limit} bytes to a prefill (pair.maxPrefillReply)")]
    ReplyTooLarge {
        /// The endpoint.
        address: SocketAddr,
        /// The limit in bytes.
        limit: u64,
    },
    /// CONNECT.
    #[error("this is no forward proxy: CONNECT is not served")]
    Connect,
    /// The client broke or stopped sending its body.
    #[error("the request body broke off")]
    ClientBody,
    /// The client sent nothing of its body for too long.
    #[error("the request body stalled")]
    ClientStalled,
    /// The request body is longer than allowed.
    #[error("the request body is longer than {limit} bytes (http.maxBody)")]
    BodyTooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// This machine cannot make the connection (no more files, ports or memory): no endpoint is to blame.
    #[error("this agent cannot connect to endpoint {address}: {source}")]
    Local {
        /// The endpoint.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel programs allow no connection to the revision and role: their tables are ahead of the agent's.
    #[error("the kernel programs refused a connection to the revision (endpoint {address}): {source}")]
    KernelDenied {
        /// The endpoint chosen.
        address: SocketAddr,
        /// What the programs said.
        source: io::Error,
    },
    /// No connection to an endpoint, after all tries.
    #[error("endpoint {address} cannot be reached: {source}")]
    Unreachable {
        /// The endpoint tried last.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No connection to an endpoint in time.
    #[error("endpoint {address} did not accept a connection in time (http.connectTimeout)")]
    ConnectTimeout {
        /// The endpoint tried last.
        address: SocketAddr,
    },
    /// The endpoint closed or broke the connection before the head of its response.
    #[error("endpoint {address} broke off before its response: {source}")]
    Broken {
        /// The endpoint.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The endpoint answered with something that is no HTTP response to this request.
    #[error("endpoint {address} sent no valid response")]
    BadResponse {
        /// The endpoint.
        address: SocketAddr,
    },
    /// The head of the response did not come in time, or the endpoint stopped reading the request.
    #[error("endpoint {address} did not answer in time (http.responseTimeout)")]
    ResponseTimeout {
        /// The endpoint.
        address: SocketAddr,
    },
}

/// The one word for a [`ProxyError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// See [`ProxyError::NotSynced`].
    NotSynced,
    /// See [`ProxyError::NoEligibleRevision`].
    NoEligibleRevision,
    /// See [`ProxyError::RevisionNotEligible`].
    RevisionNotEligible,
    /// See [`ProxyError::NoEndpoint`].
    NoEndpoint,
    /// See [`ProxyError::NoMatchingEndpoint`].
    NoMatchingEndpoint,
    /// See [`ProxyError::OutsideSubset`].
    OutsideSubset,
    /// See [`ProxyError::NoEndpointLeft`].
    NoEndpointLeft,
    /// See [`ProxyError::BreakersOpen`].
    BreakersOpen,
    /// See [`ProxyError::Overloaded`].
    Overloaded,
    /// See [`ProxyError::ConflictingRevision`].
    ConflictingRevision,
    /// See [`ProxyError::BadRequest`] and [`ProxyError::ClientBody`].
    BadRequest,
    /// What came is no head of an HTTP/1.1 request. The connection ends without a request, so there is no error for it.
    BadHead,
    /// The head of an HTTP/1.1 request is larger than `http.maxHead`. Likewise.
    HeadTooLarge,
    /// See [`ProxyError::BadJson`].
    BadJson,
    /// See [`ProxyError::NoModel`].
    NoModel,
    /// See [`ProxyError::TargetNotAllowed`].
    TargetNotAllowed,
    /// See [`ProxyError::Connect`].
    MethodNotAllowed,
    /// See [`ProxyError::ClientStalled`].
    RequestTimeout,
    /// See [`ProxyError::BodyTooLarge`].
    BodyTooLarge,
    /// See [`ProxyError::Local`].
    LocalError,
    /// See [`ProxyError::KernelDenied`].
    KernelDenied,
    /// See [`ProxyError::Unreachable`].
    EndpointUnreachable,
    /// See [`ProxyError::ConnectTimeout`].
    ConnectTimeout,
    /// See [`ProxyError::Broken`].
    EndpointReset,
    /// See [`ProxyError::BadResponse`].
    BadResponse,
    /// See [`ProxyError::ReplyTooLarge`].
    ReplyTooLarge,
    /// See [`ProxyError::ResponseTimeout`].
    ResponseTimeout,
}

impl Reason {
    /// Every reason, in index order.
    pub const ALL: [Self; 27] = [
        Self::NotSynced,
        Self::NoEligibleRevision,
        Self::RevisionNotEligible,
        Self::NoEndpoint,
        Self::NoMatchingEndpoint,
        Self::OutsideSubset,
        Self::NoEndpointLeft,
        Self::BreakersOpen,
        Self::Overloaded,
        Self::ConflictingRevision,
        Self::BadRequest,
        Self::BadHead,
        Self::HeadTooLarge,
        Self::BadJson,
        Self::NoModel,
        Self::TargetNotAllowed,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::BodyTooLarge,
        Self::LocalError,
        Self::KernelDenied,
        Self::EndpointUnreachable,
        Self::ConnectTimeout,
        Self::EndpointReset,
        Self::BadResponse,
        Self::ReplyTooLarge,
        Self::ResponseTimeout,
    ];

    /// The word, as it stands in the metric, the log and the header.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotSynced => "not-synced",
            Self::NoEligibleRevision => "no-eligible-revision",
            Self::RevisionNotEligible => "revision-not-eligible",
            Self::NoEndpoint => "no-endpoint",
            Self::NoMatchingEndpoint => "no-matching-endpoint",
            Self::OutsideSubset => "outside-subset",
            Self::NoEndpointLeft => "no-endpoint-left",
            Self::BreakersOpen => "breakers-open",
            Self::Overloaded => "overloaded",
            Self::ConflictingRevision => "conflicting-revision",
            Self::BadRequest => "bad-request",
            Self::BadHead => "bad-head",
            Self::HeadTooLarge => "head-too-large",
            Self::BadJson => "bad-json",
            Self::NoModel => "no-model",
            Self::TargetNotAllowed => "target-not-allowed",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::RequestTimeout => "request-timeout",
            Self::BodyTooLarge => "body-too-large",
            Self::LocalError => "local-error",
            Self::KernelDenied => "kernel-denied",
            Self::EndpointUnreachable => "endpoint-unreachable",
            Self::ConnectTimeout => "connect-timeout",
            Self::EndpointReset => "endpoint-reset",
            Self::BadResponse => "bad-response",
            Self::ReplyTooLarge => "reply-too-large",
            Self::ResponseTimeout => "response-timeout",
        }
    }

    /// The status of the response.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::ConflictingRevision | Self::BadRequest | Self::BadHead | Self::BadJson | Self::NoModel => {
                StatusCode::BAD_REQUEST
            }
            Self::TargetNotAllowed => StatusCode::FORBIDDEN,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotSynced
            | Self::NoEligibleRevision
            | Self::RevisionNotEligible
            | Self::NoEndpoint
            | Self::NoMatchingEndpoint
            | Self::OutsideSubset
            | Self::NoEndpointLeft
            | Self::BreakersOpen
            | Self::Overloaded
            | Self::LocalError
            | Self::KernelDenied => StatusCode::SERVICE_UNAVAILABLE,
            Self::EndpointUnreachable | Self::EndpointReset | Self::BadResponse | Self::ReplyTooLarge => {
                StatusCode::BAD_GATEWAY
            }
            Self::ConnectTimeout | Self::ResponseTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl ProxyError {
    /// What an endpoint sent is no HTTP. In which way is for the log.
    pub(super) fn not_http(address: SocketAddr, what: &'static str) -> Self {
        tracing::debug!(%address, what, "no valid response");
        Self::BadResponse { address }
    }

    /// The one word for it.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        match self {
            Self::NotSynced => Reason::NotSynced,
            Self::NoEligibleRevision => Reason::NoEligibleRevision,
            Self::RevisionNotEligible => Reason::RevisionNotEligible,
            Self::NoEndpoint { .. } => Reason::NoEndpoint,
            Self::NoMatchingEndpoint { .. } => Reason::NoMatchingEndpoint,
            Self::OutsideSubset { .. } => Reason::OutsideSubset,
            Self::NoEndpointLeft { .. } => Reason::NoEndpointLeft,
            Self::BreakersOpen { .. } => Reason::BreakersOpen,
            Self::Overloaded { .. } => Reason::Overloaded,
            Self::ConflictingRevision { .. } => Reason::ConflictingRevision,
            Self::BadRequest(_) | Self::ClientBody => Reason::BadRequest,
            Self::BadJson(_) => Reason::BadJson,
            Self::NoModel => Reason::NoModel,
            Self::TargetNotAllowed => Reason::TargetNotAllowed,
            Self::ReplyTooLarge { .. } => Reason::ReplyTooLarge,
            Self::Connect => Reason::MethodNotAllowed,
            Self::ClientStalled => Reason::RequestTimeout,
            Self::BodyTooLarge { .. } => Reason::BodyTooLarge,
            Self::Local { .. } => Reason::LocalError,
            Self::KernelDenied { .. } => Reason::KernelDenied,
            Self::Unreachable { .. } => Reason::EndpointUnreachable,
            Self::ConnectTimeout { .. } => Reason::ConnectTimeout,
            Self::Broken { .. } => Reason::EndpointReset,
            Self::BadResponse { .. } => Reason::BadResponse,
            Self::ResponseTimeout { .. } => Reason::ResponseTimeout,
        }
    }
}

impl From<Refusal> for ProxyError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoneEligible => Self::NoEligibleRevision,
            Refusal::NamedNotEligible => Self::RevisionNotEligible,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_word_and_place() {
        let mut words: Vec<_> = Reason::ALL.iter().map(|r| r.word()).collect();
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert!(reason.status().is_client_error() || reason.status().is_server_error());
        }
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Reason::ALL.len());
    }

    #[test]
    fn h11_the_table_of_operations_md_has_every_reason_with_its_status_in_this_order() {
        let text = include_str!("../../../docs/operations.md");
        let table = text.split("| reason | status | what happened |\n|---|---|---|\n").nth(1).unwrap();
        let rows: Vec<_> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), Reason::ALL.len());
        for (row, reason) in rows.iter().zip(Reason::ALL) {
            let start = format!("| `{}` | {} | ", reason.word(), reason.status().as_u16());
            assert!(row.starts_with(&start), "{row}: {start}");
        }
    }
}
