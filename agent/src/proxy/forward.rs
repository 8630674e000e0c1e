//! One request from its head to its response's head: choose, connect, send, and try again where that is safe.
//!
//! Tried again (H6) is a connection that could not be made, and a reset at once, before any byte of a response, on a
//! connection that lay idle. The latter is nearly always the endpoint closing it in the very moment that it is used
//! again; that the endpoint has read the request nevertheless cannot be told, which is why it must come within
//! [`AT_ONCE`]. Either goes to another endpoint of the same revision, where there is one. The reset of a fresh
//! connection is the client's answer: the endpoint may have begun to work.

use std::{rc::Rc, sync::Arc, sync::atomic::Ordering::Relaxed};

use http::{Request, Response, StatusCode, Version, request};
use http_body::Body;
use hyper::body::Incoming;

use super::{
    access::Access,
    choose::{Rules, Want},
    client::Client,
    dial::{self, DialError},
    error::ProxyError,
    headers,
    link::{Download, ExchangeError, Link, Patience},
    listener::Listener,
    reply::{InFlight, Lease, ReplyBody, refusal},
    table::{Chosen, Place},
    target::Target,
    upload::{KEPT, Progress, RequestBody, Upload},
};
use crate::{
    config::{HttpConfig, SelectorMode},
    snapshot::Endpoint,
};

/// How soon after it was sent a request may be sent again, milliseconds. An engine that closes an idle connection
/// does so within a round trip; one that worked on the request first took longer.
const AT_ONCE: u64 = 1000;

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
    let in_flight = InFlight::new(Rc::clone(&listener), client, access);
    let limit = http.max_requests;
    let outcome = if listener.worker.shared.requests.load(Relaxed) > limit {
        Err(ProxyError::Overloaded { limit })
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
struct Answer {
    response: Response<Download>,
    link: Box<Link>,
    lease: Lease,
    upload: Option<Rc<Upload>>,
}

impl Answer {
    fn into_response(self, listener: &Listener, mut in_flight: InFlight) -> Response<ReplyBody> {
        let Self { response, link, lease, upload } = self;
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
            access.served(parts.status, &endpoint.revision, endpoint.address);
        }
        headers::to_client(&mut parts);
        lease.target.stamp(&mut parts.headers);
        Response::from_parts(parts, ReplyBody::streamed(download, link, lease, upload, good, in_flight))
    }
}

/// What a request needs to be tried.
struct Attempts<'a> {
    listener: &'a Rc<Listener>,
    http: &'a HttpConfig,
    place: Place,
    /// `None`: any.
    revision: Option<Arc<str>>,
    /// The labels that it asks for.
    wants: Vec<Want>,
    /// It names no host.
    hostless: bool,
    upload: Option<Rc<Upload>>,
    /// Do not use a pooled connection.
    fresh: bool,
    /// Endpoints that could not be reached.
    tried: Vec<Arc<Endpoint>>,
    /// The endpoint whose idle connection turned out to be closed: another is better, but it will do.
    stale: Option<Arc<Endpoint>>,
    /// Why the last try failed.
    last: Option<ProxyError>,
    /// More tries.
    left: u32,
}

/// Finds an endpoint that answers.
async fn forward(
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
    let upload = if body.is_end_stream() {
        None
    } else {
        if body.size_hint().lower() > http.max_body {
            return Err(ProxyError::BodyTooLarge { limit: http.max_body });
        }
        Some(Rc::new(Upload::new(body, http.max_body, worker.ticker.clone())))
    };
    // Too long to be kept for another try, so no connection that may turn out to be closed.
    let fresh = upload.as_ref().is_some_and(|upload| upload.length.is_some_and(|length| length > KEPT));
    let left = http.retries;
    Attempts {
        listener,
        http,
        place,
        revision,
        wants,
        hostless,
        upload,
        fresh,
        tried: Vec::new(),
        stale: None,
        last: None,
        left,
    }
    .run(parts)
    .await
}

