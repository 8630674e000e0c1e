//! Whose success and failure a response is, and who probes an endpoint that rests (H7).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use revgate::{
    config::{HttpConfig, PickerConfig, Serves},
    extproc::proto::envoy::{
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode as Mode,
        service::ext_proc::v3::ProcessingRequest,
    },
    snapshot::{Breaker, Endpoint, vitals::Admission},
};

use crate::{
    base::{PATIENCE, http},
    gateway::{Call, Gateway, Picked, REVISION, attributes, bodies, pairs, request, served, subset, value},
    pick::at,
    support::{CHAT, Rig, config, endpoint, snapshot},
};

/// Of one revision: two prefills, two decodes.
fn four() -> Vec<Arc<Endpoint>> {
    [(0, 1), (0, 2), (1, 3), (1, 4)].map(|(role, last)| endpoint("a", role, at(last))).into()
}

fn rig(picker: PickerConfig, endpoints: &[Arc<Endpoint>]) -> Rig {
    let http = HttpConfig { breaker_open: PATIENCE, ..http() };
    Rig::over(&config(http, &[Serves::Picker(picker)]), snapshot(endpoints, &[]))
}

/// A request that these two work on, or would.
async fn between(gateway: &mut Gateway, path: &str, two: [u8; 2]) -> Call {
    let mut first = request("POST", path, &[], false);
    first.metadata_context = Some(subset(&two.map(at)));
    let mut call = gateway.ask(first).await;
    call.body(&br#"{"model": "m"}"#[..], true);
    let picked = Picked::of(call.next().await);
    assert_eq!((picked.prefill(), picked.destinations()), (Some(at(two[0])), &[at(two[1])][..]));
    call.next().await;
    call
}

fn is_open(endpoints: &[Arc<Endpoint>]) -> Vec<SocketAddr> {
    endpoints.iter().filter(|e| e.vitals.is_open()).map(|e| e.address).collect()
}

#[tokio::test]
async fn h7_a_failure_of_a_pair_counts_for_both_and_the_one_that_is_well_has_successes_in_between() {
    for (bad, good, opened) in [([1, 3], [2, 3], at(1)), ([1, 3], [1, 4], at(3))] {
        let endpoints = four();
        let rig = rig(pairs(), &endpoints);
        let mut gateway = Gateway::of(&rig).await;
        for status in [502, 503, 500] {
            assert!(is_open(&endpoints).is_empty());
            between(&mut gateway, CHAT, good).await.answered(200, Some(at(good[1]))).await;
            between(&mut gateway, CHAT, bad).await.answered(status, Some(at(bad[1]))).await;
        }
        assert_eq!(is_open(&endpoints), [opened]);
    }
}

#[tokio::test]
async fn h7_a_request_with_one_leg_says_nothing_of_the_prefill_endpoint() {
    let endpoints = four();
    let rig = rig(pairs(), &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    for _ in 0..3 {
        between(&mut gateway, "/tokenize", [1, 3]).await.answered(500, Some(at(3))).await;
    }
    assert_eq!(is_open(&endpoints), [at(3)]);
}

#[tokio::test]
async fn h7_what_the_gateway_answers_itself_closes_nothing() {
    let own = || attributes(&[("response.code_details", "response_timeout")]);
    let endpoints = four();
    let rig = rig(pairs(), &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    for _ in 0..2 {
        between(&mut gateway, CHAT, [1, 3]).await.responded(504, true, own()).await;
        between(&mut gateway, CHAT, [1, 3]).await.responded(429, true, own()).await;
    }
    assert!(is_open(&endpoints).is_empty());
    between(&mut gateway, CHAT, [1, 3]).await.responded(503, true, own()).await;
    assert_eq!(
        is_open(&endpoints),
        [at(3)],
        "three failures in a row, and nobody says that its prefill had a part"
    );
}

#[tokio::test]
async fn h7_where_bodies_are_not_shown_a_good_head_ends_the_failures_in_a_row() {
    let endpoints = four();
    let rig = rig(PickerConfig { prefill: None, ..pairs() }, &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    for status in [500, 500, 200, 500, 500] {
        let mut first = request("POST", CHAT, &[], false);
        first.protocol_config = Some(bodies(Mode::None));
        first.metadata_context = Some(subset(&[at(3)]));
        let mut call = gateway.ask(first).await;
        assert_eq!(Picked::of(call.next().await).destinations(), &[at(3)]);
        call.responded(status, false, ProcessingRequest::default()).await;
    }
    assert!(is_open(&endpoints).is_empty());
}

#[tokio::test]
async fn h7_a_prefill_endpoint_that_rests_is_named_where_there_is_no_other_and_a_good_answer_ends_its_rest() {
    let endpoints = four();
    let rig = rig(pairs(), &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    for _ in 0..3 {
        between(&mut gateway, CHAT, [1, 3]).await.answered(502, Some(at(3))).await;
    }
    assert_eq!(is_open(&endpoints), [at(1), at(3)]);
    between(&mut gateway, CHAT, [1, 4]).await.answered(200, Some(at(4))).await;
    assert_eq!(is_open(&endpoints), [at(3)]);
}

#[tokio::test]
async fn h7_those_of_a_list_that_were_tried_in_vain_have_failed() {
    let endpoints = four();
    let rig = rig(PickerConfig { prefill: None, endpoints: 2, ..pairs() }, &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    // The dead one is drawn first in half of the rounds: less than three times in 60 once in 2^49 runs.
    for _ in 0..60 {
        let mut call = gateway.ask(request("GET", "/", &[], true)).await;
        assert!(Picked::of(call.next().await).destinations().contains(&at(4)));
        call.answered(200, Some(at(4))).await;
        if !is_open(&endpoints).is_empty() {
            break;
        }
    }
    assert_eq!(is_open(&endpoints), [at(3)]);
}

/// It rests, and a probe is due, which moves on when somebody claims it.
fn probe_is_due(endpoint: &Endpoint) {
    endpoint.vitals.failed(0, Breaker { failures: 1, open: Duration::from_millis(1) });
}

fn is_due(endpoint: &Endpoint) -> bool {
    endpoint.vitals.admission(1) == Admission::ProbeDue
}

#[tokio::test]
async fn h7_only_who_is_tried_first_is_probed() {
    let endpoints = four();
    let rig = rig(PickerConfig { prefill: None, endpoints: 2, ..pairs() }, &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    // One of the two is drawn: in all rounds the resting one once in 2^30 runs.
    let mut healthy = 0;
    for _ in 0..30 {
        endpoints[3].vitals.answered();
        probe_is_due(&endpoints[3]);
        let picked = gateway.get(&[]).await;
        if picked.destinations()[0] == at(4) {
            assert_eq!((picked.destinations().len(), is_due(&endpoints[3])), (2, false));
        } else {
            assert_eq!((picked.destinations(), is_due(&endpoints[3])), (&[at(3)][..], true));
            healthy += 1;
        }
    }
    assert!(healthy > 0);
}

#[tokio::test]
async fn h7_a_prefill_endpoint_is_probed_by_a_request_that_it_works_on_and_the_answer_tells() {
    let endpoints = four();
    let rig = rig(pairs(), &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    probe_is_due(&endpoints[0]);
    between(&mut gateway, "/tokenize", [1, 3]).await;
    assert!(is_due(&endpoints[0]), "it is named, and nothing is asked of it");
    let mut call = between(&mut gateway, CHAT, [1, 3]).await;
    assert!(!is_due(&endpoints[0]) && endpoints[0].vitals.is_open());
    between(&mut gateway, "/tokenize", [1, 3]).await;
    call.answered(200, Some(at(3))).await;
    assert!(is_open(&endpoints).is_empty());
}

#[tokio::test]
async fn h7_a_request_that_finds_no_decode_endpoint_gives_the_probe_of_its_prefill_back() {
    let endpoints = four();
    let rig = rig(pairs(), &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    probe_is_due(&endpoints[0]);
    endpoints[2].vitals.failed(0, Breaker { failures: 1, open: 10 * PATIENCE });
    let mut first = request("POST", CHAT, &[], false);
    first.metadata_context = Some(subset(&[at(1), at(3)]));
    let mut call = gateway.ask(first).await;
    call.body(&br#"{"model": "m"}"#[..], true);
    Picked::of(call.next().await).is_refused(503, "breakers-open");
    // A probe that is claimed is followed by the next one after the test's whole patience.
    let later = u64::try_from(PATIENCE.as_millis()).unwrap();
    assert_eq!(endpoints[0].vitals.admission(later), Admission::ProbeDue);
}

#[tokio::test]
async fn h7_a_response_whose_status_is_not_shown_is_nobodys_success_and_nobodys_failure() {
    let endpoints = four();
    let rig = rig(pairs(), &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    for _ in 0..2 {
        between(&mut gateway, CHAT, [1, 3]).await.answered(500, Some(at(3))).await;
    }
    for _ in 0..3 {
        let mut call = between(&mut gateway, CHAT, [1, 3]).await;
        let stamped = call.showed(&[], true, served(&at(3).to_string())).await;
        assert_eq!(value(&stamped, REVISION).as_deref(), Some("a"), "who served is known");
        let mut call = between(&mut gateway, CHAT, [1, 3]).await;
        let stamped = call.showed(&[], true, ProcessingRequest::default()).await;
        assert_eq!(value(&stamped, REVISION), None, "it may be the gateway's own");
    }
    assert!(is_open(&endpoints).is_empty());
    let line = r#"proxy_requests_total{listener="pair",revision="a",code="unknown",reason=""}"#;
    assert_eq!(rig.metric(line), 6);
    between(&mut gateway, CHAT, [1, 3]).await.answered(500, Some(at(3))).await;
    assert_eq!(is_open(&endpoints), [at(1), at(3)], "three in a row");
}
