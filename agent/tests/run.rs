//! `revgate run` as a process, in user space: from files to answers, through reloads, to its end.
#![cfg(test)]

mod support {
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
        net::{TcpListener, TcpStream},
        process::{Child, Command},
        time::{Instant, sleep, timeout},
    };

    /// Longest wait for anything: a bound, not an expectation.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

    /// A free address, for a process that cannot tell which port it got.
    async fn free() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").await.expect("loopback").local_addr().expect("bound")
    }

    /// An engine on a loopback address of its own, on the port that Pods have by default.
    pub(crate) async fn engine(revision: &str, role: &str) -> Engine {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [.., high, low] = std::process::id().to_be_bytes();
        let ip = [127, 64 | (high & 63), low, NEXT.fetch_add(1, Ordering::Relaxed)];
        let engine = Engine::start(EngineConfig::new((ip, 8000).into(), revision, role)).await;
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
        pub(crate) async fn prepare() -> Self {
            let (decode, admin) = (free().await, free().await);
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
listeners: [{{name: decode, address: '{decode}', role: decode}}]
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
            let log = fs::File::create(self.file("log")).expect("a log");
            self.child = Some(self.command().stderr(Stdio::from(log)).spawn().expect("the agent starts"));
        }

        pub(crate) fn log(&self) -> String {
            fs::read_to_string(self.file("log")).unwrap_or_default()
        }

        pub(crate) fn signal(&self, signal: rustix::process::Signal) {
            let id = self.child.as_ref().and_then(Child::id).expect("it runs");
            let pid = rustix::process::Pid::from_raw(i32::try_from(id).expect("a pid")).expect("a pid");
            rustix::process::kill_process(pid, signal).expect("it is ours");
        }

        /// The soft and the hard limit of open files.
        pub(crate) fn file_limits(&self) -> (String, String) {
            let id = self.child.as_ref().and_then(Child::id).expect("it runs");
            let limits = fs::read_to_string(format!("/proc/{id}/limits")).expect("procfs");
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
    pub(crate) async fn send(
        to: SocketAddr,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Bytes>, String> {
        let work = async {
            let stream = TcpStream::connect(to).await.map_err(|e| e.to_string())?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
                .await
                .map_err(|e| e.to_string())?;
            let answer = async {
                let (head, body) =
                    sender.send_request(request).await.map_err(|e| e.to_string())?.into_parts();
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
        (
            answer.status().as_u16(),
            header("x-llm-d-disagg-revision"),
            header("x-llm-d-request-dropped-reason"),
        )
    }
}

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use support::{Agent, chat, engine, get, summary};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_a_rollout_from_files_and_reports_it() {
    let engines = [
        engine("a", "prefill").await,
        engine("a", "decode").await,
        engine("b", "decode").await,
        engine("b", "prefill").await,
    ];
    let mut agent = Agent::prepare().await;
    agent.start();

    // No list yet: alive, not ready, and everything is refused.
    let alive = async || get(agent.admin, "/livez").await.map(|r| r.status().as_u16());
    agent.until("alive", alive, |seen| *seen == Ok(200)).await;
    assert_eq!(get(agent.admin, "/readyz").await.unwrap().status(), 503);
    assert_eq!(summary(&chat(agent.decode, None).await.unwrap()), (503, "", "not-synced"));

    // b has no prefill yet: all traffic is a's, and asking for b is refused.
    agent.pods(&engines[..3]);
    agent.ready().await;
    agent.shares("a 1 b 0").await;
    for _ in 0..20 {
        assert_eq!(summary(&chat(agent.decode, None).await.unwrap()), (200, "a", ""));
    }
    assert_eq!(summary(&chat(agent.decode, Some("b")).await.unwrap()), (503, "", "revision-not-eligible"));

    // b is whole.
    agent.pods(&engines);
    agent.shares("a 1/2 b 1/2").await;
    assert_eq!(summary(&chat(agent.decode, Some("b")).await.unwrap()), (200, "b", ""));
    let metrics = get(agent.admin, "/metrics").await.unwrap();
    let text = String::from_utf8_lossy(metrics.body()).into_owned();
    assert!(text.contains(r#"revgate_revision_share{set="chat",revision="b"} 0.5"#), "{text}");
    assert!(text.contains("revgate_kernel_active 0"), "{text}");

    // a goes: its series go with it.
    agent.pods(&engines[2..]);
    agent.shares("b 1").await;
    assert_eq!(summary(&chat(agent.decode, Some("a")).await.unwrap()), (503, "", "revision-not-eligible"));
    let metrics = get(agent.admin, "/metrics").await.unwrap();
    assert!(!String::from_utf8_lossy(metrics.body()).contains(r#"revision="a""#));
    for line in ["revision b appeared", "revision b is eligible", "revision a is gone"] {
        assert!(agent.log().contains(line), "no line {line:?} in\n{}", agent.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_files_change_nothing_and_are_reported() {
    let engines = [engine("a", "prefill").await, engine("a", "decode").await];
    let mut agent = Agent::prepare().await;
    agent.pods(&engines);
    agent.start();
    agent.ready().await;

    agent.replace("pods.yaml", "- {name: broken, nmae: x}");
    let errors = async || agent.report().await["source"]["errors"].as_u64();
    agent.until("the bad Pod file", errors, |seen| *seen == Some(1)).await;
    agent.configure("max-rolle");
    let failed = async || agent.report().await["config"]["reloadsFailed"].as_u64();
    agent.until("the bad configuration", failed, |seen| *seen == Some(1)).await;
    assert!(agent.log().contains("max-role"), "the error names what is allowed: {}", agent.log());
    assert_eq!(summary(&chat(agent.decode, None).await.unwrap()), (200, "a", ""));

    // A good change comes into force without a restart.
    agent.configure("sum");
    let mode = async || agent.report().await["sets"][0]["mode"].as_str().map(str::to_owned);
    agent.until("the new mode", mode, |seen| seen.as_deref() == Some("sum")).await;
    assert_eq!(agent.report().await["config"]["reloadsSucceeded"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_finishes_what_is_in_flight_and_exits_0() {
    let engines = [engine("a", "prefill").await, engine("a", "decode").await];
    engines[1].update(|behaviour| behaviour.first_byte_delay = std::time::Duration::from_secs(2));
    let mut agent = Agent::prepare().await;
    agent.pods(&engines);
    agent.start();
    agent.ready().await;

    let decode = agent.decode;
    let mut requests = tokio::task::JoinSet::new();
    requests.spawn(async move { chat(decode, None).await });
    engines[1].wait_until(|counters| counters.requests > 0).await;
    agent.signal(Signal::TERM);
    let refused = async || tokio::net::TcpStream::connect(decode).await.is_err();
    agent.until("closed for new connections", refused, |seen| *seen).await;
    let answer = requests.join_next().await.expect("one was sent").expect("no panic").expect("an answer");
    assert_eq!(summary(&answer), (200, "a", ""));
    assert_eq!(agent.exit_code().await, Some(0), "{}", agent.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_at_once() {
    let engines = [engine("a", "prefill").await, engine("a", "decode").await];
    engines[1].update(|behaviour| behaviour.first_byte_delay = std::time::Duration::from_mins(10));
    let mut agent = Agent::prepare().await;
    agent.pods(&engines);
    agent.start();
    agent.ready().await;
    let decode = agent.decode;
    let mut requests = tokio::task::JoinSet::new();
    requests.spawn(async move { chat(decode, None).await });
    engines[1].wait_until(|counters| counters.requests > 0).await;
    agent.signal(Signal::TERM);
    let draining = async || get(agent.admin, "/readyz").await.map(|r| r.status().as_u16());
    agent.until("draining", draining, |seen| *seen == Ok(503)).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.exit_code().await, Some(0), "{}", agent.log());
    assert!(
        requests.join_next().await.expect("one was sent").expect("no panic").is_err(),
        "its connection was cut"
    );
}

#[tokio::test]
async fn a_bad_file_never_starts_the_agent() {
    let mut agent = Agent::prepare().await;
    agent.configure("max-rolle");
    agent.start();
    assert_eq!(agent.exit_code().await, Some(64));
    let log = agent.log();
    for part in ["revgate.yaml:", "plugins[0].parameters.revisionGating.mode", "max-role"] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
}

#[tokio::test]
async fn a_port_in_use_is_said_and_ends_the_start() {
    let mut agent = Agent::prepare().await;
    let _taken = tokio::net::TcpListener::bind(agent.decode).await.expect("free until now");
    agent.start();
    assert_eq!(agent.exit_code().await, Some(1));
    assert!(agent.log().contains(&agent.decode.to_string()), "{}", agent.log());
}

#[tokio::test]
async fn the_agent_takes_all_the_open_files_that_it_may() {
    // What this process has as its soft limit is what the agent starts with.
    let limit = getrlimit(Resource::Nofile);
    let less = limit.maximum.and_then(|most| most.checked_sub(1));
    setrlimit(Resource::Nofile, Rlimit { current: less, ..limit }).expect("below the hard limit");
    let mut agent = Agent::prepare().await;
    agent.pods([]);
    agent.start();
    agent.ready().await;
    let (soft, hard) = agent.file_limits();
    assert_eq!(soft, hard);
}
