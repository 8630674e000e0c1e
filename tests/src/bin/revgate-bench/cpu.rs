//! CPU time of a server, and which core runs what.

use std::{fs, time::Duration};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

/// The cores of a measurement: the proxy has one for itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cores {
    /// Runs the proxy that is measured.
    pub(crate) proxy: usize,
    /// Runs the load and the engines; the same as `proxy` where this process may use only one.
    pub(crate) load: usize,
}

impl Cores {
    /// The first two cores that this process may use.
    pub(crate) fn find() -> Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let proxy = cores.next().ok_or("no core to run on")?;
        Ok(Self { proxy, load: cores.next().unwrap_or(proxy) })
    }

    /// Binds this thread, and what it starts from now on, to the core of the load.
    pub(crate) fn take_load_core(self) -> Result<()> {
        take(self.load)
    }

    /// The same with the core of the proxy.
    pub(crate) fn take_proxy_core(self) -> Result<()> {
        take(self.proxy)
    }
}

fn take(core: usize) -> Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// CPU time used so far, where a process is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu(Option<Duration>);

impl Cpu {
    /// User and system time of `pid` and of its children that run.
    pub(crate) fn of(pid: Option<u32>) -> Result<Self> {
        let Some(pid) = pid else { return Ok(Self(None)) };
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        let mut used = used(pid)?;
        for child in children.split_whitespace() {
            used += self::used(child.parse()?)?;
        }
        Ok(Self(Some(used)))
    }

    /// What was used since `before`.
    pub(crate) fn since(self, before: Self) -> Option<Duration> {
        Some(self.0?.saturating_sub(before.0?))
    }
}

/// Which memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    /// The most that was resident so far.
    Most,
    /// What is resident now.
    Now,
}

/// The memory of `pid` and of its children that run, MiB.
pub(crate) fn memory(pid: Option<u32>, which: Memory) -> Result<Option<f64>> {
    let Some(pid) = pid else { return Ok(None) };
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let mut sum = 0.0;
    for process in children.split_whitespace().map(str::to_owned).chain([pid.to_string()]) {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let field = match which {
            Memory::Most => "VmHWM:",
            Memory::Now => "VmRSS:",
        };
        let value = status.lines().find_map(|line| line.strip_prefix(field));
        let kib: f64 = value.unwrap_or_default().trim().trim_end_matches(" kB").parse()?;
        sum += kib / 1024.0;
    }
    Ok(Some(sum))
}

/// User and system time of one process, all threads that it has (the first field of `schedstat`, nanoseconds). The clock ticks
/// of `/proc/PID/stat` are too coarse for what a stream costs.
fn used(pid: u32) -> Result<Duration> {
    let mut used = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // One that ends meanwhile takes its time along.
        let Ok(stat) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let first = stat.split(' ').next().ok_or("a strange schedstat")?;
        used += Duration::from_nanos(first.parse()?);
    }
    Ok(used)
}
