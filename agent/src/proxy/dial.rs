//! A new connection to an endpoint: a socket, pinned to the revision before it connects (H5).

use std::{io, net::SocketAddr, os::fd::AsFd, time::Duration};

use revgate_common::layout;
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use tokio::net::TcpStream;

use super::{
    link::Link,
    table::{Chosen, Place},
};
use crate::kernel::Pinner;

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialError {
    /// The agent's own trouble, such as no more ports or files: no endpoint is to blame.
    Local(io::Error),
    /// The kernel programs refuse whatever the pin allows.
    Denied(io::Error),
    /// The endpoint refused, or cannot be reached.
    Endpoint(io::Error),
    /// Not accepted in time.
    Timeout,
}

impl DialError {
    /// What the way to an endpoint came to.
    fn of(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(
                libc::ECONNREFUSED
                | libc::ECONNRESET
                | libc::ETIMEDOUT
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::ENETUNREACH,
            ) => Self::Endpoint(error),
            _ => Self::Local(error),
        }
    }

    /// What the call itself came to. No packet has been answered by then, so on the way to an anchor these two are
    /// the words of the programs (`revgate_common::decide::errno`).
    fn at_once(error: io::Error, steered: bool) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED | libc::EHOSTUNREACH) if steered => Self::Denied(error),
            _ => Self::of(error),
        }
    }
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
    let socket = socket(endpoint).map_err(DialError::Local)?;
    let pin = layout::Pin {
        endpoint: endpoint.into(),
        kind: layout::PIN_REVISION,
        tenant: layout::Tenant { set: place.set.into(), slot: chosen.slot, epoch: chosen.epoch },
    };
    pinner.pin(socket.as_fd(), &pin).map_err(DialError::Local)?;
    // With the endpoint's own address as the destination there is nothing for the kernel to choose.
    let steered = destination != endpoint;
    let stream = tokio::time::timeout(timeout, connect(socket, destination, steered))
        .await
        .unwrap_or(Err(DialError::Timeout))?;
    let elsewhere = if steered {
        // It has connected, so an error is that it was reset since.
        let peer = stream.peer_addr().map_err(DialError::Endpoint)?;
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        (peer != endpoint).then_some(peer)
    } else {
        None
    };
    Ok(Dialled { link: Box::new(Link::new(stream)), elsewhere })
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
async fn connect(socket: Socket, to: SocketAddr, steered: bool) -> Result<TcpStream, DialError> {
    match socket.connect(&SockAddr::from(to)) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(DialError::at_once(error, steered)),
    }
    let stream = TcpStream::from_std(socket.into()).map_err(DialError::Local)?;
    stream.writable().await.map_err(DialError::Local)?;
    match stream.take_error().map_err(DialError::Local)? {
        Some(error) => Err(DialError::of(error)),
        None => Ok(stream),
    }
}

#[cfg(test)]
mod tests {
    use revgate_common::{counter::Counter, decide};

    use super::*;

    #[tokio::test]
    async fn the_socket_of_an_ipv6_endpoint_reaches_a_mapped_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = socket("[::1]:8000".parse().unwrap()).unwrap();
        let mapped = format!("[::ffff:127.0.0.1]:{port}").parse().unwrap();
        let stream = connect(socket, mapped, true).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap().ip().to_canonical(), listener.local_addr().unwrap().ip());
        assert!(stream.nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_refused_connection_is_the_endpoints_word_even_behind_an_anchor() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for steered in [false, true] {
            let error = connect(socket(nobody).unwrap(), nobody, steered).await.unwrap_err();
            assert!(matches!(error, DialError::Endpoint(_)), "{error:?}");
        }
    }

    #[test]
    fn only_what_a_peer_does_is_an_endpoints_fault() {
        let of = |number| DialError::of(io::Error::from_raw_os_error(number));
        for peer in
            [libc::ECONNREFUSED, libc::ECONNRESET, libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH]
        {
            assert!(matches!(of(peer), DialError::Endpoint(_)), "{peer}");
        }
        for local in [
            libc::EADDRNOTAVAIL,
            libc::ENOBUFS,
            libc::ENOMEM,
            libc::EMFILE,
            libc::EACCES,
            libc::EPERM,
            libc::EINVAL,
        ] {
            assert!(matches!(of(local), DialError::Local(_)), "{local}");
        }
    }

    #[test]
    fn what_the_programs_refuse_is_nobodys_fault() {
        let at_once = |number, steered| DialError::at_once(io::Error::from_raw_os_error(number), steered);
        for denied in [Counter::DeniedStalePin, Counter::DeniedNoEndpoint, Counter::DeniedFence] {
            assert!(
                matches!(at_once(decide::errno(denied as u32), true), DialError::Denied(_)),
                "{denied:?}"
            );
        }
        assert!(matches!(at_once(libc::EHOSTUNREACH, false), DialError::Endpoint(_)));
        assert!(matches!(at_once(libc::EADDRNOTAVAIL, true), DialError::Local(_)));
    }
}
