//! How often the body of a request with two legs is in memory.
//!
//! What is counted is the resident memory of the agent's process, by the kernel: its highest since the start, less what
//! there was before the body came. The body is so large that everything else is small beside it: a buffer more than
//! allowed would be 32 MiB more.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::support::{Agent, PATIENCE, engine};

const BODY: u64 = 32 << 20;

/// What pieces, connections and pages that are not full come to.
const BESIDE: u64 = 4 << 20;

/// A request with a body of so many bytes, whose length it tells or not.
fn request(length: u64, chunked: bool) -> Vec<u8> {
    let (before, after) = (r#"{"model":"m","prompt":""#, r#""}"#);
    let filling = usize::try_from(length).expect("fits") - before.len() - after.len();
    let body = [before, &"x".repeat(filling), after].concat().into_bytes();
    let framing =
        if chunked { "transfer-encoding: chunked".to_owned() } else { format!("content-length: {length}") };
    let mut request = format!("POST /v1/completions HTTP/1.1\r\nhost: m\r\n{framing}\r\n\r\n").into_bytes();
    if chunked {
        for chunk in body.chunks(64 * 1024) {
            request.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
            request.extend(chunk);
            request.extend(b"\r\n");
        }
        request.extend(b"0\r\n\r\n");
    } else {
        request.extend(body);
    }
    request
}

/// Sends it; the first line of the answer.
async fn send(agent: &Agent, request: &[u8]) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(agent.decode).await.expect("it listens");
        stream.write_all(request).await.expect("it reads");
        let mut head = [0; 15];
        stream.read_exact(&mut head).await.expect("it answers");
        String::from_utf8_lossy(&head).into_owned()
    };
    timeout(PATIENCE, exchange).await.expect("an answer in time")
}

/// A field of the process's status, bytes.
fn memory(agent: &Agent, field: &str) -> u64 {
    let status = agent.process("status");
    let value = status.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
    value.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_body_of_a_pair_is_in_memory_twice_at_most() {
    let engines = [engine("a", "prefill").await, engine("a", "decode").await];
    for engine in &engines {
        engine.update(|behaviour| behaviour.fixed_body = Some(1024));
    }
    for connector in ["nixlv2", "shared-storage", "sglang"] {
        for chunked in [false, true] {
            let mut agent = Agent::prepare().await;
            agent.configure_listener("max-role", &format!("pair: {{connector: {connector}}}"));
            agent.pods(&engines);
            agent.start();
            agent.ready().await;
            // What a first request makes for good is not the body's.
            assert_eq!(send(&agent, &request(1024, chunked)).await, "HTTP/1.1 200 OK");
            let before = memory(&agent, "VmRSS:");
            assert_eq!(send(&agent, &request(BODY, chunked)).await, "HTTP/1.1 200 OK");
            let grown = memory(&agent, "VmHWM:").saturating_sub(before);
            let what = format!("{connector}, chunked: {chunked}: {} KiB more", grown >> 10);
            assert!(grown <= 2 * BODY + BESIDE, "{what}");
            assert!(grown >= BODY, "the body was not in memory at all, so this counts nothing: {what}");
        }
    }
    let bytes = |engine: &revgate_engine::Engine| engine.counters().bytes_in;
    assert!(engines.iter().all(|engine| bytes(engine) > 6 * BODY), "both legs sent the whole body");
}
