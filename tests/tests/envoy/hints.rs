//! What Envoy knows and the picker does not, and the other way round (E2, E3).

use revgate_engine::Engine;

use crate::{
    client::{chat_of, revision_of},
    scene::{Scene, Setup},
};

const SUBSET: &str = "x-test-subset";

#[tokio::test]
async fn e3_only_endpoints_of_the_subset_hint_get_requests() {
    let Some(scene) = Scene::set(&Setup::default()).await else { return };
    let mut client = scene.client().await;
    let list = |of: &dyn Fn(&Engine) -> bool| {
        let addresses = scene.engines.values().filter(|engine| of(engine)).map(|e| e.address().to_string());
        addresses.collect::<Vec<_>>().join(",")
    };
    let of_b = list(&|engine| engine.revision() == "b");
    let no_prefill = list(&|engine| engine.role() == "decode");
    for _ in 0..10 {
        assert_eq!(client.get(&[(SUBSET, &of_b)]).await.served(), "b");
        assert_eq!(client.chat(&[(SUBSET, &of_b)], chat_of(1 << 10, false)).await.served(), "b");
    }
    client.get(&[(SUBSET, "127.0.0.1:1")]).await.is_refusal(503, "outside-subset");
    client.get(&[(SUBSET, &no_prefill)]).await.is_refusal(503, "outside-subset");
}

#[tokio::test]
async fn e2_the_next_endpoint_of_the_list_answers_where_the_first_is_dead_and_is_what_is_stamped() {
    let setup = Setup { picker: "endpoints: 2, trust: always", fallback: true, ..Setup::default() };
    let Some(scene) = Scene::set(&setup).await else { return };
    let mut client = scene.client().await;
    let dead = scene.kill_decodes().await;
    for turn in 0..40 {
        let chat = chat_of(if turn % 2 == 0 { 1 << 10 } else { 70_000 }, false);
        let reply = client.chat(&[], chat).await;
        let revision = reply.served();
        assert_eq!(revision_of(reply.server()), revision);
        assert!(!dead.contains(&reply.server()));
        assert_eq!(scene.server(&reply).role(), "decode");
    }
    assert_eq!(scene.pairs(), 40);
}
