//! Listeners: HTTP in, an endpoint of one revision out, or a pair of them.
//!
//! ```text
//! accept ─> client (connection, limits) ─> forward (one request) ──> attempts ─┬─> table, choose   which endpoint
//!                                             │                        ▲          ├─> dial, link      how to reach it
//!                                             ▼                        │          ├─> upload          its body there
//!                                            pair (two legs) ── each ──┘          └─> reply           the response back
//! ```
//!
//! Each `worker` is a thread that does all of this for its own connections. `headers` and `steering` say what a request
//! asks for and what is not passed on, `picker` answers a proxy that asks which endpoint to take, [`error`] why one is
//! refused, [`metrics`] what is counted.

mod accept;
mod access;
mod alarms;
mod attempts;
mod beat;
mod choose;
mod client;
mod clock;
mod deadlines;
mod dial;
pub mod error;
mod forward;
mod headers;
mod idle;
mod link;
mod listener;
pub mod metrics;
mod pair;
mod picker;
mod reply;
mod room;
mod steering;
mod table;
mod target;
pub mod tls;
mod upload;
mod wakes;
mod worker;

/// Fuzz targets of the parsers here.
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz {
    pub use super::{
        headers::fuzz::routing_headers,
        link::fuzz::response,
        pair::fuzz::{cached_tokens, json_edit},
    };
}

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{self, LocalOptions},
    sync::mpsc,
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
use beat::Beat;
use clock::Clock;
use listener::Plan;
use metrics::Alive;
use room::Room;
use tls::{Identity, TlsError};
use worker::{Command, SWEEP, Shared};

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

/// The running listeners. Dropping it ends them at once; [`Proxy::drain`] ends them politely.
pub struct Proxy {
    /// One per worker: a worker ends when its sender is dropped.
    workers: Vec<mpsc::UnboundedSender<Command>>,
    /// Closed when the last worker has ended; nothing is ever sent.
    ended: mpsc::Receiver<Infallible>,
    open: Vec<Live>,
    shared: Arc<Shared>,
    next: u64,
}

/// A listener that is served.
struct Live {
    id: u64,
    plan: Plan,
    address: SocketAddr,
    identity: Option<Arc<Identity>>,
    alive: Alive,
    /// The workers' listening sockets once more: a listener that takes the address over gets them, so that no
    /// connection in their queues is lost.
    sockets: Vec<TcpListener>,
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
            draining: AtomicBool::new(false),
            connections: Room::new(http.max_connections),
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
        let mut proxy = Self { workers, ended, open: Vec::new(), shared, next: 0 };
        proxy.open(Plan::all(config), &[])?;
        Ok(proxy)
    }

    /// Where each listener listens, by name: of use where a configuration asks for port 0.
    pub fn addresses(&self) -> impl Iterator<Item = (&str, SocketAddr)> {
        self.open.iter().map(|live| (&*live.plan.config.name, live.address))
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.requests.load(Relaxed)
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
        if let Err(error) = self.open(new, &gone) {
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
                    &live.alive,
                    revisions.map(|revision| Arc::clone(&revision.name)),
                );
            }
        }
        let http = Arc::new(config.agent.http.clone());
        self.shared.connections.resize(http.max_connections);
        self.renew_certificates();
        self.tell(|| Command::Configure(Arc::clone(&http)));
        Ok(())
    }

    /// Reads the certificates of every listener again. New connections get what has changed; a pair that cannot be
    /// used is said once, and the last good one stays.
    pub fn renew_certificates(&self) {
        for live in &self.open {
            if let Some(identity) = &live.identity {
                identity.renew(&live.plan.config.name);
            }
        }
    }

    /// Ends politely: accepts until `delay` has passed, then lets every request finish until `deadline` has passed
    /// since the call, and breaks what is left. True when nothing was.
    pub async fn drain(mut self, shutdown: &ShutdownConfig) -> bool {
        self.shared.draining.store(true, Relaxed);
        let politely = async {
            tokio::time::sleep(shutdown.delay).await;
            // The workers' sockets are then the last ones: what they close refuses new connections.
            self.open.clear();
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

    /// Binds and opens, all or nothing. `leaving` listen still.
    fn open(&mut self, plans: Vec<Plan>, leaving: &[Live]) -> Result<(), StartError> {
        let mut bound = Vec::new();
        for plan in plans {
            let listener = || Arc::clone(&plan.config.name);
            let unusable = |source| StartError::Tls { listener: listener(), source: Box::new(source) };
            let files = plan.config.tls.as_ref();
            let identity = files.map(Identity::load).transpose().map_err(unusable)?.map(Arc::new);
            let tls = identity.as_ref().map(Identity::server).transpose().map_err(unusable)?;
            let mut address = plan.config.address;
            let failed =
                |source| StartError::Bind { listener: listener(), address: plan.config.address, source };
            let predecessor = leaving.iter().find(|live| live.address == address);
            let mut sockets = Vec::new();
            if let Some(live) = predecessor {
                for socket in &live.sockets {
                    sockets.push(socket.try_clone().map_err(failed)?);
                }
            } else {
                // Nobody else may listen there, but this agent's own older listener may.
                let own = leaving.iter().any(|live| live.address.port() == address.port());
                let claim = if own { None } else { Some(accept::claim(address).map_err(failed)?) };
                if let Some(claim) = &claim {
                    // Port 0 is the system's choice, once.
                    address = accept::address(claim).map_err(failed)?;
                }
                for _ in &self.workers {
                    sockets.push(accept::bind(address).map_err(failed)?);
                }
            }
            let of_workers =
                sockets.iter().map(TcpListener::try_clone).collect::<Result<Vec<_>, _>>().map_err(failed)?;
            let live = Live { id: self.next, plan, address, identity, alive: Alive::default(), sockets };
            bound.push((live, tls, of_workers));
            self.next += 1;
        }
        for (live, tls, sockets) in bound {
            for (worker, socket) in self.workers.iter().zip(sockets) {
                let (id, plan, alive) = (live.id, live.plan.clone(), live.alive.clone());
                let opened = Opened { id, plan, socket, tls: tls.clone(), alive };
                // A worker that is gone has ended with its runtime; the others serve on.
                let _ = worker.send(Command::Open(Box::new(opened)));
            }
            tracing::info!(listener = %live.plan.config.name, address = %live.address, "listening");
            self.open.push(live);
        }
        Ok(())
    }

    fn tell(&self, command: impl Fn() -> Command) {
        for worker in &self.workers {
            let _ = worker.send(command());
        }
    }
}

/// How long a worker may take to drop what it has once the deadline has passed.
const AFTER_DEADLINE: Duration = Duration::from_secs(1);

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
        let mut builder = runtime::Builder::new_current_thread();
        let built = idle::install(builder.enable_all()).build_local(LocalOptions::default());
        let built = built.and_then(|runtime| {
            let beat = runtime.block_on(async { Beat::every(SWEEP) })?;
            Ok((runtime, beat))
        });
        let (built, started) = match built {
            Ok(built) => (Some(built), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let _indispensable = Indispensable("proxy worker");
        // The starter waits for this one message.
        let _ = ready.send(started);
        if let Some((runtime, beat)) = built {
            runtime.block_on(worker::run(shared, pinner, http, seed, beat, inbox));
        }
        drop(alive);
    })?;
    readiness.recv().unwrap_or_else(|_| Err(io::Error::other("the worker ended at once")))?;
    Ok(commands)
}
