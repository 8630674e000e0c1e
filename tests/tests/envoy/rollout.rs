//! Requests while one revision takes the other's place (R1, E5).

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use revgate_tests::envoy::Bodies;
use tokio::task::JoinSet;

use crate::scene::{Client, DECODES, PREFILLER, Scene, Setup, chat_of, revision_of, soon};

/// Clients that ask on and on.
const CLIENTS: usize = 4;
/// Answers that each step of the rollout waits for.
const ANSWERS: usize = 60;

/// Asks until told to stop. Every answer has to be an engine's, with its stamp.
async fn ask(address: SocketAddr, answers: Arc<AtomicUsize>, stop: Arc<AtomicBool>) -> HashSet<&'static str> {
    let mut client = Client::connect(address).await;
    let mut revisions = HashSet::new();
    while !stop.load(SeqCst) {
        let turn = answers.fetch_add(1, SeqCst);
        let reply = match turn % 3 {
            0 => client.get(&[]).await,
            1 => client.chat(&[], chat_of(1 << 10, turn.is_multiple_of(2))).await,
            _ => client.chat(&[], chat_of(70_000, false)).await,
        };
        revisions.insert(reply.served());
    }
    revisions
}

#[tokio::test]
async fn e7_no_pair_is_mixed_while_a_rollout_goes_on_under_load() {
    for (net, bodies) in [(8, Bodies::FullDuplex), (9, Bodies::HeadersOnly)] {
        let setup = Setup { net, bodies, picker: "", fallback: false };
        let Some(scene) = Scene::set(&setup).await else { return };
        let (answers, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(ask(scene.envoy.address(), Arc::clone(&answers), Arc::clone(&stop)));
        }
        // A to B, back again, and on to B: what was the target becomes the past, and the target once more.
        for revisions in [&["a", "b"][..], &["b"], &["a", "b"], &["a"], &["a", "b"], &["b"]] {
            scene.only(revisions);
            let before = answers.load(SeqCst);
            let more = async {
                while answers.load(SeqCst) < before + ANSWERS {
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                () = soon(more) => {}
                Some(ended) = clients.join_next() => panic!("a request failed: {ended:?}"),
            }
        }
        stop.store(true, SeqCst);
        let mut revisions = HashSet::new();
        while let Some(ended) = clients.join_next().await {
            revisions.extend(ended.unwrap());
        }
        assert_eq!(revisions.len(), 2, "both served");
        let mut pairs = 0;
        for engine in scene.engines.values() {
            for seen in engine.recorded() {
                let prefill = seen.headers[PREFILLER].to_str().unwrap().parse().unwrap();
                assert_eq!(revision_of(prefill), engine.revision(), "mixed: {:?}", seen.headers);
                assert_eq!(engine.role(), "decode");
                pairs += 1;
            }
        }
        assert!(pairs >= 6 * ANSWERS, "{pairs} of {} on {DECODES} decodes each", answers.load(SeqCst));
    }
}
