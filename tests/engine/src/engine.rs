//! The handle of an engine, and the task behind it that accepts connections.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    select,
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::timeout,
};

use crate::{
    Behaviour, Connector, Counters, Fault, connection,
    counters::Tick,
    meeting::Rooms,
    shared::{Faults, Recorded, Shared, lock},
};

/// Where and what an engine is; how it behaves may change later.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// Its name; the default is its address as given. Without `@`.
    pub name: String,
    /// Its revision.
    pub revision: String,
    /// Its role. With [`Connector::Nixl`] it is only counted against ([`Counters::misplaced`]), as a real engine would
    /// serve either leg.
    pub role: String,
    /// How it hands KV on.
    pub connector: Connector,
    /// Most open connections; more wait in the listen queue.
    pub max_connections: usize,
    /// How it behaves at first.
    pub behaviour: Behaviour,
}

impl EngineConfig {
    /// An engine with defaults for the rest.
    #[must_use]
    pub fn new(address: SocketAddr, revision: impl Into<String>, role: impl Into<String>) -> Self {
        Self {
            address,
            name: address.to_string(),
            revision: revision.into(),
            role: role.into(),
            connector: Connector::default(),
            max_connections: 4096,
            behaviour: Behaviour::default(),
        }
    }
}

/// Why an engine is not there.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It cannot listen.
    #[error("engine cannot listen on {address}: {source}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A name with `@`, which ends the name in KV engine ids.
    #[error("engine name {0:?} contains '@'")]
    Name(String),
    /// Its runtime is gone.
    #[error("the engine's runtime has ended")]
    Gone,
    /// No thread or runtime for a [`Fleet`](crate::Fleet).
    #[error("cannot start the engines' thread: {0}")]
    Thread(io::Error),
}

enum Order {
    Down(oneshot::Sender<()>),
    Up(oneshot::Sender<io::Result<()>>),
    Stop(Duration, oneshot::Sender<()>),
}

/// A running engine. Dropped, it ends at once, connections and all.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    _task: JoinSet<()>,
}

