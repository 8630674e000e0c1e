//! What is decided in one call: where the request goes, and what its response tells of who served.
//!
//! The choice is that of every listener (`table`, `choose`, `pair::pick`), made from the same snapshot, and accounted
//! to the same endpoints: a request is in flight at its endpoint until the call ends, a status of 500 and above counts
//! as a failure.

use std::{net::SocketAddr, rc::Rc, sync::Arc, sync::atomic::Ordering::Relaxed};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};

use crate::{
    config::{HeaderSelector, HttpConfig},
    extproc::{Destination, Exchange, Head, Headers, head::DESTINATION},
    gating::Ask,
    proxy::{
        access::Access,
        choose::{Rules, Want},
        error::ProxyError,
        headers,
        listener::Listener,
        pair::{self, pick, trust},
        reply::{InFlight, Lease, told},
        table::RoleTable,
        target::Target,
    },
};

/// What is decided and held for one request.
pub(super) struct Conversation {
    http: Rc<HttpConfig>,
    /// Whether the client's routing headers are believed.
    trusted: bool,
    /// When the call began, microseconds of the proxy's clock.
    started: u64,
    /// The endpoints that were named, the best one first.
    named: Vec<Rc<Target>>,
    /// The endpoint that works on it, as far as is known.
    lease: Option<Lease>,
    /// Its prefill endpoint, until the response begins.
    prefill: Option<Lease>,
    /// Whose response it is, if that is known and its status was below 500.
    good: Option<Rc<Target>>,
    in_flight: InFlight,
}

/// What a request says about where it is to go.
struct Wishes {
    steering: HeaderMap,
    /// Headers that are not for engines.
    remove: Vec<String>,
}

impl Wishes {
    fn of(head: &Head, revision: &HeaderName, selectors: &[HeaderSelector]) -> Self {
        let (mut steering, mut remove) = (HeaderMap::new(), Vec::new());
        for (name, value) in head.iter() {
            let asks = revision == name || selectors.iter().any(|selector| selector.header == name);
            if (asks || trust::is_internal(name)) && name != DESTINATION {
                if !remove.iter().any(|known| known == name) {
                    remove.push(name.to_owned());
                }
                if let (Ok(name), Ok(value)) =
                    (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
                {
                    steering.append(name, value);
                }
            }
        }
        Self { steering, remove }
    }
}

impl Conversation {
    /// Of a call that is in flight.
    pub(super) fn new(in_flight: InFlight, http: Rc<HttpConfig>, trusted: bool) -> Self {
        let worker = &in_flight.listener.worker;
        let started = worker.shared.clock.micros();
        worker.ticker.set(started / 1000 + 1);
        Self { http, trusted, started, named: Vec::new(), lease: None, prefill: None, good: None, in_flight }
    }

    /// The exchange of its messages. A body matters where it has to be one that two legs can work on.
    pub(super) fn exchange(&self) -> Exchange {
        let pairs = self.in_flight.listener.picker.as_ref().is_some_and(|picker| picker.prefills.is_some());
        Exchange::new(if pairs { has_legs } else { |_| false }, self.http.max_body)
    }

    /// Whether there is any use in reading its body.
    pub(super) fn may_begin(&self) -> Result<(), ProxyError> {
        let shared = &self.in_flight.listener.worker.shared;
        let limit = self.http.max_requests;
        if shared.requests.load(Relaxed) > limit {
            return Err(ProxyError::Overloaded { limit });
        }
        if shared.published.load().synced { Ok(()) } else { Err(ProxyError::NotSynced) }
    }

    /// Where the request goes.
    pub(super) fn pick(
        &mut self,
        head: &Head,
        subset: Option<Vec<SocketAddr>>,
        body: Option<&[u8]>,
    ) -> Result<Destination, ProxyError> {
        let listener = Rc::clone(&self.in_flight.listener);
        let (http, worker) = (Rc::clone(&self.http), &listener.worker);
        if http.access_log {
            let method = Method::from_bytes(head.first(":method")).unwrap_or_default();
            let uri = Uri::try_from(head.first(":path")).unwrap_or_default();
            let clock = worker.shared.clock;
            let access = Access::new(Arc::clone(&listener.name), method, uri, clock, self.started);
            self.in_flight.access = Some(Box::new(access));
        }
        self.may_begin()?;
        body.map_or(Ok(()), pair::check)?;

        let picker = listener.picker.as_ref().ok_or(ProxyError::NotSynced)?;
        let mut decodes = listener.table.borrow_mut();
        decodes.refresh(&worker.shared.published);
        let mut prefills = picker.prefills.as_ref().map(|table| table.borrow_mut());
        if let Some(prefills) = &mut prefills {
            prefills.refresh(&worker.shared.published);
        }
        let Some((header, selectors)) = decodes.headers() else { return Err(ProxyError::NotSynced) };
        let selectors = Arc::clone(selectors);
        let wishes = Wishes::of(head, header, &selectors);
        let (ask, mut wants) = if self.trusted {
            (headers::ask(&wishes.steering, header)?, headers::wants(&wishes.steering, &selectors)?)
        } else {
            (Ask::Any, Vec::new())
        };
        let revision = match subset {
            None => decodes.revision(ask, worker.draw())?,
            Some(subset) => {
                let only = [Want::one_of(subset)];
                let has = |table: &RoleTable, revision: &str| table.has_others(Some(revision), &[], &only);
                let may = |revision: &str| {
                    has(&decodes, revision) && prefills.as_ref().is_none_or(|table| has(table, revision))
                };
                let revision = decodes.revision_among(ask, worker.draw(), may)?;
                wants.extend(only);
                revision
            }
        };
        let rules = || Rules::of(worker, &http);
        let (prefill, first) = match &mut prefills {
            Some(prefills) => {
                let prefill = pick::first(prefills, revision.as_deref(), &wants, rules())?;
                let (decode, with) = pick::beside(&prefill, &mut decodes, wants, &selectors, rules())?;
                wants = with;
                (Some(prefill.target), decode.target)
            }
            None => (None, pick::first(&mut decodes, revision.as_deref(), &wants, rules())?.target),
        };
        let revision = Arc::clone(&first.endpoint.revision);
        self.named = vec![first];
        while self.named.len() < picker.config.endpoints {
            let tried: Vec<_> = self.named.iter().map(|target| Arc::clone(&target.endpoint)).collect();
            let Ok(Some(next)) = decodes.choose(Some(&revision), &tried, &wants, rules()) else { break };
            self.named.push(next.target);
        }
        self.lease = self.named.first().map(|target| Lease::new(Rc::clone(target)));
        self.prefill = prefill.map(Lease::new);
        Ok(Destination {
            endpoints: joined(self.named.iter().map(|target| target.endpoint.address)),
            prefill: self.prefill.as_ref().map(|lease| lease.target.endpoint.address.to_string()),
            remove: wishes.remove,
        })
    }

