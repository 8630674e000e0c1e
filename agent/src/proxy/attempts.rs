//! The tries of one request, or of one leg of it: choose, connect, send, and again where that is safe.
//!
//! Tried again (H6) is a connection that could not be made, and a reset at once, before any byte of a response, on a
//! connection that lay idle. The latter is nearly always the endpoint closing it in the very moment that it is used
//! again; that the endpoint has read the request nevertheless cannot be told, which is why it must come within
//! [`AT_ONCE`]. Either goes to another endpoint of the same revision, where there is one. The reset of a fresh
//! connection is the client's answer: the endpoint may have begun to work. A prefill leg is also tried again after an
//! answer that says "not now" ([`Patient`]).

use std::{cell::RefCell, rc::Rc, sync::Arc, time::Duration};

use http::{StatusCode, request};

use super::{
    choose::{Rules, Want},
    dial::{self, DialError},
    error::ProxyError,
    forward::Answer,
    headers,
    link::{ExchangeError, Link, Patience},
    listener::Listener,
    pair::Rope,
    reply::Lease,
    table::{Chosen, Place, RoleTable},
    target::Target,
    upload::{Progress, RequestBody, Upload},
};
use crate::{
    config::{HttpConfig, SelectorMode},
    snapshot::Endpoint,
};

/// How soon after it was sent a request may be sent again, milliseconds. An engine that closes an idle connection
/// does so within a round trip; one that worked on the request first took longer.
const AT_ONCE: u64 = 1000;

/// What a request needs to be tried.
pub(super) struct Attempts<'a> {
    listener: &'a Rc<Listener>,
    http: &'a HttpConfig,
    table: &'a RefCell<RoleTable>,
    place: Place,
    /// `None`: any.
    revision: Option<Arc<str>>,
    /// The labels that it asks for.
    wants: Vec<Want>,
    /// It names no host.
    pub(super) hostless: bool,
    pub(super) payload: Payload,
    /// Whom to try first.
    pub(super) first: Option<Chosen>,
    /// More tries after an answer that says "not now".
    pub(super) patient: Patient,
    /// Do not use a pooled connection.
    pub(super) fresh: bool,
    /// Endpoints that could not be reached.
    tried: Vec<Arc<Endpoint>>,
    /// Endpoints that another is better than, though they will do: their idle connection turned out to be closed, or
    /// they said "not now".
    avoided: Vec<Arc<Endpoint>>,
    /// Why the last try failed.
    last: Option<ProxyError>,
    /// More tries.
    left: u32,
}

/// What a request sends.
pub(super) enum Payload {
    /// Nothing.
    Nothing,
    /// What its client sends.
    Upload(Rc<Upload>),
    /// What was made of a body that is here whole.
    Rope(Rope),
}

/// How often an answer of 502, 503 or 504 is one to try again after (H6).
#[derive(Clone, Copy, Default)]
pub(super) struct Patient {
    pub(super) left: u32,
    /// Before the next try.
    pub(super) wait: Duration,
}

/// A connection to send a request on.
pub(super) struct Connected {
    link: Box<Link>,
    pub(super) lease: Lease,
    reused: bool,
}

impl<'a> Attempts<'a> {
    /// Of a request without a body.
    pub(super) fn new(
        listener: &'a Rc<Listener>,
        http: &'a HttpConfig,
        table: &'a RefCell<RoleTable>,
        place: Place,
        revision: Option<Arc<str>>,
        wants: Vec<Want>,
    ) -> Self {
        Self {
            listener,
            http,
            table,
            place,
            revision,
            wants,
            hostless: false,
            payload: Payload::Nothing,
            first: None,
            patient: Patient::default(),
            fresh: false,
            tried: Vec::new(),
            avoided: Vec::new(),
            last: None,
            left: http.retries,
        }
    }

    /// Tries until there is an answer. Of the head nothing is of use then.
    pub(super) async fn run(&mut self, head: &mut request::Parts) -> Result<Answer, ProxyError> {
        loop {
            let connected = self.connect().await?;
            if let Some(answer) = self.send(connected, head).await? {
                return Ok(answer);
            }
        }
    }

    /// A connection to an endpoint.
    pub(super) async fn connect(&mut self) -> Result<Connected, ProxyError> {
        let worker = &self.listener.worker;
        loop {
            let chosen = self.choose()?;
            let pooled =
                if self.fresh { None } else { chosen.target.take(worker.ticker.now(), worker.pool_limits()) };
            let mut lease = Lease::new(Rc::clone(&chosen.target));
            if let Some(link) = pooled {
                return Ok(Connected { link, lease, reused: true });
            }
            // On the heap, as few requests do: all have the room for it otherwise.
            if let Some(link) = Box::pin(self.dial(&chosen, &mut lease)).await? {
                return Ok(Connected { link, lease, reused: false });
            }
        }
    }

