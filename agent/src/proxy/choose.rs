//! Which endpoint, within a revision and role (H4): the less busy of two random ones, those of this node first.
//!
//! Pure: the draws and the time are arguments. Two random candidates and one comparison cost the same for ten
//! endpoints as for ten thousand, and are within a constant of the best balance, without the herd that "the least
//! busy of all" makes when several agents look at once.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use revgate_common::pick;

use super::worker::Worker;
use crate::{
    config::{HttpConfig, SelectorMode},
    snapshot::{Breaker, Endpoint, vitals::Admission},
};

/// What a request asks of its endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// A Pod label, by the header of a selector.
    Label {
        /// The label.
        label: Arc<str>,
        /// Its value.
        value: Box<str>,
        /// Whether no other will do.
        mode: SelectorMode,
    },
    /// To be one of these, and no other will do. See [`one_of`](Self::one_of).
    OneOf(Arc<[SocketAddr]>),
}

impl Want {
    /// To be one of these: sorted, as each is looked for many times.
    pub(super) fn one_of(mut addresses: Vec<SocketAddr>) -> Self {
        addresses.sort_unstable();
        Self::OneOf(addresses.into())
    }

    /// Whether the endpoint's Pod has the label with that value, or it is one of those.
    pub(super) fn is_met_by(&self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Label { label, value, .. } => {
                endpoint.pod.labels.get(label).is_some_and(|found| **found == **value)
            }
            Self::OneOf(addresses) => addresses.binary_search(&endpoint.address).is_ok(),
        }
    }

    /// Whether others will do.
    pub(super) fn mode(&self) -> SelectorMode {
        match self {
            Self::Label { mode, .. } => *mode,
            Self::OneOf(_) => SelectorMode::Strict,
        }
    }

    /// Whether it is about that label.
    pub(super) fn is_of(&self, name: &str) -> bool {
        matches!(self, Self::Label { label, .. } if **label == *name)
    }
}

/// What an endpoint is chosen from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidates<'a> {
    /// Every endpoint of the revision and role.
    pub(super) all: &'a [Arc<Endpoint>],
    /// Those of them that are on this node.
    pub(super) local: &'a [Arc<Endpoint>],
    /// Those that this request has tried already.
    pub(super) tried: &'a [Arc<Endpoint>],
    /// What it asks of its endpoint.
    pub(super) wants: &'a [Want],
}

/// What is done about endpoints that rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Probes {
    /// The request is the probe that is due. Somebody will tell how it went, or else the next is due when this one's time
    /// is over (a Decode's, where its Prefill refuses).
    Claim,
    /// They are left to a request that will be tried there for certain.
    Leave,
    /// They will do: nothing is asked of the endpoint.
    Ignore,
}

/// How it is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// See `HttpConfig::local_factor`.
    pub(super) local_factor: f64,
    /// See `HttpConfig::prefer_factor`.
    pub(super) prefer_factor: f64,
    /// When endpoints rest.
    pub(super) breaker: Breaker,
    /// And what then.
    pub(super) probes: Probes,
    /// Milliseconds of the proxy's clock.
    pub(super) now: u64,
    /// Uniform draws: two for the endpoints of this node, two for all.
    pub(super) draws: [u32; 4],
}

impl Rules {
    /// Of a request on that worker, now.
    pub(super) fn of(worker: &Worker, http: &HttpConfig) -> Self {
        Self {
            local_factor: http.local_factor,
            prefer_factor: http.prefer_factor,
            breaker: worker.breaker(),
            probes: Probes::Claim,
            now: worker.ticker.now(),
            draws: worker.draws(),
        }
    }
}

/// Why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unavailable {
    /// There is none.
    NoEndpoint,
    /// None is what is wanted.
    NoneMatches,
    /// All were tried.
    AllTried,
    /// All that are left rest.
    BreakersOpen,
}

