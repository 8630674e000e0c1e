//! A node for one test: a cgroup of its own with the programs attached, and pins of its own.
//!
//! The cgroup is a threaded child of the root, so that single threads of a test move into it: sockets that they make
//! are steered, and no other test, agent or process on the machine is touched.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::Once,
    thread,
};

use revgate::{
    cluster::Cgroup,
    config::{FenceMode, KernelConfig, KernelMode},
    kernel::{Kernel, KernelError, Pinner, Publish, Reader, cgroup, hooks},
    snapshot::Snapshot,
};
use revgate_common::layout::PIN_DIRECTORY;
use rustix::thread::gettid;

use crate::require;

/// Where `make` mounts the BPF file system.
const BPFFS: &str = "/sys/fs/bpf";

/// A kernel part at work for one test.
pub struct Node {
    kernel: Option<Kernel>,
    writer: Option<Box<dyn Publish>>,
    config: KernelConfig,
    root: PathBuf,
    cgroup: PathBuf,
}

impl Node {
    /// Makes it, and moves the calling thread in. `None`: kernel programs cannot run here, and the test is skipped.
    ///
    /// # Panics
    ///
    /// When it should work and does not, and when `REVGATE_REQUIRE` has `bpf` and it cannot.
    #[must_use]
    pub fn enter(test: &str, fence: FenceMode) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            require::skip("bpf", "not root");
            return None;
        }
        let name = format!("revgate-test-{test}-{}", process::id());
        let root = match cgroup::find(None) {
            Ok(root) => root,
            Err(error) => {
                require::skip("bpf", &error.to_string());
                return None;
            }
        };
        let cgroup = root.join(&name);
        let config = KernelConfig {
            mode: KernelMode::Required,
            fence,
            cgroup: Some(cgroup.clone()),
            bpffs: Path::new(BPFFS).join(&name),
            ..KernelConfig::default()
        };
        let mut node = Self { kernel: None, writer: None, config, root, cgroup };
        node.make_cgroup().expect("a threaded cgroup below the root");
        if let Err(error) = fs::create_dir(&node.config.bpffs) {
            require::skip("bpf", &format!("{BPFFS}: {error}"));
            return None;
        }
        match Kernel::start(&node.config) {
            Ok(kernel) => node.own(kernel),
            Err(error @ (KernelError::NotBuilt | KernelError::NoBpffs { .. })) => {
                require::skip("bpf", &error.to_string());
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        join(&node.cgroup);
        Some(node)
    }

    fn own(&mut self, kernel: Kernel) {
        self.writer = Some(kernel.writer().expect("a writer"));
        self.kernel = Some(kernel);
    }

    fn make_cgroup(&self) -> io::Result<()> {
        static TO_ROOT: Once = Once::new();
        let mut result = Ok(());
        // Threads move only inside the hierarchy of their process.
        TO_ROOT.call_once(|| result = fs::write(self.root.join("cgroup.procs"), "0"));
        result?;
        fs::create_dir(&self.cgroup)?;
        fs::write(self.cgroup.join("cgroup.type"), "threaded")
    }

    /// A cgroup below the node's, for a Pod: its path and identity.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    #[must_use]
    pub fn pod_cgroup(&self, name: &str) -> (PathBuf, Cgroup) {
        let path = self.cgroup.join(name);
        fs::create_dir(&path).expect("a cgroup for a Pod");
        fs::write(path.join("cgroup.type"), "threaded").expect("a threaded cgroup");
        let id = cgroup::id(&path).expect("its id");
        (path, Cgroup { id, level: 2 })
    }

    /// The node's own cgroup.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &KernelConfig {
        &self.config
    }

    /// Publishes a snapshot.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn publish(&mut self, snapshot: &Snapshot) {
        self.writer.as_mut().expect("a running agent").publish(snapshot).expect("published");
    }

    /// The kernel part.
    ///
    /// # Panics
    ///
    /// While the agent is stopped.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        self.kernel.as_ref().expect("a running agent")
    }

    /// Pins sockets.
    ///
    /// # Panics
    ///
    /// When the map cannot be opened.
    #[must_use]
    pub fn pinner(&self) -> Pinner {
        self.kernel().pinner().expect("a pinner")
    }

    /// Reads the kernel side.
    #[must_use]
    pub fn reader(&self) -> Reader {
        self.kernel().reader()
    }

    /// The agent ends, as far as the kernel can tell.
    pub fn stop(&mut self) {
        self.writer = None;
        self.kernel = None;
    }

    /// An agent starts where one was before.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn restart(&mut self) {
        self.own(Kernel::start(&self.config).expect("started again"));
    }

    /// The same, for an agent that was built with other programs.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn restart_with(&mut self, object: &[u8]) {
        self.own(Kernel::start_with(&self.config, object).expect("started again"));
    }

    /// Where the pins of this layout are.
    #[must_use]
    pub fn pins(&self) -> PathBuf {
        self.config.bpffs.join(PIN_DIRECTORY)
    }

    /// The ids of the programs on a hook, which is named by the program of revgate that belongs there.
    ///
    /// # Panics
    ///
    /// When the kernel does not tell.
    #[must_use]
    pub fn attached(&self, hook: &str) -> Vec<u32> {
        let hooks = hooks(&self.cgroup).expect("the hooks");
        hooks.into_iter().find(|(name, _)| *name == hook).map(|(_, ids)| ids).unwrap_or_default()
    }
}

/// Moves the calling thread into a cgroup. Sockets stay in that in which they were made.
///
/// # Panics
///
/// When that is refused.
pub fn join(cgroup: &Path) {
    let thread = gettid().as_raw_nonzero().to_string();
    fs::write(cgroup.join("cgroup.threads"), thread).expect("this thread moves");
}

/// Runs on a thread of its own in a cgroup, and leaves it empty.
///
/// # Panics
///
/// When `work` does.
pub fn inside<T: Send>(cgroup: &Path, home: &Path, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            join(cgroup);
            let result = work();
            join(home);
            result
        });
        worker.join().expect("the work is done")
    })
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
        let _ = revgate::kernel::detach(&self.config);
        let _ = fs::remove_dir(&self.config.bpffs);
        remove_cgroup(&self.cgroup, &self.root);
    }
}

/// Moves the threads that are left to the root and removes the cgroup, those below it first.
fn remove_cgroup(cgroup: &Path, root: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove_cgroup(&entry.path(), root);
        }
    }
    for thread in fs::read_to_string(cgroup.join("cgroup.threads")).unwrap_or_default().lines() {
        let _ = fs::write(root.join("cgroup.threads"), thread);
    }
    let _ = fs::remove_dir(cgroup);
}
