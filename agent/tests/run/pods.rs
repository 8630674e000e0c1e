//! P5: 10,000 Pods from a file, read again and again, and 1,000 open streams fit into 64 MiB.
//!
//! What is counted is anonymous memory, by the kernel: pages of files are the binary's, and a build for tests has many
//! times those of a release, which are 8 MiB. The allocator gives back at once what is freed here, so that this is what is
//! in use, and no matter of when it gives back: by itself it waits for a second.

use std::{fmt::Write as _, fs, net::Ipv4Addr};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use super::support::{Agent, PATIENCE};

const PODS: u32 = 10_000;
const STREAMS: usize = 1000;
const ROUNDS: u32 = 10;
const MOST: u64 = (64 - 8) << 20;

/// Streams that are being opened at the same time.
const AT_ONCE: usize = 16;

/// The head of a stream, and the first of its events.
const BEGIN: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
                       8\r\ndata: 1\n\r\n";

/// As many connections as there are streams, on both sides of the agent: this process has two of each stream's ends. One
/// less than all: another test wants to see that an agent takes that one, too.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let less = limit.maximum.and_then(|most| most.checked_sub(1));
    setrlimit(Resource::Nofile, Rlimit { current: less, ..limit }).expect("below the hard limit");
}

/// All of loopback's addresses are one engine, which begins a stream for every request and never ends it.
async fn engine() -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let mut engine = JoinSet::new();
    engine.spawn(async move {
        let mut streams = JoinSet::new();
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            streams.spawn(async move {
                let mut request = [0; 2048];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(BEGIN).await;
                // Until the agent closes it.
                let _ = stream.read(&mut request).await;
            });
        }
    });
    (port, engine)
}

/// The list, in which another tenth of the Pods is not Ready in each round, and one Pod has a revision of that round.
fn list(round: u32) -> String {
    let mut text = String::new();
    for n in 0..PODS {
        let [.., high, low] = n.to_be_bytes();
        let role = ["prefill", "decode"][usize::from(low & 1)];
        let revision = match n {
            0 => format!("round-{round}"),
            _ => ["a", "b"][usize::from(low >> 1 & 1)].to_owned(),
        };
        let ready = n % 10 != round;
        writeln!(
            text,
            "- {{name: engine-{n}, namespace: llm, uid: 5ba3a4f8-9d3d-4c2b-8b2a-{n:012x}, ip: 127.1.{high}.{low}, \
             node: node-{node}, ready: {ready}, labels: {{app: llm, disaggregatedset.x-k8s.io/name: set, \
             disaggregatedset.x-k8s.io/revision: {revision}, disaggregatedset.x-k8s.io/role: {role}}}}}",
            node = n / 8,
        )
        .expect("text");
    }
    text
}

async fn open(agent: &Agent) -> TcpStream {
    let begin = async {
        let mut stream = TcpStream::connect(agent.decode).await.expect("it listens");
        let request = b"POST /v1/completions HTTP/1.1\r\nhost: m\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(request).await.expect("it reads");
        let mut seen = Vec::new();
        while !seen.ends_with(b"data: 1\n\r\n") {
            assert!(stream.read_buf(&mut seen).await.expect("an answer") > 0, "the end of {seen:?}");
        }
        stream
    };
    timeout(PATIENCE, begin).await.expect("it begins in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p5_ten_thousand_pods_and_a_thousand_streams_fit_into_memory() {
    raise_file_limit();
    let (port, _engine) = engine().await;
    let mut agent = Agent::prepare();
    let text = fs::read_to_string(agent.file("revgate.yaml")).expect("written");
    let more = format!("sets: [{{ports: {{prefill: {port}, decode: {port}}}}}]\nhttp: {{workers: 2}}\n");
    agent.replace("revgate.yaml", &(text + &more));
    agent.replace("pods.yaml", &list(0));
    let mut command = agent.command();
    command.env("MIMALLOC_PURGE_DELAY", "0");
    agent.start_with(command);
    agent.ready().await;
    let show = |when: &str| {
        let now = agent.memory("RssAnon:");
        println!("{when}: {} KiB", now >> 10);
        now
    };
    show("ready");
    let mut streams = Vec::new();
    while streams.len() < STREAMS {
        streams.extend(futures_util::future::join_all((0..AT_ONCE).map(|_| open(&agent))).await);
    }
    show("with all streams");
    for round in 1..=ROUNDS {
        agent.replace("pods.yaml", &list(round));
        let appeared = format!("revision round-{round} appeared");
        agent.until(&appeared, async || agent.log().contains(&appeared), |seen| *seen).await;
        let now = show(&format!("after {round} changes"));
        assert!(now < MOST, "{} KiB after {round} changes", now >> 10);
    }
    for stream in &streams {
        let end = stream.try_read(&mut [0; 64]).unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::WouldBlock, "all are open still");
    }
}
