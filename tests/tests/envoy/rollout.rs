//! Requests while one revision takes the other's place (R1, E5).

use revgate_tests::envoy::Bodies;

use crate::{
    client::{DESTINATION, revision_of},
    load::Load,
    scene::{Scene, Setup},
};

/// What the Pods are, one after the other. A to B, back again, and on to B: what was the target becomes the past, and the
/// target once more.
const STEPS: [&[&str]; 6] = [&["a", "b"], &["b"], &["a", "b"], &["a"], &["a", "b"], &["b"]];
/// Answers that each step waits for.
const ANSWERS: usize = 60;

/// All of it under load, and every pair is one of one revision.
async fn roll(scene: &Scene) {
    let mut load = Load::start(scene);
    for revisions in STEPS {
        scene.only(revisions);
        load.goes_on(ANSWERS).await;
    }
    assert_eq!(load.end().await.len(), 2, "both served");
    let pairs = scene.pairs();
    assert!(pairs >= STEPS.len() * ANSWERS, "{pairs}");
}

#[tokio::test]
async fn e7_no_pair_is_mixed_while_a_rollout_goes_on_under_load() {
    for bodies in [Bodies::FullDuplex, Bodies::HeadersOnly] {
        let Some(scene) = Scene::set(&Setup { bodies, ..Setup::default() }).await else { return };
        roll(&scene).await;
    }
}

#[tokio::test]
async fn e7_no_pair_is_mixed_in_a_rollout_with_lists_whose_first_endpoint_may_be_dead() {
    let setup = Setup { picker: "endpoints: 2", fallback: true, ..Setup::default() };
    let Some(scene) = Scene::set(&setup).await else { return };
    let dead = scene.kill_decodes().await;
    roll(&scene).await;
    // Of two idle decodes either is first as likely as not, until the dead one rests because it was: of 360 lists none
    // begins with it once in 2^360. One that rests is not named.
    let mut begin_dead = 0;
    for engine in scene.decodes() {
        for seen in engine.recorded() {
            let list = seen.headers[DESTINATION].to_str().unwrap().split(',');
            let list: Vec<_> = list.map(|address| address.parse().unwrap()).collect();
            assert!(list.len() == 2 || list == [engine.address()], "{list:?}");
            assert!(list.iter().all(|address| revision_of(*address) == engine.revision()), "{list:?}");
            begin_dead += usize::from(dead.contains(&list[0]));
        }
        assert!(!dead.contains(&engine.address()) || engine.recorded().is_empty());
    }
    assert!(begin_dead > 0);
}
