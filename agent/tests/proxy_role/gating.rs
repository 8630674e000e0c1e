//! Which revision answers, and what the response says about it (H1, H3, H5, G4, G6, G7, G9).

use std::collections::BTreeSet;

use http::Response;
use revgate::{config::GatingMode, snapshot::Snapshot};

use crate::support::{
    Engine, Gate, ID, NAME, REASON, REVISION, config, endpoint, http, nobody, snapshot, whole,
};

#[tokio::test]
async fn h1_the_named_revision_answers_and_its_name_is_stamped_over_the_engines() {
    let a = Engine::new(|_| {
        Response::builder().header(REVISION, "forged").header(REASON, "forged").body(whole("a")).unwrap()
    })
    .await;
    let b = Engine::named("b").await;
    let gate = Gate::new(&[endpoint("a", a.address), endpoint("b", b.address)]);
    for name in ["a", "b"].into_iter().cycle().take(20) {
        let reply = gate.get(&[(NAME, name)]).await;
        assert_eq!((reply.text(), reply.header(NAME)), (name, name));
        assert_eq!(reply.headers.get_all(REVISION).iter().count(), 1);
        assert!(!reply.headers.contains_key(REASON), "only a refusal has a reason");
    }
}

#[tokio::test]
async fn h1_without_a_header_the_weights_choose_and_the_choice_is_stamped() {
    let a = Engine::named("a").await;
    let b = Engine::named("b").await;
    let gate = Gate::new(&[endpoint("a", a.address), endpoint("b", b.address)]);
    let mut served = BTreeSet::new();
    for _ in 0..100 {
        let reply = gate.get(&[(NAME, "")]).await;
        assert_eq!(reply.text(), reply.header(NAME));
        served.insert(reply.text().to_owned());
    }
    assert_eq!(served.len(), 2, "half and half, so both are served in a hundred requests");
}

#[tokio::test]
async fn g6_a_revision_that_is_not_eligible_is_refused_and_never_substituted() {
    let b = Engine::named("b").await;
    let gate = Gate::new(&[endpoint("b", b.address)]);
    gate.get(&[(NAME, "a")]).await.is_refusal(503, "revision-not-eligible");
    assert_eq!(b.connections(), 0);
}

#[tokio::test]
async fn g6_the_named_revision_is_down_and_the_other_is_not_asked() {
    let b = Engine::named("b").await;
    let gate = Gate::new(&[endpoint("a", nobody()), endpoint("a", nobody()), endpoint("b", b.address)]);
    gate.get(&[(NAME, "a")]).await.is_refusal(503, "no-endpoint-left");
    assert_eq!(b.connections(), 0);
}

#[tokio::test]
async fn g6_two_values_are_refused_and_the_same_twice_is_one() {
    let a = Engine::named("a").await;
    let b = Engine::named("b").await;
    let gate = Gate::new(&[endpoint("a", a.address), endpoint("b", b.address)]);
    gate.get(&[(NAME, "a"), (NAME, "b")]).await.is_refusal(400, "conflicting-revision");
    assert_eq!(a.connections() + b.connections(), 0);
    assert_eq!(gate.get(&[(NAME, "a"), (NAME, "a")]).await.text(), "a");
}

#[tokio::test]
async fn g7_nothing_is_served_before_the_first_list_or_without_an_eligible_revision() {
    let gate = Gate::new(&[]);
    gate.get(&[]).await.is_refusal(503, "no-eligible-revision");
    let unsynced = Snapshot { synced: false, ..snapshot(GatingMode::MaxRole, &[endpoint("a", nobody())]) };
    gate.published.store(unsynced.into());
    gate.get(&[]).await.is_refusal(503, "not-synced");
    assert_eq!(
        gate.metric(r#"proxy_requests_total{listener="decode",revision="",code="5xx",reason="not-synced"}"#),
        1
    );
}

#[tokio::test]
async fn g9_a_decision_id_is_decided_alike_by_every_replica_and_a_name_wins_over_it() {
    let a = Engine::named("a").await;
    let b = Engine::named("b").await;
    let endpoints = [endpoint("a", a.address), endpoint("b", b.address)];
    let replicas = [Gate::new(&endpoints), Gate::new(&endpoints)];
    let mut served = BTreeSet::new();
    for id in 0..40 {
        let id = format!("request-{id}");
        let headers = [(ID, id.as_str())];
        let first = replicas[0].get(&headers).await;
        let second = replicas[1].get(&headers).await;
        assert_eq!(first.text(), second.text());
        served.insert(first.text().to_owned());
        let named = replicas[0].get(&[headers[0], (NAME, "b")]).await;
        assert_eq!(named.text(), "b");
    }
    assert_eq!(served.len(), 2);
}

#[tokio::test]
async fn g4_ungated_the_header_is_honoured_and_stamped_and_without_it_any_endpoint_serves() {
    let a = Engine::named("a").await;
    let b = Engine::named("b").await;
    let endpoints = [endpoint("a", a.address), endpoint("b", b.address)];
    let gate = Gate::over(&config(http()), snapshot(GatingMode::Disabled, &endpoints));
    let mut served = BTreeSet::new();
    for _ in 0..100 {
        assert_eq!(gate.get(&[(NAME, "b")]).await.text(), "b");
        let any = gate.get(&[]).await;
        assert_eq!(any.text(), any.header(NAME));
        served.insert(any.text().to_owned());
    }
    assert_eq!(served.len(), 2);
}
