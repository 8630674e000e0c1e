//! The gRPC health protocol (E6).

use std::{collections::BTreeMap, sync::Arc};

use futures_util::stream;
use revgate::{
    config::ShutdownConfig,
    extproc::proto::grpc::health::v1::{
        HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
        health_check_response::ServingStatus,
    },
    snapshot::Snapshot,
};
use tokio::task::JoinSet;
use tonic::{Code, Status, Streaming};

use crate::{
    base::{PATIENCE, soon},
    gateway::{Gateway, pairs, rig},
    pick::two,
    support::snapshot,
};

const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";

async fn ask(gateway: &mut Gateway, method: &str, service: &str) -> Streaming<HealthCheckResponse> {
    let request = HealthCheckRequest { service: service.into() };
    gateway.call(&format!("/grpc.health.v1.Health/{method}"), stream::iter([request])).await
}

async fn next(answer: &mut Streaming<HealthCheckResponse>) -> Result<ServingStatus, Status> {
    soon(answer.message()).await.map(|message| message.expect("a message").status())
}

#[tokio::test]
async fn e6_an_agent_lives_before_it_can_pick() {
    let rig = rig(pairs(), &two());
    let synced = |synced| rig.published.store(Arc::new(Snapshot { synced, ..snapshot(&two(), &[]) }));
    let mut gateway = Gateway::of(&rig).await;
    let (yes, no) = (ServingStatus::Serving, ServingStatus::NotServing);
    for (known, ready) in [(false, no), (true, yes)] {
        synced(known);
        let expected = [("", ready), ("liveness", yes), ("readiness", ready), (SERVICE, ready)];
        for (service, expected) in expected {
            let status = next(&mut ask(&mut gateway, "Check", service).await).await.unwrap();
            assert_eq!(status, expected, "{service}");
        }
        let request = stream::iter([HealthListRequest {}]);
        let mut list = gateway.call("/grpc.health.v1.Health/List", request).await;
        let list: HealthListResponse = list.message().await.unwrap().unwrap();
        let listed: BTreeMap<_, _> = list.statuses.iter().map(|(name, at)| (&**name, at.status())).collect();
        assert_eq!(listed, BTreeMap::from(expected));
    }
    let status = next(&mut ask(&mut gateway, "Check", "nothing").await).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn e6_whoever_watches_hears_of_each_change_and_of_the_end() {
    let rig = rig(pairs(), &two());
    let mut gateway = Gateway::of(&rig).await;
    let mut watch = ask(&mut gateway, "Watch", "readiness").await;
    let mut nothing = ask(&mut gateway, "Watch", "nothing").await;
    assert_eq!(next(&mut watch).await.unwrap(), ServingStatus::Serving);
    assert_eq!(next(&mut nothing).await.unwrap(), ServingStatus::ServiceUnknown, "and the call goes on");
    for (synced, expected) in [(false, ServingStatus::NotServing), (true, ServingStatus::Serving)] {
        rig.published.store(Arc::new(Snapshot { synced, ..snapshot(&two(), &[]) }));
        assert_eq!(next(&mut watch).await.unwrap(), expected);
    }
    let shutdown = ShutdownConfig { delay: std::time::Duration::ZERO, deadline: PATIENCE };
    let mut drained = JoinSet::new();
    drained.spawn(async move { rig.proxy.drain(&shutdown).await });
    assert_eq!(next(&mut watch).await.unwrap(), ServingStatus::NotServing);
    assert_eq!(next(&mut watch).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(next(&mut nothing).await.unwrap_err().code(), Code::Unavailable);
    drop(gateway);
    assert!(drained.join_next().await.unwrap().unwrap());
}
