//! etcd and kube-apiserver, with RBAC in force and tokens as the way in.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::json;

use super::{
    http,
    kubectl::Kubectl,
    process::{Process, eventually},
    tools::Tools,
};

/// The token of the tests' administrator. The server listens where only this machine comes.
const ADMINISTRATOR: &str = "administrator-of-the-tests";

/// The range of `ClusterIP`s.
pub const SERVICES: &str = "10.98.0.0/16";

/// Where the servers run.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The process in whose namespaces they run: the machine's own where there is none.
    pub inside: Option<u32>,
    /// Where they listen.
    pub address: IpAddr,
}

impl Place {
    /// On this machine's loopback.
    pub const LOOPBACK: Self = Self { inside: None, address: IpAddr::V4(Ipv4Addr::LOCALHOST) };

    /// A command that runs there.
    #[must_use]
    pub fn command(self, program: &Path) -> Command {
        let Some(pid) = self.inside else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid.to_string(), "--net", "--mount", "--pid", "--"]).arg(program);
        command
    }

    /// A port that nobody has: of no use to others where the network is the test's own.
    fn port(self, own: u16) -> u16 {
        if self.inside.is_some() {
            return own;
        }
        // For a process that cannot tell which port it got.
        let free = TcpListener::bind(SocketAddr::new(self.address, 0)).expect("loopback");
        free.local_addr().expect("bound").port()
    }
}

/// The running servers and their files.
#[derive(Debug)]
pub struct ControlPlane {
    tools: Tools,
    place: Place,
    folder: PathBuf,
    port: u16,
    etcd_port: u16,
    // Ended in this order.
    server: Option<Process>,
    _etcd: Process,
}

impl ControlPlane {
    /// Starts both, with files in this folder, and returns when the API server is ready.
    ///
    /// # Panics
    ///
    /// When they do not start.
    #[must_use]
    pub fn start(tools: &Tools, place: Place, folder: &Path) -> Self {
        let (etcd_port, peer_port) = (place.port(2379), place.port(2380));
        let etcd = start_etcd(tools, place, folder, [etcd_port, peer_port]);
        let key = folder.join("service-account.key");
        let made = Command::new("openssl").args(["genrsa", "-out"]).arg(&key).output().expect("openssl runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let tokens = format!("{ADMINISTRATOR},administrator,1,system:masters\n");
        fs::write(folder.join("tokens.csv"), tokens).expect("written");
        let port = place.port(6443);
        let (tools, folder) = (tools.clone(), folder.to_path_buf());
        let mut servers = Self { tools, place, folder, port, etcd_port, server: None, _etcd: etcd };
        servers.start_server();
        servers
    }

    /// Starts the API server where it was stopped, on the same address and with the same identity.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start_server(&mut self) {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let address = self.place.address;
        let mut command = self.place.command(&self.tools.program("kube-apiserver"));
        command.args([
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--bind-address={address}"),
            format!("--secure-port={}", self.port),
            format!("--cert-dir={}", file("certificates")),
            format!("--service-cluster-ip-range={SERVICES}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("service-account.key")),
            format!("--service-account-signing-key-file={}", file("service-account.key")),
            format!("--token-auth-file={}", file("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
            // `exec` and `logs` would look for the node's name in DNS.
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            // Requests that are open when it ends do not hold it up.
            "--shutdown-delay-duration=0s".to_owned(),
        ]);
        if address.is_loopback() {
            // It will not announce a loopback address to Pods; there are none to announce it to.
            command.args(["--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none"]);
        }
        self.server = Some(Process::start("kube-apiserver", command, &self.folder));
        let _ = eventually(
            "the API server is ready",
            || {
                self.server.as_mut().expect("just started").is_alive();
                let _ = self.write_kubeconfig("administrator", ADMINISTRATOR, self.address());
                self.kubectl().attempt(&["get", "--raw", "/readyz"])
            },
            Result::is_ok,
        );
    }

    /// Stops the API server in order; returns when it is gone.
    ///
    /// # Panics
    ///
    /// When it is stopped already.
    pub fn stop_server(&mut self) {
        self.server.take().expect("a running API server").stop();
    }

    /// Ends the API server and with it every watch, at once.
    ///
    /// # Panics
    ///
    /// When it is stopped already.
    pub fn kill_server(&mut self) {
        self.server.take().expect("a running API server").kill();
    }

    /// A kubeconfig that comes with this token to this address.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    #[must_use]
    pub fn write_kubeconfig(&self, name: &str, token: &str, server: SocketAddr) -> PathBuf {
        let path = self.folder.join(format!("{name}.kubeconfig"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: 'https://{server}', certificate-authority: '{}'}}}}]\n\
             users: [{{name: test, user: {{token: '{token}'}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test, namespace: default}}}}]\n",
            self.authority().display(),
        );
        fs::write(&path, text).expect("written");
        path
    }

    /// The certificate authority of the API server.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.folder.join("certificates/apiserver.crt")
    }

    /// The key that signs the tokens of service accounts.
    #[must_use]
    pub fn service_account_key(&self) -> PathBuf {
        self.folder.join("service-account.key")
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("administrator.kubeconfig")
    }

    /// Where the API server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.place.address, self.port)
    }

    /// `kubectl` of the administrator.
    #[must_use]
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.tools, &self.kubeconfig(), self.place.inside)
    }

    /// Forgets the history of everything up to now, as the API server has it done every few minutes.
    ///
    /// # Panics
    ///
    /// When etcd does not do it.
    pub fn compact(&self) {
        let etcd = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.etcd_port);
        // A key that is not there: what counts is the header, with the version of everything.
        let at = http::post(etcd, "/v3/kv/range", &json!({"key": "AA=="}));
        let revision = at["header"]["revision"].as_str().expect("a revision");
        let request = json!({"revision": revision, "physical": true});
        let compacted = http::post(etcd, "/v3/kv/compaction", &request);
        assert!(compacted["header"].is_object(), "{compacted}");
    }
}

fn start_etcd(tools: &Tools, place: Place, folder: &Path, [port, peer_port]: [u16; 2]) -> Process {
    let mut command = place.command(&tools.program("etcd"));
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
    command.arg(format!("--data-dir={}", folder.join("etcd").display())).args([
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // What a test loses with the machine, it does not want back.
        "--unsafe-no-fsync=true".to_owned(),
        "--log-level=warn".to_owned(),
    ]);
    Process::start("etcd", command, folder)
}
