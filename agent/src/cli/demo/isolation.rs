//! The demo's own corner of the kernel: a cgroup to which the agent attaches, and a directory for its pins.
//!
//! The demo, its clients and the agent run in a cgroup below the root, so that no other process of the machine meets
//! the demo's programs, and an agent that already runs here is not disturbed. Where that cannot be had (no root, no
//! bpffs), the agent runs without kernel programs, and the reason is shown.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
};

use crate::{
    cli::outcome::Failure,
    config::{KernelConfig, KernelMode},
    kernel::{self, cgroup},
};

/// What was made for the demo in the kernel's file systems. Dropped, it is removed.
#[derive(Debug)]
pub(super) enum Isolation {
    /// A cgroup and a directory of pins.
    Kernel(Corner),
    /// None, and why.
    UserSpace(String),
}

/// A cgroup, those of the member Pods in it, and a directory of pins.
#[derive(Debug)]
pub(super) struct Corner {
    cgroup: PathBuf,
    members: Vec<PathBuf>,
    pins: PathBuf,
    /// Where this process was before.
    home: Option<PathBuf>,
}

impl Isolation {
    /// Makes the corner and moves this process into it.
    pub(super) fn enter(kernel: bool, members: &[&str]) -> Self {
        if !kernel {
            return Self::UserSpace("asked for by --no-kernel".to_owned());
        }
        Corner::enter(members).map_or_else(Self::UserSpace, Self::Kernel)
    }

    #[cfg(test)]
    pub(super) fn none(why: &str) -> Self {
        Self::UserSpace(why.to_owned())
    }

    #[cfg(test)]
    pub(super) fn with_members(path: &Path) -> Self {
        Self::Kernel(Corner {
            cgroup: path.to_owned(),
            members: vec![path.join("A"), path.join("B")],
            pins: PathBuf::new(),
            home: None,
        })
    }

    /// `kernel` of the agent's configuration.
    pub(super) fn kernel_config(&self) -> String {
        match self {
            Self::Kernel(corner) => {
                format!(
                    "{{mode: auto, cgroup: '{}', bpffs: '{}'}}",
                    corner.cgroup.display(),
                    corner.pins.display()
                )
            }
            Self::UserSpace(_) => "{mode: 'off'}".to_owned(),
        }
    }

    /// The cgroup of a revision's member Pod.
    pub(super) fn member(&self, revision: usize) -> Option<&Path> {
        match self {
            Self::Kernel(corner) => corner.members.get(revision).map(PathBuf::as_path),
            Self::UserSpace(_) => None,
        }
    }

    /// Why the agent has no kernel programs, where that was clear before it started.
    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Self::Kernel(_) => None,
            Self::UserSpace(reason) => Some(reason),
        }
    }

    /// Removes everything; after the agent and the member processes have ended.
    pub(super) fn leave(mut self) -> Result<(), Failure> {
        match &mut self {
            Self::Kernel(corner) => corner.leave().map_err(Failure::failed),
            Self::UserSpace(_) => Ok(()),
        }
    }
}

impl Corner {
    fn enter(members: &[&str]) -> Result<Self, String> {
        let say =
            |what: &str, path: &Path, error: &io::Error| format!("cannot {what} {}: {error}", path.display());
        let root = cgroup::find(None).map_err(|error| error.to_string())?;
        let name = format!("revgate-demo-{}", process::id());
        let cgroup = root.join(&name);
        let pins = KernelConfig::default().bpffs.join(&name);
        fs::create_dir(&cgroup).map_err(|error| say("make the cgroup", &cgroup, &error))?;
        // From here on, what was made is removed on every way out.
        let mut corner = Self { cgroup, members: Vec::new(), pins, home: None };
        for member in members {
            let path = corner.cgroup.join(member);
            fs::create_dir(&path).map_err(|error| say("make the cgroup", &path, &error))?;
            corner.members.push(path);
        }
        fs::create_dir(&corner.pins).map_err(|error| {
            say(
                "make the directory of pins (is a bpffs mounted? mount -t bpf bpf /sys/fs/bpf)",
                &corner.pins,
                &error,
            )
        })?;
        let home = own_cgroup(&root).ok_or("cannot tell the cgroup of this process")?;
        join(&corner.cgroup, process::id())
            .map_err(|error| say("enter the cgroup", &corner.cgroup, &error))?;
        corner.home = Some(home);
        Ok(corner)
    }

    fn leave(&mut self) -> Result<(), String> {
        let mut wrong = Vec::new();
        let mut note = |what: &str, outcome: Result<(), String>| {
            if let Err(error) = outcome {
                wrong.push(format!("{what}: {error}"));
            }
        };
        if let Some(home) = self.home.take() {
            note("go back to the old cgroup", join(&home, process::id()).map_err(|error| error.to_string()));
        }
        if self.pins.exists() {
            let config = KernelConfig {
                mode: KernelMode::Auto,
                cgroup: Some(self.cgroup.clone()),
                bpffs: self.pins.clone(),
                ..KernelConfig::default()
            };
            note("detach", kernel::detach(&config).map(drop).map_err(|error| error.to_string()));
            note("remove the directory of pins", remove(&self.pins));
        }
        for path in self.members.drain(..).chain([self.cgroup.clone()]) {
            if path.exists() {
                note("remove a cgroup", remove(&path));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

impl Drop for Corner {
    fn drop(&mut self) {
        // Left in order, there is nothing to do. Otherwise there is nobody to tell.
        let _ = self.leave();
    }
}

/// Puts a process into a cgroup.
pub(super) fn join(cgroup: &Path, process: u32) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), process.to_string())
}

fn remove(path: &Path) -> Result<(), String> {
    fs::remove_dir(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The cgroup of this process, from `0::/PATH` in `/proc/self/cgroup` (`cgroups(7)`).
fn own_cgroup(root: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(root.join(path))
}
