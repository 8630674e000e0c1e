//! One request from its head to its response's head, and what is made of the response.

use std::{rc::Rc, sync::Arc, sync::atomic::Ordering::Relaxed};

use http::{Request, Response, Version};
use http_body::Body;
use hyper::body::Incoming;

use super::{
    access::Access,
    attempts::{Attempts, Payload},
    client::Client,
    error::ProxyError,
    headers,
    link::{Download, Link},
    listener::Listener,
    pair,
    reply::{Extras, InFlight, Lease, ReplyBody, refusal},
    upload::{KEPT, Upload},
};
use crate::config::HttpConfig;

/// Answers one request, by an endpoint or with the reason why not.
pub(super) async fn respond(
    listener: Rc<Listener>,
    client: Rc<Client>,
    request: Request<Incoming>,
) -> Response<ReplyBody> {
    let http = listener.worker.http();
    let started = listener.worker.shared.clock.micros();
    listener.worker.ticker.set(started / 1000 + 1);
    client.end_delimits.set(request.version() < Version::HTTP_11);
    let access = http.access_log.then(|| {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        Box::new(Access::new(Arc::clone(&listener.name), method, uri, listener.worker.shared.clock, started))
    });
    let trusted = client.trusted;
    let in_flight = InFlight::new(Rc::clone(&listener), client, access);
    let limit = http.max_requests;
    let outcome = if listener.worker.shared.requests.load(Relaxed) > limit {
        Err(ProxyError::Overloaded { limit })
    } else if let Some(pair) = &listener.pair {
        // On the heap: a request with one leg does not pay for the room that two need.
        Box::pin(pair::forward(&listener, pair, &http, trusted, request)).await
    } else {
        forward(&listener, &http, request).await
    };
    match outcome {
        Ok(answer) => {
            listener.metrics.latency.observe(listener.worker.shared.clock.micros() - started);
            answer.into_response(&listener, in_flight)
        }
        Err(error) => {
            listener.metrics.refused(error.reason());
            tracing::debug!(reason = error.reason().word(), %error, "request refused");
            refusal(&error, in_flight)
        }
    }
}

/// An endpoint's response.
pub(super) struct Answer {
    pub(super) response: Response<Download>,
    pub(super) link: Box<Link>,
    pub(super) lease: Lease,
    pub(super) upload: Option<Rc<Upload>>,
    /// Of the answer to a request with two legs.
    pub(super) extras: Option<Box<Extras>>,
}

impl Answer {
    fn into_response(self, listener: &Listener, mut in_flight: InFlight) -> Response<ReplyBody> {
        let Self { response, link, lease, upload, extras } = self;
        let (mut parts, download) = response.into_parts();
        lease.target.metrics.served(parts.status);
        let good = !parts.status.is_server_error();
        if good {
            lease.target.endpoint.vitals.answered();
        } else {
            listener.failed(&lease.target);
        }
        if let Some(access) = &mut in_flight.access {
            let endpoint = &lease.target.endpoint;
            let prefill = extras.as_ref().map(|extras| extras.prefill);
            access.served(parts.status, &endpoint.revision, endpoint.address, prefill);
        }
        headers::to_client(&mut parts);
        lease.target.stamp(&mut parts.headers);
        Response::from_parts(
            parts,
            ReplyBody::streamed(download, link, lease, upload, good, extras, in_flight),
        )
    }
}

/// Finds an endpoint that answers.
pub(super) async fn forward(
    listener: &Rc<Listener>,
    http: &HttpConfig,
    request: Request<Incoming>,
) -> Result<Answer, ProxyError> {
    let worker = &listener.worker;
    let (mut parts, body) = request.into_parts();
    let (place, revision, wants, hostless) = {
        let mut table = listener.table.borrow_mut();
        table.refresh(&worker.shared.published);
        let (Some(place), Some((header, selectors))) = (table.place(), table.headers()) else {
            return Err(ProxyError::NotSynced);
        };
        let revision = table.revision(headers::ask(&parts.headers, header)?, worker.draw())?;
        let wants = headers::wants(&parts.headers, selectors)?;
        let has_host = headers::to_endpoint(&mut parts, header, selectors)?;
        (place, revision, wants, !has_host)
    };
    let payload = if body.is_end_stream() {
        Payload::Nothing
    } else {
        if body.size_hint().lower() > http.max_body {
            return Err(ProxyError::BodyTooLarge { limit: http.max_body });
        }
        Payload::Upload(Rc::new(Upload::new(body, http.max_body, worker.ticker.clone())))
    };
    let mut attempts = Attempts::new(listener, http, &listener.table, place, revision, wants);
    (attempts.payload, attempts.hostless) = (payload, hostless);
    // Too long to be kept for another try, so no connection that may turn out to be closed.
    attempts.fresh =
        attempts.upload().is_some_and(|upload| upload.length.is_some_and(|length| length > KEPT));
    attempts.run(parts).await
}
