//! One HTTP request as a proxy tells of it: what has come, what is still to be answered (E1, E2).
//!
//! ```text
//! request:  Expected ─headers─> Announced ─begun─> Reading ─end of the body─> Asked ─picked─> Passing ─end─> Over
//!                                            └────── the body does not matter ────^
//! response: Expected ─headers─> Asked ─stamped─> Passing ─end─> Over
//! ```
//!
//! The two sides know nothing of each other: an engine may answer before it has read the request. What a picker has to
//! decide comes out as a [`Question`]; whoever drives the exchange answers it before the next message. A refusal ends
//! everything.
//!
//! The first message says how the proxy sends bodies. `FULL_DUPLEX_STREAMED` (the endpoint picker protocol's mode): it
//! sends on what it gets back. In every other mode it waits for the answer to the headers and keeps the body, so no
//! reply waits for a body there. A proxy that does not say sends none, as the filter does that is not told to.

use std::{collections::VecDeque, mem, net::SocketAddr};

use bytes::Bytes;
use http::StatusCode;

use super::{
    head::{self, Head, Served},
    proto::envoy::{
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode as Mode,
        service::ext_proc::v3::{
            HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse, ProtocolConfiguration,
            processing_request::Request, processing_response::Response,
        },
    },
    reply::{self, Destination, Headers, Stamps},
};
use crate::gathered::Gathered;

/// What a picker decides.
#[derive(PartialEq, Debug)]
pub enum Question {
    /// May this request begin? Nothing of its body was read. [`Exchange::begun`] or [`Exchange::refused`].
    Begins {
        /// Its headers.
        head: Head,
        /// The endpoints to choose from; `None`: any.
        subset: Option<Vec<SocketAddr>>,
    },
    /// Where does the request go that has begun? [`Exchange::picked`] or [`Exchange::refused`].
    Where {
        /// The whole body, where it matters.
        body: Option<Bytes>,
    },
    /// What is stamped on this response? [`Exchange::stamped`].
    Who {
        /// Its status.
        status: Option<StatusCode>,
        /// Who made it.
        served: Served,
    },
    /// The response is whole. Nothing to answer.
    Whole,
    /// The request's body is longer than allowed: [`Exchange::refused`].
    TooLong,
}

/// What comes next from the proxy, if all goes well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// The request, until it can be answered.
    Request,
    /// The response's headers, and before them more of the request.
    Response,
    /// More of the response's body.
    Body,
    /// The end of the exchange: everything was said.
    End,
    /// Nothing: the proxy keeps the response's body to itself.
    Nothing,
}

/// How much of a request has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// All.
    Whole,
    /// Not all of it.
    Part,
    /// The headers, and a body that the proxy keeps to itself.
    Unseen,
}

