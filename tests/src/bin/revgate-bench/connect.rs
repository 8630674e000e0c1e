//! P1: what a connect through a VIP costs beside a connect straight to the endpoint, with few and with many endpoints.
//!
//! The programs are attached to a cgroup of this process alone and pinned in a BPF file system of its own: they see
//! these connects and no others on the machine, and are gone afterwards.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use revgate_common::pick;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

use crate::{
    Plan, Result,
    cpu::Cores,
    http::median,
    kernel::{OwnBpffs, OwnCgroup, RunTime},
    server::{self, Server, free, pod},
};

/// Endpoints behind the VIP.
pub(crate) const ENDPOINTS: [u32; 3] = [10, 1_000, 10_000];

/// Where nobody listens.
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(127, 0, 9, 9);
/// Takes connections as the endpoints do, and is none.
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 9, 1);
/// Before the first endpoint; the others follow.
const BEFORE_FIRST: Ipv4Addr = Ipv4Addr::new(127, 16, 0, 0);

/// Medians, nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Endpoints behind the VIP.
    pub(crate) endpoints: u32,
    /// `connect` to no endpoint, before revgate runs.
    pub(crate) before: f64,
    /// The same while it runs.
    pub(crate) stranger: f64,
    /// `connect` straight to an endpoint: the fence looks it up.
    pub(crate) member: f64,
    /// `connect` to the VIP.
    pub(crate) vip: f64,
    /// Connections per second, opened and reset one after the other, straight to endpoints.
    pub(crate) rate_member: f64,
    /// The same through the VIP.
    pub(crate) rate_vip: f64,
    /// Mean time of the kernel program in a connect to the VIP, by the kernel's own count.
    pub(crate) program: f64,
}

/// Measures all sizes. `progress` hears what is being measured.
pub(crate) fn measure(plan: &Plan, cores: Cores, progress: impl Fn(&str)) -> Result<Vec<Row>> {
    let cgroup = OwnCgroup::enter()?;
    let port = accept_all(cores)?;
    let mut rows = Vec::new();
    for endpoints in ENDPOINTS {
        progress(&format!("connect with {endpoints} endpoints"));
        rows.push(measure_size(plan, cores, &cgroup, port, endpoints)?);
    }
    Ok(rows)
}

fn measure_size(plan: &Plan, cores: Cores, cgroup: &OwnCgroup, port: u16, endpoints: u32) -> Result<Row> {
    let stranger = Target::One((STRANGER, port).into());
    let vip = Target::One((VIP, port).into());
    // As many addresses as the VIP leads to, so that both find the kernel's own caches equally warm.
    let member = Target::Endpoints { count: endpoints, port };

    let [before] = alternate(plan.connects, [stranger])?;
    let files = TempDir::new()?;
    let bpffs = OwnBpffs::mount(&files.path().join("bpf"))?;
    let _revgate = start(cores, files.path(), cgroup, port, endpoints)?;
    // The first connects to an address make entries, in the kernel's caches and in the programs' counts.
    let _ = alternate(4 * endpoints, [member, vip])?;
    let [rate_member, rate_vip] = rates(plan.connects, [member, vip])?;
    let [stranger, member, through_vip] = alternate(plan.connects, [stranger, member, vip])?;
    // Apart, because counting costs time of its own.
    let counting = RunTime::start("connect4")?;
    let _ = alternate(plan.connects, [vip])?;
    let program = counting.mean()?;
    drop(bpffs);
    Ok(Row { endpoints, before, stranger, member, vip: through_vip, rate_member, rate_vip, program })
}

