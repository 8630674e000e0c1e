//! The stage: addresses, engines, and the files that the agent reads.
//!
//! Everything lies in 127.80.0.0/16 on one port that was free, so demos do not meet, and nothing leaves the machine.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use http::{HeaderName, HeaderValue};
use revgate_engine::{Connector, Counters, Engine, EngineConfig, EngineError, Fleet};
use tempfile::TempDir;

use super::isolation::Isolation;
use crate::{cli::outcome::Failure, rollout::Step};

/// The revisions, the old one first. A letter each: real ones are hashes.
pub(super) const REVISIONS: [&str; 2] = ["A", "B"];
/// The roles, in the order of the plan.
pub(super) const ROLES: [&str; 2] = ["prefill", "decode"];
/// The header that names a revision.
pub(super) const REVISION_HEADER: HeaderName = HeaderName::from_static("x-llm-d-disagg-revision");

/// How the engines hand KV on, by the name that the configuration has for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Handover {
    /// The Prefill's reply names its blocks, and the Decode fetches them.
    #[value(name = "nixlv2")]
    NixlV2,
    /// Through a directory that all engines share.
    SharedStorage,
    /// Both legs at once, meeting at the Prefill engine.
    Sglang,
}

impl std::fmt::Display for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NixlV2 => "nixlv2",
            Self::SharedStorage => "shared-storage",
            Self::Sglang => "sglang",
        })
    }
}

/// Where one engine stands: revision, role, and its number there.
pub(super) type Place = (usize, usize, u32);

/// Addresses, engines and files.
#[derive(Debug)]
pub(super) struct Stage {
    // The engines end before their fleet.
    engines: BTreeMap<Place, Engine>,
    fleet: Fleet,
    port: u16,
    /// Of every bootstrap server, once there is one.
    bootstrap: u16,
    directory: TempDir,
    /// One listener for pairs, not one for each role.
    shared: bool,
    handover: Handover,
}

impl Stage {
    /// Takes a port and makes the directory.
    pub(super) async fn set(shared: bool, handover: Handover) -> Result<Self, Failure> {
        let directory = tempfile::Builder::new()
            .prefix("revgate-demo-")
            .tempdir()
            .map_err(|error| Failure::failed(format!("cannot make a temporary directory: {error}")))?;
        let fleet = Fleet::new().map_err(Failure::failed)?;
        let engines = BTreeMap::new();
        let mut stage = Self { engines, fleet, port: 0, bootstrap: 0, directory, shared, handover };
        stage.raise_one((0, 0, 0)).await.map_err(Failure::failed)?;
        stage.port = stage.engines.values().next().map_or(0, |engine| engine.address().port());
        Ok(stage)
    }

    /// The listener of a role; of the first one, the listener of pairs where there is one.
    pub(super) fn listener(&self, role: usize) -> SocketAddr {
        self.frontend(1, role)
    }

    /// The VIP of a role.
    pub(super) fn vip(&self, role: usize) -> SocketAddr {
        self.frontend(11, role)
    }

    /// The agent's admin server.
    pub(super) fn admin(&self) -> SocketAddr {
        self.frontend(21, 0)
    }

    fn frontend(&self, first: u8, role: usize) -> SocketAddr {
        let host = first.saturating_add(u8::try_from(role).unwrap_or(0));
        (Ipv4Addr::new(127, 80, 0, host), self.port).into()
    }

    /// The directory of the files.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Keeps the directory when the demo is over, and says where.
    pub(super) fn keep(&mut self) -> &Path {
        self.directory.disable_cleanup(true);
        self.directory.path()
    }

    /// The agent's configuration file.
    pub(super) fn config_path(&self) -> PathBuf {
        self.directory().join("config.yaml")
    }

    fn pods_path(&self) -> PathBuf {
        self.directory().join("pods.yaml")
    }

    /// Writes the configuration, as a user would.
    pub(super) fn write_config(&self, isolation: &Isolation) -> Result<(), Failure> {
        let path = self.config_path();
        fs::write(&path, self.config(isolation)).map_err(|error| cannot_write(&path, &error))
    }

