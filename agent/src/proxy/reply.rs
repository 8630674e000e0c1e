//! The response on its way to the client: streamed from an endpoint, or made here (H10, H11).
//!
//! The body holds what a request holds until its last byte: its place among the requests in flight, the endpoint's
//! outstanding count, and the connection, which goes back to its pool at a clean end and is closed otherwise.

use std::{
    pin::Pin,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, RETRY_AFTER},
};
use http_body::{Body, Frame, SizeHint};

pub(super) use super::pair::Extras;
use super::{
    access::Access,
    client::{Client, Turn},
    clock::millis,
    deadlines::Silence,
    error::{ProxyError, Reason},
    idle,
    link::{Download, Link, LinkError},
    listener::Listener,
    target::Target,
    upload::{Progress, Upload},
};
use crate::config::REASON_HEADER;

/// What clients are told to wait before they ask again, seconds.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// A request in flight: counted, and known to its client's connection.
pub(super) struct InFlight {
    pub(super) listener: Rc<Listener>,
    client: Rc<Client>,
    turn: Turn,
    /// Where an access log is wanted.
    pub(super) access: Option<Box<Access>>,
}

impl InFlight {
    /// Counts a request.
    pub(super) fn new(listener: Rc<Listener>, client: Rc<Client>, access: Option<Box<Access>>) -> Self {
        listener.worker.shared.requests.fetch_add(1, Relaxed);
        listener.metrics.in_flight.inc();
        let turn = client.began();
        Self { listener, client, turn, access }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.listener.worker.shared.requests.fetch_sub(1, Relaxed);
        self.listener.metrics.in_flight.dec();
        self.client.ended(&self.turn, self.listener.worker.ticker.now());
    }
}

/// A request that an endpoint works on.
pub(super) struct Lease {
    pub(super) target: Rc<Target>,
}

impl Lease {
    /// Counts it.
    pub(super) fn new(target: Rc<Target>) -> Self {
        target.endpoint.vitals.outstanding.fetch_add(1, Relaxed);
        Self { target }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.target.endpoint.vitals.outstanding.fetch_sub(1, Relaxed);
    }
}

/// A response body.
pub(super) struct ReplyBody {
    source: Source,
    /// Of the answer to a request with two legs.
    extras: Option<Box<Extras>>,
    /// How long the endpoint has sent nothing that was waited for.
    silence: Silence,
    limits: Limits,
    in_flight: InFlight,
}

enum Source {
    /// Made here.
    Own(Option<Bytes>),
    /// From an endpoint.
    Endpoint {
        download: Download,
        /// Until the response has come to its end.
        link: Option<Box<Link>>,
        lease: Lease,
        /// The request's body while it is on its way.
        upload: Option<Rc<Upload>>,
        /// The status was below 500.
        good: bool,
    },
}

/// The limits in time of a response body, milliseconds.
#[derive(Clone, Copy)]
struct Limits {
    /// While the endpoint sends nothing.
    silent: u64,
    /// While the client takes nothing.
    idle: u64,
}

impl Limits {
    fn of(in_flight: &InFlight) -> Self {
        let http = in_flight.listener.worker.http();
        Self { silent: millis(http.stream_idle_timeout), idle: millis(http.idle_timeout) }
    }
}

/// A response broke off in its body.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplyError {
    /// The endpoint closed or broke the connection, or that was no HTTP.
    #[error(transparent)]
    Broken(#[from] LinkError),
    /// It sent nothing for too long.
    #[error("the endpoint sent nothing for too long in the middle of its response (http.streamIdleTimeout)")]
    Silent,
    /// The other leg of the request failed meanwhile.
    #[error("the prefill leg failed in the middle of the response: {0}")]
    Prefill(ProxyError),
}

impl ReplyBody {
    fn new(source: Source, extras: Option<Box<Extras>>, in_flight: InFlight) -> Self {
        let limits = Limits::of(&in_flight);
        let body = Self { source, extras, silence: Silence::default(), limits, in_flight };
        body.must_ask(limits.idle);
        body
    }

    /// The client's connection must ask for more within that time.
    fn must_ask(&self, within: u64) {
        let InFlight { listener, client, turn, .. } = &self.in_flight;
        client.must_ask(turn, listener.worker.ticker.now().saturating_add(within));
    }

    /// The endpoint sends nothing: for too long?
    fn is_silent(&mut self, cx: &Context<'_>) -> bool {
        let worker = &self.in_flight.listener.worker;
        self.silence.lasts(self.limits.silent, worker.ticker.now(), &worker.deadlines, cx)
    }

