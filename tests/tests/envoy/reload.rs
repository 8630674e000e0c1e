//! A picker's own configuration changes while requests go on.

use crate::{
    client::{DESTINATION, REVISION},
    load::Load,
    scene::{Scene, Setup},
};

/// Answers that each change waits for.
const ANSWERS: usize = 40;

#[tokio::test]
async fn e7_a_picker_that_changes_under_load_mixes_nothing_and_nothing_but_503_fails() {
    let setup = Setup { picker: "endpoints: 1, trust: never", fallback: true, ..Setup::default() };
    let Some(scene) = Scene::set(&setup).await else { return };
    let mut load = Load::through_outages(&scene);
    load.goes_on(ANSWERS).await;

    scene.agent.edit("endpoints: 1", "endpoints: 2");
    let lists = || {
        let seen = scene.decodes().flat_map(revgate_engine::Engine::recorded);
        seen.filter(|seen| seen.headers[DESTINATION].as_bytes().contains(&b',')).count()
    };
    load.watch(|| lists() > 0).await;

    // Whether a client's header is heard: nobody has this revision.
    let named = [(REVISION, "c")];
    scene.client().await.get(&named).await.served();
    scene.agent.edit("trust: never", "trust: always");
    let refused = async {
        loop {
            let reply = scene.client().await.get(&named).await;
            if reply.status == 503 && !reply.header("retry-after").is_empty() {
                break reply;
            }
        }
    };
    crate::client::soon(refused).await.is_refusal(503, "revision-not-eligible");
    load.goes_on(ANSWERS).await;

    // Where Envoy does not ask, and back.
    let [here, elsewhere] = scene.pickers();
    scene.agent.edit(&here, &elsewhere);
    load.is_refused().await;
    scene.agent.edit(&elsewhere, &here);
    load.goes_on(ANSWERS).await;
    load.end().await;
    assert!(scene.pairs() >= 3 * ANSWERS);
}
