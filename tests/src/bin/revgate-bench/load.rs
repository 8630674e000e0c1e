//! The load: a fixed number of connections, each with one request in flight, and the time that each answer took.
//!
//! A client of its own instead of wrk, because what a proxy adds at one connection is tens of microseconds, and wrk
//! reports neither an exact median nor an answer that is not whole. It is as thin as can be: it shares its core with
//! the engines, and must take less of it per request than a proxy takes of its own.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::sleep_until,
};

use crate::{
    Result,
    cpu::{self, Cpu, Memory},
};

/// What to send, to whom, for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// The server.
    pub(crate) target: SocketAddr,
    /// Bytes of each request's body, and of each answer's.
    pub(crate) body: usize,
    /// Connections.
    pub(crate) connections: usize,
    /// Sent before measuring, so that pools are filled and caches warm.
    pub(crate) warm_up: Duration,
    /// Measured.
    pub(crate) time: Duration,
}

/// What came of a load: of answers, or of events.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Answers per second.
    pub(crate) rate: f64,
    /// CPU seconds that the server took for 100,000 answers; `None` where no process was watched.
    pub(crate) cpu: Option<f64>,
    /// Median time of an answer, microseconds.
    pub(crate) median: f64,
    /// 99th percentile of it, microseconds.
    pub(crate) p99: f64,
    /// Memory that the server had resident, MiB.
    pub(crate) memory: Option<f64>,
}

