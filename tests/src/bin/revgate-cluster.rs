//! `make demo-cluster`: a node with revgate and simulated engines on it, to look at until Ctrl-C.

use std::{
    io,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use revgate_tests::cluster::{api::AGENT, deployed, node::Node, workload::Workload};
use tokio::signal::unix::{SignalKind, signal};

/// Starts a cluster of one node, deploys revgate and two revisions of engines, and waits for Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "revgate-cluster")]
struct Args {}

fn main() -> ExitCode {
    let Args {} = Args::parse();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("revgate-cluster: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "tells a person how long it took")]
fn run() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From the start: whenever it comes, everything is removed.
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let start = Instant::now();
    println!("starting a node: etcd, API server, controllers, containerd, kubelet, kube-proxy (about 30 s)");
    let Some(node) = deployed::node() else { return Ok(()) };
    println!("applying deploy/base");
    deployed::agent(&node);
    println!("deploying engines of revisions a and b, and clients");
    let on = Workload::on(&node);
    on.deploy_all(&[("prefill", "a", 2), ("decode", "a", 3), ("prefill", "b", 1), ("decode", "b", 1)]);
    let listeners = deployed::cluster_ip(&node, AGENT, "revgate");
    let through = [8081, 8082].map(|port| format!("{listeners}:{port}"));
    on.client("coordinator", &["--prefill", &through[0], "--decode", &through[1]]);
    on.client("by-weight", &["--decode", "$(DECODE_SERVICE_HOST):8000"]);
    let _ = on.goes_on("coordinator", 1);
    println!("{}", deployed::revgate(&node, &["status"]));
    println!("{}", to_try(&node, start.elapsed()));
    runtime.block_on(async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    });
    println!("removing everything");
    drop(node);
    Ok(())
}

fn to_try(node: &Node, took: Duration) -> String {
    let kubectl = node.kubectl().command(&[]);
    let words = std::iter::once(kubectl.get_program()).chain(kubectl.get_args());
    let alias = words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
    format!(
        "ready after {} s. In another terminal, as root:

  alias kc='{alias}'
  kc get pods -A -o wide
  kc -n {AGENT} exec ds/revgate -- revgate status --watch
  kc -n {AGENT} exec ds/revgate -- revgate check
  kc -n {AGENT} logs ds/revgate -f
  kc -n llm scale deployment decode-b --replicas 3          # shares follow Decode, the largest role
  kc -n llm scale deployment prefill-b --replicas 0         # b gets nothing, however many Decode Pods it has
  kc -n llm exec by-weight -- /bin/busybox cat /run/reports/by-weight.json
  kc -n {AGENT} rollout restart ds/revgate                  # the clients do not notice

Files and logs of the node: {}
Ctrl-C removes everything.",
        took.as_secs(),
        node.folder().display()
    )
}
