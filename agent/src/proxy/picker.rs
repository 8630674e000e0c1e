//! A listener that picks and does not carry: a proxy asks by gRPC where each of its requests goes (E1 to E6).
//!
//! ```text
//! Process ─> call (messages in, messages out) ─> extproc::Exchange (the protocol, pure)
//!                                            └─> conversation (which endpoint: wishes; who answered: outcome)
//! Check, List, Watch ─> health
//! ```
//!
//! tonic's message framing over the worker's own HTTP/2 server: a call is a future of its connection, as a request is,
//! and ends with it. tonic's own server would want it to move between threads.

mod call;
mod conversation;
mod health;
mod outcome;
mod wishes;

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Version, header::CONTENT_TYPE};
use http_body::Body;
use http_body_util::{BodyExt, Either, Empty};
use hyper::{body::Incoming, server::conn::http2};
use tonic::{
    Status, Streaming,
    codec::{BufferSettings, EncodeBody, SingleMessageCompressionOverride},
    metadata::GRPC_CONTENT_TYPE,
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::{
    client::{Client, Local},
    listener::{Listener, Plan},
    metrics::ListenerMetrics,
    reply::InFlight,
    table::RoleTable,
};
use crate::{
    config::{HttpConfig, PickerConfig, Serves},
    extproc::proto::envoy::service::ext_proc::v3::ProcessingResponse,
};
use call::Call;
use conversation::Conversation;

/// What an endpoint picker has besides the endpoints of its destinations.
pub(super) struct Picker {
    /// Its prefill endpoints, where it names them.
    pub(super) prefills: Option<RefCell<RoleTable>>,
    pub(super) config: PickerConfig,
    /// When it was last said that the gateway does not keep to what it is told, milliseconds; 0: never.
    warned: Cell<u64>,
}

/// How often it is said at most, milliseconds.
const WARN_EVERY: u64 = 60_000;

impl Picker {
    /// Of a listener that is one.
    pub(super) fn of(plan: &Plan, metrics: &Rc<ListenerMetrics>) -> Option<Self> {
        let Serves::Picker(config) = &plan.config.serves else { return None };
        let table = |role: &Arc<str>| {
            RefCell::new(RoleTable::new(Arc::clone(&plan.set), Arc::clone(role), Rc::clone(metrics)))
        };
        Some(Self {
            prefills: plan.prefill.as_ref().map(table),
            config: config.clone(),
            warned: Cell::new(0),
        })
    }

    /// Whether it is time to say again that the gateway does not keep to what it is told.
    fn may_warn(&self, now: u64) -> bool {
        let last = self.warned.get();
        let may = last == 0 || now.saturating_sub(last) >= WARN_EVERY;
        if may {
            self.warned.set(now);
        }
        may
    }
}

/// The service that is asked.
const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

/// What a call is answered with.
pub(super) type PickerBody = Either<EncodeBody<ProstEncoder<ProcessingResponse>, Call>, Other>;

/// What every other call is answered with.
type Other = Pin<Box<dyn Body<Data = Bytes, Error = Status>>>;

/// What a message has besides its piece of a body.
const FRAME: usize = 64 * 1024;
/// As much of a body as a message may hold in any case: a proxy sends what it has read, of responses too, which
/// `http.maxBody` is not about, and of requests that are over it and are to be told so. Envoy's buffers are of 1 MiB, and
/// gRPC's own limit for a message is this.
const PIECE: usize = 4 << 20;

/// Bytes of each stream and of all streams of a connection that may come unasked. A request whose engine does not read
/// keeps its own stream waiting, and not those of all others.
const STREAM_WINDOW: u32 = 256 << 10;
/// Calls that a proxy may reset before they are looked at: all of its clients share one connection, and each that leaves
/// is a reset.
const RESETS: usize = 1024;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// More than a sweep is late.
const PING_LATER: Duration = Duration::from_secs(2);

/// How a proxy's connection is served: each of its requests is one call, and lasts as long. A proxy that is frozen, or
/// whose node is lost, holds what its calls hold until it does not answer a ping; pings come later than the end of a
/// connection that is merely idle.
pub(super) fn configure(builder: &mut http2::Builder<Local>, http: &HttpConfig) {
    builder
        .keep_alive_interval(http.idle_timeout.saturating_add(PING_LATER))
        .keep_alive_timeout(http.idle_timeout)
        .max_concurrent_streams(u32::try_from(http.max_requests).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(RESETS);
}

/// Answers one call.
pub(super) fn respond(
    listener: Rc<Listener>,
    client: Rc<Client>,
    request: Request<Incoming>,
) -> Response<PickerBody> {
    let grpc = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(GRPC_CONTENT_TYPE.as_bytes()));
    if !grpc || request.version() != Version::HTTP_2 || request.method() != Method::POST {
        let mut response = Response::new(none());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    let (head, body) = request.into_parts();
    let answer = match head.uri.path().strip_prefix('/').and_then(|path| path.split_once('/')) {
        Some((SERVICE, "Process")) => {
            let http = listener.worker.http();
            let requests = messages(body, &http);
            let trusted = client.trusted;
            let in_flight = InFlight::new(listener, client, None);
            let call = Call::new(requests, Conversation::new(in_flight, http, trusted));
            Some(Either::Left(encoded(call, ANSWERS)))
        }
        Some(("grpc.health.v1.Health", method)) => {
            health::answer(method, &listener, client, body).map(Either::Right)
        }
        _ => None,
    };
    match answer {
        Some(body) => {
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
            response
        }
        None => Status::unimplemented("no such method").into_http::<()>().map(|()| none()),
    }
}

fn none() -> PickerBody {
    let none = Empty::new().map_err(|never| match never {});
    Either::Right(Box::pin(none))
}

/// What a call has for its messages until they need more, bytes: all of a short request and its answer.
const SMALL: usize = 4 << 10;
/// What a pick has for its answers, bytes: all that is said of a short request.
const ANSWERS: usize = 4 << 10;
/// What is sent at a time, bytes.
const YIELD: usize = 32 << 10;

/// The messages of a call.
fn messages<M>(body: Incoming, http: &HttpConfig) -> Streaming<M>
where
    M: prost::Message + Default + Send + 'static,
{
    let decoder = ProstDecoder::new(BufferSettings::new(SMALL, YIELD));
    let longest = usize::try_from(http.max_body).unwrap_or(usize::MAX).max(PIECE).saturating_add(FRAME);
    Streaming::new_request(decoder, body, None, Some(longest))
}

/// The messages of its answer, which begin with so much room.
fn encoded<M, S>(messages: S, room: usize) -> EncodeBody<ProstEncoder<M>, S>
where
    M: prost::Message,
    S: futures_util::Stream<Item = Result<M, Status>>,
{
    let encoder = ProstEncoder::new(BufferSettings::new(room, YIELD));
    EncodeBody::new_server(encoder, messages, None, SingleMessageCompressionOverride::default(), None)
}
