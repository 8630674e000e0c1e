//! What the optimiser learns from (deploy/profile): every door of revgate under load, for a moment each.

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use revgate_tests::envoy::Bodies;
use tempfile::TempDir;

use crate::{
    Plan, Result,
    cpu::Cores,
    extproc::PICKER,
    gateway::Gateway,
    http::{BODIES, CONNECTIONS},
    load::{self, Load},
    server::{Answers, Bench, Job, Kind, Server, free, start_proxy},
    stream,
};

/// Streams that are open at the same time.
const STREAMS: usize = 32;

/// Requests at a time that a picker is asked about.
const REQUESTS: [usize; 2] = [1, 16];

/// Serves each kind of load for the plan's time.
pub(crate) async fn run(plan: &Plan, cores: Cores, progress: impl Fn(&str)) -> Result<()> {
    for job in [Job::Role, Job::Pair] {
        for body in BODIES {
            progress(&format!("{job:?}, {body} bytes"));
            let (_bench, target) = revgate(cores, job, Answers::Whole(body))?;
            for connections in CONNECTIONS {
                let warm_up = Duration::ZERO;
                load::run(Load { target, body, connections, warm_up, time: plan.time }, None).await?;
            }
        }
        progress(&format!("{job:?}, streams"));
        let (_bench, target) = revgate(cores, job, Answers::Events)?;
        stream::watch(plan, target, None, STREAMS).await?;
    }
    progress("pickers");
    // Nobody dials the endpoint that they name.
    let engine = SocketAddr::from((Ipv4Addr::new(127, 0, 8, 1), 8000));
    // For a pair the body is read.
    for (task, modes) in [
        ("role: decode\n  endpointPicker: {}", &[Bodies::FullDuplex, Bodies::HeadersOnly][..]),
        ("endpointPicker: {}", &[Bodies::FullDuplex]),
    ] {
        let (dir, listen) = (TempDir::new()?, free(Ipv4Addr::LOCALHOST)?);
        let _picker =
            start_proxy(Kind::Revgate, task, cores.proxy, dir.path(), listen, &[engine], Answers::Whole(0))?;
        ask(plan, listen, modes).await?;
    }
    let listen = free(Ipv4Addr::LOCALHOST)?;
    let _picker = Server::start(cores.proxy, &env::current_exe()?, |command| {
        let _ = command.args([PICKER, &listen.to_string(), &engine.to_string()]);
    })?;
    ask(plan, listen, &[Bodies::FullDuplex, Bodies::HeadersOnly]).await
}

/// An agent alone before its engines, and where it listens.
fn revgate(cores: Cores, job: Job, answers: Answers) -> Result<(Bench, SocketAddr)> {
    let bench = Bench::start(cores, job, &[Kind::Revgate], answers)?;
    let (target, _) = bench.target(Kind::Revgate).ok_or("no revgate")?;
    Ok((bench, target))
}

/// Asks a picker in these ways.
async fn ask(plan: &Plan, picker: SocketAddr, modes: &[Bodies]) -> Result<()> {
    for body in BODIES {
        let body = Bytes::from(load::body(body, false));
        let gateway = Gateway::connect(picker, &body).await?;
        for (requests, mode) in
            REQUESTS.into_iter().flat_map(|count| modes.iter().map(move |mode| (count, mode)))
        {
            gateway.run(requests, &body, *mode == Bodies::HeadersOnly, plan.time).await?;
        }
    }
    Ok(())
}
