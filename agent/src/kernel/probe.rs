//! Proves the effect of the programs with a connect that they must refuse.
//!
//! An anchor is a loopback address on which nobody listens. A socket without a pin that dials one is refused by the
//! kernel's own TCP where no program runs (`ECONNREFUSED`), and by the program with `EHOSTUNREACH`.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    path::Path,
    time::Duration,
};

use revgate_common::layout;

use super::KernelError;

/// A connect on loopback answers at once; this only bounds a machine that drops such packets.
const PATIENCE: Duration = Duration::from_secs(1);

/// Dials the anchor of the first role of the first set.
pub(super) fn probe(cgroup: &Path) -> Result<(), KernelError> {
    let anchor: SocketAddr = layout::anchor(0, 0).into();
    let found = match TcpStream::connect_timeout(&anchor, PATIENCE) {
        Err(error) if error.kind() == io::ErrorKind::HostUnreachable => return Ok(()),
        Err(error) => format!("a connect to {anchor} ended with: {error}"),
        Ok(_) => format!("a connect to {anchor} succeeded"),
    };
    Err(KernelError::NoEffect { found, cgroup: cgroup.to_path_buf() })
}
