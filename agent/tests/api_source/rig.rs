//! The source and the owner of the state, in this process, against a server for tests.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use revgate::{
    cluster::api::{KubernetesSource, Reading},
    config::{self, Config, KubernetesConfig},
    kernel::KernelError,
    snapshot::{
        Snapshot,
        owner::{Observer, Owner, Published},
        state::{Note, State},
    },
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::server::Server;

/// Longest wait for anything: a bound, not an expectation.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// The lines of a set in the agent's document.
pub(crate) const LLM: &str = "sets: [{namespaces: [llm]}]";

/// A configuration: sets with these names and selectors, and these lines of the agent's document.
pub(crate) fn configuration(sets: &[(&str, &str)], lines: &str) -> Arc<Config> {
    let screener = |(name, selector): &(&str, &str)| {
        format!(
            "- type: disaggregatedset-rollout-screener\n  name: {name}\n  parameters:\n    \
             scope: {{labelSelector: '{selector}'}}\n    \
             revisionGating: {{mode: max-role, requiredRoles: [prefill, decode]}}\n"
        )
    };
    let screeners: String = sets.iter().map(screener).collect();
    let text = format!(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{screeners}---\n\
         apiVersion: revgate.dev/v1alpha1\nkind: AgentConfig\nsource: {{kubernetes: {{}}}}\n{lines}\n"
    );
    let loaded = config::parse("test.yaml".as_ref(), text.as_bytes(), None);
    Arc::new(loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).config)
}

/// A Ready Pod of a set as the API has it, with what a real one has besides.
pub(crate) fn pod(namespace: &str, name: &str, revision: &str, role: &str, ip: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("uid of {namespace}/{name}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "disaggregatedset.x-k8s.io/name": "my-set",
                "disaggregatedset.x-k8s.io/revision": revision,
                "disaggregatedset.x-k8s.io/role": role,
            },
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:conditions": {}}}}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "vllm", "ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// The same Pod with a field changed, by JSON pointer.
pub(crate) fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[field.replace("~1", "/")] = value;
    pod
}

pub(crate) fn unready(pod: Value) -> Value {
    with(pod, "/status/conditions", json!([{"type": "Ready", "status": "False"}]))
}

/// The counts of set 0 in every snapshot that was published, without repetitions.
#[derive(Clone, Default)]
pub(crate) struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    pub(crate) fn states(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Diary {
    fn published(&mut self, _: &Snapshot, now: &Arc<Snapshot>, _: Option<&Result<(), KernelError>>) {
        let revisions: Vec<String> =
            counts(now)[0].iter().map(|(name, p, d)| format!("{name} {p} {d}")).collect();
        let mut states = self.0.lock().unwrap();
        states.push(revisions.join(", "));
        states.dedup();
    }
    fn noted(&mut self, _: Note) {}
}

/// A source and an owner at work.
pub(crate) struct Rig {
    pub(crate) published: Published,
    pub(crate) configs: watch::Sender<Arc<Config>>,
    pub(crate) diary: Diary,
    pub(crate) readings: mpsc::UnboundedReceiver<String>,
    _tasks: JoinSet<()>,
}

impl Rig {
    pub(crate) async fn start(server: &Server, config: Arc<Config>) -> Self {
        Self::with_stale_after(server, config, KubernetesConfig::default().stale_after).await
    }

    pub(crate) async fn with_stale_after(
        server: &Server,
        config: Arc<Config>,
        stale_after: Duration,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("kubeconfig");
        std::fs::write(&file, server.kubeconfig()).unwrap();
        let access = KubernetesConfig { kubeconfig: Some(file), stale_after };
        let source =
            KubernetesSource::new(&access).await.unwrap().with_silence(stale_after.mul_f64(5.0 / 12.0));
        let mut state = State::new(Arc::clone(&config), std::collections::HashMap::new(), 0);
        let published = Arc::new(ArcSwap::from_pointee(state.build()));
        let (changes, queue) = mpsc::channel(8192);
        let (configs, followed) = watch::channel(config);
        let (said, readings) = mpsc::unbounded_channel();
        let diary = Diary::default();
        let owner = Owner {
            state,
            published: Arc::clone(&published),
            kernel: None,
            observer: Box::new(diary.clone()),
            changes: queue,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(owner.run());
        tasks.spawn(source.run(followed, changes, move |reading| {
            let text = match reading {
                Reading::Failed(problem) => problem.to_string(),
                other => format!("{other:?}"),
            };
            let _ = said.send(text);
        }));
        Self { published, configs, diary, readings, _tasks: tasks }
    }

    /// Brings another configuration into force, as a reload does.
    pub(crate) fn reconfigure(&self, config: Arc<Config>) {
        self.configs.send_replace(config);
    }

    /// Waits for a snapshot that is as wanted.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Snapshot) -> bool) -> Arc<Snapshot> {
        let end = deadline();
        loop {
            let snapshot = self.published.load_full();
            if wanted(&snapshot) {
                return snapshot;
            }
            assert!(is_before(end), "not within {PATIENCE:?}: {what}; {:?}", counts(&snapshot));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the set has exactly these (revision, Ready prefill Pods, Ready decode Pods).
    pub(crate) async fn until_counts(&self, set: usize, wanted: &[(&str, u32, u32)]) {
        self.until(&format!("{wanted:?}"), |snapshot| {
            snapshot.synced
                && counts(snapshot)[set]
                    .iter()
                    .map(|(n, p, d)| (n.as_str(), *p, *d))
                    .eq(wanted.iter().copied())
        })
        .await;
    }

    /// Waits until the source says something that has all of these parts.
    pub(crate) async fn until_said(&mut self, parts: &[&str]) -> String {
        let heard = async {
            loop {
                let said = self.readings.recv().await.expect("the source runs");
                if parts.iter().all(|part| said.contains(part)) {
                    return said;
                }
            }
        };
        tokio::time::timeout(PATIENCE, heard).await.unwrap_or_else(|_| panic!("never said: {parts:?}"))
    }
}

#[expect(clippy::disallowed_methods, reason = "a test is an edge")]
fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

#[expect(clippy::disallowed_methods, reason = "a test is an edge")]
fn is_before(end: Instant) -> bool {
    Instant::now() < end
}

/// By set: revision, Ready prefill Pods, Ready decode Pods.
pub(crate) fn counts(snapshot: &Snapshot) -> Vec<Vec<(String, u32, u32)>> {
    let of_set = |set: &revgate::snapshot::SetView| {
        let revisions = set.distribution.revisions.iter();
        revisions.map(|r| (r.name.to_string(), r.ready[0], r.ready[1])).collect()
    };
    snapshot.sets.iter().map(of_set).collect()
}

/// The addresses of a revision's endpoints in a role of set 0.
pub(crate) fn endpoints(snapshot: &Snapshot, revision: &str, role: usize) -> Vec<String> {
    let revision = snapshot.sets[0].revision(revision);
    revision.map_or_else(Vec::new, |r| r.endpoints[role].iter().map(|e| e.address.to_string()).collect())
}
