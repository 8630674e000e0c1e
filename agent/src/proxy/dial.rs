//! A new connection to an endpoint: a socket, pinned to the revision before it connects (H5).

use std::{
    cell::Cell,
    io,
    net::SocketAddr,
    os::fd::AsFd,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use revgate_common::layout;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

use super::{
    link::Link,
    table::{Chosen, Place},
};
use crate::kernel::Pinner;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialError {
    /// The agent's own trouble: nobody was dialled.
    Socket(io::Error),
    /// Refused, unreachable, or broken on the way.
    Connect(io::Error),
    /// Not accepted in time.
    Timeout,
}

/// A connection, and the endpoint at its other end where the kernel did not leave it at the chosen one.
pub(super) struct Dialled {
    /// The connection.
    pub(super) link: Box<Link>,
    /// Whom the kernel chose instead.
    pub(super) elsewhere: Option<SocketAddr>,
}

/// Dials the chosen endpoint, or whichever of its revision and role the kernel puts in its place.
pub(super) async fn dial(
    pinner: &Pinner,
    place: Place,
    chosen: &Chosen,
    timeout: Duration,
) -> Result<Dialled, DialError> {
    let endpoint = chosen.target.endpoint.address;
    let destination = pinner.destination(place.set, place.role, endpoint);
    let socket = socket(endpoint).map_err(DialError::Socket)?;
    let pin = layout::Pin {
        endpoint: endpoint.into(),
        kind: layout::PIN_REVISION,
        set: u16::from(place.set),
        slot: chosen.slot,
        epoch: chosen.epoch,
    };
    pinner.pin(socket.as_fd(), &pin).map_err(DialError::Socket)?;
    let stream = match tokio::time::timeout(timeout, connect(socket, destination)).await {
        Ok(stream) => stream.map_err(DialError::Connect)?,
        Err(_) => return Err(DialError::Timeout),
    };
    // With the endpoint's own address as the destination there was nothing to choose.
    let elsewhere = if destination == endpoint {
        None
    } else {
        let peer = stream.peer_addr().map_err(DialError::Connect)?;
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        (peer != endpoint).then_some(peer)
    };
    let received = Rc::new(Cell::new(false));
    let tap = Tap { stream, received: Rc::clone(&received) };
    let (sender, connection) = hyper::client::conn::http1::Builder::new()
        .handshake(TokioIo::new(tap))
        .await
        .map_err(|error| DialError::Connect(io::Error::other(error)))?;
    Ok(Dialled { link: Box::new(Link::new(sender, connection, received)), elsewhere })
}

/// A socket that can reach the endpoint's family, and notices a peer that is gone.
fn socket(endpoint: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(endpoint), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if endpoint.is_ipv6() {
        // The anchor is an IPv4 address: an IPv6 socket reaches it in its mapped form.
        socket.set_only_v6(false)?;
    }
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(Duration::from_secs(30))
            .with_interval(Duration::from_secs(10))
            .with_retries(3),
    )?;
    Ok(socket)
}

/// Connects without blocking the worker.
async fn connect(socket: Socket, to: SocketAddr) -> io::Result<TcpStream> {
    match socket.connect(&SockAddr::from(to)) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

/// A stream to an endpoint that remembers whether anything came back since the last request.
pub(super) struct Tap {
    stream: TcpStream,
    received: Rc<Cell<bool>>,
}

impl AsyncRead for Tap {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.received.set(true);
        }
        polled
    }
}

impl AsyncWrite for Tap {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_of_an_ipv6_endpoint_reaches_a_mapped_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = socket("[::1]:8000".parse().unwrap()).unwrap();
        let stream = connect(socket, format!("[::ffff:127.0.0.1]:{port}").parse().unwrap()).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap().ip().to_canonical(), listener.local_addr().unwrap().ip());
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_refused_connection_is_an_error() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = connect(socket(nobody).unwrap(), nobody).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
