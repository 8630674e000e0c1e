//! Connects that run through whatever a test does meanwhile, and what became of each.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use crate::{
    dial::dial,
    echo,
    node::{Node, join},
    wait::until,
};

/// Dials a VIP again and again from inside a node. Somebody listens on the VIP itself, so that a connect that
/// nobody steers is seen.
pub struct Load {
    vip: SocketAddr,
    state: Arc<State>,
    worker: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    stop: AtomicBool,
    steered: AtomicU64,
    unsteered: AtomicU64,
    failed: Mutex<Vec<io::Error>>,
}

/// A VIP on which somebody listens, who is never to be reached.
#[must_use]
pub fn decoy(ip: &str) -> SocketAddr {
    echo::tcp(ip)
}

impl Load {
    /// Starts, and returns once the first connect is through.
    ///
    /// # Panics
    ///
    /// When no connect comes through.
    #[must_use]
    pub fn start(node: &Node, vip: SocketAddr) -> Self {
        let state = Arc::new(State::default());
        let (of_worker, cgroup) = (Arc::clone(&state), node.cgroup().to_path_buf());
        let home = cgroup.parent().unwrap_or(Path::new("/")).to_path_buf();
        let worker = thread::spawn(move || {
            join(&cgroup);
            while !of_worker.stop.load(Ordering::Relaxed) {
                match dial(vip) {
                    Ok(answer) if answer == vip => of_worker.unsteered.fetch_add(1, Ordering::Relaxed),
                    Ok(_) => of_worker.steered.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        of_worker.failed.lock().expect("no panic").push(error);
                        0
                    }
                };
            }
            join(&home);
        });
        let load = Self { vip, state, worker };
        load.goes_on();
        load
    }

    /// Waits for some more connects that were steered.
    ///
    /// # Panics
    ///
    /// When none are.
    pub fn goes_on(&self) {
        let before = self.state.steered.load(Ordering::Relaxed);
        let now = || {
            let failed = self.state.failed.lock().expect("no panic").len();
            (self.state.steered.load(Ordering::Relaxed), failed)
        };
        until(&format!("{} steers and fails", self.vip), now, |(steered, _)| *steered >= before + 5);
    }

    /// Ends, and proves that every connect was steered.
    ///
    /// # Panics
    ///
    /// When one was not steered or failed.
    pub fn end(self) {
        self.goes_on();
        self.state.stop.store(true, Ordering::Relaxed);
        self.worker.join().expect("the load ends");
        let failed = self.state.failed.lock().expect("no panic");
        assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed.first());
        let (steered, unsteered) =
            (self.state.steered.load(Ordering::Relaxed), self.state.unsteered.load(Ordering::Relaxed));
        assert_eq!(unsteered, 0, "of {steered}");
    }
}
