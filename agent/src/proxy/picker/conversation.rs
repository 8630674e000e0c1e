//! What is decided in one call: whether its request may begin, and where it goes.
//!
//! The choice is that of every listener (`table`, `choose`, `pair::pick`), made from the same snapshot, and accounted
//! to the same endpoints: a request is in flight at its endpoint until the call ends, a status of 500 and above counts
//! as a failure. Only that an endpoint is on this agent's node says nothing here: the gateway may be anywhere.

use std::{net::SocketAddr, rc::Rc, sync::Arc, sync::atomic::Ordering::Relaxed, task::Context};

use http::{Method, Uri};

use super::wishes::Wishes;
use crate::{
    config::HttpConfig,
    extproc::{Destination, Due, Exchange, Head, Named},
    proxy::{
        access::Access,
        choose::{Probes, Rules, Want},
        clock::millis,
        deadlines::Silence,
        error::ProxyError,
        pair::{self, pick},
        reply::{InFlight, Lease, told},
        target::Target,
    },
};

/// What is decided and held for one request.
pub(super) struct Conversation {
    http: Rc<HttpConfig>,
    /// Whether the client's routing headers are believed.
    trusted: bool,
    /// When the call began, microseconds of the proxy's clock.
    pub(super) started: u64,
    wishes: Wishes,
    /// To be one of the gateway's endpoints, where it names some.
    subset: Option<Want>,
    /// Whether two endpoints work on it.
    pub(super) legs: bool,
    /// The endpoints that were named, the best one first.
    pub(super) named: Vec<Rc<Target>>,
    /// The endpoint that works on it, as far as is known.
    pub(super) lease: Option<Lease>,
    /// Its prefill endpoint, until the response begins.
    pub(super) prefill: Option<Lease>,
    /// Whose response it is, if that is known and its status was below 500.
    pub(super) good: [Option<Rc<Target>>; 2],
    pub(super) in_flight: InFlight,
}

impl Conversation {
    /// Of a call that is in flight.
    pub(super) fn new(in_flight: InFlight, http: Rc<HttpConfig>, trusted: bool) -> Self {
        let worker = &in_flight.listener.worker;
        let started = worker.shared.clock.micros();
        worker.ticker.set(started / 1000 + 1);
        Self {
            http,
            trusted,
            started,
            wishes: Wishes::default(),
            subset: None,
            legs: false,
            named: Vec::new(),
            lease: None,
            prefill: None,
            good: [None, None],
            in_flight,
        }
    }

    /// The exchange of its messages. A body matters where it has to be one that two legs can work on.
    pub(super) fn exchange(&self) -> Exchange {
        let pairs = self.in_flight.listener.picker.as_ref().is_some_and(|picker| picker.prefills.is_some());
        Exchange::new(if pairs { has_legs } else { |_| false }, self.http.max_body)
    }

    /// Whether there is any use in reading its body.
    pub(super) fn begin(&mut self, head: &Head, subset: Option<Vec<SocketAddr>>) -> Result<(), ProxyError> {
        let listener = Rc::clone(&self.in_flight.listener);
        let shared = &listener.worker.shared;
        if self.http.access_log {
            let method = Method::from_bytes(head.first(":method")).unwrap_or_default();
            let uri = Uri::try_from(head.first(":path")).unwrap_or_default();
            let access = Access::new(Arc::clone(&listener.name), method, uri, shared.clock, self.started);
            self.in_flight.access = Some(Box::new(access));
        }
        let limit = self.http.max_requests;
        if shared.requests.load(Relaxed) > limit {
            return Err(ProxyError::Overloaded { limit });
        }
        let pairs = listener.picker.as_ref().is_some_and(|picker| picker.prefills.is_some());
        let mut table = listener.table.borrow_mut();
        table.refresh(&shared.published);
        let Some((revision, selectors)) = table.headers() else { return Err(ProxyError::NotSynced) };
        self.wishes = Wishes::of(head, revision, selectors, self.trusted, pairs)?;
        self.subset = subset.map(Want::one_of);
        self.legs = pairs && has_legs(head);
        table.admits(self.wishes.ask()?)
    }

