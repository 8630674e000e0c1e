//! The servers of a measurement: engines, the proxies before them, and how each is started, awaited and stopped.

use std::{
    env, fmt, fs,
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    num::ParseIntError,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
    thread::sleep,
    time::{Duration, Instant},
};

use revgate_engine::{Engine, EngineConfig, Pace};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{Result, cpu::Cores, routers, stream};

/// How long a server may take to answer for the first time, and to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the harness starts itself as the engines.
pub(crate) const ENGINES: &str = "engines";

/// Where the engines of each revision stand: decode engines, which take the load, and prefill ones, which make the
/// revision eligible, and take the first leg of pairs. The port is the same for all.
pub(crate) const DECODE: [(&str, [Ipv4Addr; 2]); 2] = [
    ("a", [Ipv4Addr::new(127, 0, 8, 1), Ipv4Addr::new(127, 0, 8, 2)]),
    ("b", [Ipv4Addr::new(127, 0, 8, 3), Ipv4Addr::new(127, 0, 8, 4)]),
];
pub(crate) const PREFILL: [(&str, Ipv4Addr); 2] =
    [("a", Ipv4Addr::new(127, 0, 8, 11)), ("b", Ipv4Addr::new(127, 0, 8, 12))];

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The load asks an engine itself.
    Direct,
    /// This project.
    Revgate,
    /// Debian's nginx.
    Nginx,
    /// Debian's HAProxy.
    Haproxy,
    /// vLLM's router.
    VllmRouter,
    /// The Shepherd Model Gateway, which `SGLang`'s router became.
    Smg,
}

/// What the engines answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answers {
    /// So many bytes, at once.
    Whole(usize),
    /// Decode engines send events; what prefill engines answer is whole.
    Events,
}

impl FromStr for Answers {
    type Err = ParseIntError;

    fn from_str(text: &str) -> std::result::Result<Self, ParseIntError> {
        if text == "events" { Ok(Self::Events) } else { text.parse().map(Self::Whole) }
    }
}

impl fmt::Display for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => bytes.fmt(f),
            Self::Events => f.write_str("events"),
        }
    }
}

/// What they are measured at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Job {
    /// One endpoint for a request.
    Role,
    /// A prefill and a decode endpoint for a request.
    Pair,
}

impl Job {
    /// Who is measured, in the order in which they are shown.
    pub(crate) const fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Role => &[Kind::Direct, Kind::Revgate, Kind::Nginx, Kind::Haproxy],
            Self::Pair => &[Kind::Direct, Kind::Revgate, Kind::VllmRouter, Kind::Smg],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Revgate => "revgate",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::VllmRouter => "vllm-router",
            Self::Smg => "smg",
        })
    }
}

/// A process that is stopped when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
}

