//! What the pure core costs at its largest: the pick of every connect and request, the snapshot and tables of every
//! change.

#![expect(clippy::expect_used, reason = "a benchmark with bad input has nothing to measure")]

use std::{collections::HashMap, fmt::Write as _, path::Path, sync::Arc};

use divan::{Bencher, black_box};
use revgate::{
    cluster::{Change, Pod, list},
    config::{self, FenceMode, GatingMode},
    gating::{Ask, Census, Distribution, Gating, choose},
    kernel::tables::Tables,
    snapshot::state::State,
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

/// 10,000 Ready Pods of 50 revisions, half Prefill and half Decode.
fn pods() -> Vec<Arc<Pod>> {
    let mut text = String::new();
    for at in 0..10_000_u32 {
        let (revision, role) =
            (at % REVISIONS, if (at / REVISIONS).is_multiple_of(2) { "prefill" } else { "decode" });
        writeln!(
            text,
            "- {{name: pod-{at}, ip: 127.16.{}.{}, ready: true, labels: {{app: bench, \
             disaggregatedset.x-k8s.io/revision: r{revision}, disaggregatedset.x-k8s.io/role: {role}}}}}",
            at >> 8,
            at & 0xff
        )
        .expect("text");
    }
    list::parse(&text).expect("Pods").into_iter().map(|listed| listed.pod).collect()
}

/// A state with these Pods.
fn state(pods: Vec<Arc<Pod>>) -> State {
    let text = "{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugins: \
                [{type: disaggregatedset-rollout-screener, parameters: {scope: {labelSelector: app=bench}, \
                revisionGating: {mode: max-role, requiredRoles: [prefill, decode]}}}]}";
    let loaded = config::parse(Path::new("bench"), text.as_bytes(), None).expect("a configuration");
    let mut state = State::new(Arc::new(loaded.config), HashMap::new(), 0);
    state.apply(Change::Replace(pods));
    state
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

#[divan::bench]
fn build_a_snapshot_of_10_000_pods_after_one_changed(bencher: Bencher) {
    let pods = pods();
    let mut changed = Pod::clone(pods.first().expect("a Pod"));
    let mut state = state(pods);
    drop(state.build());
    bencher.bench_local(|| {
        changed.ready = !changed.ready;
        state.apply(Change::Upsert(Arc::new(changed.clone())));
        state.build()
    });
}

#[divan::bench]
fn make_the_kernel_tables_of_10_000_pods(bencher: Bencher) {
    let snapshot = state(pods()).build();
    bencher.bench_local(|| Tables::of(black_box(&snapshot), FenceMode::Enforce).expect("tables that fit"));
}
