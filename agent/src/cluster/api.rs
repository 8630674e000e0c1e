//! The Kubernetes API as a source of Pods, and of the Services and InferencePools that the configuration names.
//!
//! ```text
//! configuration ──> target: what to watch ──> follow: one task per watch ──┐
//!                                                                           ├──> union: one list ──> Change
//!                                             follow ──────────────────────┘
//! ```
//!
//! [`target`] and `union` are pure; `follow` speaks with the server. Rights: get, list, watch, and nothing is ever
//! written (C10). The state is what the lists say, and events only make it so sooner: lost, late or doubled events, and
//! servers that go away, are mended by the next list. Until then the last state stays in force.

mod backoff;
mod follow;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod object;
pub mod problem;
pub mod rights;
pub mod target;
mod union;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
};

use self::{
    follow::{Follower, Message, Outlet},
    object::{PoolObject, ServiceObject},
    problem::{Problem, chain},
    target::{Kind, Target},
    union::{Said, Union},
};
use super::{Change, intern::Interner, manifest::PodObject};
use crate::config::{Config, KubernetesConfig};

/// What may wait to be merged; a watch beyond that waits itself.
const QUEUE: usize = 1024;

/// Longest time to connect to the server.
const CONNECT: Duration = Duration::from_secs(10);

/// Bookmarks come every minute: no watch that works is silent for longer than this.
const LEAST_SILENCE: Duration = Duration::from_secs(75);

/// How the watches are doing; for logs and metrics.
#[derive(Debug)]
pub enum Reading<'r> {
    /// From now on these are watched.
    Watching(&'r [Target]),
    /// A whole list was read.
    Listed {
        /// Of what.
        target: &'r Target,
        /// How many there are.
        objects: usize,
    },
    /// An event or a bookmark came.
    Heard(&'r Target),
    /// The server does not know the resource.
    Absent(&'r Target),
    /// A list or a watch failed.
    Failed(&'r Problem),
    /// An object makes no sense, and counts as absent.
    Unusable {
        /// Of what.
        target: &'r Target,
        /// Namespace and name.
        name: &'r str,
        /// Why.
        why: &'r str,
    },
    /// Everything has been listed once.
    Synced,
    /// A new configuration waits until each of its watches has listed; until then the one before stays in force.
    Waiting,
    /// The new configuration was handed over.
    Adopted,
}

/// There are no credentials for the API.
#[derive(Debug, thiserror::Error)]
#[error(
    "no credentials for the Kubernetes API: {0}; run in a Pod with a ServiceAccount, set KUBECONFIG, or set \
     `source.kubernetes.kubeconfig`"
)]
pub struct NoCredentials(String);

/// The source.
#[derive(Clone)]
pub struct KubernetesSource {
    client: Client,
    server: String,
    silence: Duration,
}

impl KubernetesSource {
    /// Reads the credentials. Nothing is asked of the server yet. Must be called on a tokio runtime.
    pub async fn new(config: &KubernetesConfig) -> Result<Self, NoCredentials> {
        let failed = |error: &dyn std::error::Error| NoCredentials(chain(error));
        let mut access = match &config.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
                let options = KubeConfigOptions::default();
                kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|error| failed(&error))?
            }
            None => kube::Config::infer().await.map_err(|error| failed(&error))?,
        };
        access.connect_timeout = Some(CONNECT);
        // Tries are made here, where each failure is seen, and the last version known.
        access.default_retry = false;
        let server = access.cluster_url.to_string();
        let client = Client::try_from(access).map_err(|error| failed(&error))?;
        // A bookmark that is missing is waited for a little, then the watch begins anew; the second silence ends in a
        // list, and by default that is before the view counts as stale.
        let silence = config.stale_after.mul_f64(5.0 / 12.0).max(LEAST_SILENCE);
        Ok(Self { client, server, silence })
    }

    /// Gives a watch up after another time without an event or a bookmark: for servers whose bookmarks come at others.
    #[must_use]
    pub const fn with_silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// The URL of the server.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Follows what the configuration needs, and tells of every change, until the receiver is gone. `hook` hears how
    /// the watches are doing.
    pub async fn run(
        self,
        mut configs: watch::Receiver<Arc<Config>>,
        changes: mpsc::Sender<Change>,
        mut hook: impl FnMut(Reading<'_>),
    ) {
        let (queue, mut messages) = mpsc::channel(QUEUE);
        let mut watches =
            Watches { source: self, queue, tasks: JoinSet::new(), running: BTreeMap::new(), next: 0 };
        let mut union = Union::default();
        let mut news = union.plan(Arc::clone(&configs.borrow_and_update()));
        let (mut moved, mut synced) = (true, false);
        loop {
            if std::mem::take(&mut moved) {
                let targets: Vec<Target> = union.targets().cloned().collect();
                if watches.follow(&targets) {
                    hook(Reading::Watching(&targets));
                }
            }
            for change in news.drain(..) {
                let whole = matches!(change, Change::Together(_));
                if changes.send(change).await.is_err() {
                    return;
                }
                if whole {
                    hook(if std::mem::replace(&mut synced, true) {
                        Reading::Adopted
                    } else {
                        Reading::Synced
                    });
                }
            }
            tokio::select! {
                Some((id, message)) = messages.recv() => {
                    // What a watch that is over has said last is of no interest.
                    let Some(target) = watches.target(id) else { continue };
                    let target = target.clone();
                    if let Some(said) = tell(&target, message, &mut hook) {
                        let waited = union.is_waiting();
                        news = union.hear(&target, said);
                        moved = waited && !union.is_waiting();
                    }
                }
                Ok(()) = configs.changed() => {
                    news = union.plan(Arc::clone(&configs.borrow_and_update()));
                    moved = true;
                    if union.is_waiting() {
                        hook(Reading::Waiting);
                    }
                }
                () = changes.closed() => return,
            }
        }
    }
}

