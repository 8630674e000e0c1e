//! A report out of a snapshot, a kernel reading and the facts beside them. Pure.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, atomic::Ordering},
};

use super::{
    EndpointReport, Enforcement, Inputs, KernelReport, LocalPodsReport, MissingVipReport, NotFenceable,
    OutcomeReport, Report, RevisionReport, RoleReport, SetReport, SourceReport, VipReport, decimal_share,
    exact_share, mode_name,
};
use crate::{
    cluster::{Pod, PodKey},
    config::{AgentGone, GatingMode},
    gating::RevisionShare,
    observe::KernelReading,
    snapshot::{Endpoint, MissingVip, RevisionView, SetView, Snapshot, Vip},
};

impl Report {
    /// Everything that the inputs show.
    #[must_use]
    pub fn of(inputs: Inputs<'_>) -> Self {
        let Inputs { snapshot, kernel, .. } = inputs;
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: inputs.node.map(str::to_owned),
            uptime_seconds: inputs.uptime.as_secs_f64(),
            ready: inputs.waiting.is_empty(),
            waiting: inputs.waiting,
            synced: snapshot.synced,
            generation: snapshot.generation,
            sets: snapshot
                .sets
                .iter()
                .enumerate()
                .map(|(index, set)| set_report(index, set, kernel))
                .collect(),
            vips: snapshot.vips.iter().map(|vip| vip_report(vip, snapshot)).collect(),
            missing_vips: snapshot.missing_vips.iter().map(|vip| missing_vip(vip, snapshot)).collect(),
            listeners: inputs.listeners.to_vec(),
            kernel: kernel_report(snapshot, kernel),
            local_pods: local_pods(snapshot, inputs.node, kernel.active),
            source: inputs.source,
            config: inputs.config,
        }
    }
}

/// What is wrong with the source and the VIPs while the agent goes on with what it has, a line each.
#[must_use]
pub fn remarks(source: &SourceReport, snapshot: &Snapshot) -> Vec<String> {
    let mut remarks = Vec::new();
    for watch in &source.watches {
        let of = [&watch.resource, &watch.namespace, &watch.name].map(String::as_str);
        let of = of.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let silence = || {
            watch
                .last_event_age_seconds
                .map_or_else(|| "nothing heard yet".to_owned(), |age| format!("nothing heard for {age:.0} s"))
        };
        match &watch.error {
            Some(error) if watch.stale => remarks.push(format!("stale view, {of}: {}; {error}", silence())),
            Some(error) => remarks.push(format!("source, {of}: {error}")),
            None if watch.stale => remarks.push(format!("stale view, {of}: {}", silence())),
            None => {}
        }
    }
    // Before the first list nothing is known of a Service.
    let missing = snapshot.missing_vips.iter().filter(|_| snapshot.synced);
    remarks.extend(missing.map(|vip| format!("no VIP for the Service {}: {}", vip.service, vip.why)));
    remarks
}

/// What a revision lacks to be eligible, in words: empty when it is.
#[must_use]
pub fn lacks(set: &SetView, share: &RevisionShare, view: Option<&RevisionView>) -> Vec<String> {
    if share.eligible {
        return Vec::new();
    }
    if set.mode == GatingMode::Disabled {
        return vec!["an endpoint".to_owned()];
    }
    let required = set.roles.iter().take(set.required).enumerate();
    required
        .filter_map(|(index, role)| {
            let ready = share.ready.get(index).copied().unwrap_or(0);
            let endpoints = view.and_then(|view| view.endpoints.get(index)).map_or(0, Vec::len);
            match (ready, endpoints) {
                (0, _) => Some(format!("a Ready {role} Pod")),
                // Followers of a group count but take no requests (C4); a bad port makes no endpoint (C6).
                (_, 0) => Some(format!("a {role} endpoint")),
                _ => None,
            }
        })
        .collect()
}

fn set_report(index: usize, set: &SetView, kernel: &KernelReading) -> SetReport {
    let distribution = &set.distribution;
    SetReport {
        name: set.name.to_string(),
        mode: mode_name(set.mode).to_owned(),
        revision_header: set.revision_header.to_string(),
        dominant_role: distribution.dominant.and_then(|role| set.roles.get(role)).map(ToString::to_string),
        required_roles: set.roles.iter().take(set.required).map(ToString::to_string).collect(),
        paused: !distribution.revisions.iter().any(|revision| revision.eligible),
        table_generation: kernel.tables.get(index).copied().flatten(),
        revisions: distribution
            .revisions
            .iter()
            .map(|share| revision_report(index, set, share, set.revision(&share.name), kernel))
            .collect(),
    }
}

