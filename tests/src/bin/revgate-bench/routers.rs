//! The routers from `PyPI` that the pair listener is measured beside, in an environment of the benchmark's own.
//!
//! `.ci/setup bench` makes the environment. Both routers are set up for the job and nothing else: round robin, warnings
//! only, no retries that the load would not see.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    Result,
    server::{DECODE, Kind, PREFILL, Server, free},
};

/// Where they are installed.
const ENVIRONMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench-venv");

fn program(name: &str) -> Result<PathBuf> {
    let path = Path::new(ENVIRONMENT).join("bin").join(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("no {}: .ci/setup bench installs it", path.display()).into())
    }
}

/// Starts one of them before the engines on that port.
pub(crate) fn start(kind: Kind, core: usize, listen: SocketAddr, port: u16) -> Result<Server> {
    let program = program(if kind == Kind::Smg { "smg" } else { "vllm-router" })?;
    let metrics = free([127, 0, 0, 1].into())?;
    Server::start(core, &program, |command| {
        if kind == Kind::Smg {
            command.args(["launch", "--pd-disaggregation", "--backend", "vllm", "--log-level", "error"]);
        } else {
            command.args(["--vllm-pd-disaggregation", "--log-level", "error"]);
        }
        // Those of the largest measurement, and some.
        command.args(["--max-concurrent-requests", "4096"]);
        command.args(["--policy", "round_robin", "--host", &listen.ip().to_string()]);
        command.args(["--port", &listen.port().to_string()]);
        command.args(["--prometheus-host", "127.0.0.1", "--prometheus-port", &metrics.port().to_string()]);
        for (_, ip) in PREFILL {
            command.args(["--prefill", &format!("http://{ip}:{port}")]);
        }
        for ip in DECODE.into_iter().flat_map(|(_, ips)| ips) {
            command.args(["--decode", &format!("http://{ip}:{port}")]);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
    })
}

/// What is installed of them.
pub(crate) fn versions() -> String {
    let packages = Path::new(ENVIRONMENT).join("bin/pip");
    let listed = Command::new(packages).args(["list", "--format", "freeze"]).output();
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let known = text.lines().filter(|line| line.starts_with("vllm-router=") || line.starts_with("smg="));
    let known: Vec<String> = known.map(|line| line.replace("==", " ")).collect();
    if known.is_empty() { "no vllm-router, no smg".to_owned() } else { known.join(", ") }
}