    fn config(&self, isolation: &Isolation) -> String {
        let port = self.port;
        let mut text = format!(
            "\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  name: demo
  parameters:
    scope:
      labelSelector: disaggregatedset.x-k8s.io/name=demo
    revisionGating:
      mode: max-role
      requiredRoles: [prefill, decode]
---
apiVersion: revgate.dev/v1alpha1
kind: AgentConfig
source: {{file: {{path: {pods}}}}}
admin: {{address: {admin}}}
shutdown: {{delay: 0s, deadline: 5s}}
sets:
- name: demo
  ports: {{prefill: {port}, decode: {port}}}
kernel: {kernel}
",
            pods = quoted(&self.pods_path().display().to_string()),
            admin = self.admin(),
            kernel = isolation.kernel_config(),
        );
        let mut list = |list: &str, address: fn(&Self, usize) -> SocketAddr| {
            line(&mut text, format_args!("{list}:"));
            for (role, name) in ROLES.iter().enumerate() {
                line(&mut text, format_args!("- {{role: {name}, address: {}}}", address(self, role)));
            }
        };
        list("vips", Self::vip);
        if self.shared {
            let port = if self.bootstrap == 0 {
                String::new()
            } else {
                format!(", bootstrapPort: {}", self.bootstrap)
            };
            let pair = format!("{{connector: {}{port}}}", self.handover);
            line(&mut text, format_args!("listeners:\n- {{pair: {pair}, address: {}}}", self.listener(0)));
        } else {
            list("listeners", Self::listener);
        }
        text
    }

    /// Writes the Pods of a step. A reader sees the old file or the new one, never a part.
    pub(super) fn write_pods(&self, step: &Step, isolation: &Isolation) -> Result<(), Failure> {
        let path = self.pods_path();
        let fresh = path.with_extension("new");
        fs::write(&fresh, pods(step, isolation))
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|error| cannot_write(&path, &error))
    }

    /// Starts the engines of a step that are not there yet, or brings them back.
    pub(super) async fn raise(&mut self, step: &Step) -> Result<(), Failure> {
        for place in places(step) {
            self.raise_one(place).await.map_err(Failure::failed)?;
        }
        Ok(())
    }

    async fn raise_one(&mut self, place: Place) -> Result<(), EngineError> {
        if let Some(engine) = self.engines.get(&place) {
            return engine.up().await;
        }
        let (revision, role, _) = place;
        let of = |names: [&'static str; 2], index: usize| names.get(index).copied().unwrap_or_default();
        let address = SocketAddr::from((address(place), self.port));
        let mut config = EngineConfig::new(address, of(REVISIONS, revision), of(ROLES, role));
        config.name = name(place);
        config.connector = match self.handover {
            Handover::NixlV2 => Connector::Nixl,
            Handover::SharedStorage => Connector::SharedStorage(self.directory().join("storage")),
            Handover::Sglang => Connector::Sglang(self.bootstrap),
        };
        config.behaviour.reveal = true;
        config.behaviour.tokens = 4;
        config.behaviour.first_byte_delay = Duration::from_micros(500);
        // A lie that the agent has to overwrite.
        config.behaviour.headers.push((REVISION_HEADER, HeaderValue::from_static("a-wrong-revision")));
        let engine = self.fleet.start(config).await?;
        self.bootstrap = engine.bootstrap().map_or(self.bootstrap, |address| address.port());
        self.engines.insert(place, engine);
        Ok(())
    }

    /// Takes down the engines that are not in a step, as when their Pods are gone.
    pub(super) async fn lower(&self, step: &Step) -> Result<(), Failure> {
        let stay: Vec<Place> = places(step).collect();
        for (_, engine) in self.engines.iter().filter(|(place, _)| !stay.contains(place)) {
            engine.down().await.map_err(Failure::failed)?;
        }
        Ok(())
    }

    /// What the engines saw of each other: decodes with KV of another revision, legs on the wrong role, and requests
    /// that were no legs.
    pub(super) fn transgressions(&self) -> (u64, u64, u64) {
        let sum = |of: fn(&Counters) -> u64| self.engines.values().map(|engine| of(&engine.counters())).sum();
        (sum(|counters| counters.mixed), sum(|counters| counters.misplaced), sum(|counters| counters.local))
    }
}

/// Every place that a step fills.
fn places(step: &Step) -> impl Iterator<Item = Place> {
    [&step.old, &step.new].into_iter().enumerate().flat_map(|(revision, counts)| {
        counts
            .iter()
            .enumerate()
            .flat_map(move |(role, count)| (0..*count).map(move |number| (revision, role, number)))
    })
}

fn address((revision, role, number): Place) -> Ipv4Addr {
    let byte = |value: usize| u8::try_from(value).unwrap_or(u8::MAX);
    let host = byte(role).saturating_mul(100).saturating_add(u8::try_from(number).unwrap_or(u8::MAX));
    Ipv4Addr::new(127, 80, byte(revision).saturating_add(1), host.saturating_add(1))
}