fn revision_report(
    index: usize,
    set: &SetView,
    share: &RevisionShare,
    view: Option<&RevisionView>,
    kernel: &KernelReading,
) -> RevisionReport {
    let gated = set.mode != GatingMode::Disabled;
    let total = set.distribution.total();
    let roles: Vec<RoleReport> = set
        .roles
        .iter()
        .enumerate()
        .map(|(role, name)| RoleReport {
            name: name.to_string(),
            ready: share.ready.get(role).copied().unwrap_or(0),
            endpoints: view
                .and_then(|view| view.endpoints.get(role))
                .map_or_else(Vec::new, |endpoints| endpoints.iter().map(endpoint_report).collect()),
        })
        .collect();
    RevisionReport {
        name: share.name.to_string(),
        eligible: share.eligible,
        lacks: lacks(set, share, view),
        weight: share.weight,
        share: gated.then(|| exact_share(share.weight, total)),
        share_decimal: gated.then(|| decimal_share(share.weight, total)),
        slot: view.map_or(0, |view| view.slot),
        epoch: view.map_or(0, |view| view.epoch),
        members: view.map_or(0, |view| view.members.len()),
        requests_in_flight: roles
            .iter()
            .flat_map(|r| &r.endpoints)
            .map(|e| u64::from(e.requests_in_flight))
            .sum(),
        connections: view.and_then(|view| open_connections(kernel, index, view)),
        roles,
    }
}

/// Connections that the kernel steered to a revision and that are open; `None` without kernel programs.
#[must_use]
pub fn open_connections(kernel: &KernelReading, set: usize, view: &RevisionView) -> Option<u64> {
    let of_tenant =
        kernel.connections.iter().filter(|c| (c.set, c.slot, c.epoch) == (set, view.slot, view.epoch));
    let open = of_tenant.map(|c| c.opened.saturating_sub(c.closed));
    kernel.active.then(|| open.fold(0, u64::saturating_add))
}

/// Each Pod once, though it may be of several sets. Without a node's name only what is known is told.
fn local_pods(snapshot: &Snapshot, node: Option<&str>, programs: bool) -> LocalPodsReport {
    let known: HashSet<&PodKey> = snapshot.sources.iter().map(|source| &source.pod).collect();
    let (mut unknown, mut not_fenceable) = (BTreeSet::new(), BTreeSet::new());
    let revisions = snapshot.sets.iter().flat_map(|set| set.revisions.iter().chain(&set.left_out));
    let here = |pod: &&Arc<Pod>| node.is_some() && pod.node.as_deref() == node;
    for pod in revisions.flat_map(|revision| &revision.members).filter(here) {
        if let Some(class) = pod.own_kernel() {
            not_fenceable.insert(NotFenceable { pod: name_of(&pod.key), runtime_class: class.to_owned() });
        } else if programs && pod.is_ready() && !known.contains(&pod.key) {
            unknown.insert(name_of(&pod.key));
        }
    }
    LocalPodsReport {
        known: known.len(),
        unknown: unknown.into_iter().collect(),
        not_fenceable: not_fenceable.into_iter().collect(),
    }
}

fn name_of(pod: &PodKey) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

fn endpoint_report(endpoint: &Arc<Endpoint>) -> EndpointReport {
    EndpointReport {
        address: endpoint.address,
        pod: name_of(&endpoint.pod.key),
        local: endpoint.local,
        requests_in_flight: endpoint.vitals.outstanding.load(Ordering::Relaxed),
        failures: endpoint.vitals.failures.load(Ordering::Relaxed),
    }
}

fn vip_report(vip: &Vip, snapshot: &Snapshot) -> VipReport {
    let (set, role) = names(vip.set, vip.role, snapshot);
    let when_agent_gone = match vip.agent_gone {
        AgentGone::Keep => "keep",
        AgentGone::Deny => "deny",
    };
    VipReport {
        address: vip.address,
        set,
        role,
        members_only: vip.members_only,
        when_agent_gone: when_agent_gone.to_owned(),
    }
}

