//! Measures revgate on one machine, beside what a user would take instead: `make bench`.
//!
//! No figure is a pass condition. What fails is what cannot be measured at all, or a wrong answer.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod connect;
mod cpu;
mod events;
mod extproc;
mod gateway;
mod http;
mod kernel;
mod load;
mod picker;
mod programs;
mod report;
mod routers;
mod server;
mod stream;
mod train;

use std::{path::Path, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use tokio::{runtime, task::LocalSet};

use crate::{cpu::Cores, server::Job};

/// The agent's, so that the trivial picker differs from it in what it answers alone.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What went wrong, for a person to read.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The page that explains what is measured.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");

/// How much to measure.
#[derive(Debug)]
struct Plan {
    /// How often all take turns.
    rounds: usize,
    /// How long each is measured in a round.
    time: Duration,
    /// Connects to each address.
    connects: u32,
}

/// Measures revgate beside nginx, HAProxy, vllm-router, smg, a trivial endpoint picker and no proxy.
#[derive(Parser, Debug)]
struct Arguments {
    /// Long enough to see that everything runs, not to believe a figure
    #[arg(long)]
    quick: bool,
    /// Rounds in which all take turns
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Milliseconds that each is measured in a round
    #[arg(long, default_value_t = 2000)]
    time: u64,
    /// Measure only this part
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Serve every kind of load for that time each, alone, and report nothing: what deploy/profile learns from
    #[arg(long, conflicts_with = "only")]
    train: bool,
    /// Write the report into docs/benchmarks.md too
    #[arg(long)]
    write: bool,
    /// This process is the engines (their port; `events`, or the bytes of their answers) or the trivial picker (where it
    /// listens, and what it always names)
    #[arg(hide = true, num_args = 3, value_names = ["engines|picker", "PORT|ADDRESS", "BYTES|events|ENDPOINT"])]
    helper: Vec<String>,
}

/// A part of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// Requests through the proxies
    Http,
    /// Events of streams through the proxies; when it is asked for, through pair listeners too
    Stream,
    /// Requests and streams with two legs, beside routers that `.ci/setup routers` installs: only when it is asked for
    Pair,
    /// Requests through Envoy, which asks where they go
    Extproc,
    /// Connects through a VIP
    Connect,
    /// The kernel programs and their tables
    Programs,
}

impl Arguments {
    fn wants(&self, part: Part) -> bool {
        self.only.is_none_or(|only| only == part)
    }

    fn plan(&self) -> Plan {
        if self.quick {
            return Plan { rounds: 1, time: Duration::from_millis(200), connects: 200 };
        }
        Plan { rounds: self.rounds.max(1), time: Duration::from_millis(self.time), connects: 20_000 }
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    match arguments.helper.as_slice() {
        [what, address, endpoint] if what == extproc::PICKER => {
            let endpoint: &'static str = String::leak(endpoint.clone());
            return LocalSet::new().block_on(&runtime, picker::run(address.parse()?, endpoint));
        }
        [_, port, answers] => return runtime.block_on(server::run_engines(port.parse()?, answers.parse()?)),
        _ => {}
    }
    let (plan, cores) = (arguments.plan(), Cores::find()?);
    cores.take_load_core()?;
    let progress = |what: &str| eprintln!("bench: {what}");
    if arguments.train {
        return LocalSet::new().block_on(&runtime, train::run(&plan, cores, progress));
    }
    let mut http = Vec::new();
    if arguments.wants(Part::Http) {
        http = LocalSet::new().block_on(&runtime, http::measure(&plan, cores, Job::Role, progress))?;
    }
    if arguments.only == Some(Part::Pair) {
        http.extend(LocalSet::new().block_on(&runtime, http::measure(&plan, cores, Job::Pair, progress))?);
    }
    let only = |part| arguments.only == Some(part);
    let mut streams = Ok(Vec::new());
    for (job, wanted) in
        [(Job::Role, arguments.wants(Part::Stream)), (Job::Pair, only(Part::Stream) || only(Part::Pair))]
    {
        if !wanted {
            continue;
        }
        match (stream::obstacle()?, &mut streams) {
            (None, Ok(rows)) => {
                rows.extend(
                    LocalSet::new().block_on(&runtime, stream::measure(&plan, cores, job, progress))?,
                );
            }
            (Some(obstacle), _) => {
                eprintln!("bench: STREAMS ARE NOT MEASURED: {obstacle}");
                streams = Err(obstacle);
            }
            (None, Err(_)) => {}
        }
    }
    let pickers = match extproc::obstacle() {
        _ if !arguments.wants(Part::Extproc) => Err("left out".to_owned()),
        Some(obstacle) => {
            eprintln!("bench: THE ENDPOINT PICKER IS NOT MEASURED: {obstacle}");
            Err(obstacle)
        }
        None => Ok(LocalSet::new().block_on(&runtime, extproc::measure(&plan, cores, progress))?),
    };
    let obstacle = |part| match kernel::obstacle() {
        _ if !arguments.wants(part) => Some("left out".to_owned()),
        obstacle => obstacle,
    };
    let connects = match obstacle(Part::Connect) {
        None => Ok(connect::measure(&plan, cores, progress)?),
        Some(obstacle) => Err(obstacle),
    };
    let programs = match obstacle(Part::Programs) {
        None => Ok(programs::measure(&plan, cores, progress)?),
        Some(obstacle) => Err(obstacle),
    };
    let report = report::render(&plan, &http, &streams, &pickers, &connects, &programs)?;
    println!("{report}");
    if arguments.write { report::write_into(Path::new(PAGE), &report) } else { Ok(()) }
}
