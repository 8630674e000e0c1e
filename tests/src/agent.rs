//! The agent as a process inside a [`Node`], with files of its own.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs,
    io::{self, Read, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    echo::PATIENCE,
    node::Node,
    wait::{until, within},
};

/// Longest time for an agent to finish what it has in flight. Generous: the machine may be busy.
const END: Duration = Duration::from_mins(1);

/// A Pod of the one set, Ready, on port 8000: revision, role, address.
pub type Pod<'a> = (&'a str, &'a str, IpAddr);

/// An agent that can be started, killed and started again. It ends with this value.
pub struct Agent {
    program: PathBuf,
    files: TempDir,
    admin: SocketAddr,
    child: Option<Child>,
}

impl Agent {
    /// Writes its files; nothing runs yet. `vips` are lines of the configuration's list.
    ///
    /// # Panics
    ///
    /// When it cannot.
    #[must_use]
    pub fn prepare(program: &str, node: &Node, lease: &str, vips: &str) -> Self {
        Self::prepare_at(program, node.cgroup(), &node.config().bpffs, lease, vips)
    }

    /// The same, for a cgroup and a bpffs that are no [`Node`]'s.
    ///
    /// # Panics
    ///
    /// When it cannot.
    #[must_use]
    pub fn prepare_at(program: &str, cgroup: &Path, bpffs: &Path, lease: &str, vips: &str) -> Self {
        let (cgroup, bpffs) = (cgroup.display(), bpffs.display());
        let kernel =
            format!("{{mode: auto, cgroup: {cgroup}, bpffs: {bpffs}, lease: {lease}, trace: false}}");
        Self::prepare_with(program, &kernel, &format!("vips:\n{vips}"))
    }

    /// The same without the kernel programs, and with `listeners`, lines of that list.
    ///
    /// # Panics
    ///
    /// When it cannot.
    #[must_use]
    pub fn prepare_listeners(program: &str, listeners: &str) -> Self {
        Self::prepare_with(program, "{mode: off}", &format!("listeners:\n{listeners}"))
    }

