//! The part of a node that makes cgroups: a corner of cgroup2 with the programs on it, Pods' cgroups in it as a kubelet
//! and a container runtime make them, and processes inside. Whole processes move, so nothing here is threaded.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{self, Command},
};

use revgate::{
    config::KernelConfig,
    kernel::{self, cgroup},
};

use crate::{require, wait::until};

/// Where `make` mounts the BPF file system.
const BPFFS: &str = "/sys/fs/bpf";

/// Removed with this value, with all that was made in it.
pub struct Kubelet {
    cgroup: PathBuf,
    bpffs: PathBuf,
}

impl Kubelet {
    /// Makes the corner. `None`: kernel programs cannot run here, and the test is skipped.
    ///
    /// # Panics
    ///
    /// When it should work and does not, and when `REVGATE_REQUIRE` has `bpf` and it cannot.
    #[must_use]
    pub fn new(test: &str) -> Option<Self> {
        let root = match cgroup::find(None) {
            _ if !rustix::process::geteuid().is_root() => return skip("not root"),
            _ if kernel::object().is_none() => return skip("no kernel programs in this build"),
            Err(error) => return skip(&error.to_string()),
            Ok(root) => root,
        };
        let name = format!("revgate-test-{test}-{}", process::id());
        let kubelet = Self { cgroup: root.join(&name), bpffs: Path::new(BPFFS).join(&name) };
        if let Err(error) = fs::create_dir(&kubelet.bpffs) {
            return skip(&format!("{BPFFS}: {error}"));
        }
        fs::create_dir(&kubelet.cgroup).expect("a cgroup below the root");
        Some(kubelet)
    }

    /// The cgroup for the programs: the root of this node.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Where the pins go.
    #[must_use]
    pub fn bpffs(&self) -> &Path {
        &self.bpffs
    }

    /// Makes a cgroup, and those above it.
    ///
    /// # Panics
    ///
    /// When it cannot.
    #[must_use]
    pub fn make(&self, path: &str) -> PathBuf {
        let path = self.cgroup.join(path);
        fs::create_dir_all(&path).expect("a cgroup");
        path
    }

    /// Removes a cgroup and those below it, once the last process in it is gone.
    ///
    /// # Panics
    ///
    /// When that is not soon.
    pub fn remove(&self, path: &str) {
        let path = self.cgroup.join(path);
        let _ = until("the cgroup is removed", || remove(&path), |gone| *gone);
    }

    /// A command that runs inside a cgroup from its start.
    #[must_use]
    pub fn inside(&self, cgroup: &Path, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(r#"echo 0 > "$0/cgroup.procs" && exec "$@""#).arg(cgroup).arg(program);
        command
    }

    /// Connects as a process of a cgroup: the address that an echo server answered.
    ///
    /// # Panics
    ///
    /// When no process can be started.
    #[must_use]
    pub fn dial(&self, cgroup: &Path, to: SocketAddr) -> Option<SocketAddr> {
        let script = format!("exec 3<>/dev/tcp/{}/{} && head -n1 <&3", to.ip(), to.port());
        let output = self.inside(cgroup, "bash").arg("-c").arg(script).output().expect("bash");
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    }
}

fn skip(why: &str) -> Option<Kubelet> {
    require::skip("bpf", why);
    None
}

/// Removes a cgroup, those below it first; whether it is gone.
fn remove(cgroup: &Path) -> bool {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            let _ = remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(cgroup);
    !cgroup.exists()
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let config = KernelConfig {
            cgroup: Some(self.cgroup.clone()),
            bpffs: self.bpffs.clone(),
            ..KernelConfig::default()
        };
        let _ = kernel::detach(&config);
        let _ = fs::remove_dir(&self.bpffs);
        for _ in 0..100 {
            if remove(&self.cgroup) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
