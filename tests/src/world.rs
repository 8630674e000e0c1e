//! Snapshots made to measure, for tests of the kernel side.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use revgate::{
    cluster::{Cgroup, Pod, PodKey, pod::ContainerPort},
    config::{AgentGone, GatingMode},
    gating::{Census, Distribution, Gating},
    snapshot::{Endpoint, RevisionView, SetView, Snapshot, SourceView, Vip, Vitals},
};

/// All sets at one moment.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The sets.
    pub sets: Vec<Set>,
    /// The VIPs.
    pub vips: Vec<Vip>,
    /// Local Pods.
    pub sources: Vec<SourceView>,
}

/// A set. All its roles are required.
#[derive(Clone, Debug)]
pub struct Set {
    /// Its name.
    pub name: String,
    /// How it is gated.
    pub mode: GatingMode,
    /// Its roles.
    pub roles: Vec<String>,
    /// Its revisions, sorted by name.
    pub revisions: Vec<Revision>,
}

/// A revision.
#[derive(Clone, Debug, Default)]
pub struct Revision {
    /// Its name.
    pub name: String,
    /// Its slot.
    pub slot: u16,
    /// Its epoch.
    pub epoch: u32,
    /// Its endpoints by role, one Pod each.
    pub endpoints: Vec<Vec<SocketAddr>>,
    /// Its members that are no endpoints.
    pub others: Vec<IpAddr>,
    /// Its Pods share their node's address.
    pub host_network: bool,
    /// Ports that its Pods declare.
    pub declared: Vec<u16>,
}

impl World {
    /// One set `chat` with the roles prefill and decode.
    #[must_use]
    pub fn of(revisions: Vec<Revision>) -> Self {
        let set = Set {
            name: "chat".into(),
            mode: GatingMode::MaxRole,
            roles: vec!["prefill".into(), "decode".into()],
            revisions,
        };
        Self { sets: vec![set], ..Self::default() }
    }

    /// With one more VIP of set 0.
    #[must_use]
    pub fn vip(mut self, address: SocketAddr, role: usize, members_only: bool) -> Self {
        self.vips.push(Vip { address, set: 0, role, members_only, agent_gone: AgentGone::Keep });
        self
    }

    /// With a local Pod of a revision of set 0.
    ///
    /// # Panics
    ///
    /// When there is no such revision.
    #[must_use]
    pub fn source(mut self, cgroup: Cgroup, revision: &str) -> Self {
        let of = self.sets[0].revisions.iter().find(|r| r.name == revision).expect("a known revision");
        self.sources.push(source(cgroup, 0, of.slot, of.epoch));
        self
    }

    /// The snapshot.
    #[must_use]
    pub fn snapshot(&self, generation: u64) -> Snapshot {
        Snapshot {
            generation,
            synced: true,
            sets: self.sets.iter().map(Set::view).collect(),
            vips: self.vips.clone(),
            missing_vips: Vec::new(),
            sources: self.sources.clone(),
        }
    }
}

/// A local Pod of a tenant. Its name is its cgroup's.
#[must_use]
pub fn source(cgroup: Cgroup, set: usize, slot: u16, epoch: u32) -> SourceView {
    let name: Arc<str> = format!("pod-of-{}", cgroup.id).into();
    SourceView {
        cgroup,
        pod: PodKey { namespace: "test".into(), name: Arc::clone(&name), uid: name },
        set,
        slot,
        epoch,
    }
}

impl Revision {
    /// With prefill and decode endpoints.
    #[must_use]
    pub fn new(name: &str, slot: u16, epoch: u32, endpoints: &[&[SocketAddr]]) -> Self {
        let endpoints = endpoints.iter().map(|of_role| of_role.to_vec()).collect();
        Self { name: name.into(), slot, epoch, endpoints, ..Self::default() }
    }

    fn pod(&self, ip: IpAddr) -> Arc<Pod> {
        Arc::new(Pod {
            ips: vec![ip],
            ready: true,
            host_network: self.host_network,
            ports: self.declared.iter().map(|number| ContainerPort { name: None, number: *number }).collect(),
            ..Pod::new(PodKey {
                namespace: "test".into(),
                name: format!("pod-{ip}").into(),
                uid: ip.to_string().into(),
            })
        })
    }

    fn view(&self) -> RevisionView {
        let mut members: Vec<Arc<Pod>> = self.others.iter().map(|ip| self.pod(*ip)).collect();
        let mut endpoint = |role: usize, address: SocketAddr| {
            let pod = self.pod(address.ip());
            members.push(Arc::clone(&pod));
            Arc::new(Endpoint {
                address,
                pod,
                revision: self.name.as_str().into(),
                role,
                local: false,
                vitals: Arc::new(Vitals::default()),
            })
        };
        let endpoints = self
            .endpoints
            .iter()
            .enumerate()
            .map(|(role, of_role)| {
                let mut sorted = of_role.clone();
                sorted.sort_unstable();
                sorted.into_iter().map(|address| endpoint(role, address)).collect()
            })
            .collect();
        RevisionView {
            name: self.name.as_str().into(),
            slot: self.slot,
            epoch: self.epoch,
            endpoints,
            members,
        }
    }
}

impl Set {
    fn view(&self) -> SetView {
        let mut census = Census::new(self.roles.len());
        for revision in &self.revisions {
            let name = revision.name.as_str().into();
            census.mention(&name);
            for (role, of_role) in revision.endpoints.iter().enumerate() {
                for _ in of_role {
                    census.count(&name, role, 1);
                }
            }
        }
        SetView {
            name: self.name.as_str().into(),
            mode: self.mode,
            revision_header: http::HeaderName::from_static("x-llm-d-disagg-revision"),
            selectors: Arc::from([]),
            roles: self.roles.iter().map(|role| role.as_str().into()).collect(),
            required: self.roles.len(),
            distribution: Distribution::of(&census, Gating { mode: self.mode, required: self.roles.len() }),
            revisions: self.revisions.iter().map(Revision::view).collect(),
            left_out: Vec::new(),
        }
    }
}
