//! The golden cases (G11): every case, rollout step and pick of `tests/cases/gating.json`.
#![cfg(test)]

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use revgate::{
    config::GatingMode,
    gating::{Ask, Census, Distribution, Gating, choose},
};
use serde::Deserialize;

/// Ready Pods by revision and role.
type Counts = BTreeMap<String, BTreeMap<String, u32>>;

/// Exact fractions by revision.
type Shares = BTreeMap<String, String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    #[serde(rename = "about")]
    _about: String,
    cases: Vec<Case>,
    rollout_2p10d_max_unavailable_2: Vec<Step>,
    picks: Vec<Pick>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Case {
    name: String,
    required_roles: Vec<String>,
    counts: Counts,
    shares: BTreeMap<String, Shares>,
    dominant_role: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(rename = "step")]
    index: usize,
    counts: Counts,
    shares: Shares,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Pick {
    shares: Shares,
    draw_fraction: String,
    revision: String,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../tests/cases/gating.json")).unwrap()
}

/// The distribution of these counts. Roles that are not required come last; each Pod has one endpoint.
fn distribution(required: &[String], counts: &Counts, mode: GatingMode) -> Distribution {
    let mut roles = required.to_vec();
    for role in counts.values().flat_map(BTreeMap::keys) {
        if !roles.contains(role) {
            roles.push(role.clone());
        }
    }
    let mut census = Census::new(roles.len());
    for (revision, by_role) in counts {
        let revision = Arc::from(revision.as_str());
        census.mention(&revision);
        for (role, pods) in by_role {
            census.add(&revision, roles.iter().position(|r| r == role).unwrap(), *pods, *pods);
        }
    }
    Distribution::of(&census, Gating { mode, required: required.len() })
}

/// `3/5` as (3, 5), `1` as (1, 1).
fn fraction(text: &str) -> (u64, u64) {
    let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
    (numerator.parse().unwrap(), denominator.parse().unwrap())
}

/// Every share is the expected fraction exactly, and the first and the last draw of each revision fall on it.
fn check(what: &str, distribution: &Distribution, shares: &Shares) {
    let names: Vec<&str> = distribution.revisions.iter().map(|r| &*r.name).collect();
    assert_eq!(names, shares.keys().collect::<Vec<_>>(), "{what}");
    let common: u64 = shares.values().map(|share| fraction(share).1).product();
    let mut cumulative = 0_u64;
    for revision in &distribution.revisions {
        let (numerator, denominator) = fraction(&shares[&*revision.name]);
        let of = format!("{what}: {}", revision.name);
        assert_eq!(u64::from(revision.weight) * denominator, numerator * distribution.total(), "{of}");
        assert_eq!(revision.eligible, numerator > 0, "{of}");
        let by_header = choose(distribution, true, Ask::Named(&revision.name), 0);
        assert_eq!(by_header.is_ok(), revision.eligible, "{of}");
        if numerator > 0 {
            let first = (cumulative << 32).div_ceil(common);
            cumulative += numerator * common / denominator;
            let last = (cumulative << 32).div_ceil(common) - 1;
            for draw in [first, last] {
                let chosen = choose(distribution, true, Ask::Any, u32::try_from(draw).unwrap());
                assert_eq!(chosen.unwrap().unwrap().name, revision.name, "{of} at {draw}");
            }
        }
    }
    if cumulative == 0 {
        assert!(choose(distribution, true, Ask::Any, 0).is_err(), "{what}");
    } else {
        assert_eq!(cumulative, common, "{what}: the shares sum to 1");
    }
}

#[test]
fn every_case_gives_its_shares_and_dominant_role() {
    let cases = golden().cases;
    assert_eq!(cases.len(), 16);
    for case in cases {
        for (mode, shares) in &case.shares {
            let mode_of = match mode.as_str() {
                "max-role" => GatingMode::MaxRole,
                "sum" => GatingMode::Sum,
                other => panic!("no mode {other}"),
            };
            let distribution = distribution(&case.required_roles, &case.counts, mode_of);
            check(&format!("{} ({mode})", case.name), &distribution, shares);
            let dominant = distribution.dominant.map(|role| case.required_roles[role].clone());
            assert_eq!(dominant, case.dominant_role, "{} ({mode})", case.name);
        }
    }
}

#[test]
fn every_step_of_the_rollout_gives_its_shares() {
    let required = ["prefill".to_owned(), "decode".to_owned()];
    let steps = golden().rollout_2p10d_max_unavailable_2;
    assert_eq!(steps.len(), 11);
    for (index, step) in steps.into_iter().enumerate() {
        assert_eq!(step.index, index);
        let distribution = distribution(&required, &step.counts, GatingMode::MaxRole);
        check(&format!("step {index}"), &distribution, &step.shares);
    }
}

#[test]
fn every_pick_falls_on_its_revision() {
    let picks = golden().picks;
    assert_eq!(picks.len(), 4);
    for pick in picks {
        let fractions: Vec<(u64, u64)> = pick.shares.values().map(|share| fraction(share)).collect();
        let common: u64 = fractions.iter().map(|(_, denominator)| denominator).product();
        let pods = fractions.iter().map(|(n, d)| u32::try_from(n * common / d).unwrap());
        let counts =
            pick.shares.keys().cloned().zip(pods.map(|n| BTreeMap::from([("decode".to_owned(), n)])));
        let distribution = distribution(&["decode".to_owned()], &counts.collect(), GatingMode::MaxRole);
        let (numerator, denominator) = fraction(&pick.draw_fraction);
        let draw = u32::try_from((numerator << 32) / denominator).unwrap();
        let chosen = choose(&distribution, true, Ask::Any, draw).unwrap().unwrap();
        assert_eq!(*chosen.name, pick.revision, "{:?} at {}", pick.shares, pick.draw_fraction);
    }
}

/// Where the project's shared cases are at hand, the copy in the repository is theirs to the byte.
#[test]
fn the_copy_is_the_original() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let original = repository.join("../shared/cases/gating.json");
    if original.exists() {
        let copy = repository.join("tests/cases/gating.json");
        assert_eq!(fs::read(copy).unwrap(), fs::read(original).unwrap());
    }
}