impl Server {
    /// Starts a program on a core. It also ends if the harness is killed.
    pub(crate) fn start(core: usize, program: &Path, configure: impl FnOnce(&mut Command)) -> Result<Self> {
        let mut command = Command::new("setpriv");
        let _ =
            command.args(["--pdeathsig", "TERM", "taskset", "--cpu-list", &core.to_string()]).arg(program);
        let _ = command.stdin(Stdio::null());
        configure(&mut command);
        let child =
            command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        Ok(Self { child })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it answers a GET of `path` with a 200.
    pub(crate) fn await_answer(&mut self, address: SocketAddr, path: &str) -> Result<()> {
        let since = Instant::now();
        while get(address, path).is_none_or(|answer| !answer.starts_with("HTTP/1.1 200")) {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("the server for {address} ended at once: {status}").into());
            }
            if since.elapsed() > PATIENCE {
                return Err(format!("no answer from {address}{path} after {PATIENCE:?}").into());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let since = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if since.elapsed() > PATIENCE {
                eprintln!("bench: process {} did not end when asked to; killed", self.child.id());
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            sleep(Duration::from_millis(10));
        }
        if let Ok(Some(status)) = self.child.try_wait()
            && !status.success()
            && status.signal().is_none_or(|signal| signal != Signal::TERM.as_raw())
        {
            eprintln!("bench: process {} ended badly: {status}", self.child.id());
        }
    }
}

/// Engines and every proxy before them, all running.
#[derive(Debug)]
pub(crate) struct Bench {
    proxies: Vec<(Kind, SocketAddr, Server)>,
    engine: SocketAddr,
    _engines: Server,
    _files: TempDir,
}

impl Bench {
    /// Starts the engines and proxies of these kinds. One that is not installed is left out, and that is said.
    pub(crate) fn start(cores: Cores, job: Job, kinds: &[Kind], answers: Answers) -> Result<Self> {
        let files = TempDir::new()?;
        let port = free(Ipv4Addr::new(127, 0, 8, 1))?.port();
        let engines = start_engines(cores, port, answers)?;
        let addresses: Vec<SocketAddr> =
            DECODE.into_iter().flat_map(|(_, ips)| ips).map(|ip| (ip, port).into()).collect();
        let engine = *addresses.first().ok_or("no engine")?;

        let task = if job == Job::Pair { "pair: {}" } else { "role: decode" };
        let mut proxies = Vec::new();
        for kind in kinds.iter().copied().filter(|kind| *kind != Kind::Direct) {
            let listen = free(Ipv4Addr::LOCALHOST)?;
            let started = match kind {
                Kind::VllmRouter | Kind::Smg => routers::start(kind, cores.proxy, listen, port),
                _ => start_proxy(kind, task, cores.proxy, files.path(), listen, &addresses, answers),
            };
            let mut server = match started {
                Ok(server) => server,
                Err(why) if matches!(kind, Kind::VllmRouter | Kind::Smg) => {
                    eprintln!("bench: {kind} IS NOT MEASURED: {why}");
                    continue;
                }
                Err(why) => return Err(why),
            };
            server.await_answer(listen, "/v1/models")?;
            proxies.push((kind, listen, server));
        }
        Ok(Self { proxies, engine, _engines: engines, _files: files })
    }

    /// Where the load of `kind` goes, and the process to watch; `None`: it is not there.
    pub(crate) fn target(&self, kind: Kind) -> Option<(SocketAddr, Option<u32>)> {
        if kind == Kind::Direct {
            return Some((self.engine, None));
        }
        let (_, address, server) = self.proxies.iter().find(|(proxy, ..)| *proxy == kind)?;
        Some((*address, Some(server.pid())))
    }
}

/// The beginning of the answer to a GET; `None` while there is none.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: bench\r\n\r\n").ok()?;
    let mut line = String::new();
    let _ = BufReader::new(stream).read_line(&mut line).ok()?;
    Some(line)
}

/// An address that is free at this moment.
pub(crate) fn free(ip: Ipv4Addr) -> Result<SocketAddr> {
    Ok(TcpListener::bind((ip, 0))?.local_addr()?)
}

/// The engines, as a process of their own: this program again.
pub(crate) fn start_engines(cores: Cores, port: u16, answers: Answers) -> Result<Server> {
    let mut server = Server::start(cores.load, &env::current_exe()?, |command| {
        let _ = command.args([ENGINES, &port.to_string(), &answers.to_string()]).stdout(Stdio::piped());
    })?;
    // They say so when all of them listen.
    let mut line = String::new();
    let output = server.child.stdout.take().ok_or("the engines have no output")?;
    let _ = BufReader::new(output).read_line(&mut line)?;
    if line.trim_end() != ENGINES {
        return Err("the engines did not start".into());
    }
    Ok(server)
}

