//! An agent in a directory of its own, and a client.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use revgate_engine::{Engine, EngineConfig};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// Longest wait for anything: a bound, not an expectation.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A loopback address that nobody else has.
fn own() -> [u8; 4] {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    [127, 64 | (high & 63), low, NEXT.fetch_add(1, Ordering::Relaxed)]
}

/// An engine on the port that Pods have by default.
pub(crate) async fn engine(revision: &str, role: &str) -> Engine {
    let engine = Engine::start(EngineConfig::new((own(), 8000).into(), revision, role)).await;
    engine.expect("the engine starts")
}

pub(crate) struct Agent {
    directory: TempDir,
    child: Option<Child>,
    pub(crate) decode: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Agent {
    /// Writes the files; nothing runs yet.
    pub(crate) fn prepare() -> Self {
        let ip = own();
        let (decode, admin) = ((ip, 8080).into(), (ip, 9901).into());
        let agent = Self { directory: TempDir::new().expect("a directory"), child: None, decode, admin };
        agent.configure("max-role");
        agent
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces a file as a whole, the way that configuration tools do.
    pub(crate) fn replace(&self, name: &str, text: &str) {
        let new = self.file(&format!(".{name}.new"));
        fs::write(&new, text).expect("written");
        fs::rename(new, self.file(name)).expect("renamed");
    }

    pub(crate) fn configure(&self, mode: &str) {
        self.configure_listener(mode, "name: decode, role: decode");
    }

    /// With this one listener.
    pub(crate) fn configure_listener(&self, mode: &str, listener: &str) {
        let (pods, decode, admin) = (self.file("pods.yaml"), self.decode, self.admin);
        let text = format!(
            "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  name: chat
  parameters:
    scope: {{labelSelector: app=llm}}
    revisionGating: {{mode: {mode}, requiredRoles: [prefill, decode]}}
---
apiVersion: revgate.dev/v1alpha1
kind: AgentConfig
kernel: {{mode: 'off'}}
source: {{file: {{path: {pods}}}}}
admin: {{address: '{admin}'}}
listeners: [{{address: '{decode}', {listener}}}]
shutdown: {{delay: 0s, deadline: 20s}}
",
            pods = pods.display()
        );
        self.replace("revgate.yaml", &text);
    }

    /// The Pods of these engines, Ready.
    pub(crate) fn pods<'e>(&self, engines: impl IntoIterator<Item = &'e Engine>) {
        let mut list = Vec::new();
        for (at, engine) in engines.into_iter().enumerate() {
            list.push(serde_json::json!({
                "name": format!("pod-{at}"),
                "uid": engine.name(),
                "ip": engine.address().ip(),
                "labels": {
                    "app": "llm",
                    "disaggregatedset.x-k8s.io/revision": engine.revision(),
                    "disaggregatedset.x-k8s.io/role": engine.role(),
                },
            }));
        }
        self.replace("pods.yaml", &Value::Array(list).to_string());
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_revgate"));
        command.arg("run").arg("--config").arg(self.file("revgate.yaml")).kill_on_drop(true);
        command
    }

    pub(crate) fn start(&mut self) {
        self.start_with(self.command());
    }

    pub(crate) fn start_with(&mut self, mut command: Command) {
        let log = fs::File::create(self.file("log")).expect("a log");
        self.child = Some(command.stderr(Stdio::from(log)).spawn().expect("the agent starts"));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let id = self.child.as_ref().and_then(Child::id).expect("it runs");
        let pid = rustix::process::Pid::from_raw(i32::try_from(id).expect("a pid")).expect("a pid");
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    /// A file of procfs about its process.
    pub(crate) fn process(&self, file: &str) -> String {
        let id = self.child.as_ref().and_then(Child::id).expect("it runs");
        fs::read_to_string(format!("/proc/{id}/{file}")).expect("procfs")
    }

    /// A field of its process's status, bytes.
    pub(crate) fn memory(&self, field: &str) -> u64 {
        let status = self.process("status");
        let value = status.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
        value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// The soft and the hard limit of open files.
    pub(crate) fn file_limits(&self) -> (String, String) {
        let limits = self.process("limits");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
        let mut values = line.split_whitespace().map(str::to_owned);
        (values.next().expect("soft"), values.next().expect("hard"))
    }

    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let child = self.child.as_mut().expect("it was started");
        timeout(PATIENCE, child.wait()).await.expect("it ends").expect("a child").code()
    }

    /// Tries until `holds`, or says what it saw last.
    pub(crate) async fn until<T: std::fmt::Debug>(
        &self,
        what: &str,
        mut look: impl AsyncFnMut() -> T,
        holds: impl Fn(&T) -> bool,
    ) {
        let end = Instant::now() + PATIENCE;
        loop {
            let seen = look().await;
            if holds(&seen) {
                return;
            }
            assert!(Instant::now() < end, "{what}: saw {seen:?}\n{}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn ready(&self) {
        let look = async || get(self.admin, "/readyz").await.map(|r| r.status());
        self.until("ready", look, |seen| *seen == Ok(StatusCode::OK)).await;
    }

    pub(crate) async fn report(&self) -> Value {
        let answer = get(self.admin, "/debug/state").await.expect("the admin server answers");
        serde_json::from_slice(answer.body()).expect("JSON")
    }

    /// Waits until the agent's view has that share for each revision, as in `a 1/2 b 1/2`.
    pub(crate) async fn shares(&self, expected: &str) {
        let look = async || {
            let report = self.report().await;
            let revisions = report["sets"][0]["revisions"].as_array().cloned().unwrap_or_default();
            let show = |r: &Value| {
                format!("{} {}", r["name"].as_str().unwrap_or("?"), r["share"].as_str().unwrap_or("-"))
            };
            revisions.iter().map(show).collect::<Vec<_>>().join(" ")
        };
        self.until(&format!("shares {expected}"), look, |seen| seen == expected).await;
    }
}

/// A request on a connection of its own, and its whole answer.
pub(crate) async fn send(to: SocketAddr, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String> {
    let work = async {
        let stream = TcpStream::connect(to).await.map_err(|e| e.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        let answer = async {
            let (head, body) = sender.send_request(request).await.map_err(|e| e.to_string())?.into_parts();
            Ok(Response::from_parts(head, body.collect().await.map_err(|e| e.to_string())?.to_bytes()))
        };
        tokio::pin!(connection);
        tokio::pin!(answer);
        tokio::select! {
            biased;
            answer = &mut answer => answer,
            ended = &mut connection => match ended {
                Ok(()) => answer.await,
                Err(error) => Err(error.to_string()),
            },
        }
    };
    timeout(PATIENCE, work).await.expect("an answer in time")
}

pub(crate) async fn get(to: SocketAddr, path: &str) -> Result<Response<Bytes>, String> {
    let request = Request::get(path).header("host", "test").body(Full::default()).expect("a request");
    send(to, request).await
}

pub(crate) async fn chat(to: SocketAddr, revision: Option<&str>) -> Result<Response<Bytes>, String> {
    let mut request = Request::post("/v1/chat/completions").header("host", "test");
    if let Some(revision) = revision {
        request = request.header("x-llm-d-disagg-revision", revision);
    }
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":2}"#;
    send(to, request.body(Full::from(body)).expect("a request")).await
}

/// The status, the stamped revision and the refusal's reason.
pub(crate) fn summary(answer: &Response<Bytes>) -> (u16, &str, &str) {
    let header = |name: &str| answer.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    (answer.status().as_u16(), header("x-llm-d-disagg-revision"), header("x-llm-d-request-dropped-reason"))
}