    /// Over an endpoint's response whose head has come.
    pub(super) fn streamed(
        download: Download,
        link: Box<Link>,
        lease: Lease,
        upload: Option<Rc<Upload>>,
        good: bool,
        extras: Option<Box<Extras>>,
        in_flight: InFlight,
    ) -> Self {
        let source = Source::Endpoint { download, link: Some(link), lease, upload, good };
        let mut body = Self::new(source, extras, in_flight);
        // A short response came with its head, and its connection is free already.
        body.release_idle();
        // A body that has ended may never be polled.
        if body.is_end_stream() {
            body.completed();
        }
        body
    }

    /// Gives the connection back if the response is through it.
    fn release_idle(&mut self) {
        let Source::Endpoint { download, link, lease, .. } = &mut self.source else { return };
        if let Some(idle) = link.take_if(|link| download.leaves_idle(link)) {
            let worker = &self.in_flight.listener.worker;
            lease.target.put(idle, worker.ticker.now(), worker.pool_limits());
        }
    }

    /// The endpoint's response is whole.
    fn completed(&mut self) {
        if let Source::Endpoint { lease, good, .. } = &mut self.source
            && std::mem::take(good)
        {
            lease.target.endpoint.vitals.completed();
        }
    }

    /// The response broke off: so does the client's stream, and not with a clean end.
    fn broke(&mut self) {
        if let Source::Endpoint { lease, upload, .. } = &self.source
            // A connection on which the request cannot be finished is over too, and that is the client's doing.
            && !upload.as_ref().is_some_and(|upload| upload.failed())
        {
            self.in_flight.listener.failed(&lease.target);
        }
        self.cut();
    }

    /// The client's stream breaks off.
    fn cut(&mut self) {
        let Source::Endpoint { link, good, .. } = &mut self.source else { return };
        *link = None;
        *good = false;
        self.extras = None;
        self.in_flight.listener.metrics.broken.inc();
        self.in_flight.client.broke();
        if let Some(access) = &mut self.in_flight.access {
            access.broke();
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = ReplyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ReplyError>>> {
        let this = self.get_mut();
        let polled = match this.extras.take() {
            None => this.poll_source(cx).map_err(ReplyError::from),
            Some(mut extras) => {
                let polled = extras.poll(cx, |cx| this.poll_source(cx));
                this.extras = Some(extras);
                polled
            }
        };
        if let Poll::Ready(Some(Err(ReplyError::Prefill(_)))) = &polled {
            this.cut();
        }
        if polled.is_ready() {
            idle::piece();
            this.silence.end();
            this.must_ask(this.limits.idle);
        } else if this.is_silent(cx) {
            this.broke();
            return Poll::Ready(Some(Err(ReplyError::Silent)));
        } else {
            // The end of the silence wakes it, at the latest.
            this.must_ask(this.limits.silent.saturating_add(this.limits.idle));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Own(bytes) => bytes.is_none(),
            Source::Endpoint { download, .. } => {
                download.is_end() && self.extras.as_ref().is_none_or(|extras| extras.is_over())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Source::Endpoint { .. } if self.extras.as_ref().is_some_and(|extras| extras.edits()) => {
                SizeHint::default()
            }
            Source::Endpoint { download, .. } => download.size_hint(),
        }
    }
}

impl ReplyBody {
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, LinkError>>> {
        let (download, link, upload) = match &mut self.source {
            Source::Own(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Source::Endpoint { download, link, upload, .. } => (download, link, upload),
        };
        let polled = download.poll_data(link.as_deref_mut(), cx);
        upload.take_if(|upload| upload.progress() == Progress::Ended);
        match &polled {
            Poll::Ready(Some(Err(_))) => self.broke(),
            // The end: the connection is free.
            Poll::Ready(_) if download.is_end() => {
                self.release_idle();
                self.completed();
            }
            Poll::Ready(_) | Poll::Pending => {}
        }
        polled.map(|data| data.map(|data| data.map(Frame::data)))
    }
}

/// The response to a request that no endpoint answered: the error shape of the OpenAI API.
pub(super) fn refusal(error: &ProxyError, mut in_flight: InFlight) -> Response<ReplyBody> {
    let (status, headers, body) = told(error);
    if let Some(access) = &mut in_flight.access {
        access.refused(status, error.reason().word());
    }
    let source = Source::Own(Some(body));
    let mut response = Response::new(ReplyBody::new(source, None, in_flight));
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// What a client is told of it: the status, the headers and the body.
pub(super) fn told(error: &ProxyError) -> (StatusCode, HeaderMap, Bytes) {
    let reason = error.reason();
    let status = reason.status();
    let kind = if status.is_client_error() { "invalid_request_error" } else { "server_error" };
    let body = serde_json::json!({
        "error": { "message": error.to_string(), "type": kind, "param": null, "code": reason.word() }
    });
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(REASON_HEADER, HeaderValue::from_static(reason.word()));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS);
    }
    if reason == Reason::MethodNotAllowed {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    }
    (status, headers, Bytes::from(body.to_string()))
}
