//! Where requests go (E2, E4, E5, G6, G7, H3).

use std::{collections::HashSet, net::SocketAddr, sync::Arc};

use http::Request;
use revgate::{
    config::{HttpConfig, PickerConfig, Serves, Trust},
    extproc::proto::envoy::service::ext_proc::v3::{
        BodyMutation, BodyResponse, HttpBody, ProcessingRequest, ProcessingResponse, body_mutation::Mutation,
        processing_request::Request as Asked, processing_response::Response as Said,
    },
    snapshot::{Endpoint, Snapshot},
};

use crate::{
    base::http,
    gateway::{Gateway, Picked, REVISION, pairs, request, rig},
    support::{CHAT, Rig, config, endpoint, snapshot},
};

pub(crate) fn at(last: u8) -> SocketAddr {
    ([10, 0, 0, last], 8000).into()
}

/// Two revisions: a prefill and two decodes of `a`, one of each of `b`.
pub(crate) fn two() -> Vec<Arc<Endpoint>> {
    [("a", 0, 1), ("a", 1, 2), ("a", 1, 3), ("b", 0, 11), ("b", 1, 12)]
        .map(|(revision, role, last)| endpoint(revision, role, at(last)))
        .into()
}

pub(crate) fn revision_of(address: SocketAddr) -> &'static str {
    if address < at(10) { "a" } else { "b" }
}