/// A message that the protocol does not allow at this point, or one that is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// Headers came twice.
    #[error("the headers of the {0} came before")]
    Again(&'static str),
    /// A body or trailers came without headers: the picker has to be sent these.
    #[error("the {0} has no headers: set the processing mode of its headers to SEND")]
    Headless(&'static str),
    /// Something came after the end.
    #[error("the {0} has ended before")]
    Ended(&'static str),
    /// A question was not answered.
    #[error("the headers of the {0} are not answered yet")]
    Unanswered(&'static str),
    /// None of the messages of `proto/`.
    #[error("a message of an unknown kind")]
    Unknown,
    /// Bodies of gRPC requests.
    #[error("the body mode GRPC is not served: FULL_DUPLEX_STREAMED is")]
    Grpc,
    /// A body mode of a later version of the protocol.
    #[error("the body mode {0} is not known: set FULL_DUPLEX_STREAMED or NONE")]
    UnknownMode(i32),
}

/// How a side's body came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// With the headers: there is none.
    Headers,
    /// With its last part.
    Body,
    /// With trailers.
    Trailers,
}

/// One side of the exchange.
#[derive(Debug)]
enum Side {
    /// Nothing came.
    Expected,
    /// The headers came, and with them perhaps all. Whether the body matters, and how long it will be.
    Announced { ends: bool, matters: bool, length: Option<u64> },
    /// The body is read before the question is asked.
    Reading { body: Gathered },
    /// The question is asked. What was read until then, and how that ended.
    Asked { read: Option<Bytes>, end: Option<End> },
    /// The headers are answered. The length of the body until now.
    Passing { length: u64 },
    /// The end came.
    Over,
}

/// The state of one exchange.
#[derive(Debug)]
pub struct Exchange {
    /// Whether a request's body matters.
    matters: fn(&Head) -> bool,
    /// Longest request body, bytes.
    limit: u64,
    /// How bodies are sent, the request's first. `None` until the first message.
    modes: Option<[Mode; 2]>,
    /// It was not said how bodies are sent. None is waited for, and one that comes is taken to be in full duplex, as an
    /// endpoint picker may expect (Gateway API Inference Extension, proposal 004).
    untold: bool,
    request: Side,
    response: Side,
    out: VecDeque<ProcessingResponse>,
    refused: bool,
}

const REQUEST: &str = "request";
const RESPONSE: &str = "response";

impl Exchange {
    /// Of a request to come. `matters` says whether its body has to be read before it is known where it goes;
    /// `limit` is the longest body in bytes.
    #[must_use]
    pub fn new(matters: fn(&Head) -> bool, limit: u64) -> Self {
        Self {
            matters,
            limit,
            modes: None,
            untold: false,
            request: Side::Expected,
            response: Side::Expected,
            out: VecDeque::new(),
            refused: false,
        }
    }

    /// Takes a message. A question has to be answered before the next one.
    pub fn receive(&mut self, message: ProcessingRequest) -> Result<Option<Question>, Violation> {
        let ProcessingRequest { request, metadata_context, attributes, observability_mode, protocol_config } =
            message;
        let modes = if let Some(modes) = self.modes {
            modes
        } else {
            self.untold = protocol_config.is_none();
            *self.modes.insert(modes(protocol_config.unwrap_or_default())?)
        };
        // Nobody listens, and nothing may be answered.
        if observability_mode || self.refused {
            return Ok(None);
        }
        let metadata = metadata_context.as_ref();
        let [request_mode, response_mode] = modes;
        match request.ok_or(Violation::Unknown)? {
            Request::RequestHeaders(headers) => self.request_headers(headers, head::subset(metadata)),
            Request::RequestBody(body) => self.request_body(body, request_mode),
            Request::RequestTrailers(_) => self.request_trailers(),
            Request::ResponseHeaders(headers) => {
                if !matches!(self.response, Side::Expected) {
                    return Err(Violation::Again(RESPONSE));
                }
                let end = headers.end_of_stream.then_some(End::Headers);
                self.response = Side::Asked { read: None, end };
                let status = Head::new(headers.headers).status();
                let served = head::served(metadata, attributes.get(head::ATTRIBUTES));
                Ok(Some(Question::Who { status, served }))
            }
            Request::ResponseBody(body) => {
                let end = body.end_of_stream;
                passing(&self.response, RESPONSE)?;
                self.pass(Response::ResponseBody, body, response_mode);
                Ok(self.ended(end))
            }
            Request::ResponseTrailers(_) => {
                passing(&self.response, RESPONSE)?;
                self.send(Response::ResponseTrailers(reply::trailers()));
                Ok(self.ended(true))
            }
        }
    }

    fn request_headers(
        &mut self,
        headers: HttpHeaders,
        subset: Option<Vec<SocketAddr>>,
    ) -> Result<Option<Question>, Violation> {
        if !matches!(self.request, Side::Expected) {
            return Err(Violation::Again(REQUEST));
        }
        let head = Head::new(headers.headers);
        let (ends, matters, length) = (headers.end_of_stream, (self.matters)(&head), head.length());
        self.request = Side::Announced { ends, matters, length };
        Ok(Some(Question::Begins { head, subset }))
    }

    /// Answers [`Question::Begins`]: it may. What is asked next, unless its body is read before.
    pub fn begun(&mut self) -> Option<Question> {
        let Side::Announced { ends, matters, length } = self.request else { return None };
        let mode = self.modes.map_or(Mode::None, |[request, _]| request);
        if !ends && mode != Mode::None && length.is_some_and(|length| length > self.limit) {
            return Some(Question::TooLong);
        }
        if !ends && matters && mode == Mode::FullDuplexStreamed {
            self.request = Side::Reading { body: Gathered::new(length) };
            return None;
        }
        self.request = Side::Asked { read: None, end: ends.then_some(End::Headers) };
        // A body that matters and is not there is one that is empty.
        Some(Question::Where { body: (ends && matters).then(Bytes::new) })
    }

    fn request_body(&mut self, body: HttpBody, mode: Mode) -> Result<Option<Question>, Violation> {
        let added = body.body.len() as u64;
        if let Side::Reading { body: read } = &mut self.request {
            if read.length() as u64 + added > self.limit {
                return Ok(Some(Question::TooLong));
            }
            read.add(body.body);
            return Ok(if body.end_of_stream { self.read(End::Body) } else { None });
        }
        let length = passing(&self.request, REQUEST)? + added;
        if length > self.limit {
            return Ok(Some(Question::TooLong));
        }
        self.request = if body.end_of_stream { Side::Over } else { Side::Passing { length } };
        self.pass(Response::RequestBody, body, mode);
        Ok(None)
    }

    fn request_trailers(&mut self) -> Result<Option<Question>, Violation> {
        if let Side::Reading { .. } = self.request {
            return Ok(self.read(End::Trailers));
        }
        passing(&self.request, REQUEST)?;
        self.request = Side::Over;
        self.send(Response::RequestTrailers(reply::trailers()));
        Ok(None)
    }

    /// The body that matters is there.
    fn read(&mut self, end: End) -> Option<Question> {
        let Side::Reading { body } = mem::replace(&mut self.request, Side::Over) else { return None };
        let body = body.finish();
        self.request = Side::Asked { read: Some(body.clone()), end: Some(end) };
        Some(Question::Where { body: Some(body) })
    }

    /// Answers [`Question::Where`].
    pub fn picked(&mut self, destination: Destination) {
        let Side::Asked { read, end } = mem::replace(&mut self.request, Side::Passing { length: 0 }) else {
            return;
        };
        let (headers, metadata) = destination.into_response();
        self.out.push_back(ProcessingResponse {
            response: Some(Response::RequestHeaders(headers)),
            dynamic_metadata: metadata,
        });
        // Before trailers an empty piece would answer nothing.
        if let Some(body) = read.filter(|body| !body.is_empty() || end == Some(End::Body)) {
            for piece in reply::pieces(body, end == Some(End::Body)) {
                self.send(Response::RequestBody(piece));
            }
        }
        if end == Some(End::Trailers) {
            self.send(Response::RequestTrailers(reply::trailers()));
        }
        if end.is_some() {
            self.request = Side::Over;
        }
    }

    /// Answers [`Question::Who`]. A response whose body the proxy keeps to itself is as whole as it will be seen to be.
    pub fn stamped(&mut self, stamps: Stamps) -> Option<Question> {
        let Side::Asked { end, .. } = mem::replace(&mut self.response, Side::Passing { length: 0 }) else {
            return None;
        };
        self.send(Response::ResponseHeaders(stamps.0));
        let unseen = self.due() == Due::Nothing;
        self.ended(end.is_some()).or(unseen.then_some(Question::Whole))
    }

    /// Answers the client with a response of its own, and ends the exchange. `details` is for the proxy's log.
    pub fn refused(&mut self, status: StatusCode, details: &str, head: &Headers, body: Bytes) {
        self.out.clear();
        self.send(Response::ImmediateResponse(reply::immediate(status, details, head, body)));
        self.refused = true;
    }

    /// The next message to send.
    pub fn next_reply(&mut self) -> Option<ProcessingResponse> {
        self.out.pop_front()
    }

    /// Everything is said: the stream may end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.refused && self.out.is_empty()
    }

    /// The request was announced and is not answered: it must not go on.
    #[must_use]
    pub fn is_owing(&self) -> bool {
        !self.refused && is_open(&self.request)
    }

    /// How far its client has sent the request, as far as the proxy shows it.
    #[must_use]
    pub fn sent(&self) -> Sent {
        match (&self.request, self.modes) {
            (Side::Over, _) => Sent::Whole,
            (_, Some([Mode::None, _])) => Sent::Unseen,
            _ => Sent::Part,
        }
    }

    /// What comes next.
    #[must_use]
    pub fn due(&self) -> Due {
        match (&self.request, &self.response) {
            (Side::Expected, Side::Expected) => Due::Request,
            (request, _) if is_open(request) => Due::Request,
            (_, Side::Over) => Due::End,
            (_, Side::Passing { .. }) if self.modes.is_some_and(|[_, mode]| mode != Mode::None) => Due::Body,
            (_, Side::Passing { .. }) => Due::Nothing,
            _ => Due::Response,
        }
    }

    fn send(&mut self, response: Response) {
        self.out.push_back(ProcessingResponse { response: Some(response), dynamic_metadata: Bytes::new() });
    }

    /// Sends a part of a body on, or lets it go on.
    fn pass(
        &mut self,
        as_response: fn(super::proto::envoy::service::ext_proc::v3::BodyResponse) -> Response,
        body: HttpBody,
        mode: Mode,
    ) {
        if mode == Mode::FullDuplexStreamed || self.untold {
            for piece in reply::pieces(body.body, body.end_of_stream) {
                self.send(as_response(piece));
            }
        } else {
            self.send(as_response(reply::unchanged()));
        }
    }

    /// The response is whole, perhaps.
    fn ended(&mut self, end: bool) -> Option<Question> {
        end.then(|| {
            self.response = Side::Over;
            Question::Whole
        })
    }
}

/// How the proxy sends bodies, the request's first.
fn modes(config: ProtocolConfiguration) -> Result<[Mode; 2], Violation> {
    let mode = |number| match Mode::try_from(number) {
        Ok(Mode::Grpc) => Err(Violation::Grpc),
        Ok(mode) => Ok(mode),
        Err(_) => Err(Violation::UnknownMode(number)),
    };
    Ok([mode(config.request_body_mode)?, mode(config.response_body_mode)?])
}

/// Its headers came and are not answered.
fn is_open(side: &Side) -> bool {
    matches!(side, Side::Announced { .. } | Side::Reading { .. } | Side::Asked { .. })
}

/// The length of a body until now, if a part of it may come.
fn passing(side: &Side, name: &'static str) -> Result<u64, Violation> {
    match side {
        Side::Passing { length } => Ok(*length),
        Side::Expected => Err(Violation::Headless(name)),
        Side::Announced { .. } | Side::Asked { .. } | Side::Reading { .. } => {
            Err(Violation::Unanswered(name))
        }
        Side::Over => Err(Violation::Ended(name)),
    }
}

#[cfg(test)]
mod tests;
