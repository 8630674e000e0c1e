//! What is refused by the headers alone, before a body is sent (E4, H11, O4).

use std::sync::Arc;

use revgate::config::{HttpConfig, PickerConfig, Serves, Trust};

use crate::{
    base::{http, until},
    gateway::{Call, Gateway, Picked, REVISION, pairs, request, rig},
    log,
    pick::{at, two},
    support::{CHAT, Rig, config, endpoint, snapshot},
};

/// A chat whose body is still to come.
async fn chat(gateway: &mut Gateway, headers: &[(&str, &str)]) -> Call {
    gateway.ask(request("POST", CHAT, headers, false)).await
}

async fn is_refused(mut call: Call, status: u16, reason: &str) {
    Picked::of(call.next().await).is_refused(status, reason);
    assert!(call.end().await.unwrap().is_none(), "the call is over");
}

#[tokio::test]
async fn e4_a_request_that_cannot_go_anywhere_is_refused_before_its_body_comes() {
    let rig = rig(PickerConfig { trust: Trust::Always, ..pairs() }, &two());
    let mut gateway = Gateway::of(&rig).await;
    is_refused(chat(&mut gateway, &[(REVISION, "c")]).await, 503, "revision-not-eligible").await;
    is_refused(chat(&mut gateway, &[(REVISION, "a,b")]).await, 400, "conflicting-revision").await;
    is_refused(chat(&mut gateway, &[(REVISION, "a\nb")]).await, 400, "bad-request").await;
    for path in [CHAT, "/tokenize"] {
        let long = request("POST", path, &[("content-length", "67108865")], false);
        is_refused(gateway.ask(long).await, 413, "body-too-large").await;
    }
    rig.published.store(Arc::new(snapshot(&[endpoint("a", 0, at(1)), endpoint("b", 1, at(12))], &[])));
    is_refused(chat(&mut gateway, &[]).await, 503, "no-eligible-revision").await;
}

#[tokio::test]
async fn h11_who_comes_when_there_are_too_many_is_refused_and_who_was_there_is_not() {
    let http = HttpConfig { max_requests: 1, ..http() };
    let rig = Rig::over(&config(http, &[Serves::Picker(pairs())]), snapshot(&two(), &[]));
    let mut first = Gateway::of(&rig).await;
    let mut held = chat(&mut first, &[]).await;
    until(|| rig.proxy.in_flight() == 1).await;
    // The connection allows no second call: another one does.
    let mut second = Gateway::of(&rig).await;
    let mut late = chat(&mut second, &[]).await;
    Picked::of(late.next().await).is_refused(503, "overloaded");
    held.body(&br#"{"model": "m"}"#[..], true);
    assert_eq!(Picked::of(held.next().await).destinations().len(), 1);
}

#[tokio::test]
async fn o4_a_body_that_is_too_long_leaves_a_line_in_the_access_log() {
    log::keep();
    let http = HttpConfig { max_body: 1024, access_log: true, ..http() };
    let mut config = config(http, &[Serves::Picker(pairs())]);
    config.agent.listeners[0].name = "logs-what-it-refuses".into();
    let rig = Rig::over(&config, snapshot(&two(), &[]));
    let mut gateway = Gateway::of(&rig).await;
    let call = chat(&mut gateway, &[]).await;
    call.body(vec![b' '; 1025], false);
    is_refused(call, 413, "body-too-large").await;
    let words = ["revgate::access", "logs-what-it-refuses", "path=\"/v1/chat/completions\"", "status=413"];
    until(|| log::lines(&words).len() == 1).await;
    assert!(log::lines(&words)[0].contains("reason=\"body-too-large\""));
}
