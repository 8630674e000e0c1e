//! Role listeners: HTTP in, an endpoint of one revision and role out.
//!
//! ```text
//! accept ─> client (connection, limits) ─> forward (one request) ─┬─> table, choose   which endpoint
//!                                                                 ├─> dial, link      how to reach it
//!                                                                 ├─> upload          its body there
//!                                                                 └─> reply           the response back
//! ```
//!
//! Each [`worker`] is a thread that does all of this for its own connections. [`headers`] says what a request asks
//! for and what is not passed on, [`error`] why one is refused, [`metrics`] what is counted.

mod accept;
mod access;
mod choose;
mod client;
mod clock;
mod deadlines;
mod dial;
pub mod error;
mod forward;
mod headers;
mod link;
mod listener;
pub mod metrics;
mod reply;
mod table;
mod target;
pub mod tls;
mod upload;
mod worker;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    num::NonZero,
    sync::{Arc, atomic::AtomicUsize},
    thread,
    time::Duration,
};

use tokio::{
    runtime::{self, LocalOptions},
    sync::{Semaphore, mpsc},
};

pub use error::{ProxyError, Reason};
pub use metrics::Metrics;

use crate::{
    config::{Config, HttpConfig, ShutdownConfig},
    fatal::Indispensable,
    kernel::Pinner,
    snapshot::owner::Published,
};
use accept::Opened;
use clock::Clock;
use listener::Plan;
use tls::TlsError;
use worker::{Command, Shared};