fn missing_vip(vip: &MissingVip, snapshot: &Snapshot) -> MissingVipReport {
    let (set, role) = names(vip.set, vip.role, snapshot);
    MissingVipReport { service: vip.service.to_string(), set, role, reason: vip.why.clone() }
}

fn names(set: usize, role: usize, snapshot: &Snapshot) -> (String, String) {
    let set = snapshot.sets.get(set);
    let role = set.and_then(|set| set.roles.get(role));
    (
        set.map(|set| set.name.to_string()).unwrap_or_default(),
        role.map(ToString::to_string).unwrap_or_default(),
    )
}

fn kernel_report(snapshot: &Snapshot, kernel: &KernelReading) -> KernelReport {
    let every_set_has_a_table =
        (0..snapshot.sets.len()).all(|i| matches!(kernel.tables.get(i), Some(Some(_))));
    KernelReport {
        mode: if kernel.active { Enforcement::Ebpf } else { Enforcement::UserSpace },
        reason: kernel.inactive_because.clone(),
        fence: kernel.fence.clone(),
        generation: kernel.acknowledged,
        in_step: kernel.active && every_set_has_a_table && kernel.acknowledged == snapshot.generation,
        connects: kernel
            .counters
            .iter()
            .map(|(counter, count)| OutcomeReport { outcome: counter.name().to_owned(), count: *count })
            .collect(),
        memory_bytes: kernel.memory,
        lease_seconds: kernel.lease.map(|lease| lease.length.as_secs_f64()),
        lease_left_seconds: kernel.lease.map(|lease| lease.left.as_secs_f64()),
        takeover_pending: kernel.takeover_pending,
        error: kernel.error.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::testing::{self, SetBuilder, reading};

    #[test]
    fn shows_shares_exactly_and_why_a_revision_is_not_eligible() {
        let snapshot = testing::snapshot(7, vec![SetBuilder::rollout().build()]);
        let report = testing::report(&snapshot, &reading(7));
        let set = &report.sets[0];
        assert_eq!(
            (set.mode.as_str(), set.dominant_role.as_deref(), set.paused),
            ("max-role", Some("decode"), false)
        );
        let by_name: Vec<_> = set
            .revisions
            .iter()
            .map(|r| (r.name.as_str(), r.eligible, r.weight, r.share.as_deref().unwrap(), r.lacks.join(", ")))
            .collect();
        assert_eq!(
            by_name,
            [
                ("5c9d7a1b", true, 6, "3/5", String::new()),
                ("7f00aa12", true, 4, "2/5", String::new()),
                ("9e11bb23", false, 0, "0", "a Ready prefill Pod".to_owned()),
            ]
        );
        assert!((set.revisions[1].share_decimal.unwrap() - 0.4).abs() < 1e-12);
        assert_eq!(set.revisions[0].roles[1].endpoints.len(), 6);
    }

    #[test]
    fn sums_the_open_connections_of_the_tenant_only() {
        let snapshot = testing::snapshot(7, vec![SetBuilder::rollout().build()]);
        let mut kernel = reading(7);
        kernel.connections = vec![
            testing::connections(0, 0, 1, 10, 4),
            testing::connections(0, 0, 1, 3, 0),
            // The tenant before, another slot, another set.
            testing::connections(0, 0, 0, 100, 0),
            testing::connections(0, 1, 1, 2, 2),
            testing::connections(1, 0, 1, 100, 0),
        ];
        let report = testing::report(&snapshot, &kernel);
        let connections: Vec<_> = report.sets[0].revisions.iter().map(|r| r.connections).collect();
        assert_eq!(connections, [Some(9), Some(0), Some(0)]);
    }

    #[test]
    fn the_kernel_is_in_step_only_with_every_table_at_the_current_generation() {
        let snapshot = testing::snapshot(7, vec![SetBuilder::rollout().build()]);
        assert!(testing::report(&snapshot, &reading(7)).kernel.in_step);
        assert!(!testing::report(&snapshot, &reading(6)).kernel.in_step, "behind");
        let missing = KernelReading { tables: vec![None], ..reading(7) };
        assert!(!testing::report(&snapshot, &missing).kernel.in_step, "a set without a table");
        let report = testing::report(&snapshot, &KernelReading::user_space("no CAP_BPF"));
        assert_eq!(report.kernel.mode, Enforcement::UserSpace);
        assert_eq!(report.kernel.reason.as_deref(), Some("no CAP_BPF"));
        assert_eq!(report.sets[0].revisions[0].connections, None);
    }

    #[test]
    fn the_members_of_this_node_are_known_or_told_by_name() {
        let mut snapshot = testing::snapshot(7, vec![SetBuilder::rollout().build()]);
        let members = &mut snapshot.sets[0].revisions[0].members;
        let names: Vec<_> = members.iter().take(4).map(|pod| name_of(&pod.key)).collect();
        for (at, (node, class)) in
            [("node-a", None), ("node-a", None), ("node-a", Some("kata-qemu")), ("node-b", Some("kata-qemu"))]
                .into_iter()
                .enumerate()
        {
            let pod = Arc::make_mut(&mut members[at]);
            (pod.node, pod.runtime_class) = (Some(node.into()), class.map(Into::into));
        }
        let pod = members[0].key.clone();
        let cgroup = crate::cluster::Cgroup { id: 9, level: 3 };
        snapshot.sources.push(crate::snapshot::SourceView { cgroup, pod, set: 0, slot: 0, epoch: 1 });
        let expected = LocalPodsReport {
            known: 1,
            unknown: vec![names[1].clone()],
            not_fenceable: vec![NotFenceable {
                pod: names[2].clone(),
                runtime_class: "kata-qemu".to_owned(),
            }],
        };
        assert_eq!(testing::report(&snapshot, &reading(7)).local_pods, expected);
        let without = testing::report(&snapshot, &KernelReading::user_space("off")).local_pods;
        assert_eq!(without.unknown, [""; 0], "nobody asks for them");
    }

    #[test]
    fn with_gating_disabled_there_are_no_shares() {
        let set = SetBuilder::new("chat").mode(GatingMode::Disabled).revision("a", [0, 3]).build();
        let report = testing::report(&testing::snapshot(1, vec![set]), &reading(1));
        let revision = &report.sets[0].revisions[0];
        assert_eq!((revision.eligible, &revision.share, revision.share_decimal), (true, &None, None));
        assert_eq!(report.sets[0].dominant_role, None);
    }

    #[test]
    fn a_set_with_nothing_eligible_is_paused() {
        let set = SetBuilder::new("chat").revision("a", [0, 0]).build();
        let report = testing::report(&testing::snapshot(1, vec![set]), &reading(1));
        assert!(report.sets[0].paused);
        assert_eq!(report.sets[0].revisions[0].lacks, ["a Ready prefill Pod", "a Ready decode Pod"]);
    }

    #[test]
    fn shares_are_in_lowest_terms() {
        let shares: Vec<_> = [(0, 0), (0, 5), (5, 5), (4, 10), (7, 9)]
            .map(|(weight, total)| exact_share(weight, total))
            .into();
        assert_eq!(shares, ["0", "0", "1", "2/5", "7/9"]);
    }

    #[test]
    fn survives_json_and_a_newer_agents_fields() {
        let report = testing::report(&testing::snapshot(7, vec![SetBuilder::rollout().build()]), &reading(7));
        let mut json = serde_json::to_value(&report).unwrap();
        json["somethingNew"] = 1.into();
        assert_eq!(serde_json::from_value::<Report>(json).unwrap(), report);
    }

    /// The names are an interface, and the file is the list of them: a change to it must be an addition.
    #[test]
    fn the_json_is_stable() {
        let mut kernel = reading(7);
        kernel.connections = vec![testing::connections(0, 0, 1, 10, 1)];
        let set = SetBuilder::new("chat")
            .revision("5c9d7a1b", [1, 3])
            .revision("7f00aa12", [1, 2])
            .revision("9e11bb23", [0, 1]);
        let mut report = testing::report(&testing::snapshot(7, vec![set.build()]), &kernel);
        report.version = "0.0.0".to_owned();
        let json = serde_json::to_string_pretty(&report).unwrap() + "\n";
        assert_eq!(json, include_str!("../../../tests/data/report.json"));
    }
}
