//! The hand that pins the agent's own sockets to a revision before they connect.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
};

use revgate_common::layout::{self, Pin};

use super::sys::Map;

/// Writes pins into socket storage. Cheap to clone; one per worker.
#[derive(Clone, Debug, Default)]
pub struct Pinner {
    /// The `PINS` map; `None` without kernel programs.
    pins: Option<Arc<Map<RawFd, Pin>>>,
}

impl Pinner {
    pub(super) fn new(pins: Map<RawFd, Pin>) -> Self {
        Self { pins: Some(Arc::new(pins)) }
    }

    /// Without kernel programs (K12): pins nothing, and endpoints are dialled by their own address.
    #[must_use]
    pub fn user_space() -> Self {
        Self { pins: None }
    }

    /// Where a socket pinned to an endpoint of (set, role) connects to: the role's anchor, which the kernel
    /// programs turn into the pinned endpoint or another of its revision; `endpoint` itself without them.
    ///
    /// Always of the endpoint's family: for an IPv6 endpoint the anchor in its mapped form.
    #[must_use]
    pub fn destination(&self, set: u8, role: u8, endpoint: SocketAddr) -> SocketAddr {
        if self.pins.is_none() {
            return endpoint;
        }
        let anchor: SocketAddr = layout::anchor(set, role).into();
        match (endpoint.is_ipv6(), anchor.ip()) {
            (true, IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), anchor.port()),
            _ => anchor,
        }
    }

    /// Pins a socket that has not connected yet. Does nothing without kernel programs.
    ///
    /// The pin stays with the socket until it is closed, through every later connect.
    pub fn pin(&self, socket: BorrowedFd<'_>, pin: &Pin) -> io::Result<()> {
        match &self.pins {
            // A socket storage map in user space is keyed by the socket's descriptor.
            Some(pins) => pins.update(&socket.as_raw_fd(), pin),
            None => Ok(()),
        }
    }
}
