//! One worker: a thread with its own runtime, listeners, connections and pools. Requests never leave it.
//!
//! Workers share the published snapshot, the endpoints' vitals and the counters, all of them atomic, and nothing
//! else: no lock, no hop to another thread, no task per HTTP/1.1 request.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize},
    },
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::Xoshiro256PlusPlus};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{
    accept::{self, Opened},
    alarms::Alarms,
    beat::Beat,
    client::Client,
    clock::{Clock, Ticker, millis},
    deadlines::Deadlines,
    idle,
    listener::Listener,
    metrics::Metrics,
    room::Room,
    target::PoolLimits,
};
use crate::{
    config::HttpConfig,
    kernel::Pinner,
    snapshot::{Breaker, owner::Published},
};

/// How often connections are looked at for their limits in time.
pub(super) const SWEEP: Duration = Duration::from_millis(500);

/// What all workers share.
pub(super) struct Shared {
    /// The current snapshot.
    pub(super) published: Published,
    /// The one clock.
    pub(super) clock: Clock,
    /// Counters.
    pub(super) metrics: Metrics,
    /// Requests in flight.
    pub(super) requests: AtomicUsize,
    /// It ends: whoever asks for its health hears so while requests are still taken.
    pub(super) draining: AtomicBool,
    /// Room for client connections.
    pub(super) connections: Arc<Room>,
}

/// What a worker is told. When nobody can tell it anything any more, it ends at once.
pub(super) enum Command {
    /// Serve a listener.
    Open(Box<Opened>),
    /// Serve it no more: finish what is in flight.
    Close(u64),
    /// New limits for new requests.
    Configure(Arc<HttpConfig>),
    /// Close every listener, finish what is in flight, and end.
    Drain,
}

/// A worker's state, used by everything that runs on it.
pub(super) struct Worker {
    /// What all workers share.
    pub(super) shared: Arc<Shared>,
    /// Pins its sockets.
    pub(super) pinner: Pinner,
    /// Coarse time.
    pub(super) ticker: Ticker,
    /// Of its requests.
    pub(super) deadlines: Deadlines,
    /// Of its HTTP/2 connections.
    pub(super) alarms: Alarms,
    http: RefCell<Rc<HttpConfig>>,
    breaker: Cell<Breaker>,
    pool: Cell<PoolLimits>,
    random: RefCell<Xoshiro256PlusPlus>,
    clients: RefCell<HashMap<u64, Rc<Client>>>,
    next: Cell<u64>,
    /// A client connection, or an accepting task, ended.
    gone: Notify,
}

impl Worker {
    fn new(shared: Arc<Shared>, pinner: Pinner, http: &HttpConfig, seed: u64) -> Self {
        let (ticker, now) = (Ticker::default(), shared.clock.millis());
        ticker.set(now);
        Self {
            alarms: Alarms::new(shared.clock, now),
            shared,
            pinner,
            ticker,
            deadlines: Deadlines::default(),
            http: RefCell::new(Rc::new(http.clone())),
            breaker: Cell::new(breaker(http)),
            pool: Cell::new(pool_limits(http)),
            random: RefCell::new(Xoshiro256PlusPlus::seed_from_u64(seed)),
            clients: RefCell::default(),
            next: Cell::new(0),
            gone: Notify::new(),
        }
    }

    /// The limits of a request that begins now.
    pub(super) fn http(&self) -> Rc<HttpConfig> {
        Rc::clone(&self.http.borrow())
    }

    /// When endpoints rest.
    pub(super) fn breaker(&self) -> Breaker {
        self.breaker.get()
    }

    /// The bounds of a pool.
    pub(super) fn pool_limits(&self) -> PoolLimits {
        self.pool.get()
    }

    /// A uniform draw.
    pub(super) fn draw(&self) -> u32 {
        self.random.borrow_mut().next_u32()
    }

