//! Follows the kernel programs' events and writes the log lines of denied connections.

use std::{sync::Arc, time::Instant};

use arc_swap::ArcSwap;
use tracing::error;

use crate::{
    kernel::{Events, Incoming},
    observe::denied_log::{Denied, Limit},
    snapshot::Snapshot,
};

/// Runs until it is aborted.
pub(super) async fn follow(events: Events, published: Arc<ArcSwap<Snapshot>>) {
    match try_follow(events, &published).await {
        Ok(never) => match never {},
        Err(error) => error!(%error, "denied connections are counted, but not logged any more"),
    }
}

#[expect(clippy::disallowed_methods, reason = "the lines are limited in time")]
async fn try_follow(
    events: Events,
    published: &ArcSwap<Snapshot>,
) -> std::io::Result<std::convert::Infallible> {
    let mut events = Incoming::new(events)?;
    let mut limit = Limit::default();
    loop {
        let event = events.next().await?;
        let Some(denied) = Denied::of(&event, &published.load()) else { continue };
        if let Some(left_out) = limit.admit(&event, Instant::now()) {
            denied.log(left_out);
        }
    }
}