/// Runs a load and watches the CPU time of the process `pid` and its children meanwhile.
pub(crate) async fn run(load: Load, pid: Option<u32>) -> Result<Sample> {
    let begin = Instant::now() + load.warm_up;
    let end = begin + load.time;
    let times = Rc::new(RefCell::new(Vec::with_capacity(1 << 18)));
    let done = Rc::new(Cell::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..load.connections {
        let (times, done) = (Rc::clone(&times), Rc::clone(&done));
        let _ = clients.spawn_local(async move { client(load, begin, &times, &done).await });
    }
    let measure = async {
        sleep_until(begin.into()).await;
        let (cpu, from) = (Cpu::of(pid)?, Instant::now());
        let before = times.borrow().len();
        sleep_until(end.into()).await;
        let (used, elapsed) = (Cpu::of(pid)?.since(cpu), from.elapsed());
        let answers = times.borrow().len() - before;
        done.set(true);
        Result::Ok((used, elapsed, answers))
    };
    let failed = async {
        // A client only ends by an error while the load runs.
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        Result::Ok(())
    };
    let (used, elapsed, answers) = tokio::select! {
        measured = measure => measured?,
        ended = failed => { ended?; return Err("every client ended before the load did".into()) }
    };
    let memory = cpu::memory(pid, Memory::Most)?;
    Sample::of(times.take(), answers, elapsed, used, memory)
        .ok_or_else(|| format!("no answer from {} in {:?}", load.target, load.time).into())
}

impl Sample {
    /// Of times, and of what was seen meanwhile: `answers` in the time `elapsed`, for which the server took the CPU time
    /// `used`. `None`: nothing came.
    pub(crate) fn of(
        mut times: Vec<Duration>,
        answers: usize,
        elapsed: Duration,
        used: Option<Duration>,
        memory: Option<f64>,
    ) -> Option<Self> {
        if answers == 0 {
            return None;
        }
        times.sort_unstable();
        let at = |per_mille: usize| micros(times.get((times.len() - 1) * per_mille / 1000).copied());
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let answers = answers as f64;
        Some(Self {
            rate: answers / elapsed.as_secs_f64(),
            cpu: used.map(|used| used.as_secs_f64() * 100_000.0 / answers),
            median: at(500),
            p99: at(990),
            memory,
        })
    }
}

fn micros(time: Option<Duration>) -> f64 {
    time.unwrap_or_default().as_secs_f64() * 1e6
}

/// One connection: asks, reads the whole answer, asks again.
async fn client(load: Load, begin: Instant, times: &RefCell<Vec<Duration>>, done: &Cell<bool>) -> Result<()> {
    let mut stream = TcpStream::connect(load.target).await?;
    stream.set_nodelay(true)?;
    let request = request(load.body, false);
    let mut buffer = vec![0; 64 * 1024];
    while !done.get() {
        let asked = Instant::now();
        stream.write_all(&request).await?;
        answer(&mut stream, &mut buffer, load.body).await?;
        let answered = Instant::now();
        if answered >= begin {
            times.borrow_mut().push(answered - asked);
        }
    }
    Ok(())
}

/// A request as a client of an engine sends it; for a stream that ends when the client leaves, or for a whole answer.
pub(crate) fn request(body: usize, stream: bool) -> Vec<u8> {
    let mut request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: bench\r\naccept: */*\r\n\
         content-type: application/json\r\ncontent-length: {body}\r\n\r\n"
    )
    .into_bytes();
    request.extend(self::body(body, stream));
    request
}

/// The body of such a request, bytes: no shorter than the frame of a prompt.
pub(crate) fn body(length: usize, stream: bool) -> Vec<u8> {
    let before = if stream {
        r#"{"model":"bench","stream":true,"max_tokens":100000,"prompt":""#
    } else {
        r#"{"model":"bench","max_tokens":16,"prompt":""#
    };
    let after = "\"}";
    let prompt = length.saturating_sub(before.len() + after.len());
    [before, &"x".repeat(prompt), after].concat().into_bytes()
}

/// Reads one answer; anything but a 200 with the body that the engine sends is an error.
async fn answer(stream: &mut TcpStream, buffer: &mut [u8], body: usize) -> Result<()> {
    let mut filled = 0;
    let mut head = None;
    loop {
        let space = buffer.get_mut(filled..).filter(|space| !space.is_empty()).ok_or("an answer too long")?;
        let read = stream.read(space).await?;
        if read == 0 {
            return Err("the connection was closed in the middle of an answer".into());
        }
        filled += read;
        let came = buffer.get(..filled).unwrap_or_default();
        if head.is_none() {
            head = head_of(came, body)?;
        }
        match head {
            Some((head, Framing::Length)) if filled == head + body => return Ok(()),
            Some((head, Framing::Length)) if filled > head + body => {
                return Err("more than one answer to one request".into());
            }
            Some((head, Framing::Chunks)) => match chunks(came.get(head..).unwrap_or_default()) {
                Some(length) if length == body => return Ok(()),
                Some(length) => return Err(format!("an answer of {length} bytes").into()),
                None => {}
            },
            _ => {}
        }
    }
}

/// How an answer says where it ends.
#[derive(Clone, Copy)]
enum Framing {
    /// By its length.
    Length,
    /// By its last chunk: a proxy that may change a body takes the length away.
    Chunks,
}

/// Where the head of an answer ends, once it is whole.
fn head_of(answer: &[u8], body: usize) -> Result<Option<(usize, Framing)>> {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(answer.get(..end).unwrap_or_default())?;
    let value = |wanted: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim())
    };
    let framing = match (value("content-length"), value("transfer-encoding")) {
        (Some(length), None) if length.parse() == Ok(body) => Framing::Length,
        (None, Some("chunked")) => Framing::Chunks,
        _ => return Err(format!("not the answer of the engine:\n{head}").into()),
    };
    if !head.starts_with("HTTP/1.1 200") {
        return Err(format!("not the answer of the engine:\n{head}").into());
    }
    Ok(Some((end + 4, framing)))
}

/// The bytes in chunks, once the last of them is there.
fn chunks(mut rest: &[u8]) -> Option<usize> {
    let mut sum = 0;
    loop {
        let line = rest.windows(2).position(|bytes| bytes == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(rest.get(..line)?).ok()?, 16).ok()?;
        rest = rest.get(line + 2 + size..)?.strip_prefix(b"\r\n")?;
        if size == 0 {
            return rest.is_empty().then_some(sum);
        }
        sum += size;
    }
}