#[tokio::test]
async fn e5_both_are_of_one_revision_and_both_revisions_get_requests() {
    let rig = rig(pairs(), &two());
    let mut gateway = Gateway::of(&rig).await;
    let mut seen = HashSet::new();
    for _ in 0..60 {
        let picked = gateway.get(&[]).await;
        let (destination, prefill) = (picked.destinations()[0], picked.prefill().unwrap());
        assert_eq!(picked.destinations().len(), 1);
        assert!([at(2), at(3), at(12)].contains(&destination) && [at(1), at(11)].contains(&prefill));
        assert_eq!(revision_of(destination), revision_of(prefill));
        seen.insert(destination);
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[tokio::test]
async fn a_picker_of_one_role_names_no_prefill_and_a_list_is_of_one_revision() {
    let alone = PickerConfig { prefill: None, trust: Trust::Always, endpoints: 3, ..pairs() };
    let rig = rig(alone, &two());
    let mut gateway = Gateway::of(&rig).await;
    for _ in 0..20 {
        let picked = gateway.get(&[(REVISION, "a")]).await;
        let mut both = picked.destinations().to_vec();
        both.sort_unstable();
        assert_eq!((both, picked.prefill()), (vec![at(2), at(3)], None), "all that there are, each once");
        assert_eq!(gateway.get(&[(REVISION, "b")]).await.destinations(), [at(12)]);
    }
}

#[tokio::test]
async fn h4_that_an_endpoint_is_on_the_agents_node_says_nothing_of_the_gateways() {
    let mut endpoints = two();
    let near = Arc::get_mut(&mut endpoints[1]).unwrap();
    near.local = true;
    let rig = rig(PickerConfig { trust: Trust::Always, ..pairs() }, &endpoints);
    let mut gateway = Gateway::of(&rig).await;
    // The one that is not near is never drawn once in 2^60 runs.
    let mut seen = HashSet::new();
    for _ in 0..60 {
        seen.insert(gateway.get(&[(REVISION, "a")]).await.destinations()[0]);
    }
    assert_eq!(seen, HashSet::from([at(2), at(3)]));
}

#[tokio::test]
async fn e4_nothing_eligible_is_refused_with_its_reason_for_a_get_too() {
    let rig = rig(pairs(), &[endpoint("a", 0, at(1)), endpoint("b", 1, at(12))]);
    let mut gateway = Gateway::of(&rig).await;
    gateway.get(&[]).await.is_refused(503, "no-eligible-revision");
    let line =
        r#"proxy_requests_total{listener="pair",revision="",code="5xx",reason="no-eligible-revision"}"#;
    assert_eq!(rig.metric(line), 1);
    let before = Snapshot { synced: false, ..snapshot(&two(), &[]) };
    rig.published.store(Arc::new(before));
    gateway.get(&[]).await.is_refused(503, "not-synced");
    let mut call = gateway.ask(request("POST", CHAT, &[], false)).await;
    Picked::of(call.next().await).is_refused(503, "not-synced");
    rig.published.store(Arc::new(snapshot(&two(), &[])));
    assert_eq!(gateway.get(&[]).await.destinations().len(), 1, "by the snapshot that is in force");
}

#[tokio::test]
async fn g6_a_trusted_header_gets_that_revision_or_nothing_and_h3_no_other_is_heard() {
    let trusted = rig(PickerConfig { trust: Trust::Always, ..pairs() }, &two());
    let mut gateway = Gateway::of(&trusted).await;
    for name in ["a", "b"] {
        for _ in 0..10 {
            let picked = gateway.get(&[(REVISION, name)]).await;
            assert_eq!(revision_of(picked.destinations()[0]), name);
        }
    }
    gateway.get(&[(REVISION, "c")]).await.is_refused(503, "revision-not-eligible");
    let both = [(REVISION, "a"), (REVISION, "b")];
    gateway.get(&both).await.is_refused(400, "conflicting-revision");

    let rig = rig(pairs(), &two());
    let mut gateway = Gateway::of(&rig).await;
    let spoofed = [(REVISION, "nonsense"), ("x-prefiller-host-port", "10.9.9.9:1"), ("x-other", "1")];
    let mut seen = HashSet::new();
    for _ in 0..40 {
        let picked = gateway.get(&spoofed).await;
        assert!([at(1), at(11)].contains(&picked.prefill().unwrap()));
        seen.insert(revision_of(picked.destinations()[0]));
        let Picked::To { removed, .. } = picked else { panic!("refused") };
        for name in [REVISION, "x-prefiller-host-port"] {
            assert!(removed.iter().any(|removed| removed == name), "{removed:?}");
        }
        assert!(!removed.iter().any(|name| name == "x-other"));
    }
    assert_eq!(seen.len(), 2, "the weights decide");
}

/// The body that goes on, and how many pieces there are.
fn piece(reply: ProcessingResponse) -> (usize, bool) {
    let Some(Said::RequestBody(body)) = reply.response else { panic!("{reply:?}") };
    streamed(body)
}

/// How long a piece of a body is, and whether it is the last.
fn streamed(body: BodyResponse) -> (usize, bool) {
    let Some(BodyMutation { mutation: Some(Mutation::StreamedResponse(piece)) }) =
        body.response.unwrap().body_mutation
    else {
        panic!("not streamed")
    };
    (piece.body.len(), piece.end_of_stream)
}

#[tokio::test]
async fn e2_a_body_that_two_legs_work_on_is_looked_at_first() {
    let rig = rig(pairs(), &two());
    let mut gateway = Gateway::of(&rig).await;
    for (body, status, reason) in [
        (&b"{"[..], 400, "bad-json"),
        (b"[]", 400, "bad-json"),
        (br#"{"prompt": "x"}"#, 400, "no-model"),
        (br#"{"model": ""}"#, 400, "no-model"),
    ] {
        let mut call = gateway.ask(request("POST", CHAT, &[], false)).await;
        call.body(body, true);
        Picked::of(call.next().await).is_refused(status, reason);
        assert!(call.end().await.unwrap().is_none(), "the call is over");
    }
    let mut call = gateway.ask(request("POST", CHAT, &[], true)).await;
    Picked::of(call.next().await).is_refused(400, "bad-json");
    let mut text = br#"{"model": "m", "prompt": ""#.to_vec();
    text.resize(62_000, b'x');
    text.extend_from_slice(b"\"}");
    let mut call = gateway.ask(request("POST", "/v1/completions?x=1", &[], false)).await;
    call.body(text[..10].to_vec(), false);
    call.body(text[10..].to_vec(), true);
    assert!(Picked::of(call.next().await).prefill().is_some());
    assert_eq!(piece(call.next().await), (62_000, false));
    assert_eq!(piece(call.next().await), (2, true));
    // Other paths' bodies are nobody's matter.
    let mut call = gateway.ask(request("POST", "/tokenize", &[], false)).await;
    assert!(matches!(Picked::of(call.next().await), Picked::To { .. }));
    call.body("{", true);
    assert_eq!(piece(call.next().await), (1, true));
}

#[tokio::test]
async fn h11_what_is_too_long_or_too_much_is_refused() {
    let http = HttpConfig { max_body: 1024, max_requests: 1, ..http() };
    let rig = Rig::over(&config(http, &[Serves::Picker(pairs())]), snapshot(&two(), &[]));
    let mut gateway = Gateway::of(&rig).await;
    // In a message a little longer than the limit, and in one much longer.
    for (path, length) in [(CHAT, 1025), ("/tokenize", 1025), (CHAT, 1 << 20), ("/tokenize", 1 << 20)] {
        let mut call = gateway.ask(request("POST", path, &[], false)).await;
        call.body(vec![b' '; length], false);
        let mut reply = call.next().await;
        if matches!(reply.response, Some(Said::RequestHeaders(_))) {
            reply = call.next().await;
        }
        Picked::of(reply).is_refused(413, "body-too-large");
        assert!(call.end().await.unwrap().is_none());
    }
    let mut held = gateway.ask(request("GET", "/", &[], true)).await;
    held.next().await;
    // The connection allows no second call: another one does.
    let mut other = Gateway::of(&rig).await;
    other.get(&[]).await.is_refused(503, "overloaded");
}

#[tokio::test]
async fn h10_the_limit_of_requests_is_none_of_responses() {
    let rig = Rig::over(
        &config(HttpConfig { max_body: 1024, ..http() }, &[Serves::Picker(pairs())]),
        snapshot(&two(), &[]),
    );
    let mut gateway = Gateway::of(&rig).await;
    let mut call = gateway.ask(request("GET", "/v1/models", &[], true)).await;
    Picked::of(call.next().await);
    call.responded(200, false, ProcessingRequest::default()).await;
    let all = 1 << 20;
    call.say(Asked::ResponseBody(HttpBody { body: vec![b'x'; all].into(), end_of_stream: true }));
    let (mut passed, mut ended) = (0, false);
    while !ended {
        let reply = call.next().await;
        let Some(Said::ResponseBody(body)) = reply.response else { panic!("{reply:?}") };
        let (length, end) = streamed(body);
        passed += length;
        ended = end;
    }
    assert_eq!(passed, all);
}

#[tokio::test]
async fn what_is_no_call_and_what_makes_no_sense_gets_an_error() {
    let rig = rig(pairs(), &two());
    let plain = Request::get("/").header("host", "h").body(http_body_util::Full::default()).unwrap();
    assert_eq!(rig.send(plain).await.status, 415);
    let mut gateway = Gateway::of(&rig).await;
    let nothing = futures_util::stream::empty::<ProcessingResponse>();
    let mut answer = gateway.call::<_, ProcessingResponse>("/grpc.health.v1.Health/Nothing", nothing).await;
    assert!(answer.message().await.unwrap().is_none());
    let mut call = gateway.ask(request("GET", "/", &[], true)).await;
    call.next().await;
    call.body("x", true);
    let status = call.end().await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
}

/// Envoy lets a request go on as it is when its call ends well.
#[tokio::test]
async fn g7_a_call_that_ends_before_its_request_is_answered_does_not_end_well() {
    let rig = rig(pairs(), &two());
    let mut gateway = Gateway::of(&rig).await;
    let call = gateway.ask(request("POST", CHAT, &[], false)).await;
    call.body("{", false);
    assert_eq!(call.hang_up().await.unwrap_err().code(), tonic::Code::Aborted);
    let mut call = gateway.ask(request("GET", "/", &[], true)).await;
    call.next().await;
    assert!(call.hang_up().await.unwrap().is_none());
}
