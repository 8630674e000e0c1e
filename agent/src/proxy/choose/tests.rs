//! Which of several endpoints is chosen, draw by draw.

use std::time::Duration;

use super::*;
use crate::{
    cluster::{Pod, PodKey},
    snapshot::Vitals,
};

const BREAKER: Breaker = Breaker { failures: 1, open: Duration::from_millis(100) };

fn endpoints(count: u16, local: impl Fn(u16) -> bool) -> Vec<Arc<Endpoint>> {
    let endpoint = |port: u16| {
        let pod = Pod {
            labels: [("slice".into(), (port % 2).to_string().into())].into_iter().collect(),
            ready: true,
            ..Pod::new(PodKey { namespace: "n".into(), name: "p".into(), uid: port.to_string().into() })
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
        probes: Probes::Claim,
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
fn a_probe_is_left_to_a_request_that_will_be_tried_and_nobody_needs_one_who_asks_nothing() {
    let all = endpoints(1, |_| false);
    all[0].vitals.failed(0, BREAKER);
    let due = Rules { now: 100, ..rules(0, 0) };
    let with = |probes| choose(&all, &[], Rules { probes, ..due });
    assert_eq!(with(Probes::Leave), Err(Unavailable::BreakersOpen));
    assert_eq!(with(Probes::Ignore), Ok(0));
    assert_eq!(choose(&all, &[], Rules { probes: Probes::Ignore, ..rules(0, 0) }), Ok(0), "not due either");
    assert_eq!(all[0].vitals.admission(100), Admission::ProbeDue, "nobody has taken it");
    assert_eq!(with(Probes::Claim), Ok(0));
    assert_eq!(all[0].vitals.admission(100), Admission::Open);
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

fn choose_with(all: &[Arc<Endpoint>], want: (&str, SelectorMode), rules: Rules) -> Result<u16, Unavailable> {
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
