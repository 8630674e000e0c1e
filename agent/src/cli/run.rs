//! `revgate run`: the agent. This file wires the parts together in the order of the flow, and ends them.
//!
//! Threads: the main one runs the Pod source, the admin server, configuration reload and signals; the owner of the
//! state has its own (a kernel swap blocks); the proxy has one per worker; tracing, where it is on, has one.

mod denied;
mod kernel;
mod observer;
mod reload;
mod signals;
mod source;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use arc_swap::ArcSwap;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::MissedTickBehavior,
};
use tracing::{error, info, warn};

use super::{
    config_file::ConfigFile,
    outcome::{Exit, Failure},
    output::Output,
};
use crate::{
    cluster::Change,
    config::{Config, PairConfig, PickerConfig, Serves},
    fatal::Indispensable,
    kernel::Trace,
    observe::{
        Readiness, Scene,
        admin::{self, Admin},
        facts::ReloadHealth,
        log,
        metrics::{self, StrictNoMatch},
        report::ListenerReport,
    },
    proxy::{self, Proxy},
    snapshot::{owner::Owner, state::State},
};
use observer::Teller;

/// Changes that may wait for the owner; a source beyond that waits itself.
const QUEUE: usize = 8192;

/// How often certificates are looked at. They are renewed days before they end.
const CERTIFICATES: Duration = Duration::from_secs(10);

/// How long a thread that parsed a list waits for the next. With its end the allocator gives memory back: its own, and
/// what all threads have freed a second (the allocator's `purge_delay`) and more before.
const PARSER_IDLE: Duration = Duration::from_secs(2);

/// Run the agent.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "SIGTERM drains: unready at once, no new connections after shutdown.delay, streams until \
                  shutdown.deadline. A second signal ends the agent at once. The kernel tables stay in force when \
                  the agent ends; `revgate detach` removes them."
)]
pub struct Args {
    #[command(flatten)]
    file: ConfigFile,
}

/// Runs until a signal.
pub fn run(args: &Args, _out: &mut Output) -> Result<Exit, Failure> {
    let loaded = args.file.load()?;
    log::init(&loaded.config.agent.log).map_err(Failure::usage)?;
    for warning in &loaded.warnings {
        warn!(file = %args.file.path.display(), "{warning}");
    }
    if !loaded.ignored_plugins.is_empty() {
        info!(types = %loaded.ignored_plugins.join(", "), "plugin entries of other types are left alone");
    }
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(PARSER_IDLE)
        .build()
        .map_err(Failure::failed)?;
    runtime.block_on(serve(&args.file, Arc::new(loaded.config)))
}

/// Takes all the open files that the system allows: two per request in flight, where the usual 1024 would be the
/// limit long before `http.maxConnections`.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!(%error, ?limit, "the limit of open files cannot be raised");
    }
}

