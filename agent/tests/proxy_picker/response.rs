//! What a response is stamped with, and what is accounted to its endpoint (E3, H1, H7, H14).

use std::{net::SocketAddr, sync::Arc, sync::atomic::Ordering::Relaxed};

use revgate::{
    config::{HeaderSelector, PickerConfig, SelectorMode, Serves, ShutdownConfig, Trust},
    extproc::proto::envoy::service::ext_proc::v3::HeaderMutation,
    snapshot::Endpoint,
};
use tokio::task::JoinSet;

use crate::{
    base::{http, until},
    gateway::{Gateway, Picked, REVISION, attributes, pairs, request, rig, served, value},
    log,
    pick::{at, revision_of, two},
    support::{Rig, config, endpoint, labelled, snapshot},
};

fn stamp(mutation: &HeaderMutation) -> Option<String> {
    assert!(mutation.remove_headers.iter().any(|name| *name == REVISION), "an engine's own goes in any case");
    value(mutation, REVISION)
}

/// A picked request whose response is still to come.
async fn asked(gateway: &mut Gateway) -> (crate::gateway::Call, SocketAddr) {
    let mut call = gateway.ask(request("GET", "/", &[], true)).await;
    let picked = Picked::of(call.next().await);
    (call, picked.destinations()[0])
}

