//! Hand-made snapshots and reports for the tests of this module and of the commands.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;
use http::HeaderName;
use revgate_common::counter::Counter;

use super::{
    KernelReader, KernelReading, Readiness, Report, Scene, SourceHealth,
    facts::ReloadHealth,
    kernel::{EndpointConnections, Lease},
    report::{ConfigReport, Inputs, ListenerReport, ReloadResult, SourceReport},
};
use crate::{
    cluster::{Pod, PodKey},
    config::GatingMode,
    gating::{Census, Distribution, Gating},
    snapshot::{Endpoint, RevisionView, SetView, Snapshot, Vip, Vitals},
};

/// A set with the required roles prefill and decode, out of Ready counts.
pub(crate) struct SetBuilder {
    name: &'static str,
    mode: GatingMode,
    revisions: Vec<(&'static str, Vec<u32>)>,
}

impl SetBuilder {
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, mode: GatingMode::MaxRole, revisions: Vec::new() }
    }

    /// Two eligible revisions, 6 to 4, and one that lacks prefill.
    pub(crate) fn rollout() -> Self {
        Self::new("chat")
            .revision("5c9d7a1b", [2, 6])
            .revision("7f00aa12", [1, 4])
            .revision("9e11bb23", [0, 3])
    }

    pub(crate) fn mode(mut self, mode: GatingMode) -> Self {
        self.mode = mode;
        self
    }

    /// Ready Pods in prefill and decode, each with one endpoint. Add revisions sorted by name.
    pub(crate) fn revision(mut self, name: &'static str, ready: [u32; 2]) -> Self {
        self.revisions.push((name, ready.to_vec()));
        self
    }

    pub(crate) fn build(self) -> SetView {
        let mut census = Census::new(2);
        let mut views = Vec::new();
        for (slot, (name, ready)) in self.revisions.into_iter().enumerate() {
            let name: Arc<str> = name.into();
            census.mention(&name);
            let slot = u16::try_from(slot).unwrap();
            let mut view = RevisionView {
                name: Arc::clone(&name),
                slot,
                epoch: 1,
                endpoints: Vec::new(),
                members: Vec::new(),
            };
            for (role, count) in ready.into_iter().enumerate() {
                let mut endpoints = Vec::new();
                for n in 0..count {
                    census.count(&name, role, 1);
                    let ip = IpAddr::V4(Ipv4Addr::new(
                        127,
                        u8::try_from(slot).unwrap() + 1,
                        u8::try_from(role).unwrap(),
                        u8::try_from(n).unwrap() + 1,
                    ));
                    let pod = pod(&format!("{name}-{role}-{n}"), ip);
                    view.members.push(Arc::clone(&pod));
                    endpoints.push(Arc::new(Endpoint {
                        address: SocketAddr::new(ip, 8000),
                        pod,
                        revision: Arc::clone(&name),
                        role,
                        local: false,
                        vitals: Arc::new(Vitals::default()),
                    }));
                }
                view.endpoints.push(endpoints);
            }
            views.push(view);
        }
        SetView {
            name: self.name.into(),
            mode: self.mode,
            revision_header: HeaderName::from_static("x-llm-d-disagg-revision"),
            selectors: Arc::new([]),
            roles: Arc::new(["prefill".into(), "decode".into()]),
            required: 2,
            distribution: Distribution::of(&census, Gating { mode: self.mode, required: 2 }),
            revisions: views,
            left_out: Vec::new(),
        }
    }
}

fn pod(name: &str, ip: IpAddr) -> Arc<Pod> {
    Arc::new(Pod {
        ips: vec![ip],
        ready: true,
        ..Pod::new(PodKey { namespace: "default".into(), name: name.into(), uid: name.into() })
    })
}

pub(crate) fn snapshot(generation: u64, sets: Vec<SetView>) -> Snapshot {
    let vips = vec![Vip {
        address: "127.0.90.1:80".parse().unwrap(),
        set: 0,
        role: 1,
        members_only: false,
        agent_gone: crate::config::AgentGone::Keep,
    }];
    Snapshot { generation, synced: true, sets, vips, missing_vips: Vec::new(), sources: Vec::new() }
}

/// Kernel programs at work, with the tables of one set at that generation.
pub(crate) fn reading(generation: u64) -> KernelReading {
    KernelReading {
        active: true,
        fence: "enforce".to_owned(),
        acknowledged: generation,
        tables: vec![Some(generation)],
        counters: vec![(Counter::SteeredPin, 41), (Counter::DeniedFence, 2)],
        memory: 3 << 20,
        lease: Some(Lease { length: Duration::from_secs(30), left: Duration::from_secs(21) }),
        ..KernelReading::default()
    }
}

pub(crate) fn connections(
    set: usize,
    slot: u16,
    epoch: u32,
    opened: u64,
    closed: u64,
) -> EndpointConnections {
    EndpointConnections { endpoint: "127.1.1.1:8000".parse().unwrap(), set, slot, epoch, opened, closed }
}

pub(crate) fn listener() -> ListenerReport {
    ListenerReport {
        name: "decode".to_owned(),
        address: "127.0.0.1:8081".parse().unwrap(),
        set: "chat".to_owned(),
        role: "decode".to_owned(),
        tls: false,
    }
}

pub(crate) fn report(snapshot: &Snapshot, kernel: &KernelReading) -> Report {
    Report::of(Inputs {
        snapshot,
        kernel,
        waiting: Vec::new(),
        source: SourceReport {
            kind: "file".to_owned(),
            location: "/etc/revgate/pods.yaml".to_owned(),
            last_event_age_seconds: Some(2.0),
            errors: 0,
            last_error: None,
            watches: Vec::new(),
        },
        config: ConfigReport {
            path: "/etc/revgate/config.yaml".to_owned(),
            last_reload: ReloadResult::None,
            error: None,
            in_force_since: 1_700_000_000.0,
            reloads_succeeded: 0,
            reloads_failed: 0,
        },
        listeners: &[listener()],
        node: Some("node-a"),
        uptime: Duration::from_secs(75),
    })
}

/// A reader that always reads the same.
#[derive(Debug)]
struct Fixed(KernelReading);

impl KernelReader for Fixed {
    fn read(&self) -> KernelReading {
        self.0.clone()
    }
}

/// A running agent with kernel programs in step.
#[expect(clippy::disallowed_methods, reason = "a test is an edge")]
pub(crate) fn scene(snapshot: Snapshot) -> Arc<Scene> {
    Arc::new(Scene {
        kernel: Box::new(Fixed(reading(snapshot.generation))),
        published: Arc::new(ArcSwap::from_pointee(snapshot)),
        readiness: Readiness::default(),
        source: Arc::new(SourceHealth::new("file", "/etc/revgate/pods.yaml", None)),
        reload: Arc::new(ReloadHealth::new("/etc/revgate/config.yaml", SystemTime::now())),
        listeners: arc_swap::ArcSwap::from_pointee(vec![listener()]),
        node: Some("node-a".into()),
        started: Instant::now(),
        started_at: SystemTime::now(),
    })
}
