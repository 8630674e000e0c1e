//! Everything that can be seen, in one place: what the admin server, the metrics and the report look at.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;

use super::{
    KernelReader, Readiness, Report, SourceHealth,
    facts::ReloadHealth,
    report::{self, Inputs, ListenerReport},
};
use crate::snapshot::owner::Published;

/// The parts of a running agent that can be looked at.
#[derive(Debug)]
pub struct Scene {
    /// The current snapshot.
    pub published: Published,
    /// Whether the agent is ready.
    pub readiness: Readiness,
    /// The kernel part.
    pub kernel: Box<dyn KernelReader>,
    /// The Pod source.
    pub source: Arc<SourceHealth>,
    /// The configuration.
    pub reload: Arc<ReloadHealth>,
    /// What the proxy listens on; replaced with the configuration.
    pub listeners: ArcSwap<Vec<ListenerReport>>,
    /// The node that the agent runs on, where it was told.
    pub node: Option<Arc<str>>,
    /// When the agent started, for ages.
    pub started: Instant,
    /// When the agent started, for people.
    pub started_at: SystemTime,
}

impl Scene {
    /// Everything, now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a report is made for whoever asks, at the time of asking")]
    pub fn report(&self) -> Report {
        self.report_at(Instant::now())
    }

    /// Everything, as seen at `now`.
    #[must_use]
    pub fn report_at(&self, now: Instant) -> Report {
        let snapshot = self.published.load();
        Report::of(Inputs {
            snapshot: &snapshot,
            kernel: &self.kernel.read(),
            waiting: self.readiness.reasons(),
            source: self.source.report(now),
            config: self.reload.report(),
            listeners: &self.listeners.load(),
            node: self.node.as_deref(),
            uptime: self.uptime(now),
        })
    }

    /// What somebody should know who asks whether the agent is ready: why it is not, or is with less than it should be.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "ages are made for whoever asks, at the time of asking")]
    pub fn remarks(&self) -> Vec<String> {
        report::remarks(&self.source.report(Instant::now()), &self.published.load())
    }

    fn uptime(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }
}
