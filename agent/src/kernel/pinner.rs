//! The hand that pins the agent's own sockets to a revision before they connect.

use std::{io, net::SocketAddr, os::fd::BorrowedFd};

use revgate_common::layout::{self, Pin};

/// Writes pins into socket storage. Cheap to clone; one per worker.
#[derive(Clone, Debug, Default)]
pub struct Pinner {}

impl Pinner {
    /// Without kernel programs (K12): pins nothing, and endpoints are dialled by their own address.
    #[must_use]
    pub fn user_space() -> Self {
        Self {}
    }

    /// Where a socket pinned to an endpoint of (set, role) connects to: the role's anchor, which the kernel
    /// programs turn into the pinned endpoint or another of its revision; `endpoint` itself without them.
    #[must_use]
    pub fn destination(&self, _set: u8, _role: u8, endpoint: SocketAddr) -> SocketAddr {
        endpoint
    }

    /// Pins a socket that has not connected yet. Does nothing without kernel programs.
    pub fn pin(&self, _socket: BorrowedFd<'_>, _pin: &Pin) -> io::Result<()> {
        let _ = layout::PIN_REVISION;
        Ok(())
    }
}
