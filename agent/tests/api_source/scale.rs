//! Ten thousand Pods (P4, P5), and a day of bad luck in a few seconds.

use std::{fs, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};

use super::{
    process::Agent,
    rig::{LLM, Rig, configuration, counts, pod, unready, with},
    server::Server,
};

const SET: [(&str, &str); 1] = [("chat", "disaggregatedset.x-k8s.io/name=my-set")];
const PODS: u32 = 10_000;

/// The limit of P5, doubled for a build without optimisation.
const MOST_MEMORY: u64 = 128 << 20;

/// As Pods of clusters are: labels of their controllers, and 20 KiB that nobody here reads.
fn large(n: u32) -> Value {
    let [.., high, low] = n.to_be_bytes();
    let (revision, role) =
        (["a", "b"][usize::from(low & 1)], ["prefill", "decode"][usize::from(low >> 1 & 1)]);
    let mut pod = pod("llm", &format!("engine-{n}"), revision, role, &format!("10.1.{high}.{low}"));
    let labels = pod["metadata"]["labels"].as_object_mut().unwrap();
    for label in ["group-index", "group-key", "name", "template-revision-hash", "subgroup-key"] {
        labels.insert(format!("leaderworkerset.sigs.k8s.io/{label}"), format!("{label}-{}", n / 8).into());
    }
    labels.insert("statefulset.kubernetes.io/pod-name".into(), format!("engine-{n}").into());
    with(
        pod,
        "/metadata/managedFields",
        json!([{"manager": "kubelet", "fieldsV1": {"f:x": "x".repeat(20 << 10)}}]),
    )
}

/// One at a time: each keeps both cores of a small machine busy.
static TURN: Mutex<()> = Mutex::const_new(());

async fn with_many() -> Server {
    let server = Server::start().await;
    for n in 0..PODS {
        server.put("pods", large(n));
    }
    server
}

/// What a process has in memory, and the most that it had.
fn resident(pid: u32) -> [u64; 2] {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    ["VmRSS:", "VmHWM:"].map(|field| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_ten_thousand_pods_and_their_churn_fit_into_memory() {
    let _turn = TURN.lock().await;
    let server = with_many().await;
    let began = Instant::now();
    let agent = Agent::start(&server, "3m", "").await;
    agent.until_ready_is(200, &["ok"]).await;
    println!("ready with {PODS} Pods after {:?}", began.elapsed());
    let first = resident(agent.pid());
    for round in 0..3 {
        for n in 0..1000 {
            server.put("pods", if round % 2 == 0 { unready(large(n)) } else { large(n) });
        }
        // A list, whole, beside the state that is there.
        server.put("pods", pod("llm", "last", &format!("round-{round}"), "decode", "10.2.0.1"));
        server.fault(|faults| faults.fail_watches = (1, 503));
        server.cut(false);
        server.put("pods", large(0));
        server.compact();
        agent.until_logged(&format!("revision round-{round} appeared")).await;
    }
    let last = resident(agent.pid());
    let mib = |[now, most]: [u64; 2]| format!("{} MiB (at most {})", now >> 20, most >> 20);
    println!("resident: {} at first, {} after 3 more lists and 3000 events", mib(first), mib(last));
    let [_, most] = last;
    assert!(most < MOST_MEMORY, "{} then {}", mib(first), mib(last));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p4_an_event_among_ten_thousand_pods_is_published() {
    let _turn = TURN.lock().await;
    let server = with_many().await;
    let began = Instant::now();
    let rig = Rig::start(&server, configuration(&SET, LLM)).await;
    rig.until("the list", |s| s.synced && counts(s)[0].iter().map(|r| r.1 + r.2).sum::<u32>() == PODS).await;
    println!("listed and published after {:?}", began.elapsed());
    let mut times = Vec::new();
    for n in 0..50 {
        let began = Instant::now();
        server.put("pods", unready(large(n)));
        rig.until("the event", |s| counts(s)[0].iter().map(|r| r.1 + r.2).sum::<u32>() == PODS - n - 1).await;
        times.push(began.elapsed());
    }
    times.sort();
    println!("an event is in force after {:?} at the median, {:?} at most", times[25], times[49]);
    let began = Instant::now();
    for n in 0..1000 {
        server.put("pods", unready(large(n)));
    }
    rig.until("a burst", |s| counts(s)[0].iter().map(|r| r.1 + r.2).sum::<u32>() == PODS - 1000).await;
    println!("1000 events are in force after {:?}", began.elapsed());
}

/// C1: after any order of changes, cuts, gaps, duplicates and refusals the state is what a list shows.
#[tokio::test]
async fn a_day_of_bad_luck_ends_with_what_a_list_shows() {
    let seed: u64 = rand::random_range(0..u64::MAX);
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let server = Server::start().await;
    server.put("pods", pod("llm", "p-0", "a", "prefill", "10.0.0.1"));
    let config = configuration(&SET, LLM);
    let rig = Rig::with_stale_after(&server, config.clone(), Duration::from_secs(3)).await;
    for _ in 0..400 {
        let n: u8 = random.random_range(1..20);
        let (revision, role) =
            (["a", "b", "c"][random.random_range(0..3)], ["prefill", "decode"][random.random_range(0..2)]);
        let one = pod("llm", &format!("x-{n}"), revision, role, &format!("10.0.1.{n}"));
        match random.random_range(0..20) {
            0..8 => server.put("pods", one),
            8..11 => server.put("pods", unready(one)),
            11..14 => server.delete("pods", "llm", &format!("x-{n}")),
            14 => server.cut(random.random_bool(0.5)),
            15 => server.compact(),
            16 => server.fault(|faults| faults.fail_watches = (1, [500, 410, 429][usize::from(n % 3)])),
            17 => server.fault(|faults| faults.fail_lists = (1, 503)),
            18 => server.fault(|faults| {
                faults.duplicate = !faults.duplicate;
                faults.gone_as_event = !faults.gone_as_event;
            }),
            _ => server.fault(|faults| faults.frozen = !faults.frozen),
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..10))).await;
    }
    server.fault(|faults| *faults = super::server::Faults::default());
    let list = Rig::start(&server, config).await;
    let listed = list.until("a fresh list", |snapshot| snapshot.synced).await;
    let expected = counts(&listed);
    rig.until(&format!("what a list shows: {expected:?} (seed {seed})"), |s| counts(s) == expected).await;
}
