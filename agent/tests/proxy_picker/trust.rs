//! Which headers of a client go on to the sidecar (E5, H3, H12).

use revgate::config::{PickerConfig, Trust};

use crate::{
    gateway::{Gateway, Picked, pairs, rig},
    pick::two,
};

const PREFILLER: &str = "x-prefiller-host-port";
const OF_SIDECARS: [&str; 3] = [PREFILLER, "x-encoder-hosts-ports", "x-data-parallel-host-port"];
const OF_ROUTERS: [&str; 3] = [
    "x-gateway-destination-endpoint-served",
    "x-gateway-destination-endpoint-subset",
    "x-llm-d-revision-decision-id",
];

/// Which of them a picker takes out of a request that has all.
async fn removed(picker: PickerConfig) -> Vec<String> {
    let rig = rig(picker, &two());
    let mut gateway = Gateway::of(&rig).await;
    let names = OF_SIDECARS.iter().chain(&OF_ROUTERS).chain(&["authorization"]);
    let headers: Vec<_> = names.map(|name| (*name, "10.0.0.1:8000")).collect();
    let Picked::To { removed, .. } = gateway.get(&headers).await else { panic!("refused") };
    removed
}

#[tokio::test]
async fn e5_a_coordinator_that_is_trusted_steers_the_sidecar_but_for_the_prefill_that_is_picked() {
    let alone = PickerConfig { prefill: None, trust: Trust::Always, ..pairs() };
    assert_eq!(removed(alone).await, OF_ROUTERS);
    let pair = removed(PickerConfig { trust: Trust::Always, ..pairs() }).await;
    assert_eq!(pair, [&[PREFILLER][..], &OF_ROUTERS].concat(), "once, and set anew");
}

#[tokio::test]
async fn h3_nobody_else_does() {
    let alone = PickerConfig { prefill: None, ..pairs() };
    for picker in [alone, pairs()] {
        assert_eq!(removed(picker).await, [OF_SIDECARS, OF_ROUTERS].concat());
    }
}
