//! Engines of two revisions, an agent that picks among them, and an Envoy that asks it.
//!
//! Each scene has a network of its own in 127.0.0.0/8, so that many may be set at a time, in this process and others.

use std::{
    collections::HashMap,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
};

use revgate_engine::{Engine, EngineConfig, EngineError, Fleet};
use revgate_tests::{
    agent::{Agent, Pod},
    envoy::{self, Bodies, Envoy, Plan, Route},
    require,
};
use tokio::runtime::Handle;

use crate::client::{Client, PREFILLER, REVISION, Reply, revision_of, soon};

/// Of each revision a prefill, and so many decodes.
const DECODES: u8 = 2;
/// Where engines listen.
const PORT: u16 = 8000;
/// Where certificates lie.
const CERTIFICATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/tests/proxy_role");

/// How a scene is set up.
pub(crate) struct Setup {
    pub(crate) bodies: Bodies,
    /// The fields of `endpointPicker`.
    pub(crate) picker: &'static str,
    /// Envoy knows the engines, and tries those that are named in turn.
    pub(crate) fallback: bool,
    /// The agent is asked by TLS, and Envoy trusts this certificate.
    pub(crate) trusted: Option<&'static str>,
    /// Envoy speaks HTTP/2 to the engines.
    pub(crate) http2: bool,
    /// A request that no picker answered goes on.
    pub(crate) fails_open: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let bodies = Bodies::FullDuplex;
        Self { bodies, picker: "", fallback: false, trusted: None, http2: false, fails_open: false }
    }
}

pub(crate) struct Scene {
    pub(crate) envoy: Envoy,
    pub(crate) agent: Agent,
    pub(crate) engines: HashMap<SocketAddr, Engine>,
    net: u8,
    fleet: Fleet,
}

impl Scene {
    /// `None`: there is no Envoy here, which has been said.
    pub(crate) async fn set(setup: &Setup) -> Option<Self> {
        let Some(program) = envoy::program() else {
            require::skip("envoy", "no Envoy: .ci/setup envoy installs it");
            return None;
        };
        let fleet = Fleet::new().unwrap();
        let (net, first) = claim(&fleet).await;
        let mut engines = HashMap::from([(first.address(), first)]);
        for pod in pods(net, &["a", "b"]).into_iter().skip(1) {
            let engine = fleet.start(engine(pod, PORT)).await.unwrap();
            engines.insert(engine.address(), engine);
        }
        let picker = Self::picker_in(net, 0);
        let tls = setup.trusted.map_or_else(String::new, |_| {
            format!(
                ", tls: {{certificate: '{CERTIFICATES}/localhost.pem', key: '{CERTIFICATES}/localhost.key'}}"
            )
        });
        let fields = setup.picker;
        let line = format!("- {{name: picker, address: '{picker}', endpointPicker: {{{fields}}}{tls}}}");
        let mut agent = Agent::prepare_listeners(env!("CARGO_BIN_EXE_revgate-under-test"), &line);
        // A busy machine's answers take their time.
        agent.edit("deadline: 1s", "deadline: 50s");
        agent.pods(&pods(net, &["a", "b"]));
        agent.start();
        let mut plan = Plan::new(at(net, 201, 8080), Route::Picker(picker, setup.bodies));
        if setup.fallback {
            plan.known = engines.keys().copied().collect();
        }
        plan.trusted = setup.trusted.map(|file| Path::new(CERTIFICATES).join(file));
        (plan.http2, plan.fails_open) = (setup.http2, setup.fails_open);
        let envoy = Envoy::start(&program, &plan);
        Some(Self { envoy, agent, engines, net, fleet })
    }

    /// Where the agent may be asked: there at first, and elsewhere.
    pub(crate) fn pickers(&self) -> [String; 2] {
        [0, 1].map(|number| Self::picker_in(self.net, number).to_string())
    }

    fn picker_in(net: u8, number: u16) -> SocketAddr {
        at(net, 200, 9002 + number)
    }

    /// Only Pods of these revisions.
    pub(crate) fn only(&self, revisions: &[&'static str]) {
        if revisions.is_empty() {
            self.agent.write_pods("[]\n");
        } else {
            self.agent.pods(&pods(self.net, revisions));
        }
    }

    /// Only a prefill of `a` and a new decode on `[::1]`.
    pub(crate) async fn only_ipv6(&mut self) -> SocketAddr {
        let decode = ("a", "decode", "::1".parse().unwrap());
        let mut ports = PORT..;
        let engine = loop {
            // There is one such address, and others may be there.
            match self.fleet.start(engine(decode, ports.next().unwrap())).await {
                Ok(engine) => break engine,
                Err(EngineError::Bind { source, .. }) if source.kind() == ErrorKind::AddrInUse => {}
                Err(error) => panic!("{error}"),
            }
        };
        let address = engine.address();
        self.agent.kill();
        let ports = format!("sets:\n- {{ports: {{decode: {}}}}}\nlisteners:", address.port());
        self.agent.edit("listeners:", &ports);
        self.agent.pods(&[pods(self.net, &["a"])[0], decode]);
        self.agent.start();
        self.engines.insert(address, engine);
        address
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.envoy.address()).await
    }

