//! An API server of a test's own with the agent's deployment applied, and agents that take their Pods from it.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tempfile::TempDir;

use super::{
    control_plane::{ControlPlane, Place},
    kubectl::Kubectl,
    pods::Pods,
    tools::{Tools, repository},
    watcher::Watcher,
};

/// The namespace of the engines in `deploy/base`.
pub const ENGINES: &str = "llm";
/// The namespace of the agent there.
pub const AGENT: &str = "revgate-system";

/// One at a time: each takes a quarter of a gigabyte, and both cores to start.
static ALONE: Mutex<()> = Mutex::new(());

/// A running API server. It ends with this value.
#[derive(Debug)]
pub struct Api {
    // Ended before its files are removed.
    plane: ControlPlane,
    folder: TempDir,
    tools: Tools,
    _alone: MutexGuard<'static, ()>,
}

impl Api {
    /// Starts it. `None`: it was not built, and the test is skipped.
    ///
    /// # Panics
    ///
    /// When it does not start, and when `REVGATE_REQUIRE` has `apiserver` and it cannot.
    #[must_use]
    pub fn start() -> Option<Self> {
        let tools = Tools::find("apiserver")?;
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = TempDir::new().expect("a directory");
        let plane = ControlPlane::start(&tools, Place::LOOPBACK, folder.path());
        Some(Self { plane, folder, tools, _alone: alone })
    }

    /// Starts it and applies `deploy/base`, as a user does.
    ///
    /// # Panics
    ///
    /// When it does not start or refuses.
    #[must_use]
    pub fn deployed() -> Option<(Self, Pods)> {
        let api = Self::start()?;
        let pods = Pods::of(&api.kubectl(), ENGINES);
        let base = repository().join("deploy/base").display().to_string();
        api.kubectl().run(&["apply", "--validate=strict", "-k", &base]);
        Some((api, pods))
    }

    /// The servers.
    pub fn plane(&mut self) -> &mut ControlPlane {
        &mut self.plane
    }

    /// `kubectl` of the administrator.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl {
        self.plane.kubectl()
    }

    /// The programs.
    #[must_use]
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// An agent with the configuration of `deploy/base` and the token of its `ServiceAccount`; it reaches the server at
    /// this address.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn agent(&self, program: &str, server: SocketAddr) -> Watcher {
        let deployed = fs::read_to_string(repository().join("deploy/base/agent/revgate.yaml"));
        let deployed = deployed.expect("deploy/base has a configuration");
        let (picker, _) = deployed.split_once("\n---\n").expect("two documents");
        let services = ["prefill", "decode"].map(|role| {
            format!("- {{service: {{name: {role}, namespace: {ENGINES}, port: http}}, role: {role}}}")
        });
        let agent = format!(
            "sets: [{{name: rollout-screener, namespaces: [{ENGINES}]}}]\nvips:\n{}",
            services.join("\n")
        );
        self.agent_with(program, server, picker, &agent)
    }

    /// The same with another configuration.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn agent_with(&self, program: &str, server: SocketAddr, picker: &str, agent: &str) -> Watcher {
        let token = self.kubectl().read(&["--namespace", AGENT, "create", "token", "revgate"]);
        let kubeconfig = self.plane.write_kubeconfig("agent", token.trim(), server);
        Watcher::start(program, &kubeconfig, picker, agent)
    }

    /// Where its files and logs are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
