//! No picker: no request goes anywhere (Envoy's failure mode is closed), until there is one again.

use revgate_tests::envoy::Bodies;

use crate::scene::{Scene, Setup, chat_of, soon};

#[tokio::test]
async fn e7_an_agent_that_is_gone_lets_nothing_pass_and_one_that_is_back_does() {
    for (net, bodies) in [(6, Bodies::FullDuplex), (7, Bodies::HeadersOnly)] {
        let setup = Setup { net, bodies, picker: "", fallback: false };
        let Some(mut scene) = Scene::set(&setup).await else { return };
        let mut client = scene.client().await;
        client.chat(&[], chat_of(1 << 10, false)).await.served();
        let served = scene.served();
        scene.agent.kill();
        for length in [300, 62_001] {
            let mut client = scene.client().await;
            assert_eq!(client.chat(&[], chat_of(length, false)).await.status, 503);
            assert_eq!(scene.client().await.get(&[]).await.status, 503);
        }
        assert_eq!(scene.served(), served, "nothing crossed");
        scene.agent.start();
        // Envoy waits before it dials a picker anew that it could not reach.
        let answered = soon(async {
            loop {
                let reply = scene.client().await.chat(&[], chat_of(1 << 10, false)).await;
                if reply.status != 503 {
                    break reply;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        answered.await.served();
    }
}
