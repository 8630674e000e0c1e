//! One request from its head to its response's head, and what is made of the response.

use std::{convert::Infallible, rc::Rc, sync::Arc, sync::atomic::Ordering::Relaxed};

use http::{Response, Version, request};
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
///
/// hyper moves this future to where the connection has its place for one, and each connection keeps that place: a block
/// with what it needs, since a function would hold its arguments twice, and the head lent to all below for the same reason.
#[expect(clippy::manual_async_fn, reason = "an async function is larger: see above")]
pub(super) fn respond(
    listener: Rc<Listener>,
    client: Rc<Client>,
    mut head: request::Parts,
    body: Incoming,
) -> impl Future<Output = Result<Response<ReplyBody>, Infallible>> {
    async move {
        let http = listener.worker.http();
        let started = listener.worker.shared.clock.micros();
        listener.worker.ticker.set(started / 1000 + 1);
        client.end_delimits.set(head.version < Version::HTTP_11);
        let access = http.access_log.then(|| {
            let (method, uri) = (head.method.clone(), head.uri.clone());
            Box::new(Access::new(
                Arc::clone(&listener.name),
                method,
                uri,
                listener.worker.shared.clock,
                started,
            ))
        });
        let trusted = client.trusted;
        let in_flight = InFlight::new(Rc::clone(&listener), client, access);
        let limit = http.max_requests;
        let outcome = if listener.worker.shared.requests.load(Relaxed) > limit {
            Err(ProxyError::Overloaded { limit })
        } else if let Some(pair) = &listener.pair {
            // On the heap: a request with one leg does not pay for the room that two need.
            Box::pin(pair::forward(&listener, pair, &http, trusted, &mut head, body)).await
        } else {
            forward(&listener, &http, &mut head, body).await
        };
        Ok(match outcome {
            Ok(answer) => {
                listener.metrics.latency.observe(listener.worker.shared.clock.micros() - started);
                answer.into_response(&listener, in_flight)
            }
            Err(error) => {
                listener.metrics.refused(error.reason());
                tracing::debug!(reason = error.reason().word(), %error, "request refused");
                refusal(&error, in_flight)
            }
        })
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

/// Finds an endpoint that answers. Nothing of the head is of use after it.
pub(super) async fn forward(
    listener: &Rc<Listener>,
    http: &HttpConfig,
    head: &mut request::Parts,
    body: Incoming,
) -> Result<Answer, ProxyError> {
    let mut attempts = attempts(listener, http, head, body)?;
    attempts.run(head).await
}

/// What it takes to try.
fn attempts<'a>(
    listener: &'a Rc<Listener>,
    http: &'a HttpConfig,
    head: &mut request::Parts,
    body: Incoming,
) -> Result<Attempts<'a>, ProxyError> {
    let worker = &listener.worker;
    let (place, revision, wants, hostless) = {
        let mut table = listener.table.borrow_mut();
        table.refresh(&worker.shared.published);
        let (Some(place), Some((header, selectors))) = (table.place(), table.headers()) else {
            return Err(ProxyError::NotSynced);
        };
        let revision = table.revision(headers::ask(&head.headers, header)?, worker.draw())?;
        let wants = headers::wants(&head.headers, selectors)?;
        let has_host = headers::to_endpoint(head, header, selectors)?;
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
    Ok(attempts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of what a function of these arguments returns.
    const fn size<F>(_: &impl Fn(Rc<Listener>, Rc<Client>, request::Parts, Incoming) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_future_of_a_request_is_small_since_it_is_moved_and_kept() {
        assert!(size(&respond) <= 1280, "{} bytes", size(&respond));
    }
}
