//! The agent as a process that takes its Pods from an API server, as it does in its DaemonSet: with the rights of that
//! `DaemonSet`'s `ServiceAccount` and no others.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use revgate::observe::report::{Report, RevisionReport};
use tempfile::TempDir;

use super::{
    http,
    process::{Process, eventually},
};

/// A running agent. It ends with this value.
#[derive(Debug)]
pub struct Watcher {
    program: PathBuf,
    // Ended before its files are removed.
    process: Option<Process>,
    admin: SocketAddr,
    files: TempDir,
}

impl Watcher {
    /// Starts it with a kubeconfig and the sets, VIPs and the like of its configuration (both documents).
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn start(program: &str, kubeconfig: &Path, picker: &str, agent: &str) -> Self {
        // For a process that cannot tell which port it got.
        let free = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let admin = free.local_addr().expect("bound");
        drop(free);
        let files = TempDir::new().expect("a directory");
        let text = format!(
            "{picker}\n---\napiVersion: revgate.dev/v1alpha1\nkind: AgentConfig\n\
             source: {{kubernetes: {{kubeconfig: '{}', staleAfter: 6s}}}}\n\
             kernel: {{mode: 'off'}}\nadmin: {{address: '{admin}'}}\nshutdown: {{delay: 0s, deadline: 1s}}\n{agent}\n",
            kubeconfig.display()
        );
        fs::write(files.path().join("revgate.yaml"), text).expect("written");
        let mut watcher = Self { program: program.into(), process: None, admin, files };
        watcher.process = Some(Process::start("revgate", watcher.command("run"), watcher.files.path()));
        watcher
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(name).arg("--config").arg(self.files.path().join("revgate.yaml"));
        // What its own file names is all that it has.
        command.env_remove("KUBECONFIG").env("HOME", self.files.path());
        command
    }

    /// `revgate check` with the same configuration.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn check(&self) -> Output {
        self.command("check").args(["--output", "json"]).output().expect("the agent's program runs")
    }

    /// Status of a page of the admin address, and its body.
    ///
    /// # Panics
    ///
    /// When the agent has ended.
    pub fn ask(&mut self, path: &str) -> Result<(u16, String), String> {
        self.process.as_mut().expect("started").is_alive();
        http::exchange(self.admin, "GET", path, "").map_err(|error| error.to_string())
    }

    /// The whole state.
    ///
    /// # Panics
    ///
    /// When the agent has ended, or what it says is no report.
    pub fn report(&mut self) -> Result<Report, String> {
        let (_, state) = self.ask("/debug/state")?;
        Ok(serde_json::from_str(&state).expect("a report"))
    }

    /// Waits until the agent is ready.
    ///
    /// # Panics
    ///
    /// When it does not become ready.
    pub fn is_ready(&mut self) {
        let ready = |answer: &Result<(u16, String), String>| matches!(answer, Ok((200, _)));
        let _ = eventually("the agent is ready", || self.ask("/readyz"), ready);
    }

    /// Waits until each set is what is expected: one line for each of its endpoints, `REVISION ROLE POD ADDRESS`, and
    /// then one for each revision, `REVISION SHARE`.
    ///
    /// # Panics
    ///
    /// When it does not become so.
    pub fn sees(&mut self, what: &str, set: &str, lines: &[&str]) {
        let look = || self.report().map(|report| summary(&report, set));
        let _ = eventually(what, look, |seen| seen.as_ref().is_ok_and(|seen| seen == lines));
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::said).unwrap_or_default()
    }
}

/// A set in lines.
///
/// # Panics
///
/// When there is no such set.
#[must_use]
pub fn summary(report: &Report, set: &str) -> Vec<String> {
    let set = report.sets.iter().find(|candidate| candidate.name == set).expect("a known set");
    let of_revision = |revision: &RevisionReport| {
        let name = revision.name.clone();
        let endpoints = revision.roles.iter().flat_map(move |role| {
            let line = format!("{name} {}", role.name);
            role.endpoints.iter().map(move |e| format!("{line} {} {}", e.pod, e.address)).collect::<Vec<_>>()
        });
        endpoints.collect::<Vec<_>>()
    };
    let endpoints = set.revisions.iter().flat_map(of_revision);
    let shares = set
        .revisions
        .iter()
        .map(|revision| format!("{} {}", revision.name, revision.share.as_deref().unwrap_or("none")));
    endpoints.chain(shares).collect()
}
