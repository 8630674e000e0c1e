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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use super::*;
    use crate::{
        cluster::{Pod, PodKey},
        snapshot::Vitals,
    };

    const BREAKER: Breaker = Breaker { failures: 1, open: Duration::from_millis(100) };

    fn endpoints(count: u16, local: impl Fn(u16) -> bool) -> Vec<Arc<Endpoint>> {
        let endpoint = |port: u16| {
            let pod = Pod {
                key: PodKey { namespace: "n".into(), name: "p".into(), uid: port.to_string().into() },
                ips: Vec::new(),
                node: None,
                labels: BTreeMap::new(),
                active_ports: None,
                ready: true,
                terminating: false,
                host_network: false,
                created: 0,
                ports: Vec::new(),
                cgroup: None,
            };
            Arc::new(Endpoint {
                address: ([127, 0, 0, 1], port).into(),
                pod: Arc::new(pod),
                revision: "a".into(),
                role: 0,
                local: local(port),
                vitals: Arc::new(Vitals::default()),
            })
        };
        (0..count).map(endpoint).collect()
    }

    fn busy(endpoint: &Endpoint, load: u32) {
        endpoint.vitals.outstanding.store(load, Relaxed);
    }

    fn rules(first: u32, second: u32) -> Rules {
        Rules { local_factor: 2.0, breaker: BREAKER, now: 0, draws: [first, second, first, second] }
    }

    fn choose(all: &[Arc<Endpoint>], tried: &[Arc<Endpoint>], rules: Rules) -> Result<u16, Unavailable> {
        let local: Vec<_> = all.iter().filter(|e| e.local).cloned().collect();
        Candidates { all, local: &local, tried }.choose(rules).map(|e| e.address.port())
    }

    /// A draw that falls on an index.
    fn at(index: u32, count: u32) -> u32 {
        u32::try_from((u64::from(index) << 32).div_ceil(u64::from(count))).unwrap()
    }

    #[test]
    fn the_less_busy_of_the_two_drawn_is_chosen() {
        let all = endpoints(4, |_| false);
        for (endpoint, load) in all.iter().zip([7, 5, 6, 0]) {
            busy(endpoint, load);
        }
        assert_eq!(choose(&all, &[], rules(at(0, 4), at(1, 4))), Ok(1));
        assert_eq!(choose(&all, &[], rules(at(2, 4), at(0, 4))), Ok(2));
        assert_eq!(choose(&all, &[], rules(at(2, 4), at(2, 4))), Ok(3), "never the same one twice");
    }

    #[test]
    fn what_was_tried_is_not_chosen_again() {
        let all = endpoints(3, |_| false);
        for draw in [0, at(1, 3), at(2, 3)] {
            assert_eq!(choose(&all, &all[..2], rules(draw, draw)), Ok(2));
        }
        assert_eq!(choose(&all, &all, rules(0, 0)), Err(Unavailable::AllTried));
        assert_eq!(choose(&[], &[], rules(0, 0)), Err(Unavailable::NoEndpoint));
    }

    #[test]
    fn a_resting_endpoint_is_passed_over_until_its_probe_is_due() {
        let all = endpoints(2, |_| false);
        all[0].vitals.failed(0, BREAKER);
        assert_eq!(choose(&all, &[], rules(0, 0)), Ok(1));
        all[1].vitals.failed(0, BREAKER);
        assert_eq!(choose(&all, &[], rules(0, 0)), Err(Unavailable::BreakersOpen));
        let due = Rules { now: 100, ..rules(0, 0) };
        assert_eq!(choose(&all, &[], due), Ok(0), "the probe, though it is not the less busy");
        assert_eq!(choose(&all, &[], due), Ok(1), "the other one's probe");
        assert_eq!(choose(&all, &[], due), Err(Unavailable::BreakersOpen));
    }

    #[test]
    fn a_second_candidate_does_not_use_up_its_probe() {
        let all = endpoints(2, |_| false);
        all[1].vitals.failed(0, BREAKER);
        assert_eq!(choose(&all, &[], Rules { now: 100, ..rules(0, at(1, 2)) }), Ok(0));
        assert_eq!(all[1].vitals.admission(100), Admission::ProbeDue);
    }

    #[test]
    fn this_nodes_endpoints_come_first_up_to_the_factor() {
        let all = endpoints(2, |port| port == 0);
        let other = rules(at(1, 2), at(1, 2));
        assert_eq!(choose(&all, &[], other), Ok(0));
        busy(&all[0], 1);
        assert_eq!(choose(&all, &[], other), Ok(0), "(1 + 1) is twice (0 + 1)");
        busy(&all[0], 2);
        assert_eq!(choose(&all, &[], other), Ok(1));
        busy(&all[0], 0);
        busy(&all[1], 0);
        assert_eq!(choose(&all, &[], Rules { local_factor: 0.0, ..other }), Ok(1), "no preference");
    }

    #[test]
    fn the_load_is_spread_within_a_constant() {
        let all = endpoints(100, |_| false);
        let mut draw = 1_u32;
        let mut next = || {
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            draw
        };
        for _ in 0..100 * 50 {
            let port = choose(&all, &[], rules(next(), next())).unwrap();
            all[usize::from(port)].vitals.outstanding.fetch_add(1, Relaxed);
        }
        let loads: Vec<u32> = all.iter().map(|e| e.vitals.outstanding.load(Relaxed)).collect();
        assert!(loads.iter().all(|load| (45..=54).contains(load)), "{loads:?}");
    }
}
