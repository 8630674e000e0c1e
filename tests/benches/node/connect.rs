//! P1: what a connect through a VIP costs beside a connect straight to the endpoint, with few and with many endpoints.
//!
//! Everything stays in this process's own cgroup and its own BPF file system: the programs see these connects and no
//! others on the machine, and are gone afterwards.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FsWord, statfs},
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::geteuid,
};
use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;

use crate::{
    Plan, Result,
    cpu::Cores,
    http::median,
    programs,
    server::{free, pod, revgate, start_revgate},
};

/// Endpoints behind the VIP.
pub(crate) const ENDPOINTS: [u32; 3] = [10, 1_000, 10_000];

/// Where nobody listens.
const VIP: Ipv4Addr = Ipv4Addr::new(127, 0, 9, 9);
/// Answers like an endpoint and is none.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 9, 1);
/// The first endpoint; the others follow.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 16, 0, 1);

/// Medians, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Endpoints behind the VIP.
    pub(crate) endpoints: u32,
    /// `connect` to no endpoint, before revgate runs.
    pub(crate) without: f64,
    /// The same while it runs.
    pub(crate) stranger: f64,
    /// `connect` straight to an endpoint: the fence looks.
    pub(crate) member: f64,
    /// `connect` to the VIP.
    pub(crate) vip: f64,
    /// Of that the kernel program's own time, as the kernel counts it.
    pub(crate) program: Option<f64>,
}

/// Why P1 cannot be measured here; `None` if it can.
pub(crate) fn obstacle() -> Option<String> {
    if !geteuid().is_root() {
        return Some("not root".to_owned());
    }
    cgroup2().err().map(|error| error.to_string())
}

/// Measures all sizes. `progress` hears what is being measured.
pub(crate) fn measure(plan: &Plan, cores: Cores, progress: impl Fn(&str)) -> Result<Vec<Row>> {
    let cgroup = OwnCgroup::enter()?;
    let mut rows = Vec::new();
    for endpoints in ENDPOINTS {
        progress(&format!("connect with {endpoints} endpoints"));
        rows.push(measure_size(plan, cores, &cgroup.path, endpoints)?);
    }
    Ok(rows)
}