#[tokio::test]
async fn e3_the_endpoint_that_served_decides_what_is_stamped() {
    let rig = rig(pairs(), &two());
    let mut gateway = Gateway::of(&rig).await;
    for _ in 0..10 {
        let (mut call, destination) = asked(&mut gateway).await;
        let revision = revision_of(destination);
        assert_eq!(stamp(&call.answered(200, None).await).as_deref(), Some(revision), "the one picked");
        let line =
            format!(r#"proxy_requests_total{{listener="pair",revision="{revision}",code="2xx",reason=""}}"#);
        assert!(rig.metric(&line) > 0);
        for served in [2, 3, 12].map(at) {
            let (mut call, _) = asked(&mut gateway).await;
            let stamped = call.answered(200, Some(served)).await;
            assert_eq!(stamp(&stamped).as_deref(), Some(revision_of(served)), "whatever was picked");
        }
        let (mut call, _) = asked(&mut gateway).await;
        assert_eq!(stamp(&call.answered(200, Some(at(99))).await), None, "nobody that is known");
    }
}

#[tokio::test]
async fn h1_only_what_came_from_an_endpoint_that_is_known_is_stamped() {
    let rig = rig(PickerConfig { trust: Trust::Always, ..pairs() }, &two());
    let mut gateway = Gateway::of(&rig).await;
    let a = request("GET", "/", &[(REVISION, "a")], true);
    let of = |upstream: &str| {
        attributes(&[("response.code_details", "via_upstream"), ("upstream.address", upstream)])
    };
    let own =
        attributes(&[("response.code_details", "ext_authz_denied"), ("upstream.address", "10.0.0.2:8000")]);
    for (status, besides, stamped) in [
        (200, served("pod-2:8000"), None),
        (200, served(""), None),
        (403, own, None),
        (503, of("10.0.0.3:8000"), Some("a")),
        (200, of("10.0.0.12:8000"), Some("b")),
        // The gateway does not say who served: it may be itself.
        (502, attributes(&[]), None),
        (503, attributes(&[]), None),
        (504, attributes(&[]), None),
        (500, attributes(&[]), Some("a")),
    ] {
        let mut call = gateway.ask(a.clone()).await;
        call.next().await;
        let what = format!("{status} {besides:?}");
        assert_eq!(stamp(&call.responded(status, true, besides).await).as_deref(), stamped, "{what}");
    }
    let counted = |code, count| {
        let line = format!(r#"proxy_requests_total{{listener="pair",revision="",code="{code}",reason=""}}"#);
        assert_eq!(rig.metric(&line), count, "{code} of nobody");
    };
    counted("2xx", 2);
    counted("4xx", 1);
}

#[tokio::test]
async fn e3_a_gateway_that_serves_from_elsewhere_is_counted_and_said_once_in_a_while() {
    log::keep();
    let rig = rig(PickerConfig { trust: Trust::Always, ..pairs() }, &two());
    let mut gateway = Gateway::of(&rig).await;
    let crossed = || rig.metric(r#"proxy_crossed_total{listener="pair"}"#);
    for (by, count) in [(at(2), 0), (at(3), 0), (at(213), 1), (at(12), 2), (at(213), 3)] {
        let mut call = gateway.ask(request("GET", "/", &[(REVISION, "a")], true)).await;
        call.next().await;
        call.answered(200, Some(by)).await;
        assert_eq!(crossed(), count, "{by}");
    }
    assert_eq!(log::lines(&["outside the revision that was picked", "served=10.0.0.213:8000"]).len(), 1);
}

#[tokio::test]
async fn of_several_none_of_which_is_said_to_have_served_what_they_share_is_stamped() {
    let selector = |name: &str| HeaderSelector {
        name: name.into(),
        header: format!("x-{name}").parse().unwrap(),
        label: name.into(),
        mode: SelectorMode::Prefer,
    };
    let labels = |slice| [("zone", "z"), ("slice", slice)];
    let endpoints = [
        endpoint("a", 0, at(1)),
        labelled("a", 1, at(2), &labels("1")),
        labelled("a", 1, at(3), &labels("2")),
    ];
    let picker = PickerConfig { endpoints: 2, ..pairs() };
    let snapshot = snapshot(&endpoints, &[selector("zone"), selector("slice")]);
    let rig = Rig::over(&config(http(), &[Serves::Picker(picker)]), snapshot);
    let mut gateway = Gateway::of(&rig).await;
    let (mut call, _) = asked(&mut gateway).await;
    let stamped = call.answered(200, None).await;
    let of = |name| value(&stamped, name);
    assert_eq!(
        (stamp(&stamped).as_deref(), of("x-zone").as_deref(), of("x-slice")),
        (Some("a"), Some("z"), None)
    );
    let (mut call, _) = asked(&mut gateway).await;
    assert_eq!(value(&call.answered(200, Some(at(3))).await, "x-slice").as_deref(), Some("2"));
}

fn load(endpoint: &Endpoint) -> u32 {
    endpoint.vitals.outstanding.load(Relaxed)
}

#[tokio::test]
async fn h4_a_request_is_in_flight_at_its_endpoint_until_its_call_ends() {
    let endpoints = two();
    let rig = rig(pairs(), &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    let (mut call, destination) = asked(&mut gateway).await;
    let of = |address| endpoints.iter().find(|endpoint| endpoint.address == address).map(Arc::clone).unwrap();
    let prefills = || load(&of(at(1))) + load(&of(at(11)));
    assert_eq!((load(&of(destination)), prefills(), rig.proxy.in_flight()), (1, 1, 1));
    let other = if destination == at(12) { at(2) } else { at(12) };
    call.answered(200, Some(other)).await;
    assert_eq!((load(&of(destination)), load(&of(other)), prefills()), (0, 1, 0), "where it is now");
    drop(call);
    until(|| rig.proxy.in_flight() == 0).await;
    assert_eq!(endpoints.iter().map(|endpoint| load(endpoint)).sum::<u32>(), 0);
}

#[tokio::test]
async fn h7_an_endpoint_that_fails_repeatedly_is_rested() {
    let endpoints = [endpoint("a", 0, at(1)), endpoint("a", 1, at(2)), endpoint("a", 1, at(3))];
    let rig = rig(pairs(), &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    for _ in 0..3 {
        let (mut call, _) = asked(&mut gateway).await;
        call.answered(500, Some(at(2))).await;
    }
    assert_eq!(rig.metric(r#"proxy_breaker_opens_total{listener="pair"}"#), 1);
    for _ in 0..3 {
        let (mut call, _) = asked(&mut gateway).await;
        call.answered(404, Some(at(3))).await;
    }
    assert!(endpoints[1].vitals.is_open() && !endpoints[2].vitals.is_open(), "4xx never count");
}

#[tokio::test]
async fn h14_a_call_that_is_open_ends_in_peace() {
    let rig = rig(pairs(), &two());
    let mut gateway = Gateway::of(&rig).await;
    let (mut call, _) = asked(&mut gateway).await;
    let address = rig.address(0);
    let shutdown = ShutdownConfig { delay: std::time::Duration::ZERO, deadline: crate::base::PATIENCE };
    let mut drained = JoinSet::new();
    drained.spawn(async move { rig.proxy.drain(&shutdown).await });
    // The listening socket is gone, the call is not.
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(stamp(&call.answered(200, None).await).is_some());
    drop(call);
    assert!(drained.join_next().await.unwrap().unwrap(), "nothing had to be broken");
}