    /// The first chat that is not refused for want of a picker: Envoy waits before it dials one anew that it could not
    /// reach.
    pub(crate) async fn answered(&self) -> Reply {
        soon(async {
            loop {
                let reply = self.client().await.chat(&[], crate::client::chat_of(1 << 10, false)).await;
                if reply.status != 503 {
                    break reply;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
        .await
    }

    /// Another thread's runtime: what runs there goes on while a test waits for a process.
    pub(crate) fn elsewhere(&self) -> &Handle {
        self.fleet.handle()
    }

    /// The engine that an answer is from.
    pub(crate) fn server(&self, reply: &Reply) -> &Engine {
        &self.engines[&reply.server()]
    }

    pub(crate) fn decodes(&self) -> impl Iterator<Item = &Engine> {
        self.engines.values().filter(|engine| engine.role() == "decode")
    }

    /// One decode of each revision ends, and nobody has noticed.
    pub(crate) async fn kill_decodes(&self) -> Vec<SocketAddr> {
        let mut dead = Vec::new();
        for revision in ["a", "b"] {
            let engine = self.decodes().find(|engine| engine.revision() == revision).unwrap();
            engine.down().await.unwrap();
            dead.push(engine.address());
        }
        dead
    }

    /// How many requests the engines have seen.
    pub(crate) fn served(&self) -> usize {
        self.engines.values().map(|engine| engine.recorded().len()).sum()
    }

    /// Sees that every request came to a decode with a prefill of that decode's revision, and says how many did.
    pub(crate) fn pairs(&self) -> usize {
        let mut pairs = 0;
        for engine in self.engines.values() {
            for seen in engine.recorded() {
                let prefill = seen.headers[PREFILLER].to_str().unwrap().parse().unwrap();
                assert_eq!(revision_of(prefill), engine.revision(), "mixed: {:?}", seen.headers);
                assert_eq!(engine.role(), "decode");
                pairs += 1;
            }
        }
        pairs
    }

    /// Requests in flight as the agent has them: of its listener, and at its endpoints. `None`: it does not tell.
    pub(crate) fn in_flight(&self) -> Option<(u64, u64)> {
        let calls = self.agent.metric(r#"revgate_proxy_requests_in_flight{listener="picker"}"#)?;
        let state = self.agent.state();
        let revisions = state["sets"].as_array()?.iter().filter_map(|set| set["revisions"].as_array());
        let at_endpoints = revisions.flatten().map(|revision| revision["requestsInFlight"].as_u64());
        Some((calls, at_endpoints.sum::<Option<u64>>()?))
    }
}

fn at(net: u8, last: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(127, 61, net, last), port).into()
}

fn pods(net: u8, revisions: &[&'static str]) -> Vec<Pod<'static>> {
    let ip = |last| IpAddr::V4(Ipv4Addr::new(127, 61, net, last));
    let mut pods = Vec::new();
    for revision in revisions {
        let first = if *revision == "a" { 1 } else { 101 };
        pods.push((*revision, "prefill", ip(first)));
        pods.extend((1..=DECODES).map(|at| (*revision, "decode", ip(first + at))));
    }
    pods
}

fn engine((revision, role, ip): Pod<'static>, port: u16) -> EngineConfig {
    let mut config = EngineConfig::new(SocketAddr::new(ip, port), revision, role);
    config.behaviour.reveal = true;
    config.behaviour.record = 1024;
    // What a proxy must overwrite.
    config.behaviour.headers = vec![(REVISION.parse().unwrap(), "forged".parse().unwrap())];
    config
}

/// A network that nobody else has: the first engine in it holds it.
async fn claim(fleet: &Fleet) -> (u8, Engine) {
    // Another process begins elsewhere, mostly.
    let [start, ..] = std::process::id().to_le_bytes();
    for step in 0..=u8::MAX {
        let net = start.wrapping_add(step);
        match fleet.start(engine(pods(net, &["a"])[0], PORT)).await {
            Ok(engine) => return (net, engine),
            Err(EngineError::Bind { source, .. }) if source.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!(
        "port {PORT} is taken in every network of 127.61.0.0/16, as it is where something listens on 0.0.0.0:{PORT} \
         or [::]:{PORT}: `ss -ltnp sport = :{PORT}` names it; end it for the time of these tests"
    )
}
