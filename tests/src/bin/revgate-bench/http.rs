//! P2: the role listener beside nginx and HAProxy, the pair listener beside vllm-router and smg, and no proxy at all.
//!
//! All run at once, each proxy alone on its core while it is measured, and take turns: what the machine does besides
//! hits all alike, and the median over the rounds forgets what hit one.

use crate::{
    Plan, Result,
    cpu::Cores,
    load::{self, Load, Sample},
    server::{Bench, Job, Kind},
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
    /// Bytes of the bodies.
    pub(crate) body: usize,
    /// Connections.
    pub(crate) connections: usize,
    /// In the order of [`Job::kinds`]; without those that are not there.
    pub(crate) results: Vec<(Kind, Outcome)>,
}

/// Medians over the rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Answers per second.
    pub(crate) rate: f64,
    /// CPU seconds for 100,000 requests; `None` without a proxy.
    pub(crate) cpu: Option<f64>,
    /// Median time of an answer, microseconds; for proxies what they add to it.
    pub(crate) median: f64,
    /// 99th percentile, microseconds; for proxies what they add to it.
    pub(crate) p99: f64,
    /// The most memory that the proxy had resident so far, MiB.
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
        let bench = Bench::start(cores, job, body)?;
        for connections in CONNECTIONS {
            let mut rounds = Vec::new();
            for round in 0..plan.rounds {
                progress(&format!(
                    "{job:?}, {body} bytes, {connections} connections, round {} of {}",
                    round + 1,
                    plan.rounds
                ));
                rounds.push(measure_round(plan, &bench, job, body, connections, round).await?);
            }
            let there = job.kinds().iter().copied().filter(|kind| bench.target(*kind).is_some());
            let results = there.map(|kind| (kind, Outcome::of(&rounds, kind, Kind::Direct))).collect();
            rows.push(Row { job, body, connections, results });
        }
    }
    Ok(rows)
}

/// What each was seen to do in one turn.
pub(crate) type Round<K> = Vec<(K, Sample)>;

/// Everyone once. Who begins changes from round to round.
async fn measure_round(
    plan: &Plan,
    bench: &Bench,
    job: Job,
    body: usize,
    connections: usize,
    round: usize,
) -> Result<Round<Kind>> {
    let mut order = job.kinds().to_vec();
    order.rotate_left(round % job.kinds().len());
    let mut samples = Vec::new();
    for kind in order {
        let Some((target, pid)) = bench.target(kind) else { continue };
        let load = Load { target, body, connections, warm_up: plan.time / 4, time: plan.time };
        let sample = load::run(load, pid).await.map_err(|error| format!("{kind}: {error}"))?;
        samples.push((kind, sample));
    }
    Ok(samples)
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
