//! `kubectl`, as a user of the cluster calls it.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use super::{process::eventually, tools::Tools};

/// Calls `kubectl` with one identity.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    /// A process whose network it is called in.
    network: Option<u32>,
}

impl Kubectl {
    /// With this kubeconfig; inside the network namespace of a process where one is named.
    #[must_use]
    pub fn new(tools: &Tools, kubeconfig: &Path, network: Option<u32>) -> Self {
        Self { program: tools.program("kubectl"), kubeconfig: kubeconfig.to_path_buf(), network }
    }

    /// A command to be finished by the caller.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match self.network {
            Some(pid) => {
                let mut inside = Command::new("nsenter");
                inside.args(["--target", &pid.to_string(), "--net", "--"]).arg(&self.program);
                inside
            }
            None => Command::new(&self.program),
        };
        let cache = self.kubeconfig.with_extension("cache");
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(cache).args(arguments);
        command
    }

    /// Runs it: what it printed, or what it complained of.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn attempt(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.command(arguments).stdin(Stdio::null()).output().expect("kubectl runs");
        verdict(&output)
    }

    /// Runs it with something to read: what it printed, or what it complained of.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn attempt_with(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.command(arguments);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().expect("kubectl starts");
        let sent = child.stdin.take().expect("its input").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("kubectl runs");
        sent.map_err(|error| format!("write to kubectl: {error}"))?;
        verdict(&output)
    }

    /// Runs it.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn run(&self, arguments: &[&str]) {
        let _ = self.read(arguments);
    }

    /// Runs it and returns what it printed.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[must_use]
    pub fn read(&self, arguments: &[&str]) -> String {
        let read = patiently(|| self.attempt(arguments));
        read.unwrap_or_else(|error| panic!("kubectl {}: {error}", arguments.join(" ")))
    }

    /// `kubectl get ... -o json`.
    ///
    /// # Panics
    ///
    /// When it fails or prints no JSON.
    #[must_use]
    pub fn get(&self, arguments: &[&str]) -> Value {
        let arguments = [&["get", "-o", "json"], arguments].concat();
        serde_json::from_str(&self.read(&arguments)).expect("JSON from kubectl")
    }

    /// `kubectl get --raw` of this path.
    ///
    /// # Panics
    ///
    /// When it fails or prints no JSON.
    #[must_use]
    pub fn get_raw(&self, path: &str) -> Value {
        serde_json::from_str(&self.read(&["get", "--raw", path])).expect("JSON from the server")
    }

    /// Applies manifests.
    ///
    /// # Panics
    ///
    /// When the server refuses them.
    pub fn apply(&self, manifests: &str) {
        // What begins with a brace would be read as strict JSON.
        let yaml = format!("---\n{manifests}");
        let applied = patiently(|| self.attempt_with(&["apply", "--validate=strict", "-f", "-"], &yaml));
        applied.unwrap_or_else(|error| panic!("kubectl apply: {error}\n{manifests}"));
    }
}

/// A server on a busy machine may be too late for a handshake; what was not sent is sent again.
fn patiently(attempt: impl FnMut() -> Result<String, String>) -> Result<String, String> {
    let reached = |outcome: &Result<String, String>| {
        !outcome.as_ref().is_err_and(|error| error.contains("Unable to connect to the server"))
    };
    eventually("the API server can be reached", attempt, reached)
}

fn verdict(output: &Output) -> Result<String, String> {
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Err(format!("{}: {complained}{said}", output.status))
    }
}
