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

/// How it is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// See `HttpConfig::local_factor`.
    pub(super) local_factor: f64,
    /// See `HttpConfig::prefer_factor`.
    pub(super) prefer_factor: f64,
    /// When endpoints rest.
    pub(super) breaker: Breaker,
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
                Admission::ProbeDue => but.is_none() && endpoint.vitals.claim_probe(rules.now, rules.breaker),
                Admission::Open => false,
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
                labels: BTreeMap::from([("slice".into(), (port % 2).to_string().into())]),
                active_ports: None,
                ready: true,
                terminating: false,
                host_network: false,
                created: 0,
                ports: Vec::new(),
                cgroup: None,
                static_uid: None,
                runtime_class: None,
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
        Rules {
            local_factor: 2.0,
            prefer_factor: 2.0,
            breaker: BREAKER,
            now: 0,
            draws: [first, second, first, second],
        }
    }

    fn choose(all: &[Arc<Endpoint>], tried: &[Arc<Endpoint>], rules: Rules) -> Result<u16, Unavailable> {
        let local: Vec<_> = all.iter().filter(|e| e.local).cloned().collect();
        Candidates { all, local: &local, tried, wants: &[] }.choose(rules).map(|e| e.address.port())
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

    fn choose_with(
        all: &[Arc<Endpoint>],
        want: (&str, SelectorMode),
        rules: Rules,
    ) -> Result<u16, Unavailable> {
        let wants = [Want::Label { label: "slice".into(), value: want.0.into(), mode: want.1 }];
        let local: Vec<_> = all.iter().filter(|e| e.local).cloned().collect();
        let candidates = Candidates { all, local: &local, tried: &[], wants: &wants };
        candidates.choose(rules).map(|e| e.address.port())
    }

    #[test]
    fn a_strict_label_leaves_only_those_that_have_it_each_with_an_equal_share() {
        let all = endpoints(6, |_| false);
        for (index, port) in [1, 3, 5].into_iter().enumerate() {
            let draw = at(u32::try_from(index).unwrap(), 3);
            assert_eq!(choose_with(&all, ("1", SelectorMode::Strict), rules(draw, draw)), Ok(port));
        }
        let none = choose_with(&all, ("2", SelectorMode::Strict), rules(0, 0));
        assert_eq!(none, Err(Unavailable::NoneMatches));
        for port in [1, 3, 5] {
            all[port].vitals.failed(0, BREAKER);
        }
        let resting = choose_with(&all, ("1", SelectorMode::Strict), rules(0, 0));
        assert_eq!(resting, Err(Unavailable::BreakersOpen), "no other takes their place");
    }

    #[test]
    fn e3_one_of_a_subset_and_no_other() {
        let all = endpoints(6, |port| port == 0);
        let of = |ports: &[usize], draw| {
            let wants = [Want::one_of(ports.iter().map(|port| all[*port].address).collect())];
            let candidates = Candidates { all: &all, local: &all[..1], tried: &[], wants: &wants };
            candidates.choose(rules(draw, draw)).map(|e| e.address.port())
        };
        assert_eq!((of(&[4, 2], at(0, 2)), of(&[4, 2], at(1, 2))), (Ok(2), Ok(4)), "not the local one");
        assert_eq!(of(&[], 0), Err(Unavailable::NoneMatches));
    }

    #[test]
    fn a_preferred_label_comes_first_after_this_node_and_any_other_will_do() {
        let all = endpoints(4, |port| port == 0);
        let prefer = |value| choose_with(&all, (value, SelectorMode::Prefer), rules(0, 0));
        assert_eq!(prefer("1"), Ok(0), "this node first");
        busy(&all[0], 9);
        assert_eq!(prefer("1"), Ok(1));
        let third = |value| choose_with(&all, (value, SelectorMode::Prefer), rules(at(2, 4), at(2, 4)));
        for (load, chosen) in [(1, 3), (2, 2), (0, 3)] {
            for slice in [1, 3] {
                busy(&all[slice], load);
            }
            assert_eq!(third("1"), Ok(chosen), "with {load} requests each; the other has none");
        }
        assert!(prefer("2").is_ok(), "nobody has it");
        all[1].vitals.failed(0, BREAKER);
        all[3].vitals.failed(0, BREAKER);
        assert_eq!(prefer("1"), Ok(2), "those that have it rest");
    }
}
