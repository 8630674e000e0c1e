//! Stands between a client and its server, and is the network that fails: connections cut, refused or frozen.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// A relay on loopback. It runs until the test ends.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    inner: Mutex<Inner>,
    ended: Condvar,
}

#[derive(Debug)]
struct Inner {
    /// New connections are broken.
    cut: bool,
    open: Vec<TcpStream>,
    /// Connections so far.
    accepted: usize,
    /// Of those, as many as these hang for ever.
    frozen: usize,
}

impl Relay {
    /// Starts one in front of this server.
    ///
    /// # Panics
    ///
    /// When it cannot listen.
    #[must_use]
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let inner = Inner { cut: false, open: Vec::new(), accepted: 0, frozen: 0 };
        let state = Arc::new(State { inner: Mutex::new(inner), ended: Condvar::new() });
        let of_thread = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A connection that fails is what a relay is here for.
                let _ = of_thread.connect(&client, server);
            }
        });
        Self { address, state }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks every connection, and new ones.
    pub fn cut(&self) {
        let mut inner = self.state.lock();
        inner.cut = true;
        for stream in inner.open.drain(..) {
            // One that is gone already needs no breaking.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.state.ended.notify_all();
    }

    /// New connections pass again.
    pub fn mend(&self) {
        self.state.lock().cut = false;
    }

    /// Nothing passes any more on the connections that are open, and nobody is told. New ones pass.
    pub fn freeze(&self) {
        let mut inner = self.state.lock();
        inner.frozen = inner.accepted;
    }

    /// How many connections there were so far.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.state.lock().accepted
    }
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Self>, client: &TcpStream, server: SocketAddr) -> io::Result<()> {
        let mut inner = self.lock();
        inner.accepted += 1;
        let number = inner.accepted;
        if inner.cut {
            return client.shutdown(Shutdown::Both);
        }
        let server = TcpStream::connect(server)?;
        inner.open.push(client.try_clone()?);
        inner.open.push(server.try_clone()?);
        for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client.try_clone()?)] {
            let state = Arc::clone(self);
            thread::spawn(move || {
                let _ = state.pass(number, &from, &to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
        Ok(())
    }

    fn pass(&self, number: usize, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let read = from.read(&mut buffer)?;
            let hangs = |inner: &mut Inner| number <= inner.frozen && !inner.cut;
            drop(self.ended.wait_while(self.lock(), hangs).unwrap_or_else(PoisonError::into_inner));
            if read == 0 {
                return Ok(());
            }
            to.write_all(&buffer[..read])?;
        }
    }
}