    /// Sends the request, once. `None`: it may be tried again, and the head is as it was, but for a
    /// `Host` that each try sets.
    pub(super) async fn send(
        &mut self,
        connected: Connected,
        head: &mut request::Parts,
    ) -> Result<Option<Answer>, ProxyError> {
        let Connected { mut link, lease, reused } = connected;
        let worker = &self.listener.worker;
        let patience = Patience {
            deadlines: &worker.deadlines,
            ticker: &worker.ticker,
            response: self.http.response_timeout,
            stalled: self.http.idle_timeout,
        };
        if self.hostless {
            headers::name_host(&mut head.headers, lease.target.endpoint.address);
        }
        // The headers of a request that was answered are gone. Only one that may be sent again after that is copied.
        let spare = (self.patient.left > 0).then(|| Box::new(head.clone()));
        if reused {
            self.listener.metrics.reused.inc();
        }
        if let Some(upload) = self.upload() {
            upload.keep.set(reused);
        }
        let sent = worker.ticker.now();
        let upload = self.upload().map(|upload| &**upload);
        // `None`: it says "not now". The response is gone with this statement, and not kept while it is waited.
        let error = match link.exchange(head, self.body(), upload, patience).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                self.listener.failed(&lease.target);
                return Err(ProxyError::BadResponse { address: lease.target.endpoint.address });
            }
            Ok(response) if spare.is_some() && self.may_wait_for(response.status()) => None,
            Ok(response) => {
                // What was kept of it for another try is not needed as long as the response takes.
                let upload = self.upload().filter(|upload| upload.progress() != Progress::Ended).cloned();
                return Ok(Some(Answer { response, link, lease, upload, extras: None }));
            }
            Err(error) => Some(error),
        };
        let Some(error) = error else {
            drop(link);
            if let Some(spare) = spare {
                *head = *spare;
            }
            Box::pin(self.not_now(&lease)).await;
            return Ok(None);
        };
        match error {
            ExchangeError::NotSent => {
                if !reused {
                    let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                    self.unreachable(&lease, DialError::Endpoint(gone))?;
                }
                self.fresh = true;
                Ok(None)
            }
            ExchangeError::NoResponse(error) if reused && self.can_restart(sent) => {
                let endpoint = &lease.target.endpoint;
                self.avoided.push(Arc::clone(endpoint));
                // Whatever else lies idle may be as stale.
                self.fresh = true;
                self.again(ProxyError::Broken { address: endpoint.address, source: error })?;
                Ok(None)
            }
            error => Err(self.failed(error, &lease)),
        }
    }

    /// Whether an answer says "not now", and there is time.
    fn may_wait_for(&self, status: StatusCode) -> bool {
        self.patient.left > 0
            && matches!(
                status,
                StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
            )
    }

    /// An endpoint said "not now".
    async fn not_now(&mut self, lease: &Lease) {
        self.listener.failed(&lease.target);
        self.listener.metrics.retries.inc();
        self.avoided.push(Arc::clone(&lease.target.endpoint));
        self.patient.left -= 1;
        let wait = self.patient.wait;
        self.patient.wait = wait.saturating_mul(2);
        tokio::time::sleep(wait).await;
    }

    /// Chooses an endpoint that was not tried.
    fn choose(&mut self) -> Result<Chosen, ProxyError> {
        let worker = &self.listener.worker;
        let mut table = self.table.borrow_mut();
        table.refresh(&worker.shared.published);
        if let Some(first) = self.first.take().filter(|first| first.target.is_live()) {
            return Ok(first);
        }
        let rules = Rules::of(worker, self.http);
        let revision = self.revision.as_deref();
        if !self.avoided.is_empty() {
            let tried = self.tried.len();
            self.tried.extend(self.avoided.iter().cloned());
            let another = table.choose(revision, &self.tried, &self.wants, rules);
            self.tried.truncate(tried);
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
                let mut table = self.table.borrow_mut();
                table.refresh(&listener.worker.shared.published);
                table.landed(&chosen.target, address).ok_or(ProxyError::NotSynced)?
            };
            // The kernel knows of revisions and roles, and of no other label.
            if !self.will_do(&landed) {
                let role = self.table.borrow().role();
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
        let mut strict = self.wants.iter().filter(|want| want.mode() == SelectorMode::Strict);
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
            let table = self.table.borrow();
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
                return match self.upload().map(|upload| upload.progress()) {
                    Some(Progress::TooLarge) => ProxyError::BodyTooLarge { limit: self.http.max_body },
                    _ => ProxyError::ClientBody,
                };
            }
            ExchangeError::Stalled => return ProxyError::ClientStalled,
            ExchangeError::Timeout => ProxyError::ResponseTimeout { address },
            ExchangeError::NotSent => {
                ProxyError::Broken { address, source: std::io::ErrorKind::ConnectionReset.into() }
            }
            ExchangeError::NotHttp(what) => ProxyError::not_http(address, what),
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
        took < AT_ONCE && self.upload().is_none_or(|upload| upload.can_restart())
    }

    pub(super) fn upload(&self) -> Option<&Rc<Upload>> {
        match &self.payload {
            Payload::Upload(upload) => Some(upload),
            Payload::Nothing | Payload::Rope(_) => None,
        }
    }

    fn body(&self) -> RequestBody {
        match &self.payload {
            Payload::Nothing => RequestBody::Empty,
            Payload::Upload(upload) => RequestBody::Upload { upload: Rc::clone(upload), sent: 0 },
            Payload::Rope(rope) => RequestBody::Rope { rope: rope.clone(), sent: 0 },
        }
    }
}

/// Every endpoint was tried, the last one with this outcome.
fn none_left(last: ProxyError) -> ProxyError {
    ProxyError::NoEndpointLeft { last: Box::new(last) }
}
