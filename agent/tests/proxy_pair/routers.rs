//! Two routers, a Prefill and a Decode listener on several agents, with a coordinator between them (H1, G9, R1).

use std::{collections::HashSet, net::SocketAddr, sync::Arc, time::Duration};

use revgate::{config::Serves, snapshot::Endpoint};
use revgate_engine::{Engine, EngineConfig, Fleet};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    base::{Client, Reply, http},
    support::{CHAT, ROLES, Rig, ask, config, endpoint, post, revision, snapshot},
};

const REVISION: &str = "x-llm-d-disagg-revision";
const ID: &str = "x-llm-d-revision-decision-id";
const REVISIONS: [&str; 2] = ["a", "b"];
/// Pods of each role of each revision.
const PODS: [usize; 2] = [2, 4];

/// Engines of both revisions that refuse each other's KV caches.
struct World {
    engines: Vec<(usize, usize, Engine)>,
    _fleet: Fleet,
}

impl World {
    async fn new() -> Self {
        let fleet = Fleet::new().unwrap();
        let mut engines = Vec::new();
        for (revision, name) in REVISIONS.iter().enumerate() {
            for (role, pods) in PODS.into_iter().enumerate() {
                for _ in 0..pods {
                    let config = EngineConfig::new(([127, 0, 0, 1], 0).into(), *name, ROLES[role]);
                    engines.push((revision, role, fleet.start(config).await.unwrap()));
                }
            }
        }
        Self { engines, _fleet: fleet }
    }

    /// The first so many Pods of each role of each revision.
    fn endpoints(&self, counts: [[usize; 2]; 2]) -> Vec<Arc<Endpoint>> {
        let mut left = counts;
        let mut endpoints = Vec::new();
        for (revision, role, engine) in &self.engines {
            if let Some(less) = left[*revision][*role].checked_sub(1) {
                left[*revision][*role] = less;
                endpoints.push(endpoint(REVISIONS[*revision], *role, engine.address()));
            }
        }
        endpoints
    }

    fn sum(&self, of: impl Fn(&Engine) -> u64) -> u64 {
        self.engines.iter().map(|(_, _, engine)| of(engine)).sum()
    }
}

/// An agent with a listener for each role.
fn agent(endpoints: &[Arc<Endpoint>]) -> Rig {
    Rig::over(&config(http(), &[Serves::Role(0), Serves::Role(1)]), snapshot(endpoints, &[]))
}

/// A coordinator's request to one of the routers of a role.
async fn leg(router: SocketAddr, headers: &[(&str, &str)], body: &Value) -> Reply {
    Client::connect(router).await.send(post(CHAT, headers, body.to_string())).await
}

fn prefill() -> Value {
    let mut body = ask();
    body["max_tokens"] = json!(1);
    body["kv_transfer_params"] = json!({"do_remote_decode": true, "do_remote_prefill": false});
    body
}

/// One request, as a coordinator runs it: the revision of the prefill's response goes with the decode. False: begun
/// anew, because the revision ended between the legs.
async fn coordinate(prefills: SocketAddr, decodes: SocketAddr) -> bool {
    let reply = leg(prefills, &[], &prefill()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let chosen = revision(&reply).to_owned();
    let mut body = ask();
    body["kv_transfer_params"] =
        serde_json::from_slice::<Value>(&reply.body).unwrap()["kv_transfer_params"].clone();
    let reply = leg(decodes, &[(REVISION, &chosen)], &body).await;
    if reply.status == 503 {
        reply.is_refusal(503, "revision-not-eligible");
        return false;
    }
    assert_eq!((reply.status.as_u16(), revision(&reply)), (200, &*chosen), "{}", reply.text());
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_over_a_rollout_three_agents_a_role_mix_no_pair() {
    /// Prefill and Decode Pods of the old and the new revision.
    const STEPS: [[[usize; 2]; 2]; 7] = [
        [[2, 4], [0, 0]],
        [[2, 4], [0, 1]],
        [[2, 3], [1, 1]],
        [[1, 2], [1, 2]],
        [[1, 1], [2, 3]],
        [[1, 0], [2, 4]],
        [[0, 0], [2, 4]],
    ];
    let world = World::new().await;
    let agents: Vec<Rig> = (0..3).map(|_| agent(&world.endpoints(STEPS[0]))).collect();
    let routers: Vec<[SocketAddr; 2]> =
        agents.iter().map(|agent| [0, 1].map(|listener| agent.address(listener))).collect();
    let (mut served, mut anew) = (0, 0);
    for step in &STEPS[1..] {
        let mut requests = JoinSet::new();
        for client in 0..24 {
            let routers = routers.clone();
            requests.spawn(async move {
                let mut served = 0;
                for round in 0..10 {
                    let (prefills, decodes) = ((client + round) % 3, (client * 5 + round * 7) % 3);
                    served += usize::from(coordinate(routers[prefills][0], routers[decodes][1]).await);
                }
                served
            });
        }
        // The agents learn of the step one after the other, while requests are under way.
        for agent in &agents {
            agent.published.store(Arc::new(snapshot(&world.endpoints(*step), &[])));
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        let round: usize = requests.join_all().await.iter().sum();
        served += round;
        anew += 240 - round;
    }
    assert_eq!(world.sum(|engine| engine.counters().mixed), 0);
    assert_eq!(world.sum(|engine| engine.counters().misplaced), 0);
    assert_eq!(world.sum(|engine| engine.counters().decode), served as u64);
    assert!(served > anew * 4, "{served} {anew}");
    let used = |of: usize| {
        world
            .engines
            .iter()
            .filter(|(revision, ..)| *revision == of)
            .map(|(.., e)| e.counters().decode)
            .sum::<u64>()
    };
    assert!(used(0) > 0 && used(1) > 0, "the rollout went over both");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g9_parallel_legs_with_one_decision_id_get_one_revision_on_every_agent() {
    let world = World::new().await;
    let pods = world.endpoints([[2, 4], [2, 4]]);
    let agents: Vec<Rig> = (0..3).map(|_| agent(&pods)).collect();
    let mut chosen = HashSet::new();
    for number in 0..40 {
        let id = format!("decision-{number}");
        let legs = agents.iter().flat_map(|agent| [agent.address(0), agent.address(1)]);
        let legs: JoinSet<String> = legs
            .map(|router| {
                let id = id.clone();
                async move { revision(&leg(router, &[(ID, &id)], &ask()).await).to_owned() }
            })
            .collect();
        let revisions: HashSet<String> = legs.join_all().await.into_iter().collect();
        assert_eq!(revisions.len(), 1, "{id}: {revisions:?}");
        chosen.extend(revisions);
    }
    assert_eq!(chosen.len(), 2, "the ids are spread");
    let reply = leg(agents[0].address(1), &[(ID, "decision-1"), (REVISION, "b")], &ask()).await;
    assert_eq!(revision(&reply), "b", "a name wins");
}
