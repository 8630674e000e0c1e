//! What an endpoint picker costs: Envoy by itself, Envoy with a trivial picker, Envoy with revgate.
//!
//! Most of the cost of external processing is Envoy's own. The trivial picker, which always names the same endpoint and
//! reads nothing, tells how much; the rest is what revgate's answer costs. Envoy and the picker share the proxy's core,
//! so the rate is what both take together.

use std::{
    env, fmt, fs,
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
};

use revgate_tests::envoy::{self, Bodies, Route};
use tempfile::TempDir;

use crate::{
    Plan, Result,
    cpu::Cores,
    http::{BODIES, Outcome, Round},
    load::{self, Load},
    server::{Answers, Kind, Server, free, start_engines, start_proxy},
};

/// Connections, each with one request in flight.
pub(crate) const CONNECTIONS: [usize; 2] = [1, 16];

/// How the harness starts itself as the trivial picker.
pub(crate) const PICKER: &str = "picker";

/// Who says where requests go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The load asks an engine itself.
    Direct,
    /// Envoy goes to the original destination, which a header that it adds itself names.
    Envoy,
    /// The trivial picker.
    Trivial(Bodies),
    /// revgate, one role.
    Revgate(Bodies),
    /// revgate, pairs: it reads the body before it answers.
    Pairs,
}

/// In the order in which they are shown.
pub(crate) const WAYS: [Way; 7] = [
    Way::Direct,
    Way::Envoy,
    Way::Trivial(Bodies::FullDuplex),
    Way::Revgate(Bodies::FullDuplex),
    Way::Pairs,
    Way::Trivial(Bodies::HeadersOnly),
    Way::Revgate(Bodies::HeadersOnly),
];

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Envoy => "Envoy alone",
            Self::Trivial(Bodies::HeadersOnly) => "trivial, headers",
            Self::Revgate(Bodies::HeadersOnly) => "revgate, headers",
            Self::Trivial(_) => "trivial",
            Self::Revgate(_) => "revgate",
            Self::Pairs => "revgate, pairs",
        })
    }
}

/// The medians over the rounds for one body size and number of connections, in the order of [`WAYS`].
#[derive(Debug)]
pub(crate) struct Row {
    /// Bytes of the bodies.
    pub(crate) body: usize,
    /// Connections.
    pub(crate) connections: usize,
    pub(crate) results: [Outcome; WAYS.len()],
}

/// Why there is nothing to measure; `None`: there is.
pub(crate) fn obstacle() -> Option<String> {
    envoy::program().is_none().then(|| "no Envoy: .ci/setup envoy installs it".to_owned())
}

/// Measures everything. `progress` hears what is being measured.
pub(crate) async fn measure(plan: &Plan, cores: Cores, progress: impl Fn(&str)) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for body in BODIES {
        let stage = Stage::set(cores, body)?;
        for connections in CONNECTIONS {
            let mut rounds = Vec::new();
            for round in 0..plan.rounds {
                progress(&format!(
                    "endpoint picker, {body} bytes, {connections} connections, round {} of {}",
                    round + 1,
                    plan.rounds
                ));
                rounds.push(stage.round(plan, body, connections, round).await?);
            }
            rows.push(Row {
                body,
                connections,
                results: WAYS.map(|way| Outcome::of(&rounds, way, Way::Direct)),
            });
        }
    }
    Ok(rows)
}

/// Engines, pickers, and an Envoy for each.
struct Stage {
    ways: Vec<(Way, SocketAddr, Option<u32>)>,
    _servers: Vec<Server>,
    _files: Vec<TempDir>,
}

impl Stage {
    fn set(cores: Cores, body: usize) -> Result<Self> {
        let program = envoy::program().ok_or("no Envoy")?;
        let port = free(Ipv4Addr::new(127, 0, 8, 1))?.port();
        let engine = SocketAddr::from(([127, 0, 8, 1], port));
        let answers = Answers::Whole(body);
        let (mut servers, mut files) = (vec![start_engines(cores, port, answers)?], Vec::new());
        let mut ways = vec![(Way::Direct, engine, None)];
        for way in WAYS.into_iter().filter(|way| *way != Way::Direct) {
            let dir = TempDir::new()?;
            let asked = free(Ipv4Addr::LOCALHOST)?;
            let task = match way {
                Way::Revgate(_) => Some("role: decode\n  endpointPicker: {}"),
                Way::Pairs => Some("endpointPicker: {}"),
                Way::Direct | Way::Envoy | Way::Trivial(_) => None,
            };
            let picker = match (way, task) {
                (_, Some(task)) => {
                    let kind = Kind::Revgate;
                    Some(start_proxy(kind, task, cores.proxy, dir.path(), asked, &[engine], answers)?)
                }
                (Way::Trivial(_), _) => Some(Server::start(cores.proxy, &env::current_exe()?, |command| {
                    let _ = command.args([PICKER, &asked.to_string(), &engine.to_string()]);
                })?),
                _ => None,
            };
            let route = match way {
                Way::Trivial(bodies) | Way::Revgate(bodies) => Route::Picker(asked, bodies),
                Way::Pairs => Route::Picker(asked, Bodies::FullDuplex),
                Way::Direct | Way::Envoy => Route::Fixed(engine),
            };
            let listen = free(Ipv4Addr::LOCALHOST)?;
            let path = dir.path().join("envoy.json");
            fs::write(&path, envoy::Plan::new(listen, route).config().to_string())?;
            let mut envoy = Server::start(cores.proxy, &program, |command| {
                let _ = command.arg("--config-path").arg(&path).args(envoy::ARGUMENTS);
                let _ = command.stdout(Stdio::null()).stderr(Stdio::null());
            })?;
            envoy.await_answer(listen, "/v1/models")?;
            ways.push((way, listen, Some(picker.as_ref().unwrap_or(&envoy).pid())));
            servers.push(envoy);
            servers.extend(picker);
            files.push(dir);
        }
        Ok(Self { ways, _servers: servers, _files: files })
    }

    /// Everyone once. Who begins changes from round to round.
    async fn round(&self, plan: &Plan, body: usize, connections: usize, round: usize) -> Result<Round<Way>> {
        let mut samples = Vec::new();
        for (way, target, pid) in self.ways.iter().cycle().skip(round % WAYS.len()).take(WAYS.len()) {
            let load = Load { target: *target, body, connections, warm_up: plan.time / 4, time: plan.time };
            let sample = load::run(load, *pid).await.map_err(|error| format!("{way}: {error}"))?;
            samples.push((*way, sample));
        }
        Ok(samples)
    }
}
