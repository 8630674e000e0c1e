//! How often the body of a request with two legs is in memory.
//!
//! What is counted is the resident memory of the agent's process, by the kernel: its highest since the start, less what
//! there was before the body came. Its allocator gives back at once what is freed, so that this is what is in use. The
//! bodies are so large that everything else is small beside them: a copy more would be 32 MiB more.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::support::{Agent, engine};

const BODY: u64 = 32 << 20;

/// A body that fills its buffer, and one that is in a buffer twice as large, of which the rest is never touched. While
/// that grows, the old one is there too.
const BODIES: [(u64, u64); 2] = [(BODY, BODY), (BODY + (1 << 20), 2 * BODY)];

/// Longest wait for an answer: a bound, not an expectation.
const LONG: Duration = Duration::from_mins(5);

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
    timeout(LONG, exchange).await.expect("an answer in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_body_of_a_pair_is_in_memory_twice_at_most() {
    let engines = [engine("a", "prefill").await, engine("a", "decode").await];
    for engine in &engines {
        engine.update(|behaviour| behaviour.fixed_body = Some(1024));
    }
    for connector in ["nixlv2", "shared-storage", "sglang"] {
        for (chunked, (body, most)) in
            [false, true].into_iter().flat_map(|chunked| BODIES.map(|body| (chunked, body)))
        {
            let mut agent = Agent::prepare();
            agent.configure_listener("max-role", &format!("pair: {{connector: {connector}}}"));
            agent.pods(&engines);
            let mut command = agent.command();
            command.env("MIMALLOC_PURGE_DELAY", "0");
            agent.start_with(command);
            agent.ready().await;
            // What a first request makes for good is not the body's.
            assert_eq!(send(&agent, &request(1024, chunked)).await, "HTTP/1.1 200 OK");
            let before = agent.memory("VmRSS:");
            assert_eq!(send(&agent, &request(body, chunked)).await, "HTTP/1.1 200 OK");
            let grown = agent.memory("VmHWM:").saturating_sub(before);
            let what = format!("{connector}, {body} bytes, chunked: {chunked}: {} KiB more", grown >> 10);
            println!("{what}");
            assert!(grown <= most + BESIDE, "{what}");
            assert!(grown >= body, "the body was not in memory at all, so this counts nothing: {what}");
        }
    }
    let bytes = |engine: &revgate_engine::Engine| engine.counters().bytes_in;
    assert!(engines.iter().all(|engine| bytes(engine) > 12 * BODY), "both legs sent the whole body");
}