/// What the process of [`start_engines`] does: serves until it is killed.
pub(crate) async fn run_engines(port: u16, answers: Answers) -> Result<()> {
    let (body, pace) = match answers {
        Answers::Whole(body) => (body, None),
        Answers::Events => (stream::BODY, Some(Pace::new(stream::RATE)?)),
    };
    let mut engines = Vec::new();
    let decode = DECODE.into_iter().flat_map(|(_, ips)| ips).map(|ip| (ip, "decode"));
    for (ip, role) in decode.chain(PREFILL.map(|(_, ip)| (ip, "prefill"))) {
        let mut config = EngineConfig::new((ip, port).into(), "a", role);
        config.behaviour.fixed_body = Some(body);
        config.behaviour.fixed_stream = pace.clone().filter(|_| role == "decode");
        engines.push(Engine::start(config).await?);
    }
    println!("{ENGINES}");
    std::io::stdout().flush()?;
    std::future::pending().await
}

/// Starts a proxy before these engines. `task` is what revgate's listener does.
pub(crate) fn start_proxy(
    kind: Kind,
    task: &str,
    core: usize,
    dir: &Path,
    listen: SocketAddr,
    engines: &[SocketAddr],
    answers: Answers,
) -> Result<Server> {
    // What whoever streams through one of them sets.
    let (buffering, delay) = match answers {
        Answers::Whole(_) => ("on", ""),
        Answers::Events => ("off", "option http-no-delay"),
    };
    let (name, template, program) = match kind {
        Kind::Nginx => ("nginx.conf", include_str!("nginx.conf"), PathBuf::from("/usr/sbin/nginx")),
        Kind::Haproxy => ("haproxy.cfg", include_str!("haproxy.cfg"), PathBuf::from("/usr/sbin/haproxy")),
        _ => ("revgate.yaml", include_str!("revgate.yaml"), revgate()?),
    };
    let servers: Vec<String> = engines
        .iter()
        .enumerate()
        .map(|(at, address)| match kind {
            Kind::Nginx => format!("        server {address};"),
            _ => format!("    server engine{at} {address}"),
        })
        .collect();
    let port = engines.first().map_or(0, SocketAddr::port);
    let text = template
        .replace("@DIR@", &dir.display().to_string())
        .replace("@LISTEN@", &listen.to_string())
        .replace("@SERVERS@", &servers.join("\n"))
        .replace("@PORT@", &port.to_string())
        .replace("@SERVES@", task)
        .replace("@BUFFERING@", buffering)
        .replace("@DELAY@", delay)
        .replace("@ADMIN@", &free(Ipv4Addr::LOCALHOST)?.to_string());
    let path = dir.join(name);
    fs::write(&path, text)?;
    if kind == Kind::Revgate {
        fs::write(dir.join("pods.yaml"), pods())?;
    }
    Server::start(core, &program, |command| {
        let _ = match kind {
            Kind::Nginx => command.args(["-e", "stderr", "-p"]).arg(dir).arg("-c").arg(&path),
            Kind::Haproxy => command.args(["-db", "-q", "-f"]).arg(&path),
            _ => command.args(["run", "--config"]).arg(&path).stdout(Stdio::null()),
        };
    })
}

/// The revgate that was built beside this program.
pub(crate) fn revgate() -> Result<PathBuf> {
    let this = env::current_exe()?;
    let path = this.with_file_name("revgate");
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("no {}; run this as `make bench`", path.display()).into())
    }
}

/// The Pods of both revisions, in the short form of the file source.
fn pods() -> String {
    let decode = DECODE.into_iter().flat_map(|(revision, ips)| ips.map(|ip| (revision, "decode", ip)));
    let prefill = PREFILL.into_iter().map(|(revision, ip)| (revision, "prefill", ip));
    decode.chain(prefill).map(|(revision, role, ip)| pod("bench", revision, role, ip)).collect()
}

/// One Ready Pod in the short form of the file source.
pub(crate) fn pod(set: &str, revision: &str, role: &str, ip: Ipv4Addr) -> String {
    format!(
        "- {{name: {role}-{}, namespace: bench, ip: {ip}, ready: true, labels: {{disaggregatedset.x-k8s.io/name: {set}, \
         disaggregatedset.x-k8s.io/revision: {revision}, disaggregatedset.x-k8s.io/role: {role}}}}}\n",
        u32::from(ip),
    )
}
