//! Headers that select by a Pod label, and what responses tell of who served (F2, H1, H4).

use std::sync::Arc;

use http::{HeaderName, Response};
use revgate::{
    cluster::Pod,
    config::{
        GatingMode, HeaderSelector,
        SelectorMode::{self, Prefer, Strict},
    },
    snapshot::{Endpoint, Snapshot},
};

use crate::support::{Client, Engine, Gate, NAME, config, endpoint, http, request, snapshot, whole};

/// The same endpoint, its Pod now with other labels.
fn relabelled(of: &Endpoint, labels: &[(&str, &str)]) -> Arc<Endpoint> {
    let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Arc::new(Endpoint {
        address: of.address,
        pod: Arc::new(Pod { labels, ..Pod::clone(&of.pod) }),
        revision: Arc::clone(&of.revision),
        role: of.role,
        local: of.local,
        vitals: Arc::clone(&of.vitals),
    })
}

/// A selector of the label `slice` by the header `x-slice`.
fn by_slice(mode: SelectorMode) -> HeaderSelector {
    HeaderSelector {
        name: "slice".into(),
        header: HeaderName::from_static("x-slice"),
        label: "slice".into(),
        mode,
    }
}

/// [`snapshot`], with selectors.
fn selecting(selectors: &[HeaderSelector], endpoints: &[Arc<Endpoint>]) -> Snapshot {
    let mut snapshot = snapshot(GatingMode::MaxRole, endpoints);
    snapshot.sets[0].selectors = selectors.into();
    snapshot
}

/// An engine that gives itself out for one of slice `forged`.
async fn boastful() -> Engine {
    Engine::new(|_| Response::builder().header("x-slice", "forged").body(whole("")).unwrap()).await
}

#[tokio::test]
async fn f5_stamps_follow_the_configuration_and_the_connection_is_kept() {
    let engine = boastful().await;
    let endpoints = [endpoint("a", engine.address)];
    let gate = Gate::over(&config(http()), selecting(&[], &endpoints));
    let mut client = Client::connect(gate.address).await;
    let reply = client.send(request(&[], "")).await;
    assert_eq!((reply.header("x-slice"), reply.header(NAME)), ("forged", "a"), "no header of ours");
    gate.published.store(selecting(&[by_slice(Strict)], &endpoints).into());
    let reply = client.send(request(&[], "")).await;
    assert_eq!((reply.header("x-slice"), reply.header(NAME)), ("slice-of-a", "a"));
    let mut renamed = selecting(&[], &endpoints);
    renamed.sets[0].revision_header = HeaderName::from_static("x-revision");
    gate.published.store(renamed.into());
    let reply = client.send(request(&[], "")).await;
    assert_eq!((reply.header("x-revision"), reply.header(NAME)), ("a", ""));
    assert_eq!(engine.connections(), 1);
}

#[tokio::test]
async fn h1_stamps_follow_the_pods_labels_and_no_engine_forges_one_that_is_missing() {
    let engine = boastful().await;
    let first = endpoint("a", engine.address);
    let selectors = [by_slice(Strict)];
    let gate = Gate::over(&config(http()), selecting(&selectors, std::slice::from_ref(&first)));
    let mut client = Client::connect(gate.address).await;
    assert_eq!(client.send(request(&[], "")).await.header("x-slice"), "slice-of-a");
    for (labels, stamp) in [(&[("slice", "9")][..], Some("9")), (&[], None), (&[("slice", "\n")], None)] {
        gate.published.store(selecting(&selectors, &[relabelled(&first, labels)]).into());
        let reply = client.send(request(&[], "")).await;
        assert_eq!(reply.headers.get("x-slice").map(|value| value.to_str().unwrap()), stamp);
    }
    assert_eq!(engine.connections(), 1);
}

#[tokio::test]
async fn f2_a_strict_selector_leaves_only_endpoints_with_that_label() {
    let (one, two) = (Engine::named("one").await, Engine::named("two").await);
    let endpoints = [
        relabelled(&endpoint("a", one.address), &[("slice", "1")]),
        relabelled(&endpoint("a", two.address), &[("slice", "2")]),
    ];
    let gate = Gate::over(&config(http()), selecting(&[by_slice(Strict)], &endpoints));
    for (slice, name) in [("1", "one"), ("2", "two")].into_iter().cycle().take(20) {
        let reply = gate.get(&[("x-slice", slice)]).await;
        assert_eq!((reply.text(), reply.header("x-slice")), (name, slice));
    }
    gate.get(&[("x-slice", "3")]).await.is_refusal(503, "no-matching-endpoint");
    gate.get(&[("x-slice", "1"), ("x-slice", "2")]).await.is_refusal(400, "bad-request");
    assert_eq!(gate.get(&[("x-slice", "")]).await.status, 200, "an empty value counts as absent");
    let seen = one.seen.lock().unwrap();
    assert!(seen.iter().all(|seen| !seen.headers.contains_key("x-slice")), "it is not for engines");
}

#[tokio::test]
async fn f2_a_preferred_label_comes_first_and_any_other_will_do() {
    let (one, two) = (Engine::named("one").await, Engine::named("two").await);
    let endpoints = [
        relabelled(&endpoint("a", one.address), &[("slice", "1")]),
        relabelled(&endpoint("a", two.address), &[("slice", "2")]),
    ];
    let gate = Gate::over(&config(http()), selecting(&[by_slice(Prefer)], &endpoints));
    for _ in 0..20 {
        assert_eq!(gate.get(&[("x-slice", "2")]).await.text(), "two");
    }
    assert_eq!(gate.get(&[("x-slice", "3")]).await.status, 200);
}
