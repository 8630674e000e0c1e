//! P3: how much longer a token of a stream is on its way with a proxy between, with few and with many streams open.
//!
//! The engines write into each event when they sent it, by the clock that all processes of a machine have in common, and
//! the load compares that with when it has read it. However many streams are open, the engines send as many events a
//! second in all, evenly: what grows with the streams is then owed to their number, not to a queue.

use std::{cell::RefCell, net::SocketAddr, rc::Rc, time::Duration};

use revgate_engine::now;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    Plan, Result,
    cpu::{self, Cores, Cpu, Memory},
    events::Events,
    http::{Row, take_turns},
    load::{self, Sample},
    server::{Answers, Bench, Job},
};

/// Streams that are open at the same time.
pub(crate) const STREAMS: [usize; 3] = [32, 256, 1000];

/// Events a second, of all streams together: those of 32 streams at 50 tokens a second.
pub(crate) const RATE: u32 = 1600;

/// Streams that are being opened at the same time.
const AT_ONCE: usize = 16;

/// Bytes of the requests' bodies, and of what prefill engines answer.
pub(crate) const BODY: usize = 1 << 10;

/// How long a stream may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// Files that the largest measurement needs in one process: a proxy's two sides of every stream, and some.
const FILES: u64 = 4096;

/// Measures everything. `progress` hears what is being measured.
pub(crate) async fn measure(
    plan: &Plan,
    cores: Cores,
    job: Job,
    progress: impl Fn(&str),
) -> Result<Vec<Row>> {
    let bench = Bench::start(cores, job, job.kinds(), Answers::Events)?;
    let mut rows = Vec::new();
    for streams in STREAMS {
        let mut rounds = Vec::new();
        for round in 0..plan.rounds {
            progress(&format!("{job:?}, {streams} streams, round {} of {}", round + 1, plan.rounds));
            let measure = async |target, pid| watch(plan, target, pid, streams).await;
            rounds.push(take_turns(&bench, job, round, measure).await?);
        }
        rows.push(Row::of(&bench, job, 0, streams, &rounds));
    }
    Ok(rows)
}

/// Lets this process, and what it starts from now on, open enough files; or says why there is nothing to measure.
pub(crate) fn obstacle() -> Result<Option<String>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|files| files < FILES) {
        if limit.maximum.is_some_and(|most| most < FILES) {
            return Ok(Some(format!("they need {FILES} open files: raise the hard limit (ulimit -Hn)")));
        }
        setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), ..limit })?;
    }
    Ok(None)
}

/// Opens streams, and times their events for a while.
pub(crate) async fn watch(
    plan: &Plan,
    target: SocketAddr,
    pid: Option<u32>,
    streams: usize,
) -> Result<Sample> {
    let (mut opening, mut open) = (JoinSet::new(), Vec::new());
    for _ in 0..streams {
        if opening.len() == AT_ONCE {
            open.extend(opening.join_next().await.transpose()?.transpose()?);
        }
        let _ = opening.spawn_local(Stream::open(target));
    }
    while let Some(opened) = opening.join_next().await {
        open.push(opened??);
    }

    // What was sent before is not looked at: it may have waited for the last stream to open.
    let begin = now() + u64::try_from((plan.time / 4).as_nanos())?;
    let times = Rc::new(RefCell::new(Vec::with_capacity(1 << 16)));
    let mut readers = JoinSet::new();
    for stream in open {
        let _ = readers.spawn_local(stream.read(begin, Rc::clone(&times)));
    }
    let measure = async {
        sleep(plan.time / 4).await;
        let (cpu, from, before) = (Cpu::of(pid)?, now(), times.borrow().len());
        sleep(plan.time).await;
        let (used, elapsed) = (Cpu::of(pid)?.since(cpu), Duration::from_nanos(now() - from));
        Result::Ok((times.borrow().len() - before, elapsed, used, cpu::memory(pid, Memory::Now)?))
    };
    let (events, elapsed, used, memory) = tokio::select! {
        measured = measure => measured?,
        // A stream only ends by an error.
        Some(ended) = readers.join_next() => {
            ended??;
            return Err("a stream ended".into());
        }
    };
    Sample::of(times.take(), events, elapsed, used, memory)
        .ok_or_else(|| format!("no event from {target} in {:?}", plan.time).into())
}

/// A stream that has begun.
struct Stream {
    socket: TcpStream,
    events: Events,
    buffer: Vec<u8>,
}

impl Stream {
    async fn open(target: SocketAddr) -> Result<Self> {
        let open = async {
            let mut socket = TcpStream::connect(target).await?;
            socket.set_nodelay(true)?;
            socket.write_all(&load::request(BODY, true)).await?;
            let mut stream = Self { socket, events: Events::default(), buffer: vec![0; 16 * 1024] };
            while !stream.events.begun() {
                stream.next(|_, _| {}).await?;
            }
            Ok(stream)
        };
        timeout(PATIENCE, open).await.map_err(|_| format!("a stream from {target} did not begin"))?
    }

    /// Reads what comes next. `heard` is told of each event when it was sent, and when it was read.
    async fn next(&mut self, mut heard: impl FnMut(u64, u64)) -> Result<()> {
        let length = self.socket.read(&mut self.buffer).await?;
        let read = now();
        if length == 0 {
            return Err("a stream broke off".into());
        }
        self.events.push(self.buffer.get(..length).unwrap_or_default(), |sent| heard(sent, read))
    }

    /// Reads for ever. Notes how long the events that were sent after `begin` have been on their way.
    async fn read(mut self, begin: u64, times: Rc<RefCell<Vec<Duration>>>) -> Result<()> {
        loop {
            self.next(|sent, read| {
                if sent >= begin {
                    times.borrow_mut().push(Duration::from_nanos(read.saturating_sub(sent)));
                }
            })
            .await?;
        }
    }
}
