//! Series of the agent itself: build, readiness, configuration, source; and the usual `process_*` ones.

use std::{fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::families::Families;
use crate::observe::{
    Scene,
    facts::unix_seconds,
    process,
    report::{ConfigReport, ReloadResult, SourceReport},
};

/// `revgate_*` series of the agent.
#[derive(Debug)]
pub(super) struct AgentSeries(pub(super) Arc<Scene>);

impl Collector for AgentSeries {
    #[expect(clippy::disallowed_methods, reason = "an age is made for the scrape, at the time of the scrape")]
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        families.info("build", "The version that runs", &[("version", env!("CARGO_PKG_VERSION"))])?;
        families.gauge("ready", "1 while /readyz answers 200", u32::from(self.0.readiness.is_ready()))?;
        source(&mut families, &self.0.source.report(std::time::Instant::now()))?;
        config(&mut families, &self.0.reload.report())
    }
}

fn source(families: &mut Families<'_>, source: &SourceReport) -> fmt::Result {
    families.counter("source_errors", "Errors of the Pod source", source.errors)?;
    families.gauges(
        "source_event_age_seconds",
        "Time since the last list, event or bookmark, by watch of the Pod source",
        source.watches.iter().filter_map(|watch| {
            let labels =
                [("resource", &watch.resource), ("namespace", &watch.namespace), ("name", &watch.name)];
            Some((labels.map(|(label, value)| (label, value.clone())), watch.last_event_age_seconds?))
        }),
    )?;
    families.gauge(
        "source_stale",
        "Watches of the Pod source that were silent for longer than source.kubernetes.staleAfter",
        u32::try_from(source.watches.iter().filter(|watch| watch.stale).count()).unwrap_or(u32::MAX),
    )
}

fn config(families: &mut Families<'_>, config: &ConfigReport) -> fmt::Result {
    families.counters(
        "config_reloads",
        "Reloads of a changed configuration file, by result",
        [
            ([("result", "success")], config.reloads_succeeded),
            ([("result", "failure")], config.reloads_failed),
        ],
    )?;
    families.gauge(
        "config_last_reload_successful",
        "0 while the configuration file is refused and an older one is in force",
        u32::from(config.last_reload != ReloadResult::Failed),
    )?;
    families.gauge(
        "config_last_reload_success_timestamp_seconds",
        "When the configuration in force came into force, seconds since 1970",
        config.in_force_since,
    )
}

/// The series that every exporter has, without a prefix.
#[derive(Debug)]
pub(super) struct Process(pub(super) Arc<Scene>);

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        families.counter("process_cpu_seconds", "User and system CPU time", process::cpu_seconds())?;
        families.gauge(
            "process_start_time_seconds",
            "When the process started, seconds since 1970",
            unix_seconds(self.0.started_at),
        )?;
        if let Some(bytes) = process::resident_bytes() {
            families.gauge("process_resident_memory_bytes", "Resident memory", bytes)?;
        }
        if let Some(count) = process::open_descriptors() {
            families.gauge("process_open_fds", "Open file descriptors", count)?;
        }
        Ok(())
    }
}
