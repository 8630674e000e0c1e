//! Clients of the kernel tests: dial, see who answered, pin, disconnect.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
};

use revgate_common::{
    address::Address,
    counter::Counter,
    layout::{PIN_REVISION, Pin, Tenant},
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    echo::{self, PATIENCE},
    node::Node,
};

/// What the fence and a stale pin answer.
pub const ECONNREFUSED: Option<i32> = Some(111);
/// What is answered where there is nothing to steer to.
pub const EHOSTUNREACH: Option<i32> = Some(113);

/// An address, from text.
///
/// # Panics
///
/// When it is none.
#[must_use]
pub fn at(address: &str) -> SocketAddr {
    address.parse().expect("an address and port")
}

/// Dials and reads which endpoint answered.
pub fn dial(to: SocketAddr) -> io::Result<SocketAddr> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    echo::answer(&mut stream)
}

/// The error number of a connect that failed.
#[must_use]
pub fn errno(result: &io::Result<SocketAddr>) -> Option<i32> {
    result.as_ref().err().and_then(io::Error::raw_os_error)
}

/// A TCP socket that does not wait for ever.
///
/// # Panics
///
/// When there is none to be had.
#[must_use]
pub fn tcp_socket(domain: Domain) -> Socket {
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// A socket pinned to (set 0, slot, epoch), and to an endpoint where one is given.
///
/// # Panics
///
/// When it cannot be pinned.
#[must_use]
pub fn pinned(node: &Node, slot: u16, epoch: u32, endpoint: Option<SocketAddr>, domain: Domain) -> Socket {
    let socket = tcp_socket(domain);
    let endpoint = endpoint.map_or(Address::default(), Address::from);
    node.pinner()
        .pin(socket.as_fd(), &Pin { endpoint, kind: PIN_REVISION, tenant: Tenant { set: 0, slot, epoch } })
        .expect("pinned");
    socket
}

/// Connects a socket and reads which endpoint answered.
pub fn dial_with(socket: &Socket, to: SocketAddr) -> io::Result<SocketAddr> {
    socket.connect(&to.into())?;
    echo::answer(&mut &*socket)
}

/// Dissolves a socket's connection, so that it can connect anew: `connect` with `AF_UNSPEC`, connect(2).
///
/// # Panics
///
/// When that fails.
pub fn disconnect(socket: &Socket) {
    rustix::net::connect_unspec(socket).expect("disconnected");
}

/// What a counter of the kernel says.
///
/// # Panics
///
/// When it cannot be read.
#[must_use]
pub fn count(node: &Node, counter: Counter) -> u64 {
    let counters = node.reader().counters().expect("counters");
    counters.into_iter().find(|(c, _)| *c == counter).map_or(0, |(_, n)| n)
}
