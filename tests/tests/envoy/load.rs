//! Clients that ask on and on, whatever happens meanwhile.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::task::JoinSet;

use crate::{
    client::{Client, chat_of, until},
    scene::Scene,
};

/// How many clients ask.
const CLIENTS: usize = 4;

/// What every client asks, each on a connection of its own.
pub(crate) struct Load {
    state: Arc<State>,
    clients: JoinSet<HashSet<&'static str>>,
}

#[derive(Default)]
struct State {
    /// The picker is away at times: then, and only then, 503 is an answer.
    outages: bool,
    stop: AtomicBool,
    asked: AtomicUsize,
    served: AtomicUsize,
    refused: AtomicUsize,
}

impl Load {
    /// Every answer has to be an engine's, with its stamp.
    pub(crate) fn start(scene: &Scene) -> Self {
        Self::with(scene, State::default())
    }

    /// Every answer has to be an engine's, with its stamp, or 503.
    pub(crate) fn through_outages(scene: &Scene) -> Self {
        Self::with(scene, State { outages: true, ..State::default() })
    }

    fn with(scene: &Scene, state: State) -> Self {
        let (state, mut clients) = (Arc::new(state), JoinSet::new());
        for _ in 0..CLIENTS {
            clients.spawn_on(ask(scene.envoy.address(), Arc::clone(&state)), scene.elsewhere());
        }
        Self { state, clients }
    }

    /// Waits for so many more answers of engines.
    pub(crate) async fn goes_on(&mut self, more: usize) {
        let state = Arc::clone(&self.state);
        let before = state.served.load(SeqCst);
        self.watch(|| state.served.load(SeqCst) >= before + more).await;
    }

    /// Waits for another refusal.
    pub(crate) async fn is_refused(&mut self) {
        let state = Arc::clone(&self.state);
        let before = state.refused.load(SeqCst);
        self.watch(|| state.refused.load(SeqCst) > before).await;
    }

    /// Waits until something is so. No client may fail meanwhile.
    pub(crate) async fn watch(&mut self, holds: impl FnMut() -> bool) {
        tokio::select! {
            () = until(holds) => {}
            Some(ended) = self.clients.join_next() => panic!("a request failed: {ended:?}"),
        }
    }

    /// Ends, and says of which revisions the engines were.
    pub(crate) async fn end(mut self) -> HashSet<&'static str> {
        self.state.stop.store(true, SeqCst);
        let mut revisions = HashSet::new();
        while let Some(ended) = self.clients.join_next().await {
            revisions.extend(ended.unwrap());
        }
        revisions
    }
}

async fn ask(address: SocketAddr, state: Arc<State>) -> HashSet<&'static str> {
    let mut client = Client::connect(address).await;
    let mut revisions = HashSet::new();
    while !state.stop.load(SeqCst) {
        let turn = state.asked.fetch_add(1, SeqCst);
        let reply = match turn % 3 {
            0 => client.get(&[]).await,
            1 => client.chat(&[], chat_of(1 << 10, turn.is_multiple_of(2))).await,
            _ => client.chat(&[], chat_of(70_000, false)).await,
        };
        if state.outages && reply.status == 503 {
            state.refused.fetch_add(1, SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            // Envoy closes a connection whose request it has not passed on whole.
            client = Client::connect(address).await;
            continue;
        }
        revisions.insert(reply.served());
        state.served.fetch_add(1, SeqCst);
    }
    revisions
}