impl Attempts<'_> {
    async fn run(mut self, mut head: request::Parts) -> Result<Answer, ProxyError> {
        let worker = &self.listener.worker;
        let patience = Patience {
            deadlines: &worker.deadlines,
            ticker: &worker.ticker,
            response: self.http.response_timeout,
            stalled: self.http.idle_timeout,
        };
        loop {
            let chosen = self.choose()?;
            let pooled =
                if self.fresh { None } else { chosen.target.take(worker.ticker.now(), worker.pool_limits()) };
            let mut lease = Lease::new(Rc::clone(&chosen.target));
            let reused = pooled.is_some();
            let mut link = match pooled {
                Some(link) => link,
                None => match self.dial(&chosen, &mut lease).await? {
                    Some(link) => link,
                    None => continue,
                },
            };
            if reused {
                self.listener.metrics.reused.inc();
            }
            if let Some(upload) = &self.upload {
                upload.keep.set(reused);
            }
            if self.hostless {
                headers::name_host(&mut head.headers, lease.target.endpoint.address);
            }
            let sent = worker.ticker.now();
            let error = match link.exchange(&mut head, self.body(), self.upload.as_deref(), patience).await {
                Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    self.listener.failed(&lease.target);
                    return Err(ProxyError::BadResponse { address: lease.target.endpoint.address });
                }
                Ok(response) => {
                    // What was kept of it for another try is not needed as long as the response takes.
                    let upload = self.upload.filter(|upload| upload.progress() != Progress::Ended);
                    return Ok(Answer { response, link, lease, upload });
                }
                Err(error) => error,
            };
            match error {
                ExchangeError::NotSent if reused => {}
                ExchangeError::NotSent => {
                    let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                    self.unreachable(&lease, DialError::Endpoint(gone))?;
                }
                ExchangeError::NoResponse(error) if reused && self.can_restart(sent) => {
                    let endpoint = &lease.target.endpoint;
                    self.stale = Some(Arc::clone(endpoint));
                    self.again(ProxyError::Broken { address: endpoint.address, source: error })?;
                }
                error => return Err(self.failed(error, &lease)),
            }
            // Whatever else lies idle may be as stale.
            self.fresh = true;
        }
    }

    /// Chooses an endpoint that was not tried.
    fn choose(&mut self) -> Result<Chosen, ProxyError> {
        let worker = &self.listener.worker;
        let mut table = self.listener.table.borrow_mut();
        table.refresh(&worker.shared.published);
        let rules = Rules {
            local_factor: self.http.local_factor,
            breaker: worker.breaker(),
            now: worker.ticker.now(),
            draws: worker.draws(),
        };
        let revision = self.revision.as_deref();
        if let Some(stale) = self.stale.take() {
            self.tried.push(stale);
            let another = table.choose(revision, &self.tried, &self.wants, rules);
            self.tried.pop();
            if let Ok(Some(another)) = another {
                return Ok(another);
            }
        }
        match table.choose(revision, &self.tried, &self.wants, rules)? {
            Some(chosen) => Ok(chosen),
            None => Err(self.last.take().map_or(ProxyError::NotSynced, none_left)),
        }
    }

    /// A new connection, the lease moved to whom the kernel chose. `None`: failed, and there is another try.
    async fn dial(&mut self, chosen: &Chosen, lease: &mut Lease) -> Result<Option<Box<Link>>, ProxyError> {
        let listener = self.listener;
        listener.metrics.dials.inc();
        let dialled =
            match dial::dial(&listener.worker.pinner, self.place, chosen, self.http.connect_timeout).await {
                Ok(dialled) => dialled,
                Err(error) => return self.unreachable(lease, error).map(|()| None),
            };
        if let Some(address) = dialled.elsewhere {
            listener.metrics.repicked.inc();
            let landed = {
                let mut table = listener.table.borrow_mut();
                table.refresh(&listener.worker.shared.published);
                table.landed(&chosen.target, address).ok_or(ProxyError::NotSynced)?
            };
            // The kernel knows of revisions and roles, and of no other label.
            if !self.will_do(&landed) {
                let role = listener.table.borrow().role();
                self.tried.push(Arc::clone(&chosen.target.endpoint));
                self.again(ProxyError::NoMatchingEndpoint { role })?;
                return Ok(None);
            }
            *lease = Lease::new(landed);
        }
        Ok(Some(dialled.link))
    }

    /// Whether an endpoint that was not asked for has every label that is wanted strictly.
    fn will_do(&self, target: &Target) -> bool {
        let mut strict = self.wants.iter().filter(|want| want.mode == SelectorMode::Strict);
        strict.all(|want| target.is_live() && want.is_met_by(&target.endpoint))
    }

    /// An endpoint could not be reached: another may be.
    fn unreachable(&mut self, lease: &Lease, error: DialError) -> Result<(), ProxyError> {
        let endpoint = &lease.target.endpoint;
        let address = endpoint.address;
        let error = match error {
            DialError::Local(source) => return Err(ProxyError::Local { address, source }),
            DialError::Denied(source) => return Err(ProxyError::KernelDenied { address, source }),
            DialError::Endpoint(source) => ProxyError::Unreachable { address, source },
            DialError::Timeout => ProxyError::ConnectTimeout { address },
        };
        self.listener.failed(&lease.target);
        self.tried.push(Arc::clone(endpoint));
        self.again(error)
    }

    /// Uses up one more try.
    fn again(&mut self, error: ProxyError) -> Result<(), ProxyError> {
        let Some(left) = self.left.checked_sub(1) else {
            let table = self.listener.table.borrow();
            let others = table.has_others(self.revision.as_deref(), &self.tried, &self.wants);
            return Err(if others { error } else { none_left(error) });
        };
        self.left = left;
        self.last = Some(error);
        self.listener.metrics.retries.inc();
        Ok(())
    }

    /// Why a request that may not be sent again failed.
    fn failed(&self, error: ExchangeError, lease: &Lease) -> ProxyError {
        let address = lease.target.endpoint.address;
        let error = match error {
            ExchangeError::Upload => {
                return match self.upload.as_ref().map(|upload| upload.progress()) {
                    Some(Progress::TooLarge) => ProxyError::BodyTooLarge { limit: self.http.max_body },
                    _ => ProxyError::ClientBody,
                };
            }
            ExchangeError::Stalled => return ProxyError::ClientStalled,
            ExchangeError::Timeout => ProxyError::ResponseTimeout { address },
            ExchangeError::NotSent => {
                ProxyError::Broken { address, source: std::io::ErrorKind::ConnectionReset.into() }
            }
            ExchangeError::NotHttp(what) => {
                tracing::debug!(%address, what, "no valid response");
                ProxyError::BadResponse { address }
            }
            ExchangeError::Broken(source) | ExchangeError::NoResponse(source) => {
                ProxyError::Broken { address, source }
            }
        };
        self.listener.failed(&lease.target);
        error
    }

    /// Whether a request sent at that time, of which nothing came back, may be sent again.
    fn can_restart(&self, sent: u64) -> bool {
        let took = self.listener.worker.shared.clock.millis().saturating_sub(sent);
        took < AT_ONCE && self.upload.as_ref().is_none_or(|upload| upload.can_restart())
    }

    fn body(&self) -> RequestBody {
        match &self.upload {
            None => RequestBody::Empty,
            Some(upload) => RequestBody::Upload { upload: Rc::clone(upload), sent: 0 },
        }
    }
}

/// Every endpoint was tried, the last one with this outcome.
fn none_left(last: ProxyError) -> ProxyError {
    ProxyError::NoEndpointLeft { last: Box::new(last) }
}