    /// What is stamped on the response.
    pub(super) fn answered(&mut self, status: Option<StatusCode>, served: Option<SocketAddr>) -> Headers {
        let prefill = self.prefill.take().map(|lease| lease.target.endpoint.address);
        // Whatever answers, no endpoint was named for it.
        let Some(first) = self.named.first().map(Rc::clone) else { return Headers::new() };
        let listener = Rc::clone(&self.in_flight.listener);
        listener.metrics.latency.observe(listener.worker.shared.clock.micros().saturating_sub(self.started));
        let (target, stamps) = match served {
            Some(address) => match self.find(address, &first) {
                Some(target) => (target, None),
                None => return unstamped(&listener),
            },
            // Who of them served is not known, but what they have in common.
            None if self.named.len() > 1 => (first, Some(common(&self.named))),
            None => (first, None),
        };
        let status = status.unwrap_or_default();
        target.metrics.served(status);
        if let Some(access) = &mut self.in_flight.access {
            let endpoint = &target.endpoint;
            access.served(status, &endpoint.revision, endpoint.address, prefill);
        }
        if let Some(stamps) = stamps {
            return stamps;
        }
        if !self.lease.as_ref().is_some_and(|lease| Rc::ptr_eq(&lease.target, &target)) {
            self.lease = Some(Lease::new(Rc::clone(&target)));
        }
        if status.is_server_error() {
            listener.failed(&target);
        } else {
            target.endpoint.vitals.answered();
            self.good = Some(Rc::clone(&target));
        }
        target.stamps().to_vec()
    }

    /// The endpoint at an address: one of those named, or else any of the same revision, or of another.
    fn find(&self, address: SocketAddr, first: &Target) -> Option<Rc<Target>> {
        let named = self.named.iter().find(|target| target.endpoint.address == address);
        if let Some(target) = named {
            return Some(Rc::clone(target));
        }
        let mut table = self.in_flight.listener.table.borrow_mut();
        let revision = Some(&*first.endpoint.revision);
        let found = table.named(revision, &[address]).or_else(|| table.named(None, &[address]));
        found.map(|chosen| chosen.target)
    }

    /// The response came to its end.
    pub(super) fn whole(&mut self) {
        if let Some(target) = self.good.take() {
            target.endpoint.vitals.completed();
        }
    }

    /// The request's body is longer than allowed.
    pub(super) fn too_long(&self) -> ProxyError {
        ProxyError::BodyTooLarge { limit: self.http.max_body }
    }

    /// Tells the client why no endpoint answers.
    pub(super) fn refuse(&mut self, error: &ProxyError, exchange: &mut Exchange) {
        let (status, head, body) = told(error);
        let word = error.reason().word();
        self.in_flight.listener.metrics.refused(error.reason());
        tracing::debug!(reason = word, %error, "request refused");
        if let Some(access) = &mut self.in_flight.access {
            access.refused(status, word);
        }
        let head = head.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
        exchange.refused(status, word, head, body);
    }
}

/// Whether a request has two legs, by its head.
fn has_legs(head: &Head) -> bool {
    let Ok(method) = Method::from_bytes(head.first(":method")) else { return false };
    let path = head.first(":path").split(|byte| *byte == b'?').next().unwrap_or_default();
    std::str::from_utf8(path).is_ok_and(|path| pair::has_legs(&method, path))
}

fn joined(addresses: impl Iterator<Item = SocketAddr>) -> String {
    addresses.map(|address| address.to_string()).collect::<Vec<_>>().join(",")
}

/// What all of them tell.
fn common(named: &[Rc<Target>]) -> Headers {
    let Some((first, others)) = named.split_first() else { return Headers::new() };
    let stamps = first.stamps().iter().map(|stamp| {
        let same = others.iter().all(|other| other.stamps().contains(stamp));
        (stamp.0.clone(), stamp.1.clone().filter(|_| same))
    });
    stamps.collect()
}

/// Nobody that is known: what an engine says of itself must not pass for a stamp.
fn unstamped(listener: &Listener) -> Headers {
    let table = listener.table.borrow();
    let Some((revision, selectors)) = table.headers() else { return Headers::new() };
    let names = std::iter::once(revision).chain(selectors.iter().map(|selector| &selector.header));
    names.map(|name| (name.clone(), None)).collect()
}