    /// Four of them.
    pub(super) fn draws(&self) -> [u32; 4] {
        let mut random = self.random.borrow_mut();
        std::array::from_fn(|_| random.next_u32())
    }

    /// Registers a connection for sweeps and orders, until the guard is dropped.
    pub(super) fn register(self: &Rc<Self>, client: Rc<Client>) -> Registered {
        let id = self.next.replace(self.next.get() + 1);
        self.clients.borrow_mut().insert(id, client);
        Registered { worker: Rc::clone(self), id }
    }

    /// Tells the connections of one listener, or of all, to finish.
    fn finish(&self, listener: Option<u64>) {
        for client in self.clients.borrow().values() {
            if listener.is_none_or(|id| client.listener == id) {
                client.finish();
            }
        }
    }

    fn sweep(&self, listeners: &HashMap<u64, Open>) {
        let now = self.shared.clock.millis();
        self.ticker.set(now);
        self.deadlines.sweep(now);
        self.alarms.sweep(now);
        let http = self.http();
        for client in self.clients.borrow().values() {
            client.check(now, &http);
        }
        for table in listeners.values().flat_map(|open| open.listener.tables()) {
            let mut table = table.borrow_mut();
            table.refresh(&self.shared.published);
            table.expire(now, self.pool_limits());
        }
    }

    fn configure(&self, http: &HttpConfig) {
        self.breaker.set(breaker(http));
        self.pool.set(pool_limits(http));
        idle::configure(http.busy_poll);
        *self.http.borrow_mut() = Rc::new(http.clone());
    }
}

/// A connection's place among those of its worker.
pub(super) struct Registered {
    worker: Rc<Worker>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.worker.clients.borrow_mut().remove(&self.id);
        self.worker.gone.notify_one();
    }
}

/// A listener that accepts, until `stop` is dropped.
struct Open {
    listener: Rc<Listener>,
    #[expect(dead_code, reason = "held: its drop is the message")]
    stop: oneshot::Sender<()>,
}

/// Runs a worker to its end. It looks at its connections at each beat.
pub(super) async fn run(
    shared: Arc<Shared>,
    pinner: Pinner,
    http: Arc<HttpConfig>,
    seed: u64,
    beat: Beat,
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let worker = Rc::new(Worker::new(shared, pinner, &http, seed));
    tokio::task::spawn_local(idle::watch());
    idle::configure(http.busy_poll);
    drop(http);
    let mut open = HashMap::new();
    let accepting = Rc::new(Cell::new(0_usize));
    let mut draining = false;
    while !(draining && accepting.get() == 0 && worker.clients.borrow().is_empty()) {
        let command = tokio::select! {
            command = commands.recv() => command,
            () = beat.next() => {
                worker.sweep(&open);
                continue;
            }
            () = worker.gone.notified() => continue,
        };
        match command {
            None => return,
            Some(Command::Open(opened)) => {
                let listener = Rc::new(Listener::new(&opened, Rc::clone(&worker)));
                let (stop, stopped) = oneshot::channel();
                open.insert(opened.id, Open { listener: Rc::clone(&listener), stop });
                accepting.set(accepting.get() + 1);
                let (accepting, worker) = (Rc::clone(&accepting), Rc::clone(&worker));
                tokio::task::spawn_local(async move {
                    accept::run(*opened, listener, stopped).await;
                    accepting.set(accepting.get() - 1);
                    worker.gone.notify_one();
                });
            }
            Some(Command::Close(id)) => {
                open.remove(&id);
                worker.finish(Some(id));
            }
            Some(Command::Configure(http)) => worker.configure(&http),
            Some(Command::Drain) => {
                draining = true;
                open.clear();
                worker.finish(None);
            }
        }
    }
}

fn breaker(http: &HttpConfig) -> Breaker {
    Breaker { failures: http.breaker_failures, open: http.breaker_open }
}

fn pool_limits(http: &HttpConfig) -> PoolLimits {
    PoolLimits { idle: millis(http.pool_idle_timeout), count: http.pool_max_idle }
}
