//! A node of a cluster: controllers, containerd, kubelet and kube-proxy, in namespaces of their own without a way out.
//!
//! Its first process (`tests/cluster/node-init`) has a mount, a network and a pid namespace. With it go all processes,
//! mounts, pins and links of the node, even if the test is killed. Only the kubelet's cgroups are in the machine's own
//! hierarchy, as on a real node, and are removed afterwards.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::geteuid;
use serde_json::Value;
use tempfile::TempDir;

use super::{
    control_plane::{ControlPlane, Place},
    kubectl::Kubectl,
    process::{Process, eventually},
    tools::{Tools, repository},
};
use crate::require;

/// The node's address, and its name in the cluster.
const ADDRESS: &str = "10.97.0.1";
/// The node's name.
pub const NAME: &str = "node";
/// Where the machine's cgroup hierarchies are.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The kubelet's cgroup in each of them.
const KUBEPODS: &str = "kubepods";
/// What a node cannot do without, and the Debian package that has it.
const NEEDED: [(&str, &str); 5] = [
    ("/usr/bin/containerd", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("/usr/sbin/nft", "nftables"),
    ("/usr/sbin/conntrack", "conntrack"),
];

/// A running node with its control plane. It ends with this value.
#[derive(Debug)]
pub struct Node {
    plane: Option<ControlPlane>,
    parts: Vec<Process>,
    init: Option<Process>,
    /// The node's first process.
    pid: u32,
    // Removed when nothing writes to it any more.
    folder: TempDir,
    _alone: File,
}

impl Node {
    /// Starts it, with these images, and returns when it is Ready. `None`: it cannot run here, and the test is skipped.
    ///
    /// # Panics
    ///
    /// When it should work and does not, and when `REVGATE_REQUIRE` has `node` and it cannot.
    #[must_use]
    pub fn start(images: &Path) -> Option<Self> {
        let tools = Tools::find("node")?;
        if let Some(why) = unable(images) {
            require::skip("node", &why);
            return None;
        }
        // The kubelet's cgroup has the same name on every node.
        let alone = File::create(std::env::temp_dir().join("revgate-node.lock")).expect("a lock");
        alone.lock().expect("the lock");
        remove_cgroups();
        let folder = TempDir::new().expect("a directory");
        let (init, pid) = start_init(folder.path());
        let mut node = Self { plane: None, parts: Vec::new(), init: Some(init), pid, folder, _alone: alone };
        node.start_runtime(images);
        let place = Place { inside: Some(pid), address: ADDRESS.parse().expect("an address") };
        node.plane = Some(ControlPlane::start(&tools, place, node.folder.path()));
        node.start_controllers(&tools);
        node.start_agents(&tools);
        let kubectl = node.kubectl();
        let _ = eventually(
            "the node is Ready",
            || {
                node.parts.iter_mut().for_each(Process::is_alive);
                kubectl.attempt(&["get", "node", NAME, "-o", "json"])
            },
            |seen| seen.as_ref().is_ok_and(|text| is_ready(text)),
        );
        Some(node)
    }

    /// `kubectl` of the administrator.
    ///
    /// # Panics
    ///
    /// While it starts.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl {
        self.plane.as_ref().expect("a control plane").kubectl()
    }

    /// Where its files and logs are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command that runs on the node, in its namespaces.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        self.place().command(Path::new(program))
    }

    /// A file of the node, seen from here.
    #[must_use]
    pub fn path(&self, on_node: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{on_node}", self.pid))
    }

    /// Runs a command on the node: what it printed.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[must_use]
    pub fn read(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().expect("nsenter runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {}: {complained}{said}", output.status);
        said
    }

    fn place(&self) -> Place {
        Place { inside: Some(self.pid), address: ADDRESS.parse().expect("an address") }
    }

    fn start_part(&mut self, name: &str, command: Command) {
        self.parts.push(Process::start(name, command, self.folder.path()));
    }

    fn start_runtime(&mut self, images: &Path) {
        let config = self.folder.path().join("containerd.toml");
        fs::write(&config, CONTAINERD).expect("written");
        let mut command = self.command("/usr/bin/containerd");
        command.arg("--config").arg(config);
        self.start_part("containerd", command);
        let ctr = |arguments: &[&str]| {
            let all = [&["--namespace", "k8s.io"], arguments].concat();
            self.command("/usr/bin/ctr").args(all).output().expect("nsenter runs")
        };
        eventually("containerd answers", || ctr(&["version"]), |output| output.status.success());
        for image in archives(images) {
            let image = image.display().to_string();
            let imported = ctr(&["images", "import", &image]);
            assert!(imported.status.success(), "{image}: {}", String::from_utf8_lossy(&imported.stderr));
        }
    }

    fn start_controllers(&mut self, tools: &Tools) {
        let plane = self.plane.as_ref().expect("a control plane");
        let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
        let mut manager = self.command_of(tools, "kube-controller-manager");
        manager.args([
            &kubeconfig,
            &format!("--service-account-private-key-file={}", plane.service_account_key().display()),
            &format!("--root-ca-file={}", plane.authority().display()),
            "--leader-elect=false",
            "--authorization-always-allow-paths=/healthz",
        ]);
        let mut scheduler = self.command_of(tools, "kube-scheduler");
        scheduler.args([kubeconfig.as_str(), "--leader-elect=false"]);
        self.start_part("kube-controller-manager", manager);
        self.start_part("kube-scheduler", scheduler);
    }

    fn start_agents(&mut self, tools: &Tools) {
        let plane = self.plane.as_ref().expect("a control plane");
        let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
        let config = self.folder.path().join("kubelet.yaml");
        fs::write(&config, KUBELET).expect("written");
        let name = format!("--hostname-override={NAME}");
        let mut kubelet = self.command_of(tools, "kubelet");
        kubelet.arg("--config").arg(config).args([
            kubeconfig.as_str(),
            name.as_str(),
            &format!("--node-ip={ADDRESS}"),
        ]);
        let mut proxy = self.command_of(tools, "kube-proxy");
        proxy.args([
            kubeconfig.as_str(),
            name.as_str(),
            "--proxy-mode=nftables",
            // A Pod that reaches another on the same bridge through a Service would get the answer past the translation.
            "--masquerade-all",
            // Settings of the whole machine: left alone.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ]);
        self.start_part("kubelet", kubelet);
        self.start_part("kube-proxy", proxy);
    }

    fn command_of(&self, tools: &Tools, program: &str) -> Command {
        self.place().command(&tools.program(program))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for part in &self.parts {
                eprintln!("--- {}\n{}", part.name(), part.last_words());
            }
        }
        // The node's first process takes all others with it; what was started from here then ends by itself.
        if let Some(init) = self.init.take() {
            init.kill();
        }
        self.parts.clear();
        self.plane = None;
        remove_cgroups();
    }
}

