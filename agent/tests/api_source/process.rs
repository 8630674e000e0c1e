//! `revgate run` and `revgate check` as processes.

use std::{fs, net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::{Instant, sleep},
};

use super::{
    rig::{PATIENCE, pod},
    server::Server,
};

pub(crate) struct Agent {
    directory: TempDir,
    child: Option<Child>,
    decode: SocketAddr,
    admin: SocketAddr,
}

async fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

impl Agent {
    /// Writes the files. `lines` are more of the agent's document.
    async fn prepare(server: &Server, stale_after: &str, lines: &str) -> Self {
        let agent = Self {
            directory: TempDir::new().unwrap(),
            child: None,
            decode: free().await,
            admin: free().await,
        };
        fs::write(agent.file("kubeconfig"), server.kubeconfig()).unwrap();
        let text = format!(
            "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  name: chat
  parameters:
    scope: {{labelSelector: disaggregatedset.x-k8s.io/name=my-set}}
    revisionGating: {{mode: max-role, requiredRoles: [prefill, decode]}}
---
apiVersion: revgate.dev/v1alpha1
kind: AgentConfig
kernel: {{mode: 'off'}}
source: {{kubernetes: {{kubeconfig: {kubeconfig}, staleAfter: {stale_after}}}}}
sets: [{{namespaces: [llm]}}]
admin: {{address: '{admin}'}}
listeners: [{{name: decode, address: '{decode}', role: decode}}]
shutdown: {{delay: 0s, deadline: 5s}}
{lines}
",
            kubeconfig = agent.file("kubeconfig").display(),
            admin = agent.admin,
            decode = agent.decode,
        );
        fs::write(agent.file("revgate.yaml"), text).unwrap();
        agent
    }

    pub(crate) async fn start(server: &Server, stale_after: &str, lines: &str) -> Self {
        let mut agent = Self::prepare(server, stale_after, lines).await;
        let log = fs::File::create(agent.file("log")).unwrap();
        let mut command = agent.command("run");
        agent.child = Some(command.stderr(Stdio::from(log)).spawn().unwrap());
        agent
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().and_then(Child::id).unwrap()
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_revgate"));
        command.arg(name).arg("--config").arg(self.file("revgate.yaml")).kill_on_drop(true);
        command
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap()
    }

    async fn get(&self, address: SocketAddr, path: &str) -> Option<(u16, String)> {
        let stream = TcpStream::connect(address).await.ok()?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        let request = Request::get(path).header("host", "revgate").body(Full::<Bytes>::default()).unwrap();
        let exchange = async {
            let response = sender.send_request(request).await.ok()?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.ok()?.to_bytes();
            Some((status, String::from_utf8_lossy(&body).into_owned()))
        };
        tokio::select! { answer = exchange => answer, _ = connection => None }
    }

    /// Waits until `/readyz` answers with this status and all of these parts.
    pub(crate) async fn until_ready_is(&self, status: u16, parts: &[&str]) -> String {
        self.until_page(self.admin, "/readyz", status, parts).await
    }

