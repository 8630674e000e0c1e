//! Series of the kernel part. Without kernel programs only `kernel_active` has a value.

use std::{fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::families::Families;
use crate::observe::{Scene, report::open_connections};

/// `revgate_kernel_*`.
#[derive(Debug)]
pub(super) struct KernelSeries(pub(super) Arc<Scene>);

impl Collector for KernelSeries {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.0.published.load_full();
        let kernel = self.0.kernel.read();
        let mut families = Families(encoder);
        families.gauge(
            "kernel_active",
            "1 while kernel programs steer and fence, 0 while only the HTTP layer gates",
            u32::from(kernel.active),
        )?;
        if !kernel.active {
            return Ok(());
        }
        families.gauge(
            "kernel_generation",
            "Last snapshot generation that is in force in all kernel tables",
            kernel.acknowledged,
        )?;
        families.gauge("kernel_memory_bytes", "Memory of the kernel tables", kernel.memory)?;
        families.gauges(
            "kernel_table_generation",
            "Generation found in the kernel table of a set",
            snapshot
                .sets
                .iter()
                .zip(&kernel.tables)
                .filter_map(|(set, table)| Some(([("set", set.name.as_ref())], (*table)?))),
        )?;
        families.counters(
            "kernel_connects",
            "Connects that the kernel programs decided, by outcome",
            kernel.counters.iter().map(|(counter, count)| ([("outcome", counter.name())], *count)),
        )?;
        let events = kernel.events;
        families.counters(
            "kernel_events",
            "Events of denied connects: sent to the log, skipped as too many at a time, lost as nobody read them",
            [("sent", events.sent), ("skipped", events.skipped), ("lost", events.lost)]
                .map(|(fate, count)| ([("fate", fate)], count)),
        )?;
        let revisions = snapshot.sets.iter().enumerate().flat_map(|(index, set)| {
            set.revisions.iter().map(move |revision| (index, set.name.as_ref(), revision))
        });
        families.gauges(
            "revision_connections",
            "Open connections that the kernel steered to the revision",
            revisions.filter_map(|(index, set, revision)| {
                let open = open_connections(&kernel, index, revision)?;
                Some(([("set", set), ("revision", revision.name.as_ref())], open))
            }),
        )
    }
}
