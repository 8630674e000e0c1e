//! Every connector on every path, against engines of its kind that refuse KV of another revision (H2, H8, R1).

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed},
    },
};

use revgate::{
    config::{ConnectorKind, HttpConfig, PairConfig},
    snapshot::Endpoint,
};
use revgate_engine::{Connector, Counters, Engine, EngineConfig, Fleet, KV_MISMATCH};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::{
    base::{Client, http, until},
    support::{PATHS, ROLES, Rig, endpoint, of, post, revision, snapshot},
};

const CONNECTORS: [ConnectorKind; 3] =
    [ConnectorKind::NixlV2, ConnectorKind::SharedStorage, ConnectorKind::Sglang];

/// Engines that belong together, each on an address of its own: their bootstrap servers share a port.
struct World {
    kind: ConnectorKind,
    bootstrap: u16,
    /// Their revision and role.
    engines: Vec<(&'static str, usize, Engine)>,
    storage: TempDir,
    fleet: Fleet,
}

impl World {
    fn new(kind: ConnectorKind) -> Self {
        let (storage, fleet) = (tempfile::tempdir().unwrap(), Fleet::new().unwrap());
        Self { kind, bootstrap: 0, engines: Vec::new(), storage, fleet }
    }

    async fn add(&mut self, revision: &'static str, role: usize) {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let ip = [127, 128 | (high & 63), low, NEXT.fetch_add(1, Relaxed)];
        let mut config = EngineConfig::new((ip, 0).into(), revision, ROLES[role]);
        config.connector = match self.kind {
            ConnectorKind::NixlV2 => Connector::Nixl,
            ConnectorKind::SharedStorage => Connector::SharedStorage(self.storage.path().into()),
            ConnectorKind::Sglang => Connector::Sglang(self.bootstrap),
        };
        let engine = self.fleet.start(config).await.unwrap();
        self.bootstrap = engine.bootstrap().map_or(self.bootstrap, |address| address.port());
        self.engines.push((revision, role, engine));
    }

    fn pair(&self) -> PairConfig {
        PairConfig { bootstrap_port: self.bootstrap, ..of(self.kind) }
    }

    /// The first so many Pods of each role of each of these revisions.
    fn endpoints(&self, counts: [(&str, [usize; 2]); 2]) -> Vec<Arc<Endpoint>> {
        let mut endpoints = Vec::new();
        for (name, counts) in counts {
            for (role, count) in counts.into_iter().enumerate() {
                let of = self.engines.iter().filter(|(revision, of, _)| *revision == name && *of == role);
                endpoints.extend(of.take(count).map(|(.., engine)| endpoint(name, role, engine.address())));
            }
        }
        endpoints
    }