/// Passes on how a watch is doing, and gives what it says.
fn tell(target: &Target, message: Message, hook: &mut impl FnMut(Reading<'_>)) -> Option<Said> {
    match message {
        Message::Said(said) => {
            match &said {
                Said::Listed(items) => hook(Reading::Listed { target, objects: items.len() }),
                Said::Set(_) | Said::Gone(_) | Said::Lost(_) => hook(Reading::Heard(target)),
            }
            return Some(said);
        }
        Message::Alive => hook(Reading::Heard(target)),
        Message::Absent => hook(Reading::Absent(target)),
        Message::Failed(problem) => hook(Reading::Failed(&problem)),
        Message::Unusable(unusable) => {
            let name = unusable.name.map_or_else(|| "without a name".to_owned(), |name| name.to_string());
            hook(Reading::Unusable { target, name: &name, why: &unusable.why });
        }
    }
    None
}

/// The tasks that follow the targets.
struct Watches {
    source: KubernetesSource,
    queue: mpsc::Sender<(u64, Message)>,
    tasks: JoinSet<()>,
    running: BTreeMap<Target, (u64, AbortHandle)>,
    next: u64,
}

impl Watches {
    /// Follows these targets and no others; false where nothing changes. One that is followed already goes on.
    fn follow(&mut self, targets: &[Target]) -> bool {
        let before = self.running.len();
        self.running.retain(|target, (_, task)| {
            let stays = targets.contains(target);
            if !stays {
                task.abort();
            }
            stays
        });
        let mut changed = self.running.len() != before;
        for target in targets {
            if !self.running.contains_key(target) {
                changed = true;
                self.start(target);
            }
        }
        while self.tasks.try_join_next().is_some() {}
        changed
    }

    fn start(&mut self, target: &Target) {
        self.next += 1;
        let outlet = Outlet { id: self.next, queue: self.queue.clone() };
        let (client, silence) = (self.source.client.clone(), self.source.silence);
        let follower =
            Follower { client, target: target.clone(), silence, outlet, interner: Interner::default() };
        let task = match target.kind {
            Kind::Pods => self.tasks.spawn(follower.run::<PodObject>()),
            Kind::Services => self.tasks.spawn(follower.run::<ServiceObject>()),
            Kind::Pools | Kind::OldPools => self.tasks.spawn(follower.run::<PoolObject>()),
        };
        self.running.insert(target.clone(), (self.next, task));
    }

    fn target(&self, id: u64) -> Option<&Target> {
        self.running.iter().find_map(|(target, (running, _))| (*running == id).then_some(target))
    }
}