    /// Where the request goes that has begun.
    pub(super) fn pick(&mut self, body: Option<&[u8]>) -> Result<Destination, ProxyError> {
        body.map_or(Ok(()), pair::check)?;
        let listener = Rc::clone(&self.in_flight.listener);
        let (http, worker) = (Rc::clone(&self.http), &listener.worker);
        let picker = listener.picker.as_ref().ok_or(ProxyError::NotSynced)?;
        let mut decodes = listener.table.borrow_mut();
        decodes.refresh(&worker.shared.published);
        let mut prefills = picker.prefills.as_ref().map(|table| table.borrow_mut());
        if let Some(prefills) = &mut prefills {
            prefills.refresh(&worker.shared.published);
        }
        let Some((_, selectors)) = decodes.headers() else { return Err(ProxyError::NotSynced) };
        let (ask, selectors) = (self.wishes.ask()?, Arc::clone(selectors));
        let mut wants = self.wishes.wants()?;
        wants.extend(self.subset.clone());
        let gated = decodes.is_gated();
        let revision = if self.subset.is_none() && (gated || prefills.is_none()) {
            decodes.revision(ask, worker.draw())?
        } else {
            // How revisions share the traffic is not for a client's selectors to change.
            let wants = if gated { self.subset.as_slice() } else { &wants[..] };
            let fitting = |revision: &str| match &prefills {
                Some(prefills) => pick::of_both(prefills, &decodes, |table| table.fitting(revision, wants)),
                None => decodes.fitting(revision, wants),
            };
            decodes.revision_among(ask, worker.draw(), fitting)?
        };
        let rules = |probes| Rules { local_factor: 0.0, probes, ..Rules::of(worker, &http) };
        let (prefill, first) = if let Some(prefills) = &mut prefills {
            let probes = if self.legs { Probes::Claim } else { Probes::Ignore };
            let prefill = match pick::first(prefills, revision.as_deref(), &wants, rules(probes)) {
                // Whose fault a failure of two legs was is a guess: it may steer, not refuse.
                Err(ProxyError::BreakersOpen { .. }) => {
                    pick::first(prefills, revision.as_deref(), &wants, rules(Probes::Ignore))
                }
                chosen => chosen,
            }?;
            let claimed = rules(Probes::Claim);
            let (decode, with) = pick::beside(&prefill, &mut decodes, wants, &selectors, claimed)?;
            wants = with;
            (Some(prefill.target), decode.target)
        } else {
            let chosen = pick::first(&mut decodes, revision.as_deref(), &wants, rules(Probes::Claim))?;
            (None, chosen.target)
        };
        let revision = Arc::clone(&first.endpoint.revision);
        self.named = vec![first];
        while self.named.len() < picker.config.endpoints {
            let tried: Vec<_> = self.named.iter().map(|target| Arc::clone(&target.endpoint)).collect();
            let next = decodes.choose(Some(&revision), &tried, &wants, rules(Probes::Leave));
            let Ok(Some(next)) = next else { break };
            self.named.push(next.target);
        }
        self.lease = self.named.first().map(|target| Lease::new(Rc::clone(target)));
        self.prefill = prefill.map(Lease::new);
        Ok(Destination {
            endpoints: match &self.named[..] {
                [only] => only.named(),
                several => Named::of(several.iter().map(|target| target.endpoint.address)),
            },
            prefill: self.prefill.as_ref().map(|lease| lease.target.named()),
            remove: std::mem::take(&mut self.wishes.remove),
        })
    }

    /// The request's body is longer than allowed.
    pub(super) fn too_long(&self) -> ProxyError {
        ProxyError::BodyTooLarge { limit: self.http.max_body }
    }

    /// Whether the proxy has been waited for too long. Between its messages a client may be slow, or an endpoint: the
    /// limits are those of a request that is carried.
    pub(super) fn is_stalled(&self, due: Due, silence: &mut Silence, cx: &Context<'_>) -> bool {
        let longest = match due {
            Due::Request | Due::End => self.http.idle_timeout,
            Due::Response => self.http.response_timeout,
            Due::Body => self.http.stream_idle_timeout,
            // No deadline is left either, which would wake this call at every sweep of its stream.
            Due::Nothing => {
                *silence = Silence::default();
                return false;
            }
        };
        let worker = &self.in_flight.listener.worker;
        silence.lasts(millis(longest), worker.ticker.now(), &worker.deadlines, cx)
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
        exchange.refused(status, word, &head, body);
    }
}

/// Whether a request has two legs, by its head.
fn has_legs(head: &Head) -> bool {
    let Ok(method) = Method::from_bytes(head.first(":method")) else { return false };
    let path = head.first(":path").split(|byte| *byte == b'?').next().unwrap_or_default();
    std::str::from_utf8(path).is_ok_and(|path| pair::has_legs(&method, path))
}
