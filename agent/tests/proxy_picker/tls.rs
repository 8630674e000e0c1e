//! Gateways that ask by TLS, as most do (E1).

use futures_util::stream;
use http::Request;
use revgate::{
    config::{Serves, TlsConfig},
    extproc::proto::{
        envoy::service::ext_proc::v3::{body_mutation::Mutation, processing_response::Response as Said},
        grpc::health::v1::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus},
    },
};

use crate::{
    base::{Client, http, soon},
    gateway::{Gateway, Picked, REVISION, pairs, request, value},
    handshake::{CERTIFICATE, KEY, handshake},
    pick::{revision_of, two},
    support::{CHAT, Rig, config, snapshot},
};

/// With the TLS that every listener may have.
fn rig() -> Rig {
    let mut config = config(http(), &[Serves::Picker(pairs())]);
    config.agent.listeners[0].tls = Some(TlsConfig { certificate: CERTIFICATE.into(), key: KEY.into() });
    Rig::over(&config, snapshot(&two(), &[]))
}

#[tokio::test]
async fn e1_a_gateway_that_asks_by_tls_gets_what_every_other_gets() {
    let rig = rig();
    let stream = soon(handshake(rig.address(0), b"h2", CERTIFICATE)).await.unwrap();
    let mut gateway = Gateway::over(stream).await;
    for _ in 0..10 {
        let picked = gateway.get(&[]).await;
        assert_eq!(revision_of(picked.destinations()[0]), revision_of(picked.prefill().unwrap()));
    }
    let mut text = br#"{"model": "m", "prompt": ""#.to_vec();
    text.resize(1 << 20, b'x');
    text.extend_from_slice(b"\"}");
    let length = text.len();
    let mut call = gateway.ask(request("POST", CHAT, &[], false)).await;
    for part in text.chunks(50_000) {
        call.body(part.to_vec(), false);
    }
    call.body("", true);
    let destination = Picked::of(call.next().await).destinations()[0];
    let (mut came, mut end) = (0, false);
    while !end {
        let reply = call.next().await;
        let Some(Said::RequestBody(body)) = reply.response else { panic!("{reply:?}") };
        let mutation = body.response.unwrap().body_mutation.unwrap().mutation;
        let Some(Mutation::StreamedResponse(piece)) = mutation else { panic!("{mutation:?}") };
        (came, end) = (came + piece.body.len(), piece.end_of_stream);
    }
    assert_eq!(came, length);
    let stamped = call.answered(200, None).await;
    assert_eq!(value(&stamped, REVISION).as_deref(), Some(revision_of(destination)));

    let asks = stream::iter([HealthCheckRequest { service: "readiness".into() }]);
    let mut health = gateway.call::<_, HealthCheckResponse>("/grpc.health.v1.Health/Check", asks).await;
    let health = soon(health.message()).await.unwrap().unwrap();
    assert_eq!(health.status(), ServingStatus::Serving);
}

#[tokio::test]
async fn e1_who_speaks_no_http2_or_no_tls_is_not_answered() {
    let rig = rig();
    let stream = soon(handshake(rig.address(0), b"http/1.1", CERTIFICATE)).await.unwrap();
    let plain = Request::get("/").header("host", "h").body(http_body_util::Full::default()).unwrap();
    assert_eq!(Client::over(stream).await.send(plain).await.status, 415);
    let stream = tokio::net::TcpStream::connect(rig.address(0)).await.unwrap();
    let mut client: Client = Client::http2(stream).await;
    let request = Request::post("http://picker/").body(http_body_util::Full::default()).unwrap();
    assert!(client.start(request).await.is_err());
}
