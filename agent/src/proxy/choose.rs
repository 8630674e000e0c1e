//! Which endpoint, within a revision and role (H4): the less busy of two random ones, those of this node first.
//!
//! Pure: the draws and the time are arguments. Two random candidates and one comparison cost the same for ten
//! endpoints as for ten thousand, and are within a constant of the best balance, without the herd that "the least
//! busy of all" makes when several agents look at once.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use revgate_common::pick;

use crate::snapshot::{Breaker, Endpoint, vitals::Admission};

/// What an endpoint is chosen from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidates<'a> {
    /// Every endpoint of the revision and role.
    pub(super) all: &'a [Arc<Endpoint>],
    /// Those of them that are on this node.
    pub(super) local: &'a [Arc<Endpoint>],
    /// Those that this request has tried already.
    pub(super) tried: &'a [Arc<Endpoint>],
}

/// How it is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// See `HttpConfig::local_factor`.
    pub(super) local_factor: f64,
    /// When endpoints rest.
    pub(super) breaker: Breaker,
    /// Milliseconds of the proxy's clock.
    pub(super) now: u64,
    /// Uniform draws: two for the endpoints of this node, two for all.
    pub(super) draws: [u32; 4],
}

/// Why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unavailable {
    /// There is none.
    NoEndpoint,
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
            self.lesser(self.local, local_first, local_second, rules)
        } else {
            None
        };
        if let Some(probe) = local.filter(|endpoint| endpoint.vitals.is_open()) {
            return Ok(probe);
        }
        let any = self.lesser(self.all, first, second, rules);
        if let Some(probe) = any.filter(|endpoint| endpoint.vitals.is_open()) {
            return Ok(probe);
        }
        match (local, any) {
            (Some(local), Some(any)) => {
                let load = |endpoint: &Endpoint| f64::from(load(endpoint)) + 1.0;
                Ok(if load(local) <= rules.local_factor * load(any) { local } else { any })
            }
            (Some(endpoint), None) | (None, Some(endpoint)) => Ok(endpoint),
            (None, None) if self.all.iter().any(|e| !self.was_tried(e)) => Err(Unavailable::BreakersOpen),
            (None, None) if self.all.is_empty() => Err(Unavailable::NoEndpoint),
            (None, None) => Err(Unavailable::AllTried),
        }
    }

    /// The less busy of two that may be used; the only one; or none.
    fn lesser(
        self,
        from: &'a [Arc<Endpoint>],
        first: u32,
        second: u32,
        rules: Rules,
    ) -> Option<&'a Arc<Endpoint>> {
        let first = self.usable(from, first, None, rules)?;
        if first.vitals.is_open() {
            return Some(first);
        }
        match self.usable(from, second, Some(first), rules) {
            Some(second) if load(second) < load(first) => Some(second),
            _ => Some(first),
        }
    }

    /// The first that may be used, from a random place on: one step unless endpoints rest or were tried.
    fn usable(
        self,
        from: &'a [Arc<Endpoint>],
        draw: u32,
        but: Option<&Arc<Endpoint>>,
        rules: Rules,
    ) -> Option<&'a Arc<Endpoint>> {
        let count = u32::try_from(from.len()).unwrap_or(u32::MAX);
        let (before, after) = from.split_at_checked(pick::index(draw, count) as usize)?;
        after.iter().chain(before).find(|endpoint| {
            !but.is_some_and(|but| Arc::ptr_eq(but, endpoint))
                && !self.was_tried(endpoint)
                && match endpoint.vitals.admission(rules.now) {
                    Admission::Closed => true,
                    // A second candidate that loses the comparison must not use up the probe.
                    Admission::ProbeDue => {
                        but.is_none() && endpoint.vitals.claim_probe(rules.now, rules.breaker)
                    }
                    Admission::Open => false,
                }
        })
    }

    fn was_tried(self, endpoint: &Endpoint) -> bool {
        self.tried.iter().any(|tried| tried.address == endpoint.address && tried.pod.key == endpoint.pod.key)
    }
}

fn load(endpoint: &Endpoint) -> u32 {
    endpoint.vitals.outstanding.load(Relaxed)
}
