//! Series of the published snapshot: counts, eligibility, shares.

use std::{fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::{PLUGIN_TYPE, families::Families};
use crate::{
    config::GatingMode,
    gating::RevisionShare,
    observe::{
        Scene,
        report::{decimal_share, mode_name},
    },
    snapshot::{SetView, Snapshot},
};

/// `revgate_*` series of the snapshot.
#[derive(Debug)]
pub(super) struct GatingSeries(pub(super) Arc<Scene>);

impl Collector for GatingSeries {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.0.published.load_full();
        let mut families = Families(encoder);
        families.gauge(
            "snapshot_generation",
            "Generation of the published snapshot; counts up with every publication",
            snapshot.generation,
        )?;
        families.gauge("synced", "1 once the first Pod list has been applied", u32::from(snapshot.synced))?;
        families.gauges(
            "ready_pods",
            "Ready Pods that count for a revision and role",
            by_role(&snapshot, |_, share, role| share.ready.get(role).copied().unwrap_or(0)),
        )?;
        families.gauges(
            "endpoints",
            "Places that take requests, of a revision and role",
            by_role(&snapshot, |set, share, role| {
                let view = set.revision(&share.name);
                let count = view.and_then(|view| view.endpoints.get(role)).map_or(0, Vec::len);
                u32::try_from(count).unwrap_or(u32::MAX)
            }),
        )?;
        families.gauges(
            "revision_eligible",
            "1 if the revision has a Ready Pod and an endpoint in every required role",
            by_revision(&snapshot).map(|(set, share)| (labels(set, share), u32::from(share.eligible))),
        )?;
        families.gauges(
            "revision_share",
            "Share of new requests that the revision gets, 0 to 1",
            by_revision(&snapshot).filter(|(set, _)| set.mode != GatingMode::Disabled).map(|(set, share)| {
                (labels(set, share), decimal_share(share.weight, set.distribution.total()))
            }),
        )
    }
}

/// llm-d's share series.
#[derive(Debug)]
pub(super) struct LlmdShares(pub(super) Arc<Scene>);

impl Collector for LlmdShares {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.0.published.load_full();
        let series = by_revision(&snapshot).map(|(set, share)| {
            let mode = if set.mode == GatingMode::Disabled { "" } else { mode_name(set.mode) };
            let labels = [
                ("plugin_type", PLUGIN_TYPE),
                ("plugin_name", &set.name),
                ("mode", mode),
                ("revision", &share.name),
            ];
            (labels, decimal_share(share.weight, set.distribution.total()))
        });
        Families(encoder).gauges(
            "llm_d_epp_disaggregatedset_revision_gating_share",
            "Share of new requests that the revision gets, 0 to 1; 0 while a required role is missing",
            series,
        )
    }
}

fn by_revision(snapshot: &Snapshot) -> impl Iterator<Item = (&SetView, &RevisionShare)> {
    snapshot.sets.iter().flat_map(|set| set.distribution.revisions.iter().map(move |share| (set, share)))
}

fn by_role(
    snapshot: &Snapshot,
    value: impl Fn(&SetView, &RevisionShare, usize) -> u32,
) -> impl Iterator<Item = ([(&'static str, &str); 3], u32)> {
    by_revision(snapshot)
        .flat_map(|(set, share)| {
            set.roles.iter().enumerate().map(move |(role, name)| (set, share, role, name))
        })
        .map(move |(set, share, role, name)| {
            let [of_set, of_revision] = labels(set, share);
            ([of_set, of_revision, ("role", name.as_ref())], value(set, share, role))
        })
}

fn labels<'s>(set: &'s SetView, share: &'s RevisionShare) -> [(&'static str, &'s str); 2] {
    [("set", &set.name), ("revision", &share.name)]
}
