//! Listening sockets, one per listener and worker, and the connections that come out of them.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use rustls::ServerConfig;
use socket2::{Domain, Protocol as SocketProtocol, Socket, TcpKeepalive, Type};
use tokio::{net::TcpStream, sync::oneshot};
use tokio_rustls::TlsAcceptor;

use super::{
    client::{Client, serve, serve_tls},
    idle,
    listener::{Listener, Plan},
    metrics::Alive,
    room::Seat,
};

/// Connections that may wait to be accepted, per worker.
const BACKLOG: i32 = 4096;

/// How long to wait when the process is out of descriptors: accepting again at once would only spin.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// A listener that is bound, on its way to a worker.
pub(super) struct Opened {
    /// Distinguishes it from others of the same name.
    pub(super) id: u64,
    /// What it is.
    pub(super) plan: Plan,
    /// This worker's socket.
    pub(super) socket: TcpListener,
    /// Serve TLS.
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// Until the listener's series are dropped.
    pub(super) alive: Alive,
}

/// Takes an address for this process alone, to be held while [`bind`] follows: the sockets that share it would share
/// it with those of another agent as well, and in silence.
pub(super) fn claim(address: SocketAddr) -> io::Result<Socket> {
    let socket = socket(address)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Where a socket is bound.
pub(super) fn address(socket: &Socket) -> io::Result<SocketAddr> {
    let address = socket.local_addr()?;
    address.as_socket().ok_or_else(|| io::Error::other("the socket has no IP address"))
}

/// A socket that old connections of a stopped agent do not hinder.
fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(SocketProtocol::TCP))?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}

/// Binds one of several sockets to an address; the kernel spreads connections over them.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address)?;
    socket.set_reuse_port(true)?;
    // Accepted sockets inherit these: no system call per connection.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(Duration::from_mins(1))
            .with_interval(Duration::from_secs(15))
            .with_retries(3),
    )?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts until it is told to stop, then takes what waits in the backlog: it has been promised an answer.
pub(super) async fn run(opened: Opened, listener: Rc<Listener>, mut stopped: oneshot::Receiver<()>) {
    let socket = match tokio::net::TcpListener::from_std(opened.socket) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(listener = %opened.plan.config.name, %error, "listening socket cannot be polled");
            return;
        }
    };
    let acceptor = opened.tls.map(TlsAcceptor::from);
    let room = &listener.worker.shared.connections;
    let mut waiting = Vec::new();
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            _ = &mut stopped => break,
        };
        match accepted {
            // Only a connection that is there takes room: a listener that waits for one holds none.
            Ok(accepted) => {
                let seat = tokio::select! {
                    seat = room.enter() => seat,
                    _ = &mut stopped => {
                        waiting.push(accepted);
                        break;
                    }
                };
                start(accepted, acceptor.clone(), &listener, seat, false);
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                tracing::warn!(listener = %opened.plan.config.name, %error, "connections wait");
                tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
            }
            // The connection went away while it waited.
            Err(error) => tracing::debug!(%error, "accept failed"),
        }
    }
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Ok(accepted)) = socket.poll_accept(&mut cx) {
        waiting.push(accepted);
    }
    drop(socket);
    for accepted in waiting {
        start(accepted, acceptor.clone(), &listener, room.enter().await, true);
    }
}

/// Serves a connection on a task of its own.
fn start(
    (stream, peer): (TcpStream, SocketAddr),
    acceptor: Option<TlsAcceptor>,
    listener: &Rc<Listener>,
    seat: Seat,
    last: bool,
) {
    idle::event();
    let trusted = listener.trusts(peer.ip());
    let client = Rc::new(Client::new(listener.id, trusted, listener.worker.ticker.clone()));
    if last {
        client.finish();
    }
    let registered = listener.worker.register(Rc::clone(&client));
    let listener = Rc::clone(listener);
    listener.metrics.connections.inc();
    tokio::task::spawn_local(async move {
        match acceptor {
            None => serve(stream, None, Rc::clone(&listener), client).await,
            Some(acceptor) => serve_tls(stream, acceptor, Rc::clone(&listener), client).await,
        }
        listener.metrics.connections.dec();
        drop(seat);
        drop(registered);
    });
}
