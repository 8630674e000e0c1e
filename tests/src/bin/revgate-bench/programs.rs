//! K6: what a run of a kernel program takes by the kernel's own count, how long a change of the tables takes and what
//! they hold, by endpoints and revisions.

use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use aya::maps::loaded_maps;
use revgate::{
    config::{KernelConfig, KernelMode},
    kernel::{Kernel, Publish},
    snapshot::Snapshot,
};
use revgate_tests::world::{Revision, World};
use tempfile::TempDir;

use crate::{
    Plan, Result,
    connect::{ENDPOINTS, STRANGER, Target, VIP, accept_all, connect, endpoint},
    cpu::Cores,
    http::median,
    kernel::{OwnBpffs, OwnCgroup, RunTime},
};

/// Revisions of the set, each with as many endpoints as the next.
const REVISIONS: [u16; 3] = [1, 8, 50];
/// Batches of connects, whose mean times the kernel tells.
const BATCHES: u32 = 21;
/// Changes of all tables.
const CHANGES: u64 = 15;

/// Medians for one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Endpoints behind the VIP.
    pub(crate) endpoints: u32,
    /// Revisions that they are of.
    pub(crate) revisions: u16,
    /// Nanoseconds of a run of the connect program, in the order of [`CALLS`].
    pub(crate) runs: [f64; CALLS.len()],
    /// Milliseconds for writing all tables anew and swapping them in.
    pub(crate) change: f64,
    /// Bytes of all maps between two changes.
    pub(crate) memory: u64,
    /// Most bytes seen during the changes.
    pub(crate) peak: u64,
}

/// What is dialled, by which program's run, and what that is called in the report.
pub(crate) const CALLS: [(&str, &str, Dial); 6] = [
    ("connect4", "VIP", Dial::Vip),
    ("connect4", "VIP, one socket", Dial::OneSocket),
    ("connect6", "VIP", Dial::MappedVip),
    ("connect4", "endpoints in turn", Dial::Endpoint),
    ("connect4", "one endpoint", Dial::OneEndpoint),
    ("connect4", "elsewhere", Dial::Stranger),
];

/// What is dialled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dial {
    /// The VIP, by an IPv4 socket.
    Vip,
    /// The VIP, by the same UDP socket always: the kernel need not make it the storage for what it dialled.
    OneSocket,
    /// The VIP, by an IPv6 socket.
    MappedVip,
    /// One endpoint after the other, which finds their entries cold.
    Endpoint,
    /// The same endpoint always, which finds it warm.
    OneEndpoint,
    /// An address that is neither.
    Stranger,
}

/// Measures all sizes. `progress` hears what is being measured.
pub(crate) fn measure(plan: &Plan, cores: Cores, progress: impl Fn(&str)) -> Result<Vec<Row>> {
    let cgroup = OwnCgroup::enter()?;
    let port = accept_all(cores)?;
    let mut rows = Vec::new();
    for endpoints in ENDPOINTS {
        for revisions in REVISIONS.into_iter().filter(|revisions| u32::from(*revisions) <= endpoints) {
            progress(&format!("programs and tables with {endpoints} endpoints of {revisions} revisions"));
            rows.push(measure_size(plan, &cgroup, port, endpoints, revisions)?);
        }
    }
    Ok(rows)
}

fn measure_size(plan: &Plan, cgroup: &OwnCgroup, port: u16, endpoints: u32, revisions: u16) -> Result<Row> {
    let files = TempDir::new()?;
    let bpffs = files.path().join("bpf");
    let mounted = OwnBpffs::mount(&bpffs)?;
    let others = maps()?.into_iter().map(|(id, _)| id).collect();
    let cgroup = Some(cgroup.path().to_path_buf());
    let config = KernelConfig { mode: KernelMode::Required, cgroup, bpffs, ..KernelConfig::default() };
    let kernel = Kernel::start(&config)?;
    let mut writer = kernel.writer()?;

    let worlds = [0, 1].map(|shift| world(port, endpoints, revisions, shift));
    let mut generation = 0;
    let mut next = || {
        generation += 1;
        worlds.iter().cycle().nth(usize::from(generation % 2 == 0)).map(|world| world.snapshot(generation))
    };
    writer.publish(&next().ok_or("no world")?)?;
    let changes: Vec<Snapshot> = (0..CHANGES).filter_map(|_| next()).collect();
    let (change, peak) = change(&mut *writer, &changes, &others)?;
    let memory = kernel.reader().memory()?;
    let runs = runs(plan, port, endpoints)?;
    drop(mounted);
    Ok(Row { endpoints, revisions, runs, change, memory, peak })
}