impl<'a> Candidates<'a> {
    /// Chooses one. A probe that was claimed on the way is used, not weighed.
    pub(super) fn choose(self, rules: Rules) -> Result<&'a Arc<Endpoint>, Unavailable> {
        let [local_first, local_second, first, second] = rules.draws;
        let local = if rules.local_factor > 0.0 && !self.local.is_empty() {
            self.best(self.local, local_first, local_second, rules)
        } else {
            None
        };
        if let Some(probe) = local.filter(|endpoint| endpoint.vitals.is_open()) {
            return Ok(probe);
        }
        let any = self.best(self.all, first, second, rules);
        if let Some(probe) = any.filter(|endpoint| endpoint.vitals.is_open()) {
            return Ok(probe);
        }
        match (local, any) {
            (Some(local), Some(any)) => Ok(first_of(local, any, rules.local_factor)),
            (Some(endpoint), None) | (None, Some(endpoint)) => Ok(endpoint),
            (None, None) if self.are_left() => Err(Unavailable::BreakersOpen),
            (None, None) if self.all.is_empty() => Err(Unavailable::NoEndpoint),
            (None, None) if !self.all.iter().any(|e| self.fits(e, false)) => Err(Unavailable::NoneMatches),
            (None, None) => Err(Unavailable::AllTried),
        }
    }

    /// How many are what is wanted.
    pub(super) fn fitting(self) -> usize {
        self.all.iter().filter(|endpoint| self.fits(endpoint, false)).count()
    }

    /// How many of those do not rest.
    pub(super) fn working(self, now: u64) -> usize {
        let fitting = self.all.iter().filter(|endpoint| self.fits(endpoint, false));
        fitting.filter(|endpoint| endpoint.vitals.admission(now) != Admission::Open).count()
    }

    /// Whether there are more than those tried.
    pub(super) fn are_left(self) -> bool {
        self.all.iter().any(|endpoint| self.fits(endpoint, false) && !self.was_tried(endpoint))
    }

    /// The less busy of two, those that are preferred first.
    fn best(
        self,
        from: &'a [Arc<Endpoint>],
        first: u32,
        second: u32,
        rules: Rules,
    ) -> Option<&'a Arc<Endpoint>> {
        let prefers =
            rules.prefer_factor > 0.0 && self.wants.iter().any(|want| want.mode() == SelectorMode::Prefer);
        let preferred = if prefers { self.lesser(from, true, [first, second], rules) } else { None };
        // A probe that was claimed must be used.
        let any = match preferred {
            Some(probe) if probe.vitals.is_open() => return preferred,
            _ => self.lesser(from, false, [first, second], rules),
        };
        match (preferred, any) {
            (Some(preferred), Some(any)) if !any.vitals.is_open() => {
                Some(first_of(preferred, any, rules.prefer_factor))
            }
            (Some(preferred), None) => Some(preferred),
            (_, any) => any,
        }
    }

    /// The less busy of two that may be used; the only one; or none.
    fn lesser(
        self,
        from: &'a [Arc<Endpoint>],
        preferred: bool,
        [first, second]: [u32; 2],
        rules: Rules,
    ) -> Option<&'a Arc<Endpoint>> {
        let first = self.usable(from, preferred, first, None, rules)?;
        if first.vitals.is_open() {
            return Some(first);
        }
        match self.usable(from, preferred, second, Some(first), rules) {
            Some(second) if load(second) < load(first) => Some(second),
            _ => Some(first),
        }
    }

    /// The first that may be used, from a random place on: one step unless endpoints rest or were tried.
    fn usable(
        self,
        from: &'a [Arc<Endpoint>],
        preferred: bool,
        draw: u32,
        but: Option<&Arc<Endpoint>>,
        rules: Rules,
    ) -> Option<&'a Arc<Endpoint>> {
        let place = |of: usize| pick::index(draw, u32::try_from(of).unwrap_or(u32::MAX)) as usize;
        let may = |endpoint: &&Arc<Endpoint>| self.may_use(endpoint, but, rules);
        if self.wants.is_empty() {
            let (before, after) = from.split_at_checked(place(from.len()))?;
            return after.iter().chain(before).find(may);
        }
        // A place among those that fit: the one behind a row of others must not get their share.
        let fitting = || from.iter().filter(|endpoint| self.fits(endpoint, preferred));
        let place = place(fitting().count());
        fitting().skip(place).chain(fitting().take(place)).find(may)
    }

    fn may_use(self, endpoint: &Arc<Endpoint>, but: Option<&Arc<Endpoint>>, rules: Rules) -> bool {
        !but.is_some_and(|but| Arc::ptr_eq(but, endpoint))
            && !self.was_tried(endpoint)
            && match endpoint.vitals.admission(rules.now) {
                Admission::Closed => true,
                // A second candidate that loses the comparison must not use up the probe.
                Admission::ProbeDue if rules.probes == Probes::Claim => {
                    but.is_none() && endpoint.vitals.claim_probe(rules.now, rules.breaker)
                }
                Admission::ProbeDue | Admission::Open => rules.probes == Probes::Ignore,
            }
    }

    /// Whether it is what is wanted; `preferred`: in what is only preferred, too.
    fn fits(self, endpoint: &Endpoint, preferred: bool) -> bool {
        self.wants
            .iter()
            .filter(|want| preferred || want.mode() == SelectorMode::Strict)
            .all(|want| want.is_met_by(endpoint))
    }

    fn was_tried(self, endpoint: &Endpoint) -> bool {
        self.tried.iter().any(|tried| tried.address == endpoint.address && tried.pod.key == endpoint.pod.key)
    }
}

/// The one that comes first, unless it is busier than the other by more than the factor.
fn first_of<'a>(first: &'a Arc<Endpoint>, other: &'a Arc<Endpoint>, factor: f64) -> &'a Arc<Endpoint> {
    let load = |endpoint: &Endpoint| f64::from(load(endpoint)) + 1.0;
    if load(first) <= factor * load(other) { first } else { other }
}

fn load(endpoint: &Endpoint) -> u32 {
    endpoint.vitals.outstanding.load(Relaxed)
}

#[cfg(test)]
mod tests;