/// The name of a Pod and its engine, as in `A-decode-3`.
fn name((revision, role, number): Place) -> String {
    let of = |names: [&'static str; 2], index: usize| names.get(index).copied().unwrap_or_default();
    format!("{}-{}-{number}", of(REVISIONS, revision), of(ROLES, role))
}

/// The revision of an engine by its name.
pub(super) fn revision_of(name: &str) -> Option<usize> {
    let (revision, _) = name.split_once('-')?;
    REVISIONS.iter().position(|known| *known == revision)
}

fn pods(step: &Step, isolation: &Isolation) -> String {
    let mut text = String::from("# The Ready Pods of this step, in the short form.\n");
    let mut any = false;
    for place in places(step) {
        any = true;
        let (revision, role, number) = place;
        let of = |names: [&'static str; 2], index: usize| names.get(index).copied().unwrap_or_default();
        let cgroup = match isolation.member(revision) {
            // The first decode Pod of each revision has processes that dial on their own.
            Some(path) if role == 1 && number == 0 => {
                format!(", cgroup: {}", quoted(&path.display().to_string()))
            }
            _ => String::new(),
        };
        line(
            &mut text,
            format_args!(
                "- {{name: {name}, namespace: demo, ip: {ip}, ready: true{cgroup}, labels: \
                 {{disaggregatedset.x-k8s.io/name: demo, disaggregatedset.x-k8s.io/revision: {revision}, \
                 disaggregatedset.x-k8s.io/role: {role}}}}}",
                name = name(place).to_lowercase(),
                ip = address(place),
                revision = of(REVISIONS, revision),
                role = of(ROLES, role),
            ),
        );
    }
    if any { text } else { "[]\n".to_owned() }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(arguments);
    text.push('\n');
}

/// A string that YAML takes as it is.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cluster::list, config};

    #[test]
    fn every_engine_has_an_address_and_a_name_of_its_own() {
        // The roles share the last byte of an address, a hundred each.
        let step = Step { old: vec![100; 2], new: vec![100; 2] };
        let mut addresses: Vec<Ipv4Addr> = places(&step).map(address).collect();
        let mut names: Vec<String> = places(&step).map(name).collect();
        for place in places(&step) {
            assert_eq!(revision_of(&name(place)), Some(place.0));
        }
        addresses.sort_unstable();
        addresses.dedup();
        names.sort_unstable();
        names.dedup();
        assert_eq!((addresses.len(), names.len()), (400, 400));
        assert_eq!(revision_of("a-wrong-revision"), None);
    }

    #[test]
    fn the_pod_file_is_one_that_the_agent_reads() {
        let step = Step { old: vec![2, 10], new: vec![0, 1] };
        let isolation = Isolation::with_members(std::path::Path::new("/sys/fs/cgroup/it's"));
        let listed = list::parse(&pods(&step, &isolation)).unwrap();
        assert_eq!(listed.len(), 13);
        assert!(listed.iter().all(|listed| listed.pod.is_ready() && listed.pod.ips.len() == 1));
        let members: Vec<&str> = listed
            .iter()
            .filter(|listed| listed.cgroup.is_some())
            .map(|listed| &*listed.pod.key.name)
            .collect();
        assert_eq!(members, ["a-decode-0", "b-decode-0"]);
        let none = Step { old: vec![0, 0], new: vec![0, 0] };
        assert!(list::parse(&pods(&none, &isolation)).unwrap().is_empty());
    }

    #[tokio::test]
    async fn the_configuration_is_one_that_the_agent_takes() {
        for (shared, handover, connector) in [
            (false, Handover::NixlV2, None),
            (true, Handover::NixlV2, Some(config::ConnectorKind::NixlV2)),
            (true, Handover::SharedStorage, Some(config::ConnectorKind::SharedStorage)),
            (true, Handover::Sglang, Some(config::ConnectorKind::Sglang)),
        ] {
            let listeners = if shared { 1 } else { 2 };
            let stage = Stage::set(shared, handover).await.unwrap();
            let isolation = Isolation::none("because");
            stage.write_config(&isolation).unwrap();
            let loaded = config::load(&stage.config_path(), None).unwrap();
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            let agent = &loaded.config.agent;
            assert_eq!((agent.listeners.len(), agent.vips.len()), (listeners, 2));
            for (role, listener) in agent.listeners.iter().enumerate() {
                assert_eq!(listener.address, stage.listener(role));
                let config::Serves::Pair(pair) = &listener.serves else {
                    assert_eq!(connector, None);
                    continue;
                };
                assert_eq!(Some(pair.connector), connector);
                assert_eq!(pair.bootstrap_port == stage.bootstrap, handover == Handover::Sglang);
            }
            assert_eq!(agent.admin, stage.admin());
            assert_eq!(loaded.config.sets[0].revision_header, REVISION_HEADER);
        }
    }
}
