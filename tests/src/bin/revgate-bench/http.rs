//! P2: the role listener beside nginx and HAProxy, the pair listener beside vllm-router and smg, and no proxy at all.
//!
//! All run at once, each proxy alone on its core while it is measured, and take turns: what the machine does besides
//! hits all alike, and the median over the rounds forgets what hit one.

use std::net::SocketAddr;

use crate::{
    Plan, Result,
    cpu::Cores,
    load::{self, Load, Sample},
    server::{Answers, Bench, Job, Kind},
};

/// Bytes of the bodies, of request and answer both.
pub(crate) const BODIES: [usize; 2] = [1 << 10, 32 << 10];
/// Connections, each with one request in flight.
pub(crate) const CONNECTIONS: [usize; 3] = [1, 16, 64];

/// The medians over the rounds for one body size and number of connections.
#[derive(Debug)]
pub(crate) struct Row {
    /// What was measured.
    pub(crate) job: Job,
    /// Bytes of the bodies; of streams, 0.
    pub(crate) body: usize,
    /// Connections, or streams.
    pub(crate) connections: usize,
    /// In the order of [`Job::kinds`]; without those that are not there.
    pub(crate) results: Vec<(Kind, Outcome)>,
}

/// Medians over the rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Answers, or events, per second.
    pub(crate) rate: f64,
    /// CPU seconds for 100,000 of them; `None` without a proxy.
    pub(crate) cpu: Option<f64>,
    /// Median time of one, microseconds; for proxies what they add to it.
    pub(crate) median: f64,
    /// 99th percentile, microseconds; for proxies what they add to it.
    pub(crate) p99: f64,
    /// The most memory that was seen of the proxy, MiB.
    pub(crate) memory: Option<f64>,
}

/// Measures everything. `progress` hears what is being measured.
pub(crate) async fn measure(
    plan: &Plan,
    cores: Cores,
    job: Job,
    progress: impl Fn(&str),
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for body in BODIES {
        let bench = Bench::start(cores, job, job.kinds(), Answers::Whole(body))?;
        for connections in CONNECTIONS {
            let mut rounds = Vec::new();
            for round in 0..plan.rounds {
                progress(&format!(
                    "{job:?}, {body} bytes, {connections} connections, round {} of {}",
                    round + 1,
                    plan.rounds
                ));
                let measure = async |target, pid| {
                    let warm_up = plan.time / 4;
                    load::run(Load { target, body, connections, warm_up, time: plan.time }, pid).await
                };
                rounds.push(take_turns(&bench, job, round, measure).await?);
            }
            rows.push(Row::of(&bench, job, body, connections, &rounds));
        }
    }
    Ok(rows)
}

/// What each was seen to do in one turn.
pub(crate) type Round<K> = Vec<(K, Sample)>;

/// Everyone once: `measure` gets the target, and the process to watch. Who begins changes from round to round.
pub(crate) async fn take_turns(
    bench: &Bench,
    job: Job,
    round: usize,
    measure: impl AsyncFn(SocketAddr, Option<u32>) -> Result<Sample>,
) -> Result<Round<Kind>> {
    let mut order = job.kinds().to_vec();
    order.rotate_left(round % job.kinds().len());
    let mut samples = Vec::new();
    for kind in order {
        let Some((target, pid)) = bench.target(kind) else { continue };
        let sample = measure(target, pid).await.map_err(|error| format!("{kind}: {error}"))?;
        samples.push((kind, sample));
    }
    Ok(samples)
}

impl Row {
    /// The medians over these rounds.
    pub(crate) fn of(
        bench: &Bench,
        job: Job,
        body: usize,
        connections: usize,
        rounds: &[Round<Kind>],
    ) -> Self {
        let there = job.kinds().iter().copied().filter(|kind| bench.target(*kind).is_some());
        let results = there.map(|kind| (kind, Outcome::of(rounds, kind, Kind::Direct))).collect();
        Self { job, body, connections, results }
    }

    /// What one of them did.
    pub(crate) fn outcome(&self, kind: Kind) -> Option<&Outcome> {
        self.results.iter().find(|(of, _)| *of == kind).map(|(_, outcome)| outcome)
    }
}

impl Outcome {
    /// Of one of those measured; `direct` is the one without a proxy.
    pub(crate) fn of<K: Copy + PartialEq>(rounds: &[Round<K>], kind: K, direct: K) -> Self {
        let samples = |kind: K| {
            rounds
                .iter()
                .filter_map(move |round| round.iter().find(|(of, _)| *of == kind))
                .map(|(_, sample)| sample)
        };
        // What a proxy adds is the difference to the direct answer of the same round.
        let over = |of: fn(&Sample) -> f64| {
            if kind == direct {
                return median(samples(kind).map(of));
            }
            median(samples(kind).zip(samples(direct)).map(|(with, without)| of(with) - of(without)))
        };
        Self {
            rate: median(samples(kind).map(|sample| sample.rate)),
            cpu: Some(median(samples(kind).filter_map(|sample| sample.cpu))).filter(|_| kind != direct),
            median: over(|sample| sample.median),
            p99: over(|sample| sample.p99),
            memory: samples(kind).filter_map(|sample| sample.memory).max_by(f64::total_cmp),
        }
    }
}

/// The middle value; not a number where there is none.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