/// Why listeners cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("listener {listener}: cannot listen on {address}: {source}")]
    Bind {
        /// The listener.
        listener: Arc<str>,
        /// Its address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A listener's certificate or key cannot be used.
    #[error("listener {listener}: {source}")]
    Tls {
        /// The listener.
        listener: Arc<str>,
        /// What is wrong.
        source: Box<TlsError>,
    },
    /// A worker thread cannot be made.
    #[error("worker {worker} cannot start: {source}")]
    Worker {
        /// Its number.
        worker: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// The running role listeners. Dropping it ends them at once; [`Proxy::drain`] ends them politely.
pub struct Proxy {
    /// One per worker: a worker ends when its sender is dropped.
    workers: Vec<mpsc::UnboundedSender<Command>>,
    /// Closed when the last worker has ended; nothing is ever sent.
    ended: mpsc::Receiver<Infallible>,
    open: Vec<Live>,
    shared: Arc<Shared>,
    next: u64,
    max_connections: usize,
}

/// A listener that is served.
struct Live {
    id: u64,
    plan: Plan,
    address: SocketAddr,
}

impl Proxy {
    /// Binds every listener of a configuration and starts the workers. Until `published` is synced every request is
    /// refused.
    pub fn start(
        config: &Config,
        published: Published,
        pinner: &Pinner,
        metrics: Metrics,
    ) -> Result<Self, StartError> {
        let http = Arc::new(config.agent.http.clone());
        let shared = Arc::new(Shared {
            published,
            clock: Clock::start(),
            metrics,
            requests: AtomicUsize::new(0),
            connections: Arc::new(Semaphore::new(bounded(http.max_connections))),
        });
        let count = if http.workers == 0 {
            thread::available_parallelism().map_or(1, NonZero::get)
        } else {
            http.workers
        };
        let (alive, ended) = mpsc::channel(1);
        let workers = (0..count)
            .map(|worker| {
                spawn(worker, &shared, pinner.clone(), Arc::clone(&http), alive.clone())
                    .map_err(|source| StartError::Worker { worker, source })
            })
            .collect::<Result<_, _>>()?;
        let max_connections = bounded(http.max_connections);
        let mut proxy = Self { workers, ended, open: Vec::new(), shared, next: 0, max_connections };
        proxy.open(Plan::all(config))?;
        Ok(proxy)
    }

    /// Where each listener listens, by name: of use where a configuration asks for port 0.
    pub fn addresses(&self) -> impl Iterator<Item = (&str, SocketAddr)> {
        self.open.iter().map(|live| (&*live.plan.config.name, live.address))
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.requests.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Adopts another configuration: opens new listeners, lets those that are gone or changed finish what they have
    /// in flight, and applies new limits to new requests. On an error nothing has changed. The number of workers
    /// stays as it was at the start.
    pub fn reconfigure(&mut self, config: &Config) -> Result<(), StartError> {
        let wanted = Plan::all(config);
        let (kept, gone): (Vec<Live>, Vec<Live>) =
            std::mem::take(&mut self.open).into_iter().partition(|live| wanted.contains(&live.plan));
        let new = wanted.into_iter().filter(|plan| !kept.iter().any(|live| live.plan == *plan)).collect();
        self.open = kept;
        if let Err(error) = self.open(new) {
            self.open.extend(gone);
            return Err(error);
        }
        for live in gone {
            self.tell(|| Command::Close(live.id));
            if !self.open.iter().any(|open| open.plan.config.name == live.plan.config.name) {
                let snapshot = self.shared.published.load();
                let revisions = snapshot.sets.iter().flat_map(|set| &set.revisions);
                self.shared.metrics.forget_listener(
                    &live.plan.config.name,
                    revisions.map(|revision| Arc::clone(&revision.name)),
                );
            }
        }
        let http = Arc::new(config.agent.http.clone());
        self.resize(bounded(http.max_connections));
        self.tell(|| Command::Configure(Arc::clone(&http)));
        Ok(())
    }

    /// Ends politely: accepts until `delay` has passed, then lets every request finish until `deadline` has passed
    /// since the call, and breaks what is left. True when nothing was.
    pub async fn drain(mut self, shutdown: &ShutdownConfig) -> bool {
        let politely = async {
            tokio::time::sleep(shutdown.delay).await;
            self.tell(|| Command::Drain);
            self.ended.recv().await;
        };
        let drained = tokio::time::timeout(shutdown.deadline, politely).await.is_ok();
        self.workers.clear();
        if tokio::time::timeout(AFTER_DEADLINE, self.ended.recv()).await.is_err() {
            tracing::warn!("a worker has not ended");
        }
        drained
    }

    /// Binds and opens, all or nothing.
    fn open(&mut self, plans: Vec<Plan>) -> Result<(), StartError> {
        let mut bound = Vec::new();
        for plan in plans {
            let listener = || Arc::clone(&plan.config.name);
            let tls = plan
                .config
                .tls
                .as_ref()
                .map(tls::load)
                .transpose()
                .map_err(|source| StartError::Tls { listener: listener(), source: Box::new(source) })?;
            let mut address = plan.config.address;
            let failed =
                |source| StartError::Bind { listener: listener(), address: plan.config.address, source };
            let mut sockets = Vec::new();
            for _ in &self.workers {
                let socket = accept::bind(address).map_err(failed)?;
                // Port 0 is the system's choice, once.
                address = socket.local_addr().map_err(failed)?;
                sockets.push(socket);
            }
            bound.push((plan, address, tls, sockets));
        }
        for (plan, address, tls, sockets) in bound {
            let id = self.next;
            self.next += 1;
            let mut sockets = sockets.into_iter();
            for worker in &self.workers {
                let Some(socket) = sockets.next() else { break };
                let opened = Opened { id, plan: plan.clone(), socket, tls: tls.clone() };
                // A worker that is gone has ended with its runtime; the others serve on.
                let _ = worker.send(Command::Open(Box::new(opened)));
            }
            tracing::info!(listener = %plan.config.name, %address, "listening");
            self.open.push(Live { id, plan, address });
        }
        Ok(())
    }

    fn tell(&self, command: impl Fn() -> Command) {
        for worker in &self.workers {
            let _ = worker.send(command());
        }
    }

    fn resize(&mut self, connections: usize) {
        let room = &self.shared.connections;
        match connections.checked_sub(self.max_connections) {
            Some(more) => room.add_permits(more),
            None => {
                room.forget_permits(self.max_connections - connections);
            }
        }
        self.max_connections = connections;
    }
}

/// How long a worker may take to drop what it has once the deadline has passed.
const AFTER_DEADLINE: Duration = Duration::from_secs(1);

/// No more than a semaphore can count.
fn bounded(connections: usize) -> usize {
    connections.min(Semaphore::MAX_PERMITS)
}

/// Starts a worker's thread, and waits until its runtime runs.
fn spawn(
    worker: usize,
    shared: &Arc<Shared>,
    pinner: Pinner,
    http: Arc<HttpConfig>,
    alive: mpsc::Sender<Infallible>,
) -> io::Result<mpsc::UnboundedSender<Command>> {
    let (commands, inbox) = mpsc::unbounded_channel();
    let (ready, readiness) = std::sync::mpsc::channel();
    let shared = Arc::clone(shared);
    let seed = rand::Rng::next_u64(&mut rand::rng());
    thread::Builder::new().name(format!("proxy-{worker}")).spawn(move || {
        let built = runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        let (runtime, started) = match built {
            Ok(runtime) => (Some(runtime), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let _indispensable = Indispensable("proxy worker");
        // The starter waits for this one message.
        let _ = ready.send(started);
        if let Some(runtime) = runtime {
            runtime.block_on(worker::run(shared, pinner, http, seed, inbox));
        }
        drop(alive);
    })?;
    readiness.recv().unwrap_or_else(|_| Err(io::Error::other("the worker ended at once")))?;
    Ok(commands)
}
