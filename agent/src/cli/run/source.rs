//! The Pod source of a running agent, with its log lines and the account of how it does.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};
use tracing::{error, info, warn};

use super::kernel;
use crate::{
    cluster::{
        Change,
        api::{self, KubernetesSource, NoCredentials, target::Target},
        file::{self, FileSource},
    },
    config::{AgentConfig, Config, SourceConfig},
    observe::{
        SourceHealth,
        source::{News, Watched},
    },
};

/// How often it is looked whether a view has become stale.
const LOOK: Duration = Duration::from_secs(1);

/// Where Pods come from.
pub(super) enum Source {
    /// A file.
    File(FileSource),
    /// The API.
    Kubernetes(KubernetesSource),
}

impl Source {
    /// The source of the configuration, which nothing is asked of yet.
    pub(super) async fn open(agent: &AgentConfig) -> Result<(Self, Arc<SourceHealth>), NoCredentials> {
        Ok(match &agent.source {
            SourceConfig::File { path } => {
                let health = SourceHealth::new("file", path.display().to_string(), None);
                let source = FileSource::new(path.clone(), kernel::cgroup_root(&agent.kernel));
                (Self::File(source), Arc::new(health))
            }
            SourceConfig::Kubernetes(config) => {
                let source = KubernetesSource::new(config).await?;
                let health = SourceHealth::new("kubernetes", source.server(), Some(config.stale_after));
                (Self::Kubernetes(source), Arc::new(health))
            }
        })
    }

    /// Runs the source until nobody takes changes.
    pub(super) async fn follow(
        self,
        mut configs: watch::Receiver<Arc<Config>>,
        changes: mpsc::Sender<Change>,
        health: Arc<SourceHealth>,
    ) {
        match self {
            Self::File(source) => {
                health.watching(vec![Watched::file()], now());
                let pods = changes.clone();
                let reading = async {
                    if let Err(error) = source.run(pods, |reading| of_file(&health, &reading)).await {
                        error!(%error, "no Pods will be read");
                        health.failed(&Watched::file(), error.to_string());
                    }
                };
                // The file shows all Pods, whatever the configuration.
                let configuring = async {
                    while configs.changed().await.is_ok() {
                        let config = Arc::clone(&configs.borrow_and_update());
                        if changes.send(Change::Config(config)).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::join!(reading, configuring);
            }
            Self::Kubernetes(source) => {
                tokio::select! {
                    () = source.run(configs, changes, |reading| of_api(&health, &reading)) => {}
                    () = watch_age(&health) => {}
                }
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the age of what was heard is counted from here")]
fn now() -> Instant {
    Instant::now()
}

/// Says once of each view that it has become stale. Never ends.
async fn watch_age(health: &SourceHealth) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        for watched in health.newly_stale(now()) {
            warn!(watch = %watched, "the view is stale: no event and no bookmark came; the last state stays in force");
        }
    }
}

fn of_file(health: &SourceHealth, reading: &file::Reading<'_>) {
    match reading {
        file::Reading::Sent { pods } => {
            health.heard(&Watched::file(), now());
            info!(pods, "a new Pod list");
        }
        file::Reading::Same => {
            health.heard(&Watched::file(), now());
        }
        file::Reading::Failed(error) => {
            error!(%error, "the Pod file is bad; the last good list stays in force");
            health.failed(&Watched::file(), error.to_string());
        }
        file::Reading::NoCgroup { pod, why } => {
            warn!(namespace = %pod.key.namespace, pod = %pod.key.name, why, "its connections are not known as its own");
        }
    }
}

fn of_api(health: &SourceHealth, reading: &api::Reading<'_>) {
    let heard = |target: &Target| {
        if health.heard(&watched(target), now()) == News::Recovered {
            info!(watch = %target, "the API server is heard again");
        }
    };
    match reading {
        api::Reading::Watching(targets) => {
            health.watching(targets.iter().map(watched).collect(), now());
            let watches: Vec<String> = targets.iter().map(ToString::to_string).collect();
            info!(watches = %watches.join(", "), "watching the Kubernetes API");
        }
        api::Reading::Listed { target, objects } => {
            heard(target);
            info!(watch = %target, objects, "listed");
        }
        api::Reading::Heard(target) => heard(target),
        api::Reading::Absent(target) => {
            info!(watch = %target, "the API server has no such resource, or none that may be read");
        }
        api::Reading::Failed(problem) => {
            if health.failed(&watched(&problem.target), problem.to_string()) == News::Failing {
                warn!(error = %problem, "trying again; the last state stays in force");
            }
        }
        api::Reading::Unusable { target, name, why } => {
            warn!(watch = %target, name, why, "it makes no sense, and counts as absent");
        }
        api::Reading::Synced => info!("everything has been listed once"),
        api::Reading::Waiting => {
            info!("the sets and VIPs stay as they were until each watch of the new configuration has listed");
        }
        api::Reading::Adopted => info!("the sets and VIPs are those of the new configuration"),
    }
}

fn watched(target: &Target) -> Watched {
    let (resource, group) = (target.kind.resource(), target.kind.group());
    let dot = if group.is_empty() { "" } else { "." };
    Watched {
        resource: format!("{resource}{dot}{group}"),
        namespace: target.namespace.as_deref().unwrap_or_default().to_owned(),
        name: target.name.as_deref().unwrap_or_default().to_owned(),
    }
}