    fn prepare_with(program: &str, kernel: &str, frontends: &str) -> Self {
        // For a process that cannot tell which port it got. No connection to elsewhere comes from that address, whose
        // own port could be this one when the agent is started again.
        let free = TcpListener::bind("127.0.0.2:0").expect("loopback");
        let admin = free.local_addr().expect("bound");
        let agent =
            Self { program: program.into(), files: TempDir::new().expect("a directory"), admin, child: None };
        let text = format!(
            "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  name: chat
  parameters:
    scope: {{labelSelector: app=llm}}
    revisionGating: {{mode: max-role, requiredRoles: [prefill, decode]}}
---
apiVersion: revgate.dev/v1alpha1
kind: AgentConfig
kernel: {kernel}
source: {{file: {{path: {pods}}}}}
admin: {{address: '{admin}'}}
shutdown: {{delay: 0s, deadline: 1s}}
{frontends}
",
            pods = agent.file("pods.yaml").display()
        );
        fs::write(agent.file("revgate.yaml"), text).expect("written");
        agent
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Sets `kernel.trace` for the next start.
    ///
    /// # Panics
    ///
    /// When it cannot.
    pub fn trace(&self, on: bool) {
        self.edit(&format!("trace: {}", !on), &format!("trace: {on}"));
    }

    /// Replaces a part of its configuration. One that runs reads it again.
    ///
    /// # Panics
    ///
    /// When there is no such part.
    pub fn edit(&self, old: &str, new: &str) {
        let path = self.file("revgate.yaml");
        let text = fs::read_to_string(&path).expect("written before");
        assert!(text.contains(old), "no `{old}` in:\n{text}");
        self.replace("revgate.yaml", &text.replace(old, new));
    }

    /// Replaces the list of Pods.
    ///
    /// # Panics
    ///
    /// When it cannot.
    pub fn pods(&self, pods: &[Pod<'_>]) {
        self.pods_in(pods, None);
    }

    /// The same; the processes of the first are in a cgroup.
    ///
    /// # Panics
    ///
    /// When it cannot.
    pub fn pods_in(&self, pods: &[Pod<'_>], cgroup: Option<&Path>) {
        let mut text = String::new();
        for (at, (revision, role, ip)) in pods.iter().enumerate() {
            let cgroup = cgroup
                .filter(|_| at == 0)
                .map_or_else(String::new, |cgroup| format!("cgroup: '{}', ", cgroup.display()));
            let _ = writeln!(
                text,
                "- {{name: 'p-{ip}', uid: 'u-{ip}', ip: '{ip}', {cgroup}labels: {{app: llm, \
                 disaggregatedset.x-k8s.io/revision: {revision}, disaggregatedset.x-k8s.io/role: {role}}}}}"
            );
        }
        self.write_pods(&text);
    }

    /// Replaces the list of Pods by this text.
    ///
    /// # Panics
    ///
    /// When it cannot.
    pub fn write_pods(&self, text: &str) {
        self.replace("pods.yaml", text);
    }

    /// Nobody reads half of it.
    fn replace(&self, name: &str, text: &str) {
        let new = self.file("new");
        fs::write(&new, text).expect("written");
        fs::rename(new, self.file(name)).expect("renamed");
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments()).stdout(Stdio::null());
        command
    }

    /// The arguments with which it runs.
    #[must_use]
    pub fn arguments(&self) -> [OsString; 3] {
        ["run".into(), "--config".into(), self.file("revgate.yaml").into()]
    }

    /// Starts it in the cgroup of the calling thread, and returns when it is ready.
    ///
    /// # Panics
    ///
    /// When it does not become ready.
    pub fn start(&mut self) {
        self.start_as(self.command());
    }

    /// The same, by another command that becomes the agent.
    ///
    /// # Panics
    ///
    /// When it does not become ready.
    pub fn start_as(&mut self, mut command: Command) {
        let log = fs::File::create(self.file("log")).expect("a log");
        let child = command.stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.expect("the agent starts"));
        let look = || self.ready().map_err(|_| fs::read_to_string(self.file("log")));
        let _ = until("the agent is ready", look, |ready| matches!(ready, Ok(true)));
    }

    /// Its state, as `/debug/state` tells it; null while it does not.
    #[must_use]
    pub fn state(&self) -> serde_json::Value {
        self.get("/debug/state").ok().and_then(|body| serde_json::from_str(&body).ok()).unwrap_or_default()
    }

    /// What `/metrics` says of this series; `None`: nothing.
    #[must_use]
    pub fn metric(&self, series: &str) -> Option<u64> {
        let metrics = self.get("/metrics").ok()?;
        metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    fn get(&self, path: &str) -> io::Result<String> {
        let mut admin = TcpStream::connect(self.admin)?;
        admin.set_read_timeout(Some(PATIENCE))?;
        write!(admin, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        admin.read_to_string(&mut answer)?;
        Ok(answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
    }

    fn ready(&self) -> io::Result<bool> {
        let mut admin = TcpStream::connect(self.admin)?;
        admin.set_read_timeout(Some(PATIENCE))?;
        admin.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
        let mut answer = [0; 12];
        admin.read_exact(&mut answer)?;
        Ok(answer.ends_with(b" 200"))
    }

    /// Runs another one beside it with the same files, which is to end by itself: how, and what it said.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn second(&self) -> (ExitStatus, String) {
        let output = self.command().stderr(Stdio::piped()).output().expect("another one starts");
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// What the one that runs, or ran last, has logged so far.
    ///
    /// # Panics
    ///
    /// When it never ran.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("log")).expect("a log")
    }

    /// What `revgate status` shows in a form.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[must_use]
    pub fn status(&self, form: &str) -> String {
        let mut command = Command::new(&self.program);
        let output = command.args(["status", "-o", form, "--admin", &self.admin.to_string()]).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Sends it a signal.
    ///
    /// # Panics
    ///
    /// When it does not run.
    pub fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("signalled");
    }

    /// How it ends by itself, once it has been told to.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn ended(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("it runs");
        let look = || child.try_wait().expect("it is a child");
        let status = within(END, Duration::from_millis(5), "the agent ends", look, Option::is_some);
        self.child = None;
        status.expect("that was waited for")
    }

    /// SIGKILL; returns when it is gone.
    ///
    /// # Panics
    ///
    /// When it cannot be killed.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("gone");
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}