#[expect(clippy::disallowed_methods, reason = "the clocks of the agent start with it")]
async fn serve(file: &ConfigFile, config: Arc<Config>) -> Result<Exit, Failure> {
    let mut signals = signals::Signals::new().map_err(Failure::failed)?;
    let readiness = Readiness::default();
    let (source, health) = source::Source::open(&config.agent).await.map_err(Failure::failed)?;
    let reload = Arc::new(ReloadHealth::new(file.path.display().to_string(), SystemTime::now()));
    let mut kernel = kernel::Side::open(&config.agent.kernel).map_err(Failure::failed)?;

    let mut state = State::new(Arc::clone(&config), kernel.tenants(), kernel.last_generation());
    let published = Arc::new(ArcSwap::from_pointee(state.build()));
    let (changes, queue) = mpsc::channel(QUEUE);
    let owner = Owner {
        state,
        published: Arc::clone(&published),
        kernel: kernel.writer().map_err(Failure::failed)?,
        observer: Box::new(Teller::new(&readiness, kernel.has_programs())),
        changes: queue,
    };

    let scene = Arc::new(Scene {
        published: Arc::clone(&published),
        readiness: readiness.clone(),
        kernel: kernel.reader(),
        source: Arc::clone(&health),
        reload: Arc::clone(&reload),
        listeners: ArcSwap::from_pointee(Vec::new()),
        node: config.agent.node.clone(),
        started: Instant::now(),
        started_at: SystemTime::now(),
    });
    let no_match = StrictNoMatch::default();
    let mut registry = metrics::registry(&scene, &no_match);
    let counted = proxy::Metrics::register(registry.sub_registry_with_prefix(metrics::PREFIX), no_match);
    let pinner = kernel.pinner().map_err(Failure::failed)?;
    let events = kernel.events().map_err(Failure::failed)?;
    // Before a listener opens: of two agents that were given one address, the second ends here.
    let admin_socket = admin::bind(config.agent.admin).await.map_err(Failure::failed)?;
    let mut proxy =
        Proxy::start(&config, Arc::clone(&published), &pinner, counted).map_err(Failure::failed)?;
    scene.listeners.store(Arc::new(listeners(&config, &proxy)));
    info!(admin = %config.agent.admin, sets = config.sets.len(), "started");

    let owner = start(owner)?;
    let mut tasks = JoinSet::new();
    let admin = Admin::new(Arc::clone(&scene), Arc::new(registry));
    tasks.spawn(async { match admin.serve(admin_socket).await {} });
    if let Some(events) = events {
        tasks.spawn(denied::follow(events, published));
    }
    if let Some(cgroups) = kernel.cgroups() {
        // Before the first Pod: the first tables have to know those that run, as the ones before did.
        let _ = changes.send(Change::Cgroups(cgroups.found().clone())).await;
        cgroups.follow(&changes).map_err(Failure::failed)?;
    }
    let (latest, followed) = watch::channel(Arc::clone(&config));
    tasks.spawn(async move {
        let _indispensable = Indispensable("Pod source");
        source.follow(followed, changes, health).await;
    });
    if let Some(trace) = kernel.trace() {
        follow_trace(trace)?;
    }
    let (offers, mut offered) = mpsc::channel(1);
    let current = Config::clone(&config);
    tasks.spawn(reload::follow(file.path.clone(), file.node.clone(), current, reload, offers));

    let mut shutdown = config.agent.shutdown.clone();
    let mut certificates = tokio::time::interval(CERTIFICATES);
    certificates.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let signal = loop {
        tokio::select! {
            signal = signals.next() => break signal,
            _ = certificates.tick() => proxy.renew_certificates(),
            Some(reload::Offer { config, answer }) = offered.recv() => {
                let taken = proxy.reconfigure(&config).map_err(|error| error.to_string());
                if taken.is_ok() {
                    shutdown = config.agent.shutdown.clone();
                    scene.listeners.store(Arc::new(listeners(&config, &proxy)));
                    // The owner gets it from the source, when that knows what belongs to it. Listeners find their
                    // sets by name in whatever snapshot there is.
                    latest.send_replace(config);
                }
                // Nobody waits for it when the agent ends.
                let _ = answer.send(taken);
            }
        }
    };
    info!(signal, "draining; a second signal ends the agent at once");
    readiness.drain(signal);
    tokio::select! {
        whole = proxy.drain(&shutdown) => info!(cut_streams = !whole, "drained"),
        signal = signals.next() => warn!(signal, "ended at once; open streams were cut"),
    }
    // Without the source the owner ends; what it published stays in the kernel.
    tasks.shutdown().await;
    tokio::select! {
        ended = tokio::task::spawn_blocking(|| owner.join()) => match ended {
            Ok(Ok(ended)) => ended.map(|()| Exit::Done).map_err(Failure::failed),
            _ => Err(Failure::failed("the owner of the state panicked")),
        },
        signal = signals.next() => {
            warn!(signal, "ended at once; the kernel keeps what was written last");
            // The runtime would wait for the thread that waits for the owner.
            std::process::exit(Exit::Done as i32)
        }
    }
}

/// Starts the one writer of state.
fn start(owner: Owner) -> Result<thread::JoinHandle<io::Result<()>>, Failure> {
    let run = || {
        let _indispensable = Indispensable("owner");
        owner.run_blocking()
    };
    thread::Builder::new().name("owner".into()).spawn(run).map_err(Failure::failed)
}

/// On a thread of its own: a Pod that connects without end fills the log, and keeps nothing else waiting.
fn follow_trace(trace: Trace) -> Result<(), Failure> {
    let follow = move || -> io::Result<Infallible> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        match runtime.block_on(trace.follow())? {}
    };
    let run = move || {
        let Err(error) = follow();
        error!(%error, "what the kernel programs write is not read any more");
    };
    let _detached = thread::Builder::new().name("trace".into()).spawn(run).map_err(Failure::failed)?;
    Ok(())
}

/// What the proxy listens on, with the names of what it serves there.
fn listeners(config: &Config, proxy: &Proxy) -> Vec<ListenerReport> {
    let report = |(name, address): (&str, SocketAddr)| {
        let listener = config.agent.listeners.iter().find(|listener| listener.name.as_ref() == name)?;
        let set = config.sets.get(listener.set)?;
        Some(ListenerReport {
            name: name.to_owned(),
            address,
            set: set.name.to_string(),
            role: match &listener.serves {
                Serves::Role(role) | Serves::Picker(PickerConfig { prefill: None, decode: role, .. }) => {
                    set.roles.get(*role)?.to_string()
                }
                Serves::Pair(PairConfig { prefill, decode, .. })
                | Serves::Picker(PickerConfig { prefill: Some(prefill), decode, .. }) => {
                    format!("{}+{}", set.roles.get(*prefill)?, set.roles.get(*decode)?)
                }
            },
            tls: listener.tls.is_some(),
        })
    };
    proxy.addresses().filter_map(report).collect()
}
