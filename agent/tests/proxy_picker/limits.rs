//! How long a gateway that says nothing is waited for (H14).

use std::{net::SocketAddr, sync::mpsc, thread, time::Duration};

use futures_util::stream;
use revgate::{
    config::{HttpConfig, Serves},
    extproc::proto::envoy::{
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode as Mode,
        service::ext_proc::v3::{
            HttpTrailers, ProcessingRequest, ProcessingResponse, processing_request::Request as Asked,
            processing_response::Response as Said,
        },
    },
};
use tokio::sync::oneshot;
use tonic::Code;

use crate::{
    base::{http, soon, until},
    gateway::{Gateway, Picked, bodies, pairs, request},
    pick::two,
    support::{CHAT, Rig, config, snapshot},
};

/// One of the limits; the others are longer than any test.
const SHORT: Duration = Duration::from_secs(2);

fn rig(http: HttpConfig) -> Rig {
    Rig::over(&config(http, &[Serves::Picker(pairs())]), snapshot(&two(), &[]))
}

#[tokio::test]
async fn h14_a_body_that_does_not_come_is_a_timeout_of_its_client() {
    let rig = rig(HttpConfig { idle_timeout: SHORT, ..http() });
    let mut gateway = Gateway::of(&rig).await;
    let mut call = gateway.ask(request("POST", CHAT, &[], false)).await;
    call.body("{", false);
    Picked::of(call.next().await).is_refused(408, "request-timeout");
    assert!(call.end().await.unwrap().is_none());
    until(|| rig.proxy.in_flight() == 0).await;
}

#[tokio::test]
async fn h14_a_call_in_which_no_request_comes_ends() {
    let rig = rig(HttpConfig { idle_timeout: SHORT, ..http() });
    let mut gateway = Gateway::of(&rig).await;
    let path = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
    let silence = stream::pending::<ProcessingRequest>();
    let mut replies = gateway.call::<_, ProcessingResponse>(path, silence).await;
    assert_eq!(soon(replies.message()).await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn h11_a_response_that_does_not_come_is_a_timeout_of_its_endpoint() {
    let rig = rig(HttpConfig { response_timeout: SHORT, breaker_failures: 1, ..http() });
    let mut gateway = Gateway::of(&rig).await;
    let mut call = gateway.ask(request("GET", "/", &[], true)).await;
    assert_eq!(Picked::of(call.next().await).destinations().len(), 1);
    Picked::of(call.next().await).is_refused(504, "response-timeout");
    assert!(call.end().await.unwrap().is_none());
    assert_eq!(rig.metric(r#"proxy_breaker_opens_total{listener="pair"}"#), 1, "that of the destination");
    until(|| rig.proxy.in_flight() == 0).await;
}

#[tokio::test]
async fn h10_a_response_that_stops_does_not_end_well_and_one_that_is_not_shown_may_take_its_time() {
    let rig = rig(HttpConfig { stream_idle_timeout: SHORT, ..http() });
    let mut gateway = Gateway::of(&rig).await;
    let mut hidden = request("GET", "/", &[], true);
    hidden.protocol_config = Some(bodies(Mode::None));
    let mut hidden = gateway.ask(hidden).await;
    hidden.next().await;
    hidden.responded(200, false, ProcessingRequest::default()).await;

    let mut call = gateway.ask(request("GET", "/", &[], true)).await;
    call.next().await;
    call.responded(200, false, ProcessingRequest::default()).await;
    assert_eq!(call.end().await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(rig.metric(r#"proxy_responses_broken_total{listener="pair"}"#), 1);

    hidden.say(Asked::ResponseTrailers(HttpTrailers {}));
    assert!(matches!(hidden.next().await.response, Some(Said::ResponseTrailers(_))));
}

#[tokio::test]
async fn h14_a_call_in_which_everything_was_said_ends() {
    let rig = rig(HttpConfig { idle_timeout: SHORT, ..http() });
    let mut gateway = Gateway::of(&rig).await;
    let mut call = gateway.ask(request("GET", "/", &[], true)).await;
    call.next().await;
    call.answered(200, None).await;
    assert!(call.end().await.unwrap().is_none());
}

#[tokio::test]
async fn h11_a_request_that_is_not_all_there_is_no_fault_of_its_endpoint() {
    let rig = rig(HttpConfig { response_timeout: SHORT, breaker_failures: 1, ..http() });
    let mut gateway = Gateway::of(&rig).await;
    for (mode, status, reason) in
        [(Mode::FullDuplexStreamed, 408, "request-timeout"), (Mode::None, 504, "response-timeout")]
    {
        let mut slow = request("POST", "/tokenize", &[], false);
        slow.protocol_config = Some(bodies(mode));
        let mut call = gateway.ask(slow).await;
        assert_eq!(Picked::of(call.next().await).destinations().len(), 1);
        Picked::of(call.next().await).is_refused(status, reason);
    }
    assert_eq!(rig.metric(r#"proxy_breaker_opens_total{listener="pair"}"#), 0);
}

/// Has a request picked for, and never answers anything any more until it is told to.
fn freeze(address: SocketAddr, picked: oneshot::Sender<()>, thaw: &mpsc::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _call = runtime.block_on(async {
        let mut gateway = Gateway::connect(address).await;
        let mut call = gateway.ask(request("GET", "/", &[], true)).await;
        call.next().await;
        (gateway, call)
    });
    let _ = picked.send(());
    let _ = thaw.recv();
}

#[tokio::test]
async fn h14_a_gateway_that_is_frozen_holds_nothing_for_ever() {
    let rig = rig(HttpConfig { idle_timeout: SHORT, ..http() });
    let (thaw, frozen) = mpsc::channel();
    let (picked, is_picked) = oneshot::channel();
    let address = rig.address(0);
    let gateway = thread::spawn(move || freeze(address, picked, &frozen));
    is_picked.await.unwrap();
    until(|| rig.proxy.in_flight() == 0).await;
    drop(thaw);
    gateway.join().unwrap();
}
