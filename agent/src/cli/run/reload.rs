//! Follows the configuration file (F5): a good change is offered to the agent, a bad one is logged and counted.
//!
//! A change that the agent refuses (a listener's port is taken, say) is offered again until it is taken, changed or
//! undone; what is in force is what was taken last.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::sync::{mpsc, oneshot};
use tracing::{error, info, warn};

use crate::{
    cluster::files::FileWatch,
    config::{
        Config,
        reload::{Reload, Reloader},
    },
    observe::facts::ReloadHealth,
};

/// How long after a refusal the same configuration is offered again.
const RETRY: Duration = Duration::from_secs(5);

/// A new configuration on its way to the agent.
pub(super) struct Offer {
    pub(super) config: Arc<Config>,
    /// Whether it came into force; else why not.
    pub(super) answer: oneshot::Sender<Result<(), String>>,
}

/// Runs until nobody takes offers.
#[expect(clippy::disallowed_methods, reason = "the time of a reload is shown to people")]
pub(super) async fn follow(
    file: PathBuf,
    node: Option<String>,
    current: Config,
    health: Arc<ReloadHealth>,
    offers: mpsc::Sender<Offer>,
) {
    let mut watch = match FileWatch::new(&file) {
        Ok(watch) => watch,
        Err(error) => {
            error!(%error, "the configuration file cannot be followed; changes need a restart");
            return;
        }
    };
    let mut reloader = Reloader::new(file, node.map(Into::into), current);
    let mut refusal: Option<String> = None;
    loop {
        tokio::select! {
            () = watch.changed() => {}
            () = tokio::time::sleep(RETRY), if refusal.is_some() => {}
            () = offers.closed() => return,
        }
        match reloader.check() {
            Some(Reload::Changed { loaded, restart }) => {
                let config = Arc::new(loaded.config);
                let (answer, answered) = oneshot::channel();
                if offers.send(Offer { config: Arc::clone(&config), answer }).await.is_err() {
                    return;
                }
                match answered.await {
                    Ok(Ok(())) => {
                        for warning in &loaded.warnings {
                            warn!("{warning}");
                        }
                        if !restart.is_empty() {
                            warn!(fields = %restart.join(", "), "these changes take effect after a restart");
                        }
                        info!(sets = config.sets.len(), "the changed configuration is in force");
                        health.succeeded(SystemTime::now());
                        reloader.accept(Config::clone(&config));
                        refusal = None;
                    }
                    Ok(Err(why)) if refusal.as_ref() == Some(&why) => {}
                    Ok(Err(why)) => {
                        error!(error = %why, "the changed configuration cannot be served; the old one stays in force");
                        health.failed(why.clone());
                        refusal = Some(why);
                    }
                    Err(_) => return,
                }
            }
            Some(Reload::Rejected(error)) => {
                error!(%error, "the changed configuration is bad; the old one stays in force");
                health.failed(error.to_string());
                refusal = None;
            }
            None => {
                health.undone();
                refusal = None;
            }
        }
    }
}
