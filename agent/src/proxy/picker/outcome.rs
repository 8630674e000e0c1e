//! What became of a request: what its response is stamped with, and whose success or failure it is (E3, H1, H7).
//!
//! Two endpoints work on a request with two legs, and the gateway sees one response: a failure that came from there counts
//! for both. What opens a breaker is failures in a row, and the one of the two that is well has successes with others in
//! between. So this is a guess, and a prefill endpoint that rests for it is named all the same where there is no other.

use std::{net::SocketAddr, rc::Rc};

use http::{HeaderName, StatusCode};

use super::conversation::Conversation;
use crate::{
    extproc::{Served, Stamps},
    proxy::{error::ProxyError, listener::Listener, reply::Lease, target::Target},
};

impl Conversation {
    /// What is stamped on the response.
    pub(super) fn answered(&mut self, status: Option<StatusCode>, served: Served) -> Stamps {
        let prefill = self.prefill.take().map(|lease| Rc::clone(&lease.target));
        // Whatever answers, no endpoint was named for it.
        let Some(first) = self.named.first().map(Rc::clone) else { return Stamps::of(&[]) };
        let listener = Rc::clone(&self.in_flight.listener);
        listener.metrics.latency.observe(listener.worker.shared.clock.micros().saturating_sub(self.started));
        let target = match served {
            Served::By(address) => {
                let found = self.find(address, &first);
                let revision = found.as_ref().map(|target| &target.endpoint.revision);
                if revision != Some(&first.endpoint.revision) {
                    self.crossed(&first, address);
                }
                let Some(target) = found else { return self.foreign(status) };
                target
            }
            Served::Unclear => return self.foreign(status),
            Served::Proxy { failed } => {
                // The endpoint could not be reached, or took too long. That its prefill was at fault nobody says.
                if failed && status.is_some_and(is_of_gateways) && self.named.len() == 1 {
                    self.fail(1);
                }
                return self.foreign(status);
            }
            Served::Unsaid => first,
        };
        // A gateway may be told not to show it (Envoy's `forward_rules`).
        let may_be_gateways = status.is_none_or(is_of_gateways);
        target.metrics.served(status);
        if let Some(access) = &mut self.in_flight.access {
            let (endpoint, prefill) = (&target.endpoint, prefill.as_ref().map(|p| p.endpoint.address));
            access.served(status, &endpoint.revision, endpoint.address, prefill);
        }
        if served == Served::Unsaid && self.named.len() > 1 {
            // Who of them served is not known, but what they have in common.
            return if may_be_gateways { unstamped(&listener) } else { common(&self.named) };
        }
        if !self.lease.as_ref().is_some_and(|lease| Rc::ptr_eq(&lease.target, &target)) {
            self.lease = Some(Lease::new(Rc::clone(&target)));
        }
        // Those before it in the list were tried in vain.
        self.fail(self.named.iter().position(|named| Rc::ptr_eq(named, &target)).unwrap_or(0));
        if let Some(status) = status {
            self.account(status, &target, prefill);
        }
        if served == Served::Unsaid && may_be_gateways {
            return unstamped(&listener);
        }
        target.stamped()
    }

    /// The response does not come, though the request is there (`sent`). `None`: no endpoint was named.
    pub(super) fn unanswered(&mut self, sent: bool) -> Option<ProxyError> {
        let address = self.named.first()?.endpoint.address;
        // Of a list it is not known whose time it was.
        if sent && self.named.len() == 1 {
            self.fail(1);
        }
        Some(ProxyError::ResponseTimeout { address })
    }

    /// The response came to its end.
    pub(super) fn whole(&mut self) {
        for target in std::mem::take(&mut self.good).iter().flatten() {
            target.endpoint.vitals.completed();
        }
    }

    /// It does not come to its end.
    pub(super) fn broke(&mut self) {
        self.in_flight.listener.metrics.broken.inc();
        if let Some(access) = &mut self.in_flight.access {
            access.broke();
        }
    }

    /// A failure of the first endpoints that were named.
    fn fail(&self, count: usize) {
        for target in self.named.iter().take(count) {
            self.in_flight.listener.failed(target);
        }
    }

    /// A success or a failure of the endpoints that worked on it.
    fn account(&mut self, status: StatusCode, target: &Rc<Target>, prefill: Option<Rc<Target>>) {
        let worked = [Some(Rc::clone(target)), prefill.filter(|_| self.legs)];
        for target in worked.iter().flatten() {
            if status.is_server_error() {
                self.in_flight.listener.failed(target);
            } else {
                target.endpoint.vitals.answered();
            }
        }
        if !status.is_server_error() {
            self.good = worked;
        }
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

    /// The gateway gave the request to somebody else than it was told to.
    fn crossed(&self, first: &Target, served: SocketAddr) {
        let listener = &self.in_flight.listener;
        listener.metrics.crossed.inc();
        let now = listener.worker.ticker.now();
        if listener.picker.as_ref().is_some_and(|picker| picker.may_warn(now)) {
            tracing::warn!(
                listener = &*listener.name,
                named = %first.endpoint.address,
                revision = &*first.endpoint.revision,
                %served,
                "the gateway gave a request to an endpoint outside the revision that was picked: it must have no \
                 fallback to other hosts, and fewer retries than endpoints are named; further ones are counted"
            );
        }
    }

    /// An answer of nobody that is known.
    fn foreign(&mut self, status: Option<StatusCode>) -> Stamps {
        let listener = Rc::clone(&self.in_flight.listener);
        listener.metrics.foreign(status);
        if let Some(access) = &mut self.in_flight.access {
            access.refused(status, "");
        }
        unstamped(&listener)
    }
}

/// Whether gateways answer so when no endpoint does.
fn is_of_gateways(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504)
}

/// What all of them tell.
fn common(named: &[Rc<Target>]) -> Stamps {
    let Some((first, others)) = named.split_first() else { return Stamps::of(&[]) };
    let stamps = first.stamps().iter().map(|stamp| {
        let same = others.iter().all(|other| other.stamps().contains(stamp));
        (stamp.0.clone(), stamp.1.clone().filter(|_| same))
    });
    Stamps::of(&stamps.collect::<Vec<_>>())
}

/// Nobody that is known: what an engine says of itself must not pass for a stamp.
fn unstamped(listener: &Listener) -> Stamps {
    let table = listener.table.borrow();
    let Some((revision, selectors)) = table.headers() else { return Stamps::of(&[]) };
    let names = std::iter::once(revision).chain(selectors.iter().map(|selector| &selector.header));
    Stamps::of(&names.map(|name: &HeaderName| (name.clone(), None)).collect::<Vec<_>>())
}
