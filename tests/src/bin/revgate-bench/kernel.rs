//! What the connect measurement needs of the kernel: a cgroup and a BPF file system of its own, and program run times.

use std::{
    fs,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
    process,
};

use aya::programs::loaded_programs;
use rustix::{
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::geteuid,
};

use crate::Result;

/// Why kernel programs cannot be measured here; `None` if they can.
pub(crate) fn obstacle() -> Option<String> {
    if !geteuid().is_root() {
        return Some("not root".to_owned());
    }
    cgroup2().err().map(|error| error.to_string())
}

/// Where cgroup2 is mounted.
fn cgroup2() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    // proc_pid_mountinfo(5): the mount point is the fifth field, the type the first after the separator.
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).ok_or("no cgroup2 mount")?;
    Ok(mount.split(' ').nth(4).ok_or("a strange /proc/self/mountinfo")?.into())
}

/// A cgroup with this process in it, and nobody else.
#[derive(Debug)]
pub(crate) struct OwnCgroup {
    path: PathBuf,
    home: PathBuf,
}

impl OwnCgroup {
    /// Makes it and moves in.
    pub(crate) fn enter() -> Result<Self> {
        let root = cgroup2()?;
        let memberships = fs::read_to_string("/proc/self/cgroup")?;
        let home =
            memberships.lines().find_map(|line| line.strip_prefix("0::/")).ok_or("in no cgroup2 group")?;
        let this =
            Self { path: root.join(format!("revgate-bench-{}", process::id())), home: root.join(home) };
        fs::create_dir(&this.path)?;
        fs::write(this.path.join("cgroup.procs"), "0")?;
        Ok(this)
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.home.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.path);
    }
}

/// A BPF file system of its own. Unmounted when dropped, and with it goes what was pinned there.
#[derive(Debug)]
pub(crate) struct OwnBpffs(PathBuf);

impl OwnBpffs {
    /// Mounts one.
    pub(crate) fn mount(path: &Path) -> Result<Self> {
        fs::create_dir(path)?;
        mount("bpf", path, "bpf", MountFlags::empty(), None)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for OwnBpffs {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Counts the time of the kernel programs of one name while it lives.
#[derive(Debug)]
pub(crate) struct RunTime {
    program: String,
    before: (u64, u64),
    setting: String,
}

/// Whether the kernel counts the time of programs (Documentation/admin-guide/sysctl/kernel.rst).
const SETTING: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl RunTime {
    /// Begins to count.
    pub(crate) fn start(program: &str) -> Result<Self> {
        let setting = fs::read_to_string(SETTING)?;
        fs::write(SETTING, "1")?;
        Ok(Self { program: program.to_owned(), before: totals(program)?, setting })
    }

    /// Mean time of a run so far, nanoseconds.
    pub(crate) fn mean(&self) -> Result<f64> {
        let (time, runs) = totals(&self.program)?;
        let (time, runs) = (time - self.before.0, runs - self.before.1);
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        Ok(time as f64 / runs as f64)
    }
}

impl Drop for RunTime {
    fn drop(&mut self) {
        let _ = fs::write(SETTING, &self.setting);
    }
}

/// Nanoseconds and runs of all loaded programs of that name: the kernel shows them with a program's descriptor.
fn totals(name: &str) -> Result<(u64, u64)> {
    let mut totals = (0, 0);
    for program in loaded_programs() {
        // Others on the machine come and go meanwhile.
        let Ok(program) = program else { continue };
        if program.name_as_str() != Some(name) {
            continue;
        }
        let Ok(descriptor) = program.fd() else { continue };
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd()))?;
        let field = |name: &str| -> u64 {
            info.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(field, _)| *field == name)
                .and_then(|(_, value)| value.trim().parse().ok())
                .unwrap_or(0)
        };
        totals.0 += field("run_time_ns");
        totals.1 += field("run_cnt");
    }
    Ok(totals)
}
