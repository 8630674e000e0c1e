//! A client of disaggregated engines from the command line: it runs the two legs of each request itself, as a
//! coordinator or a sidecar does, and keeps count of who answered.
//!
//! The engines refuse KV blocks of another revision, so a pair that was mixed shows as such. Each call is a connection
//! of its own: where each goes is then decided anew.

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use clap::Parser;
use http::{HeaderMap, HeaderName, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use revgate_engine::{ClientReport, KV_MISMATCH, NAME_HEADER};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    select,
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

/// Longest time for one call.
const PATIENCE: Duration = Duration::from_secs(15);
/// Largest answer that is read, bytes.
const MAX_ANSWER: usize = 1 << 20;
/// How often the report is written.
const REPORT_EVERY: Duration = Duration::from_millis(200);
/// What revgate says of a named revision that has no endpoint in some role (any more).
const NOT_ELIGIBLE: &str = "revision-not-eligible";

/// Asks engines again and again until interrupted, and reports who answered.
#[derive(Debug, Parser)]
#[command(name = "revgate-client", version)]
struct Args {
    /// Where the prefill leg goes; without it there is only one leg
    #[arg(long, value_name = "ADDRESS")]
    prefill: Option<SocketAddr>,
    /// Where the decode leg goes
    #[arg(long, value_name = "ADDRESS")]
    decode: SocketAddr,
    /// The header by which the decode leg names the revision of the prefill leg
    #[arg(long, value_name = "NAME", default_value = "x-llm-d-disagg-revision")]
    revision_header: HeaderName,
    /// Where the report goes, as JSON; it is replaced five times a second
    #[arg(long, value_name = "FILE")]
    report: PathBuf,
    /// Requests at a time
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Milliseconds before the first request: a Pod gets none before it is Ready
    #[arg(long, value_name = "MS", default_value_t = 0)]
    delay: u64,
    /// Milliseconds between the requests of a worker
    #[arg(long, value_name = "MS", default_value_t = 5)]
    pause: u64,
}

/// How one request failed.
enum Failure {
    /// The engine refused the KV blocks of another revision.
    Mixed,
    /// The revision that the prefill's answer named ended before the decode: both begin anew.
    Ended,
    Other(String),
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(run(args))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("revgate-client: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> io::Result<()> {
    let args = Arc::new(args);
    let report = Arc::new(Mutex::new(ClientReport::default()));
    let stop = watch::Sender::new(false);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut workers = JoinSet::new();
    for _ in 0..args.workers {
        workers.spawn(work(Arc::clone(&args), Arc::clone(&report), stop.subscribe()));
    }
    loop {
        select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = sleep(REPORT_EVERY) => write(&args.report, &report)?,
        }
    }
    // Requests that are under way are finished and counted.
    stop.send_replace(true);
    while workers.join_next().await.is_some() {}
    write(&args.report, &report)
}

/// Replaces the file as a whole.
fn write(path: &Path, report: &Mutex<ClientReport>) -> io::Result<()> {
    let report = report.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let new = path.with_extension("new");
    fs::write(&new, serde_json::to_vec(&report)?)?;
    fs::rename(new, path)
}

async fn work(args: Arc<Args>, report: Arc<Mutex<ClientReport>>, stop: watch::Receiver<bool>) {
    sleep(Duration::from_millis(args.delay)).await;
    while !*stop.borrow() {
        let outcome = request(&args, &report).await;
        {
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            match outcome {
                Ok(()) => report.answered += 1,
                Err(Failure::Mixed) => report.mixed += 1,
                Err(Failure::Ended) => report.begun_anew += 1,
                Err(Failure::Other(words)) => *report.failed.entry(words).or_default() += 1,
            }
        }
        sleep(Duration::from_millis(args.pause)).await;
    }
}

/// Both legs of one request.
async fn request(args: &Args, report: &Mutex<ClientReport>) -> Result<(), Failure> {
    let mut body = json!({"model": "sim", "prompt": "hello", "max_tokens": 2});
    let mut headers = HeaderMap::new();
    if let Some(prefill) = args.prefill {
        let mut first = body.clone();
        if let Some(fields) = first.as_object_mut() {
            fields.insert("kv_transfer_params".to_owned(), json!({"do_remote_decode": true}));
            fields.insert("max_tokens".to_owned(), json!(1));
        }
        let (head, mut answer) = leg("prefill", prefill, &HeaderMap::new(), &first).await?;
        count(report, |report| &mut report.prefill, &head);
        if let Some(fields) = body.as_object_mut() {
            fields.insert("kv_transfer_params".to_owned(), take(&mut answer, "kv_transfer_params"));
        }
        if let Some(revision) = head.get(&args.revision_header) {
            headers.insert(args.revision_header.clone(), revision.clone());
        }
    }
    let (head, _) = leg("decode", args.decode, &headers, &body).await?;
    count(report, |report| &mut report.decode, &head);
    Ok(())
}

fn take(answer: &mut Value, field: &str) -> Value {
    answer.get_mut(field).map(Value::take).unwrap_or_default()
}

fn count(
    report: &Mutex<ClientReport>,
    of_leg: impl Fn(&mut ClientReport) -> &mut BTreeMap<String, u64>,
    head: &HeaderMap,
) {
    let engine = head.get(NAME_HEADER).and_then(|name| name.to_str().ok()).unwrap_or("unnamed");
    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
    *of_leg(&mut report).entry(engine.to_owned()).or_default() += 1;
}

/// One call, with an answer in JSON.
async fn leg(
    name: &str,
    to: SocketAddr,
    headers: &HeaderMap,
    body: &Value,
) -> Result<(HeaderMap, Value), Failure> {
    let failed = |words: String| Failure::Other(format!("{name}: {words}"));
    let response = match timeout(PATIENCE, call(to, headers, body)).await {
        Ok(response) => response.map_err(|error| failed(words(error.as_ref())))?,
        Err(_) => return Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
    };
    let (head, answer) = response.into_parts();
    let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
    let code = answer.pointer("/error/code").and_then(Value::as_str).unwrap_or_default();
    match head.status {
        StatusCode::OK => Ok((head.headers, answer)),
        _ if code == KV_MISMATCH => Err(Failure::Mixed),
        StatusCode::SERVICE_UNAVAILABLE if code == NOT_ELIGIBLE => Err(Failure::Ended),
        status => Err(failed(format!("{status} {code}"))),
    }
}

type CallError = Box<dyn std::error::Error + Send + Sync>;

async fn call(to: SocketAddr, headers: &HeaderMap, body: &Value) -> Result<Response<Bytes>, CallError> {
    let stream = TcpStream::connect(to).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::post("/v1/completions").body(Full::new(Bytes::from(body.to_string())))?;
    let fields = request.headers_mut();
    fields.extend(headers.clone());
    fields.insert(header::HOST, to.to_string().parse()?);
    fields.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    let mut task = JoinSet::new();
    // How the connection ends, the request tells better.
    task.spawn(async move { drop(connection.await) });
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}

/// An error and what is behind it.
fn words(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", words(source)),
        None => error.to_string(),
    }
}