/// One set, its endpoints dealt out to the revisions in turn, a different deal for each shift: every table changes.
fn world(port: u16, endpoints: u32, revisions: u16, shift: u32) -> World {
    let mut all: Vec<Revision> = (0..revisions)
        .map(|at| {
            let prefill = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 15, 0, 0)) + u32::from(at));
            let endpoints = vec![vec![(prefill, port).into()], Vec::new()];
            let name = format!("revision-{at:02}");
            // Another tenant at each shift, so that every table changes also where there is one revision.
            let epoch = u32::from(at) + 1 + shift * u32::from(revisions);
            Revision { name, slot: at, epoch, endpoints, ..Revision::default() }
        })
        .collect();
    for at in 1..=endpoints {
        let of = usize::try_from((at + shift) % u32::from(revisions)).unwrap_or(0);
        if let Some(decode) = all.get_mut(of).and_then(|revision| revision.endpoints.last_mut()) {
            decode.push((endpoint(at), port).into());
        }
    }
    World::of(all).vip((VIP, port).into(), 1, false)
}

/// Median milliseconds of a publication, and the most memory that was seen meanwhile.
fn change(writer: &mut dyn Publish, snapshots: &[Snapshot], others: &BTreeSet<u32>) -> Result<(f64, u64)> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| -> Result<u64> {
            let mut peak = 0;
            while !done.load(Ordering::Relaxed) {
                let ours = maps()?.into_iter().filter(|(id, _)| !others.contains(id));
                peak = peak.max(ours.map(|(_, bytes)| bytes).sum());
                // It is not to take the core from what is measured.
                thread::sleep(Duration::from_millis(1));
            }
            Ok(peak)
        });
        let mut times = Vec::new();
        let published = snapshots.iter().try_for_each(|snapshot| {
            let since = Instant::now();
            writer.publish(snapshot)?;
            times.push(since.elapsed().as_secs_f64() * 1e3);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
        done.store(true, Ordering::Relaxed);
        let peak = watch.join().map_err(|_| "the watch of the memory failed")??;
        published?;
        Ok((median(times.into_iter()), peak))
    })
}

/// Every map in the kernel and the bytes that it accounts for.
fn maps() -> Result<Vec<(u32, u64)>> {
    let mut maps = Vec::new();
    // Some go while they are looked at.
    for map in loaded_maps().filter_map(std::result::Result::ok) {
        let Ok(descriptor) = map.fd() else { continue };
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd()))?;
        let bytes =
            info.lines().find_map(|line| line.strip_prefix("memlock:")).ok_or("no memlock in fdinfo")?;
        maps.push((map.id(), bytes.trim().parse()?));
    }
    Ok(maps)
}

/// Median nanoseconds of a run in each of [`CALLS`], which take turns, over the batches.
fn runs(plan: &Plan, port: u16, endpoints: u32) -> Result<[f64; CALLS.len()]> {
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let dial = |call: Dial, turn: u32| -> Result<()> {
        let address = match call {
            Dial::OneSocket => return Ok(one.connect((VIP, port))?),
            Dial::Vip => (VIP, port).into(),
            Dial::MappedVip => SocketAddr::from((VIP.to_ipv6_mapped(), port)),
            Dial::Endpoint => Target::Endpoints { count: endpoints, port }.address(turn),
            Dial::OneEndpoint => (endpoint(1), port).into(),
            Dial::Stranger => SocketAddrV4::new(STRANGER, port).into(),
        };
        connect(address).map(drop).map_err(|error| format!("connect to {address}: {error}").into())
    };
    // The first connects to an address make entries, in the kernel's caches and in the programs' counts.
    for turn in 0..4 * endpoints {
        dial(Dial::Vip, turn)?;
        dial(Dial::Endpoint, turn)?;
    }
    let mut means = CALLS.map(|_| Vec::new());
    for batch in 0..BATCHES {
        for ((program, _, call), means) in CALLS.into_iter().zip(&mut means) {
            let counting = RunTime::start(program)?;
            for turn in 0..plan.connects / BATCHES {
                // No batch begins where another did.
                dial(call, batch + turn * BATCHES)?;
            }
            means.push(counting.mean()?);
        }
    }
    Ok(means.map(|means| median(means.into_iter())))
}
