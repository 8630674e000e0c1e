//! The owner of the state: what it publishes, in which order, and how it lives with a kernel that refuses.
#![cfg(test)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use arc_swap::ArcSwap;
use revgate::{
    cluster::{Change, Pod, PodKey},
    kernel::{KernelError, Publish},
    snapshot::{
        Snapshot,
        owner::{COALESCE, Observer, Owner, Published},
        state::{Note, State},
    },
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

const CONFIG: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: app=llm}
    revisionGating: {mode: max-role, requiredRoles: [decode]}
";

/// Longer than any of these tests but the one of the lease runs.
const RENEW_EVERY: Duration = Duration::from_hours(1);

/// What happened, in order.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn write(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A kernel that refuses as often as it is told to.
struct FakeKernel {
    diary: Diary,
    published: Published,
    refuse: u32,
}

impl Publish for FakeKernel {
    fn publish(&mut self, snapshot: &Snapshot) -> Result<(), KernelError> {
        assert!(
            self.published.load().generation < snapshot.generation,
            "readers must not be ahead of the kernel"
        );
        let refused = self.refuse > 0;
        self.refuse = self.refuse.saturating_sub(1);
        self.diary.write(format!("{} {}", if refused { "refuse" } else { "kernel" }, describe(snapshot)));
        if refused { Err(KernelError::NotBuilt) } else { Ok(()) }
    }

    fn renew(&mut self) -> Result<(), KernelError> {
        self.diary.write("renew".into());
        Ok(())
    }

    fn renew_every(&self) -> Duration {
        RENEW_EVERY
    }
}

struct Listener(Diary);

impl Observer for Listener {
    fn published(&mut self, _: &Snapshot, now: &Arc<Snapshot>, _: Option<&Result<(), KernelError>>) {
        self.0.write(format!("readers {}", describe(now)));
    }

    fn noted(&mut self, note: Note) {
        self.0.write(format!("{note:?}"));
    }
}

/// The names of the Pods with endpoints.
fn describe(snapshot: &Snapshot) -> String {
    let endpoints =
        snapshot.sets.iter().flat_map(|s| &s.revisions).flat_map(|r| r.endpoints.iter().flatten());
    let mut names: Vec<&str> = endpoints.map(|e| e.pod.key.name.as_ref()).collect();
    names.sort_unstable();
    names.join(",")
}

struct Case {
    diary: Diary,
    published: Published,
    changes: mpsc::Sender<Change>,
    tasks: JoinSet<()>,
}

