//! What the pure core costs at its largest: the pick of every connect and request, the distribution of every change.

use std::sync::Arc;

use divan::{Bencher, black_box};
use revgate::{
    config::GatingMode,
    gating::{Ask, Census, Distribution, Gating, choose},
};
use revgate_common::{
    layout::{MAX_REVISIONS, MAX_ROLES},
    pick,
};

/// As many revisions as P1 asks for.
const REVISIONS: u32 = 50;
const _: () = assert!(REVISIONS as usize <= MAX_REVISIONS);

fn main() {
    divan::main();
}

/// 50 revisions with Ready Pods in 16 roles.
fn census() -> Census {
    let mut census = Census::new(MAX_ROLES);
    for at in 0..REVISIONS {
        let revision: Arc<str> = format!("{:08x}", at.wrapping_mul(0x9e37_79b9)).into();
        for role in 0..MAX_ROLES {
            for _ in 0..=at % 7 {
                census.count(&revision, role, 1);
            }
        }
    }
    census
}

fn distribution() -> Distribution {
    Distribution::of(&census(), Gating { mode: GatingMode::MaxRole, required: MAX_ROLES })
}

#[divan::bench]
fn weigh_50_revisions_of_16_roles(bencher: Bencher) {
    let census = census();
    let gating = Gating { mode: GatingMode::MaxRole, required: MAX_ROLES };
    bencher.bench(|| Distribution::of(black_box(&census), gating));
}

#[divan::bench]
fn pick_a_revision_of_50(bencher: Bencher) {
    let last = pick::last_draws(&[3; REVISIONS as usize]).unwrap_or([0; MAX_REVISIONS]);
    bencher.bench(|| pick::rank(black_box(&last), black_box(0x8000_0000)));
}

#[divan::bench]
fn choose_by_weight(bencher: Bencher) {
    let distribution = distribution();
    bencher.bench(|| choose(black_box(&distribution), true, Ask::Any, black_box(0x8000_0000)).is_ok());
}

#[divan::bench]
fn choose_by_header(bencher: Bencher) {
    let distribution = distribution();
    bencher.bench(|| choose(black_box(&distribution), true, Ask::Named(black_box("00000000")), 0).is_ok());
}

#[divan::bench]
fn choose_by_decision_id(bencher: Bencher) {
    let distribution = distribution();
    let id = b"0195d3a2-7c1e-7b60-a9f1-5f2f5c1d2e3a";
    bencher.bench(|| choose(black_box(&distribution), true, Ask::DecisionId(black_box(id)), 0).is_ok());
}
