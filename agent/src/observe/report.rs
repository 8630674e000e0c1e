//! The report: everything about a running agent, as stable JSON.
//!
//! It is what `/debug/state` answers and what `status` and `explain` read, so its field names are an interface: they
//! are added to, never renamed, and a reader ignores what it does not know. Ages are in seconds; a time is in seconds
//! since 1970; `null` means "does not apply" or "not known", never 0.

mod build;

pub use build::{lacks, open_connections, remarks};

use std::{net::SocketAddr, time::Duration};

use serde::{Deserialize, Serialize};

use super::KernelReading;
use crate::{config::GatingMode, snapshot::Snapshot};

/// What a report is made of.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// The snapshot.
    pub snapshot: &'a Snapshot,
    /// The kernel part.
    pub kernel: &'a KernelReading,
    /// Why the agent is not ready; empty: it is.
    pub waiting: Vec<String>,
    /// The Pod source.
    pub source: SourceReport,
    /// The configuration.
    pub config: ConfigReport,
    /// The listeners.
    pub listeners: &'a [ListenerReport],
    /// The agent's node.
    pub node: Option<&'a str>,
    /// How long the agent has run.
    pub uptime: Duration,
}

/// A running agent at one moment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The agent's version.
    pub version: String,
    /// The node that it runs on, where it was told.
    pub node: Option<String>,
    /// How long it has run.
    pub uptime_seconds: f64,
    /// Ready, as `/readyz` says.
    pub ready: bool,
    /// Why it is not ready; empty when it is.
    pub waiting: Vec<String>,
    /// The first Pod list has been applied.
    pub synced: bool,
    /// The generation of the snapshot in user space.
    pub generation: u64,
    /// The sets, by index.
    pub sets: Vec<SetReport>,
    /// VIPs steered in the kernel.
    pub vips: Vec<VipReport>,
    /// VIPs that are nowhere at present, so that nobody steers what goes to their Services.
    #[serde(default)]
    pub missing_vips: Vec<MissingVipReport>,
    /// Role listeners.
    pub listeners: Vec<ListenerReport>,
    /// The kernel part.
    pub kernel: KernelReport,
    /// The members that run on this node.
    #[serde(default)]
    pub local_pods: LocalPodsReport,
    /// The Pod source.
    pub source: SourceReport,
    /// The configuration.
    pub config: ConfigReport,
}

/// The members that run on this node, and whether the kernel programs know their connects from those of others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalPodsReport {
    /// Known by their cgroups.
    pub known: usize,
    /// Ready on this node, and without a cgroup that is known: their connects are like anybody's. As `namespace/name`.
    pub unknown: Vec<String>,
    /// With a kernel or a network stack of their own: their connects pass by the hooks.
    pub not_fenceable: Vec<NotFenceable>,
}

/// A Pod whose connects the kernel programs never see.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotFenceable {
    /// As `namespace/name`.
    pub pod: String,
    /// Its runtime class, which tells.
    pub runtime_class: String,
}

/// One set.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetReport {
    /// Its name.
    pub name: String,
    /// `max-role`, `sum` or `disabled`.
    pub mode: String,
    /// The header that names a revision.
    pub revision_header: String,
    /// The role by whose Ready Pods revisions are weighed; `null` while nothing is eligible or with `disabled`.
    pub dominant_role: Option<String>,
    /// The roles that a revision needs to be eligible, in the order that breaks ties.
    pub required_roles: Vec<String>,
    /// Nothing is eligible: every request is refused.
    pub paused: bool,
    /// The generation of its kernel table; `null` without one.
    pub table_generation: Option<u64>,
    /// Every revision that has a member, sorted by name.
    pub revisions: Vec<RevisionReport>,
}

/// One revision of a set.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionReport {
    /// Its name.
    pub name: String,
    /// It may get requests.
    pub eligible: bool,
    /// What it lacks to be eligible, in words: empty when it is.
    pub lacks: Vec<String>,
    /// Its weight.
    pub weight: u32,
    /// Its share of new requests as an exact fraction in lowest terms, such as `2/5`; `null` with `disabled`.
    pub share: Option<String>,
    /// The same as a decimal, for charts.
    pub share_decimal: Option<f64>,
    /// Its slot in the kernel tables.
    pub slot: u16,
    /// The epoch of its tenancy of that slot.
    pub epoch: u32,
    /// Its Pods, Ready or not.
    pub members: usize,
    /// Requests of this agent that are in flight to it.
    pub requests_in_flight: u64,
    /// Connections that the kernel steered to it and that are open; `null` without kernel programs.
    pub connections: Option<u64>,
    /// By role, in the set's order.
    pub roles: Vec<RoleReport>,
}

/// One role of a revision.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleReport {
    /// Its name.
    pub name: String,
    /// Ready Pods.
    pub ready: u32,
    /// Places that take requests, sorted by address.
    pub endpoints: Vec<EndpointReport>,
}

