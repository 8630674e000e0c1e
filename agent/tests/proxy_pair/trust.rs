//! Whose routing headers count, and where they may lead (H3, H12, H13).

use std::sync::Arc;

use revgate::{
    config::{HeaderSelector, PairConfig, SelectorMode, Serves, Trust},
    snapshot::Endpoint,
};

use crate::{
    base::{Reply, http},
    support::{CHAT, Engine, Rig, ask, config, endpoint, labelled, nixlv2, post, revision, snapshot},
};

const REVISION: &str = "x-llm-d-disagg-revision";
const PREFILLER: &str = "x-prefiller-host-port";
const ID: &str = "x-llm-d-revision-decision-id";

/// Two revisions with a prefill and a decode each.
struct Two {
    engines: [Engine; 4],
}

impl Two {
    async fn new() -> Self {
        Self {
            engines: [
                Engine::prefills(0).await,
                Engine::decodes().await,
                Engine::prefills(0).await,
                Engine::decodes().await,
            ],
        }
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        let endpoint =
            |(at, engine): (usize, &Engine)| endpoint(["a", "b"][at / 2], at % 2, engine.address());
        self.engines.iter().enumerate().map(endpoint).collect()
    }

    fn rig(&self, trust: Trust) -> Rig {
        Rig::new(PairConfig { trust, ..nixlv2() }, &self.endpoints())
    }

    fn prefiller(&self, engine: usize) -> String {
        self.engines[engine].address().to_string()
    }

    fn calls(&self) -> [usize; 4] {
        self.engines.each_ref().map(Engine::calls)
    }
}

async fn chat(rig: &Rig, headers: &[(&str, &str)]) -> Reply {
    rig.send(post(CHAT, headers, ask().to_string())).await
}

#[tokio::test]
async fn h3_what_an_untrusted_client_says_of_the_way_is_not_heard_and_reaches_nobody() {
    let two = Two::new().await;
    let rig = two.rig(Trust::Never);
    let prefiller = two.prefiller(2);
    let spoofed = [
        (REVISION, "nonsense"),
        (REVISION, "b"),
        (ID, "id"),
        (PREFILLER, &prefiller),
        ("x-gateway-destination-endpoint", "10.0.0.1:1"),
        ("x-data-parallel-host-port", "10.0.0.1:1"),
        ("x-encoder-hosts-ports", "10.0.0.1:1"),
        ("connection", "x-private, traceparent"),
        ("x-private", "1"),
        ("te", "trailers"),
        ("keep-alive", "1"),
        ("proxy-authorization", "Basic x"),
        ("accept-encoding", "gzip"),
        ("authorization", "Bearer x"),
        ("tracestate", "s=1"),
    ];
    let mut served = [0, 0];
    for _ in 0..40 {
        let reply = chat(&rig, &spoofed).await;
        assert_eq!(reply.status, 200);
        served[usize::from(revision(&reply) == "b")] += 1;
    }
    assert!(served[0] > 0 && served[1] > 0, "the weights decide: {served:?}");
    for path in ["/v1/models", CHAT] {
        assert_eq!(rig.send(post(path, &spoofed, ask().to_string())).await.status, 200);
    }
    for seen in two.engines.iter().flat_map(Engine::seen) {
        let mut names: Vec<_> = seen.headers.keys().map(http::HeaderName::as_str).collect();
        names.sort_unstable();
        names.retain(|name| !["x-request-id", "accept-encoding"].contains(name));
        assert_eq!(names, ["authorization", "content-length", "host", "tracestate"], "{}", seen.target);
    }
}

#[tokio::test]
async fn h3_a_trusted_client_names_the_revision_by_name_or_by_id() {
    let two = Two::new().await;
    for trust in [Trust::Always, Trust::Networks(vec!["127.0.0.0/8".parse().unwrap()])] {
        let rig = two.rig(trust);
        for name in ["a", "b"] {
            for _ in 0..10 {
                assert_eq!(revision(&chat(&rig, &[(REVISION, name), (ID, "x")]).await), name);
            }
        }
        chat(&rig, &[(REVISION, "c")]).await.is_refusal(503, "revision-not-eligible");
        chat(&rig, &[(REVISION, "a"), (REVISION, "b")]).await.is_refusal(400, "conflicting-revision");
        let first = chat(&rig, &[(ID, "one id")]).await;
        for _ in 0..10 {
            assert_eq!(revision(&chat(&rig, &[(ID, "one id")]).await), revision(&first));
        }
    }
    let rig = two.rig(Trust::Networks(vec!["10.0.0.0/8".parse().unwrap()]));
    let mut served = std::collections::HashSet::new();
    for _ in 0..40 {
        served.insert(revision(&chat(&rig, &[(REVISION, "a")]).await).to_owned());
    }
    assert_eq!(served.len(), 2, "127.0.0.1 is not of that network");
}