    async fn until_page(&self, address: SocketAddr, path: &str, status: u16, parts: &[&str]) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.get(address, path).await;
            if let Some((found, body)) = &answer
                && *found == status
                && parts.iter().all(|part| body.contains(part))
            {
                return body.clone();
            }
            assert!(
                Instant::now() < end,
                "{path} is {answer:?}, not {status} with {parts:?}\n{}",
                self.log()
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn until_logged(&self, part: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.log().contains(part) {
            assert!(Instant::now() < end, "not logged: {part}\n{}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn pods(server: &Server) {
    server.put("pods", pod("llm", "p-0", "a", "prefill", "127.0.0.1"));
    server.put("pods", pod("llm", "d-0", "a", "decode", "127.0.0.2"));
}

#[tokio::test]
async fn c9_a_slow_first_list_is_waited_for_with_503_and_unready() {
    let server = Server::start().await;
    pods(&server);
    server.fault(|faults| faults.list_delay = Duration::from_secs(3));
    let began = Instant::now();
    let agent = Agent::start(&server, "3m", "").await;
    agent.until_ready_is(503, &["waiting for: first Pod list"]).await;
    agent.until_page(agent.decode, "/v1/models", 503, &["not-synced"]).await;
    agent.until_ready_is(200, &["ok"]).await;
    assert!(began.elapsed() >= Duration::from_secs(3), "not before the list");
    // The rollout's lines come with this source, too.
    agent.until_logged("step=\"appeared\"").await;
}

#[tokio::test]
async fn c9_a_server_that_is_away_is_said_in_readyz_and_a_stale_view_is_served_on() {
    let mut server = Server::away().await;
    pods(&server);
    let agent = Agent::start(&server, "2s", "").await;
    agent
        .until_ready_is(
            503,
            &["first Pod list", "pods llm: cannot list pods in namespace llm", "cannot be reached"],
        )
        .await;
    server.come_back().await;
    agent.until_ready_is(200, &["ok"]).await;
    let page = agent.until_page(agent.admin, "/metrics", 200, &["revgate_source_event_age_seconds"]).await;
    assert!(
        page.contains("revgate_source_event_age_seconds{resource=\"pods\",namespace=\"llm\",name=\"\"}"),
        "{page}"
    );
    assert!(page.contains("revgate_source_stale 0"), "{page}");
    server.go_away();
    let page = agent.until_ready_is(200, &["ok\n", "stale view, pods llm"]).await;
    assert!(page.contains("cannot be reached"), "{page}");
    agent.until_page(agent.admin, "/metrics", 200, &["revgate_source_stale 1"]).await;
    agent.until_logged("the view is stale").await;
    // Nobody listens on the Pods' port: an endpoint was chosen and tried.
    agent.until_page(agent.decode, "/v1/models", 503, &["no-endpoint-left"]).await;
    server.come_back().await;
    agent.until_logged("the API server is heard again").await;
    assert_eq!(agent.log().matches("the view is stale").count(), 1, "once");
    agent.until_ready_is(200, &["ok\n"]).await;
}

#[tokio::test]
async fn c8_a_vip_without_its_service_is_shown_and_holds_no_readiness() {
    let server = Server::start().await;
    pods(&server);
    let agent = Agent::start(&server, "3m", "vips: [{service: {name: decode}, role: decode}]").await;
    agent.until_ready_is(200, &["no VIP for the Service llm/decode: there is no such Service"]).await;
    let service = json!({
        "metadata": {"namespace": "llm", "name": "decode"},
        "spec": {"clusterIP": "127.0.96.1", "ports": [{"port": 80}]},
    });
    server.put("services", service);
    agent.until_page(agent.admin, "/debug/state", 200, &["127.0.96.1:80", "\"missingVips\":[]"]).await;
    server.delete("services", "llm", "decode");
    agent.until_logged("a VIP is steered no more address=127.0.96.1:80 whose=chat's decode").await;
}

#[tokio::test]
async fn c10_check_tries_each_right_and_names_the_one_that_is_missing() {
    let server = Server::start().await;
    let agent = Agent::prepare(&server, "3m", "vips: [{service: {name: decode}, role: decode}]").await;
    let check = async || {
        let output = agent.command("check").output().await.unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = check().await;
    assert_eq!(code, 0, "{text}");
    for right in ["list pods in namespace llm", "watch pods in namespace llm", "list services llm/decode"] {
        assert!(text.lines().any(|line| line.starts_with("pass") && line.contains(right)), "{text}");
    }
    assert!(server.requests().iter().all(|asked| asked.starts_with("GET ")), "{:?}", server.requests());

    server.fault(|faults| faults.forbidden.extend([("watch", "services")]));
    let (code, text) = check().await;
    assert_eq!(code, 1, "{text}");
    let failing: Vec<&str> = text.lines().filter(|line| line.starts_with("FAIL")).collect();
    assert!(failing.len() == 1 && failing[0].contains("watch services llm/decode"), "{text}");
    assert!(text.contains("watch services llm/decode: bind a Role in namespace llm"), "{text}");
}