fn start(refuse: u32) -> Case {
    let config = revgate::config::parse("test.yaml".as_ref(), CONFIG.as_bytes(), None).unwrap().config;
    let mut state = State::new(Arc::new(config), HashMap::new(), 0);
    let published: Published = Arc::new(ArcSwap::from_pointee(state.build()));
    let diary = Diary::default();
    let (changes, queue) = mpsc::channel(10_000);
    let owner = Owner {
        state,
        published: Arc::clone(&published),
        kernel: Some(Box::new(FakeKernel {
            diary: diary.clone(),
            published: Arc::clone(&published),
            refuse,
        })),
        observer: Box::new(Listener(diary.clone())),
        changes: queue,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(owner.run());
    Case { diary, published, changes, tasks }
}

fn pod(name: &str, last: u8) -> Arc<Pod> {
    let labels = [
        ("app", "llm"),
        ("disaggregatedset.x-k8s.io/revision", "a"),
        ("disaggregatedset.x-k8s.io/role", "decode"),
    ];
    Arc::new(Pod {
        ips: vec![[10, 0, 0, last].into()],
        labels: labels.map(|(k, v)| (k.into(), v.into())).into_iter().collect(),
        ready: true,
        ..Pod::new(PodKey { namespace: "default".into(), name: name.into(), uid: name.into() })
    })
}

#[tokio::test(start_paused = true)]
async fn ends_though_the_kernel_refuses_for_ever() {
    let case = start(u32::MAX);
    case.changes.send(Change::Replace(vec![pod("p", 1)])).await.unwrap();
    pass(COALESCE).await;
    assert_eq!(case.diary.take(), ["refuse p", "readers p"]);
    drop(case.changes);
    ended(case.tasks).await;
}

/// Waits until the owner has ended.
async fn ended(mut tasks: JoinSet<()>) {
    let owner = timeout(Duration::from_mins(1), tasks.join_next()).await.expect("it ends");
    owner.expect("it was started").expect("without a panic");
}

/// Time is paused: this lets everything run that is due before then, and takes no time itself.
async fn pass(time: Duration) {
    sleep(time).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_before_the_first_list() {
    let case = start(0);
    case.changes.send(Change::Upsert(pod("early", 1))).await.unwrap();
    pass(COALESCE * 10).await;
    assert_eq!(case.diary.take(), [""; 0]);
    assert!(!case.published.load().synced);
    case.changes.send(Change::Replace(vec![pod("listed", 2)])).await.unwrap();
    pass(COALESCE).await;
    assert_eq!(case.diary.take(), ["kernel listed", "readers listed"]);
    assert!(case.published.load().synced);
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_one_publication_and_a_lone_change_waits_for_nothing() {
    let case = start(0);
    case.changes.send(Change::Replace(Vec::new())).await.unwrap();
    pass(COALESCE * 2).await;
    case.diary.take();
    // After a quiet time: at once.
    case.changes.send(Change::Upsert(pod("p0", 0))).await.unwrap();
    pass(Duration::from_millis(1)).await;
    assert_eq!(case.diary.take(), ["kernel p0", "readers p0"]);
    // Then a burst: together, when the time is up.
    for i in 1..4 {
        case.changes.send(Change::Upsert(pod(&format!("p{i}"), i))).await.unwrap();
        pass(Duration::from_millis(5)).await;
    }
    assert_eq!(case.diary.take(), [""; 0]);
    pass(COALESCE).await;
    assert_eq!(case.diary.take(), ["kernel p0,p1,p2,p3", "readers p0,p1,p2,p3"]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_is_tried_again_and_readers_go_on() {
    let case = start(2);
    case.changes.send(Change::Replace(vec![pod("p", 1)])).await.unwrap();
    pass(COALESCE).await;
    assert_eq!(case.diary.take(), ["refuse p", "readers p"]);
    pass(Duration::from_secs(1)).await;
    assert_eq!(case.diary.take(), ["refuse p", "readers p"]);
    // News does not wait for the next try.
    case.changes.send(Change::Upsert(pod("q", 2))).await.unwrap();
    pass(COALESCE * 2).await;
    assert_eq!(case.diary.take(), ["kernel p,q", "readers p,q"]);
    pass(Duration::from_secs(10)).await;
    assert_eq!(case.diary.take(), [""; 0], "it was written: no more tries");
}

#[tokio::test(start_paused = true)]
async fn a_new_configuration_is_published_without_a_change_of_pods() {
    let case = start(0);
    case.changes.send(Change::Replace(vec![pod("p", 1)])).await.unwrap();
    pass(COALESCE * 2).await;
    case.diary.take();
    let other = CONFIG.replace("app=llm", "app=other");
    let config = revgate::config::parse("test.yaml".as_ref(), other.as_bytes(), None).unwrap().config;
    case.changes.send(Change::Config(Arc::new(config))).await.unwrap();
    pass(COALESCE).await;
    assert_eq!(case.diary.take(), ["kernel ", "readers "]);
}

#[tokio::test(start_paused = true)]
async fn ends_when_its_inputs_do_and_publishes_what_came_last() {
    let case = start(0);
    case.changes.send(Change::Replace(vec![pod("p", 1)])).await.unwrap();
    drop(case.changes);
    ended(case.tasks).await;
    assert_eq!(case.diary.take(), ["kernel p", "readers p"]);
}

#[tokio::test(start_paused = true)]
async fn the_kernel_hears_of_the_agent_while_nothing_changes() {
    let case = start(0);
    pass(RENEW_EVERY * 2 + COALESCE).await;
    assert_eq!(case.diary.take(), ["renew", "renew"]);
}