/// revgate with a VIP and so many endpoints, ready when this returns.
fn start(cores: Cores, dir: &Path, cgroup: &OwnCgroup, port: u16, endpoints: u32) -> Result<Server> {
    let mut pods: String = [("a", 250), ("b", 251)]
        .into_iter()
        .map(|(revision, last)| pod("bench", revision, "prefill", Ipv4Addr::new(127, 15, 0, last)))
        .collect();
    pods.extend((1..=endpoints).map(|at| {
        let revision = if at % 2 == 0 { "a" } else { "b" };
        pod("bench", revision, "decode", endpoint(at))
    }));
    fs::write(dir.join("pods.yaml"), pods)?;
    let admin = free(Ipv4Addr::LOCALHOST)?;
    let text = include_str!("revgate-vip.yaml")
        .replace("@DIR@", &dir.display().to_string())
        .replace("@CGROUP@", &cgroup.path().display().to_string())
        .replace("@PORT@", &port.to_string())
        .replace("@VIP@", &SocketAddr::from((VIP, port)).to_string())
        .replace("@ADMIN@", &admin.to_string());
    let config = dir.join("revgate.yaml");
    fs::write(&config, text)?;
    let mut server = Server::start(cores.proxy, &server::revgate()?, |command: &mut Command| {
        let _ = command.args(["run", "--config"]).arg(&config);
    })?;
    server.await_answer(admin, "/readyz")?;
    Ok(server)
}

/// The address of an endpoint; they count from 1.
pub(crate) fn endpoint(at: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(BEFORE_FIRST) + at)
}

/// Where to connect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// Always there.
    One(SocketAddr),
    /// To one endpoint after another, in an order that jumps.
    Endpoints { count: u32, port: u16 },
}

impl Target {
    /// The address of a turn.
    pub(crate) fn address(self, turn: u32) -> SocketAddr {
        match self {
            Self::One(address) => address,
            // Multiplied by a large odd number the turns look random, and meet every endpoint equally often.
            Self::Endpoints { count, port } => {
                (endpoint(1 + pick::index(turn.wrapping_mul(0x9e37_79b9), count)), port).into()
            }
        }
    }
}

/// Medians of `connects` connects to each of the targets, which take turns.
fn alternate<const N: usize>(connects: u32, targets: [Target; N]) -> Result<[f64; N]> {
    let mut times = targets.map(|_| Vec::new());
    for turn in 0..connects {
        for (target, times) in targets.iter().zip(&mut times) {
            let address = target.address(turn);
            times.push(connect(address).map_err(|error| format!("connect to {address}: {error}"))?);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one connect")]
    Ok(times.map(|times| median(times.iter().map(|time| time.as_nanos() as f64))))
}

/// Connections to one of several targets before it is another's turn.
const BATCH: u32 = 500;

/// Connections per second to each of the targets, the median over batches that take turns.
fn rates<const N: usize>(connects: u32, targets: [Target; N]) -> Result<[f64; N]> {
    let mut rates = targets.map(|_| Vec::new());
    for first in (0..connects.max(BATCH)).step_by(usize::try_from(BATCH)?) {
        for (target, rates) in targets.iter().zip(&mut rates) {
            let since = Instant::now();
            for turn in first..first + BATCH {
                let _ = connect(target.address(turn))?;
            }
            rates.push(f64::from(BATCH) / since.elapsed().as_secs_f64());
        }
    }
    Ok(rates.map(|rates| median(rates.into_iter())))
}

/// How long one connect takes. The connection is reset at once, so that nothing of it lingers.
pub(crate) fn connect(address: SocketAddr) -> Result<Duration> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_linger(Some(Duration::ZERO))?;
    let address = address.into();
    let since = Instant::now();
    socket.connect(&address)?;
    Ok(since.elapsed())
}

/// Takes connections on every address of the loopback device, on the other core; returns the port.
pub(crate) fn accept_all(cores: Cores) -> Result<u16> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // Any address, but only over the loopback device.
    socket.bind_device(Some(b"lo"))?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)).into())?;
    socket.listen(1024)?;
    let port = socket.local_addr()?.as_socket().ok_or("no port")?.port();
    let _ = thread::Builder::new().name("accept".to_owned()).spawn(move || {
        // Without the other core it is only slower.
        let _ = cores.take_proxy_core();
        while let Ok((accepted, _)) = socket.accept() {
            drop(accepted);
        }
    })?;
    Ok(port)
}
