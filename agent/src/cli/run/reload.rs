//! Follows the configuration file (F5): each good change goes to the agent, each bad one is logged and counted.

use std::{path::PathBuf, sync::Arc};

use tokio::sync::mpsc;
use tracing::{error, warn};

use crate::{
    cluster::files::FileWatch,
    config::{
        Config,
        reload::{Reload, Reloader},
    },
    observe::facts::ReloadHealth,
};

/// Runs until `reloads` is closed.
pub(super) async fn follow(
    file: PathBuf,
    node: Option<String>,
    current: Config,
    health: Arc<ReloadHealth>,
    reloads: mpsc::UnboundedSender<Arc<Config>>,
) {
    let mut watch = match FileWatch::new(&file) {
        Ok(watch) => watch,
        Err(error) => {
            error!(%error, "the configuration file cannot be followed; changes need a restart");
            return;
        }
    };
    let mut reloader = Reloader::new(file, node.map(Into::into), current);
    while !reloads.is_closed() {
        watch.changed().await;
        match reloader.check() {
            Some(Reload::Changed { loaded, restart }) => {
                for warning in &loaded.warnings {
                    warn!("{warning}");
                }
                if !restart.is_empty() {
                    warn!(fields = %restart.join(", "), "these changes take effect after a restart");
                }
                // Closed is seen above.
                let _ = reloads.send(Arc::new(loaded.config));
            }
            Some(Reload::Rejected(error)) => {
                error!(%error, "the changed configuration is bad; the old one stays in force");
                health.failed(error.to_string());
            }
            None => {}
        }
    }
}