/// Why no node can run here.
fn unable(images: &Path) -> Option<String> {
    if !geteuid().is_root() {
        return Some("not root".to_owned());
    }
    if let Some((file, package)) = NEEDED.iter().find(|(file, _)| !Path::new(file).exists()) {
        return Some(format!("no {file}; apt-get install {package}, or `.ci/setup cluster`"));
    }
    if archives(images).is_empty() {
        return Some(format!("no images in {}; run `make image`", images.display()));
    }
    let busy = hierarchies().iter().map(|root| root.join(KUBEPODS)).find(|cgroup| is_populated(cgroup));
    busy.map(|cgroup| format!("{} has processes: this machine is a node of a cluster", cgroup.display()))
}

fn archives(images: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(images).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "tar")).collect()
}

/// The first process, and its pid as seen from here.
fn start_init(folder: &Path) -> (Process, u32) {
    let mut command = Command::new("setpriv");
    // However this process ends, the node does not outlive it.
    command.args([
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child=KILL",
    ]);
    command.arg("--mount-proc").arg(repository().join("tests/cluster/node-init")).arg(folder);
    command.env("REVGATE_NODE_ADDRESS", ADDRESS);
    let mut init = Process::start("node-init", command, folder);
    eventually(
        "the node's namespaces are made",
        || {
            init.is_alive();
            folder.join("ready").exists()
        },
        |ready| *ready,
    );
    let outer = init.id();
    let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).expect("its children");
    (init, children.trim().parse().expect("one child"))
}

fn is_ready(node: &str) -> bool {
    let node: Value = serde_json::from_str(node).unwrap_or_default();
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The mount points of cgroups: one for each hierarchy, and one where there is only cgroup2.
fn hierarchies() -> Vec<PathBuf> {
    let below = fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
    below.filter(|path| path.is_dir()).chain([PathBuf::from(CGROUPS)]).collect()
}

fn is_populated(cgroup: &Path) -> bool {
    let own = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    !own.trim().is_empty() || directories(cgroup).iter().any(|below| is_populated(below))
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.is_dir() && !path.is_symlink()).collect()
}

fn remove_cgroups() {
    fn remove(cgroup: &Path) {
        for below in directories(cgroup) {
            remove(&below);
        }
        let _ = fs::remove_dir(cgroup);
    }
    for cgroup in hierarchies().iter().map(|root| root.join(KUBEPODS)).filter(|cgroup| cgroup.exists()) {
        // A cgroup is busy for a moment after its last process.
        let look = || {
            remove(&cgroup);
            cgroup.exists().then(|| cgroup.clone())
        };
        eventually("the kubelet's cgroups are removed", look, Option::is_none);
    }
}

const CONTAINERD: &str = r#"
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:dev"
  # Where the machine lacks CAP_SYS_RESOURCE a score cannot be lowered, and every sandbox would fail.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "/run/cni"
"#;

/// Whoever asks the kubelet is in the node's own network: the tests and the API server.
const KUBELET: &str = r#"
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
enforceNodeAllocatable: []
evictionHard: {memory.available: 1Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
failSwapOn: false
resolvConf: ""
"#;