#[tokio::test]
async fn h13_the_prefill_that_a_trusted_router_names_is_taken_inside_the_revision() {
    let two = Two::new().await;
    let spare = Engine::prefills(0).await;
    let mut endpoints = two.endpoints();
    endpoints.push(endpoint("a", 0, spare.address()));
    let rig = Rig::new(PairConfig { trust: Trust::Always, ..nixlv2() }, &endpoints);
    let [a, spare_at, b] = [two.prefiller(0), spare.address().to_string(), two.prefiller(2)];
    for _ in 0..10 {
        assert_eq!(chat(&rig, &[(REVISION, "a"), (PREFILLER, &spare_at)]).await.status, 200);
    }
    assert_eq!((spare.calls(), two.calls()), (10, [0, 10, 0, 0]));
    // The first usable one of several, in lines and lists.
    let list = format!("pod-7:8000, {b} ,{a}");
    for headers in [&[(PREFILLER, &*list)][..], &[(PREFILLER, &b), (PREFILLER, &a), (PREFILLER, &spare_at)]] {
        let headers: Vec<_> = [(REVISION, "a")].into_iter().chain(headers.iter().copied()).collect();
        assert_eq!(chat(&rig, &headers).await.status, 200);
    }
    assert_eq!((spare.calls(), two.calls()), (10, [2, 12, 0, 0]));
    // Without a revision it is that of the endpoint.
    for _ in 0..10 {
        assert_eq!(revision(&chat(&rig, &[(PREFILLER, &b)]).await), "b");
    }
    for seen in two.engines.iter().flat_map(Engine::seen) {
        assert!(!seen.headers.contains_key(PREFILLER));
    }
}

#[tokio::test]
async fn h13_a_prefill_outside_the_revision_is_403_and_no_connection_is_made() {
    let two = Two::new().await;
    let rig = two.rig(Trust::Always);
    let (b, decode) = (two.prefiller(2), two.prefiller(1));
    let port = two.engines[0].address().ip();
    let unknown = format!("{port}:1");
    for target in [&b, &decode, &unknown, "10.9.9.9:8000", "pod-7:8000", "", "x"] {
        let reply = chat(&rig, &[(REVISION, "a"), (PREFILLER, target)]).await;
        if target.is_empty() {
            assert_eq!(reply.status, 200, "an empty value counts as absent");
            continue;
        }
        reply.is_refusal(403, "target-not-allowed");
    }
    assert_eq!(two.calls(), [1, 1, 0, 0]);
    let engines = [&two.engines[2], &two.engines[3]];
    assert_eq!(engines.map(Engine::connections), [0, 0]);
}

fn slices() -> HeaderSelector {
    HeaderSelector {
        name: "slice".into(),
        header: "x-disagg-slice".parse().unwrap(),
        label: "slice".into(),
        mode: SelectorMode::Prefer,
    }
}

#[tokio::test]
async fn f2_the_decode_follows_the_prefill_into_its_slice_and_never_into_another_revision() {
    let mut engines = Vec::new();
    let mut endpoints = Vec::new();
    for (name, slice) in [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")] {
        for role in [0, 1] {
            let engine = if role == 0 { Engine::prefills(0).await } else { Engine::decodes().await };
            endpoints.push(labelled(name, role, engine.address(), &[("slice", slice)]));
            engines.push(engine);
        }
    }
    let mut config = config(http(), &[Serves::Pair(PairConfig { trust: Trust::Always, ..nixlv2() })]);
    config.sets[0].selectors = vec![slices()];
    let rig = Rig::over(&config, snapshot(&endpoints, &[slices()]));
    for _ in 0..60 {
        let before: Vec<_> = engines.iter().map(Engine::calls).collect();
        let reply = chat(&rig, &[]).await;
        let after = engines.iter().map(Engine::calls);
        let called: Vec<_> = after
            .zip(before)
            .enumerate()
            .filter(|(_, (after, before))| after > before)
            .map(|(at, _)| at)
            .collect();
        assert_eq!(called.len(), 2);
        assert_eq!(
            (called[0] % 2, called[1]),
            (0, called[0] + 1),
            "the decode of the same revision and slice"
        );
        assert_eq!(reply.header("x-disagg-slice"), ["1", "2"][called[0] / 2 % 2]);
    }
    // The slice is overloaded: the other one of the same revision helps out.
    for at in [1, 5] {
        endpoints[at].vitals.outstanding.store(100, std::sync::atomic::Ordering::SeqCst);
    }
    for _ in 0..20 {
        let reply = chat(&rig, &[("x-disagg-slice", "1")]).await;
        assert_eq!(reply.header("x-disagg-slice"), "2");
    }
    let mixed = engines.iter().flat_map(Engine::seen).count();
    assert_eq!(mixed, 2 * 80);
}