    fn sum(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        self.engines.iter().map(|(.., engine)| of(&engine.counters())).sum()
    }
}

/// A request for five tokens with a prompt that no other has.
fn ask(path: &str, stream: bool) -> Value {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    let prompt = format!("prompt number {number}");
    let messages = json!([{"role": "user", "content": prompt}]);
    let mut body = match path {
        "/v1/completions" => json!({"prompt": prompt, "max_tokens": 5}),
        "/v1/responses" => json!({"input": prompt, "max_output_tokens": 5}),
        "/inference/v1/generate" => {
            json!({"token_ids": [1, 2, number], "sampling_params": {"max_tokens": 5}})
        }
        _ => json!({"messages": messages, "max_tokens": 5}),
    };
    body["model"] = json!("m");
    body["stream"] = json!(stream);
    body
}

#[tokio::test]
async fn h8_every_connector_on_every_path_runs_both_legs_whole_and_streamed() {
    for kind in CONNECTORS {
        let mut world = World::new(kind);
        for role in [0, 1] {
            world.add("a", role).await;
        }
        let rig = Rig::new(world.pair(), &world.endpoints([("a", [1, 1]), ("b", [0, 0])]));
        for (count, path) in (1..).zip(PATHS) {
            let reply = rig.send(post(path, &[], ask(path, false).to_string())).await;
            assert_eq!((reply.status.as_u16(), revision(&reply)), (200, "a"), "{kind:?} {path}: {reply:?}");
            let usage = &serde_json::from_slice::<Value>(&reply.body).unwrap()["usage"];
            let tokens = usage.get("completion_tokens").or_else(|| usage.get("output_tokens"));
            assert_eq!(tokens, Some(&json!(5)), "{kind:?} {path}: the decode has the client's own limit");

            let reply = rig.send(post(path, &[], ask(path, true).to_string())).await;
            assert_eq!((reply.status.as_u16(), revision(&reply)), (200, "a"), "{kind:?} {path}: {reply:?}");
            assert_eq!(reply.header("content-type"), "text/event-stream", "{kind:?} {path}");
            let text = reply.text();
            let last = if path == "/inference/v1/generate" { "\"token_ids\":[4]" } else { "\" t4\"" };
            assert!(text.contains(last) && text.ends_with("\n\n"), "{kind:?} {path}: {text}");
            assert_eq!(
                [world.sum(|c| c.prefill), world.sum(|c| c.decode), world.sum(|c| c.local)],
                [2 * count, 2 * count, 0],
                "{kind:?} {path}"
            );
        }
        assert_eq!([world.sum(|c| c.mixed), world.sum(|c| c.misplaced)], [0, 0], "{kind:?}");
    }
}

#[tokio::test]
async fn h8_with_every_connector_kv_of_another_revision_is_refused_by_the_engines_and_the_client_is_told() {
    for kind in CONNECTORS {
        let mut world = World::new(kind);
        world.add("a", 0).await;
        world.add("b", 1).await;
        // A label that is not true: nothing but the engines can notice.
        let [prefill, decode] = [0, 1].map(|at| endpoint("a", at, world.engines[at].2.address()));
        let http = HttpConfig { breaker_failures: 0, ..http() };
        let rig = Rig::with(http, world.pair(), &[prefill, decode]);
        for (count, path) in (1..).zip(PATHS) {
            let reply = rig.send(post(path, &[], ask(path, true).to_string())).await;
            assert_eq!(reply.status, 500, "{kind:?} {path}: {reply:?}");
            let error = &serde_json::from_slice::<Value>(&reply.body).unwrap()["error"];
            assert_eq!(error["code"], KV_MISMATCH, "{kind:?} {path}");
            // Of two legs at once the first answer ends both, perhaps before the other engine has noticed.
            if kind != ConnectorKind::Sglang {
                assert_eq!(world.sum(|c| c.mixed), count, "{kind:?} {path}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_over_a_rollout_behind_a_pair_listener_no_connector_mixes_a_pair() {
    /// Prefill and Decode Pods of the old and the new revision.
    const STEPS: [[[usize; 2]; 2]; 5] =
        [[[2, 3], [0, 0]], [[2, 3], [1, 1]], [[1, 2], [1, 2]], [[1, 1], [2, 3]], [[0, 0], [2, 3]]];
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 10;
    for kind in CONNECTORS {
        let mut world = World::new(kind);
        for revision in ["a", "b"] {
            for role in [0, 0, 1, 1, 1] {
                world.add(revision, role).await;
            }
        }
        let step = |step: [[usize; 2]; 2]| world.endpoints([("a", step[0]), ("b", step[1])]);
        let rig = Rig::new(world.pair(), &step(STEPS[0]));
        let address: SocketAddr = rig.address(0);
        let mut served = [0_u64; 2];
        for next in &STEPS[1..] {
            let begun = world.sum(|c| c.requests);
            let mut requests = JoinSet::new();
            for client in 0..CLIENTS {
                requests.spawn(async move {
                    let mut served = [0, 0];
                    for round in 0..REQUESTS {
                        let path = PATHS[(client + round) % PATHS.len()];
                        let request = post(path, &[], ask(path, round % 2 == 0).to_string());
                        let reply = Client::connect(address).await.send(request).await;
                        if reply.status == 503 {
                            // Its revision ended between the choice and a connect.
                            reply.is_refusal(503, "no-endpoint");
                        } else {
                            assert_eq!(reply.status, 200, "{path}: {reply:?}");
                            served[usize::from(revision(&reply) == "b")] += 1;
                        }
                    }
                    served
                });
            }
            // While requests are under way.
            until(|| world.sum(|c| c.requests) > begun).await;
            rig.published.store(Arc::new(snapshot(&step(*next), &[])));
            for round in requests.join_all().await {
                served = [served[0] + round[0], served[1] + round[1]];
            }
        }
        assert_eq!([world.sum(|c| c.mixed), world.sum(|c| c.misplaced), world.sum(|c| c.local)], [0; 3]);
        assert_eq!(world.sum(|c| c.decode), served[0] + served[1], "{kind:?}");
        let all = (CLIENTS * REQUESTS * (STEPS.len() - 1)) as u64;
        assert!(served[0] + served[1] > all / 2, "{kind:?}: {served:?}");
        assert!(served[1] > 0, "{kind:?}: the rollout went on to the new revision: {served:?}");
    }
}