impl Engine {
    /// Starts an engine on the current tokio runtime. It listens when this returns.
    #[expect(
        clippy::unused_async,
        reason = "an async function is only ever polled on a runtime, which this needs"
    )]
    pub async fn start(config: EngineConfig) -> Result<Self, EngineError> {
        if config.name.contains('@') {
            return Err(EngineError::Name(config.name));
        }
        let bind = |address| move |source| EngineError::Bind { address, source };
        let listener = listen(config.address).map_err(bind(config.address))?;
        let address = listener.local_addr().map_err(bind(config.address))?;
        let bootstrap = match config.connector {
            Connector::Sglang(port) if config.role == "prefill" => {
                let address = SocketAddr::new(address.ip(), port);
                Some(listen(address).map_err(bind(address))?)
            }
            _ => None,
        };
        let bootstrap_address = bootstrap.as_ref().and_then(|listener| listener.local_addr().ok());
        let listeners = Listeners { api: listener, bootstrap };
        let shared = Arc::new(Shared {
            name: config.name,
            revision: config.revision,
            address,
            tallies: Arc::default(),
            role: config.role,
            connector: config.connector,
            bootstrap: bootstrap_address,
            rooms: Rooms::default(),
            behaviour: watch::Sender::new(Arc::new(config.behaviour)),
            faults: Mutex::default(),
            recorded: Mutex::default(),
            sequence: AtomicU64::new(0),
        });
        let (orders, received) = mpsc::channel(8);
        let mut task = JoinSet::new();
        task.spawn(run(Arc::clone(&shared), listeners, received, config.max_connections));
        Ok(Self { shared, orders, _task: task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Where its bootstrap server listens: a prefill engine of [`Connector::Sglang`] has one.
    #[must_use]
    pub fn bootstrap(&self) -> Option<SocketAddr> {
        self.shared.bootstrap
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its revision.
    #[must_use]
    pub fn revision(&self) -> &str {
        &self.shared.revision
    }

    /// Its role.
    #[must_use]
    pub fn role(&self) -> &str {
        &self.shared.role
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.tallies.read()
    }

    /// Waits until the counters satisfy a condition; looked at again whenever one but the bytes changes.
    pub async fn wait_until(&self, holds: impl FnMut(&Counters) -> bool) -> Counters {
        self.shared.tallies.wait_until(holds).await
    }

    /// Changes how it behaves, for requests from now on.
    pub fn update(&self, change: impl FnOnce(&mut Behaviour)) {
        self.shared.behaviour.send_modify(|behaviour| change(Arc::make_mut(behaviour)));
    }

    /// The next `count` inference requests meet this fault, after those already queued.
    pub fn fail_next(&self, count: u32, fault: Fault) {
        if count > 0 {
            lock(&self.shared.faults).next.push_back((count, fault));
        }
    }

    /// Forgets queued faults.
    pub fn clear_faults(&self) {
        *lock(&self.shared.faults) = Faults::default();
    }

    /// The last requests, oldest first, as many as [`Behaviour::record`] says.
    #[must_use]
    pub fn recorded(&self) -> Vec<Recorded> {
        lock(&self.shared.recorded).iter().cloned().collect()
    }

    /// Goes down as a killed process does: connections are refused when this returns, open ones are broken.
    pub async fn down(&self) -> Result<(), EngineError> {
        self.order(Order::Down).await
    }

    /// Comes back on the same address, with counters and behaviour kept.
    pub async fn up(&self) -> Result<(), EngineError> {
        let bound = self.order(Order::Up).await?;
        bound.map_err(|source| EngineError::Bind { address: self.shared.address, source })
    }

    /// Stops in order: no new connection, idle ones closed, open answers finished until `within` has passed.
    pub async fn stop(self, within: Duration) {
        // A runtime that is gone has stopped it already.
        drop(self.order(|done| Order::Stop(within, done)).await);
    }

    async fn order<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, EngineError> {
        let (done, answer) = oneshot::channel();
        self.orders.send(order(done)).await.map_err(|_| EngineError::Gone)?;
        answer.await.map_err(|_| EngineError::Gone)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // To come back on the same port while old connections linger in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

/// Where an engine listens while it is up.
struct Listeners {
    api: TcpListener,
    bootstrap: Option<TcpListener>,
}

impl Listeners {
    fn again(shared: &Shared) -> io::Result<Self> {
        let bootstrap = shared.bootstrap.map(listen).transpose()?;
        Ok(Self { api: listen(shared.address)?, bootstrap })
    }
}

/// Who has come.
enum Caller {
    Client(TcpStream),
    /// The decode engine of a pair.
    Decode(TcpStream),
}

async fn accept(listeners: Option<&Listeners>, full: bool) -> io::Result<Caller> {
    let Some(listeners) = listeners else { return std::future::pending().await };
    let decode = async {
        match &listeners.bootstrap {
            Some(bootstrap) => bootstrap.accept().await,
            None => std::future::pending().await,
        }
    };
    select! {
        client = listeners.api.accept(), if !full => client.map(|(stream, _)| Caller::Client(stream)),
        decode = decode => decode.map(|(stream, _)| Caller::Decode(stream)),
    }
}

/// Accepts until stopped. Connections end with this task.
async fn run(
    shared: Arc<Shared>,
    listeners: Listeners,
    mut orders: mpsc::Receiver<Order>,
    max_connections: usize,
) {
    let mut listeners = Some(listeners);
    let mut connections = JoinSet::new();
    let stop = watch::Sender::new(false);
    loop {
        let full = connections.len() >= max_connections;
        select! {
            order = orders.recv() => match order {
                None => return,
                Some(Order::Down(done)) => {
                    listeners = None;
                    connections.shutdown().await;
                    let _ = done.send(());
                }
                Some(Order::Up(done)) => {
                    let bound = if listeners.is_some() { Ok(()) } else {
                        Listeners::again(&shared).map(|bound| listeners = Some(bound))
                    };
                    drop(done.send(bound));
                }
                Some(Order::Stop(within, done)) => {
                    drop(listeners.take());
                    stop.send_replace(true);
                    let finished = async { while connections.join_next().await.is_some() {} };
                    drop(timeout(within, finished).await);
                    connections.shutdown().await;
                    let _ = done.send(());
                    return;
                }
            },
            Some(_) = connections.join_next() => {}
            accepted = accept(listeners.as_ref(), full) => match accepted {
                Ok(Caller::Client(stream)) => {
                    shared.tallies.add(Tick::Connections, 1);
                    connections.spawn(connection::serve(Arc::clone(&shared), stream, stop.subscribe()));
                }
                Ok(Caller::Decode(stream)) => {
                    let shared = Arc::clone(&shared);
                    connections.spawn(async move {
                        // How it ends, the legs tell better.
                        drop(shared.rooms.receive(&shared.engine_id(), stream).await);
                    });
                }
                // Out of file descriptors, mostly: let some close.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    }
}