/// One endpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReport {
    /// Where.
    pub address: SocketAddr,
    /// Its Pod, as `namespace/name`.
    pub pod: String,
    /// On the agent's node.
    pub local: bool,
    /// Requests of this agent that are in flight to it.
    pub requests_in_flight: u32,
    /// Failures in a row.
    pub failures: u32,
}

/// A VIP.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VipReport {
    /// Where.
    pub address: SocketAddr,
    /// Its set.
    pub set: String,
    /// Its role.
    pub role: String,
    /// Only members of the set are steered.
    pub members_only: bool,
    /// What it does once no agent has run for longer than the lease: `keep` or `deny`.
    #[serde(default)]
    pub when_agent_gone: String,
}

/// A VIP that is nowhere.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingVipReport {
    /// Its Service, as `namespace/name`.
    pub service: String,
    /// Its set.
    pub set: String,
    /// Its role.
    pub role: String,
    /// Why.
    pub reason: String,
}

/// A listener.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerReport {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its set.
    pub set: String,
    /// Its role.
    pub role: String,
    /// It serves TLS.
    pub tls: bool,
}

/// How revisions are kept apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    /// By kernel programs, behind the HTTP layer.
    Ebpf,
    /// By the HTTP layer alone (K12).
    UserSpace,
}

/// The kernel part.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelReport {
    /// `ebpf` or `user-space`.
    pub mode: Enforcement,
    /// Why not `ebpf`.
    pub reason: Option<String>,
    /// The fence: `off`, `audit` or `enforce`.
    pub fence: String,
    /// The last snapshot generation that is in force in all tables.
    pub generation: u64,
    /// That is the generation in user space, and every set has a table.
    pub in_step: bool,
    /// Connects by outcome; empty without kernel programs.
    pub connects: Vec<OutcomeReport>,
    /// What the tables take.
    pub memory_bytes: u64,
    /// How long the tables count as current after a sign of life; `null` without kernel programs.
    #[serde(default)]
    pub lease_seconds: Option<f64>,
    /// What is left of that; 0: VIPs that deny without an agent do so now.
    #[serde(default)]
    pub lease_left_seconds: Option<f64>,
    /// Programs of an agent before are still attached, on its tables, until this one has published.
    #[serde(default)]
    pub takeover_pending: bool,
    /// What could not be read.
    pub error: Option<String>,
}

/// One outcome of connects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeReport {
    /// Its word, as in `steered_pin`.
    pub outcome: String,
    /// How many there were.
    pub count: u64,
}

/// The Pod source.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceReport {
    /// Its kind, as in `file`.
    pub kind: String,
    /// Where it reads.
    pub location: String,
    /// How long ago the watch that is silent longest was last heard of; `null`: not yet.
    pub last_event_age_seconds: Option<f64>,
    /// Errors so far.
    pub errors: u64,
    /// What is wrong with it now.
    pub last_error: Option<String>,
    /// Its watches; a file is one.
    #[serde(default)]
    pub watches: Vec<WatchReport>,
}

/// One watch of the Pod source.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchReport {
    /// `file`, or a resource as RBAC rules have it.
    pub resource: String,
    /// The namespace; empty: all, or none.
    pub namespace: String,
    /// The object; empty: all.
    pub name: String,
    /// How long ago it was last heard of; `null`: not yet.
    pub last_event_age_seconds: Option<f64>,
    /// That is longer than `source.kubernetes.staleAfter`.
    pub stale: bool,
    /// What is wrong with it now.
    pub error: Option<String>,
}

/// How the last reload went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReloadResult {
    /// There was none.
    None,
    /// The changed file is in force.
    Succeeded,
    /// The changed file was refused; the configuration before it is in force.
    Failed,
}

/// The configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigReport {
    /// Its file.
    pub path: String,
    /// How the last reload went.
    pub last_reload: ReloadResult,
    /// Why it was refused.
    pub error: Option<String>,
    /// Since when what is in force is in force.
    pub in_force_since: f64,
    /// Reloads that came into force.
    pub reloads_succeeded: u64,
    /// Reloads that were refused.
    pub reloads_failed: u64,
}

/// The word for a mode, as the configuration has it.
#[must_use]
pub fn mode_name(mode: GatingMode) -> &'static str {
    match mode {
        GatingMode::MaxRole => "max-role",
        GatingMode::Sum => "sum",
        GatingMode::Disabled => "disabled",
    }
}

/// `weight / total` as a fraction in lowest terms: `0`, `1`, or as in `2/5`.
#[must_use]
pub fn exact_share(weight: u32, total: u64) -> String {
    let weight = u64::from(weight);
    let divisor = greatest_common_divisor(weight, total);
    if weight == 0 || divisor == 0 {
        return "0".to_owned();
    }
    match (weight / divisor, total / divisor) {
        (1, 1) => "1".to_owned(),
        (weight, total) => format!("{weight}/{total}"),
    }
}

/// `weight / total`, 0 of nothing. For showing only: no float decides anything.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "shown, not decided upon; a sum of Pods stays below 2^52")]
pub fn decimal_share(weight: u32, total: u64) -> f64 {
    if total == 0 { 0.0 } else { f64::from(weight) / total as f64 }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
