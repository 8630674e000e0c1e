//! What the proxy counts (O2). A request touches only atomics that were looked up before it came.
//!
//! Labels are a listener's name, a revision's name, a class of status and a [`Reason`]: nothing that a client chose.

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::HashMap,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use http::StatusCode;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, TypedMetric, counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::error::Reason;
use crate::observe::metrics::StrictNoMatch;

/// Labels of [`Metrics::requests`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct RequestLabels {
    /// The listener.
    pub listener: String,
    /// The revision of the endpoint that served; empty where none did, or one that is not known.
    pub revision: String,
    /// Class of the status: `1xx` to `5xx`.
    pub code: &'static str,
    /// Why no endpoint served; empty where one did, and where a gateway answered itself.
    pub reason: &'static str,
}

/// Labels of what is counted per listener.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct ListenerLabels {
    /// The listener.
    pub listener: String,
}

/// The proxy's metrics. Clones count into the same series.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Requests answered.
    pub requests: Family<RequestLabels, Counter>,
    /// Seconds from a request's head to its response's head.
    pub latency: Family<ListenerLabels, Latency>,
    /// Requests in flight, response bodies included.
    pub in_flight: Family<ListenerLabels, Gauge>,
    /// Client connections.
    pub connections: Family<ListenerLabels, Gauge>,
    /// Tries after the first.
    pub retries: Family<ListenerLabels, Counter>,
    /// Connections made to endpoints.
    pub dials: Family<ListenerLabels, Counter>,
    /// Dials that the kernel led to another endpoint of the same revision.
    pub repicked: Family<ListenerLabels, Counter>,
    /// Requests sent on a pooled connection.
    pub reused: Family<ListenerLabels, Counter>,
    /// Responses that broke off in their body.
    pub broken: Family<ListenerLabels, Counter>,
    /// Breakers that opened.
    pub breaker_opens: Family<ListenerLabels, Counter>,
    /// Requests that a gateway gave to another revision than the one that was named to it.
    pub crossed: Family<ListenerLabels, Counter>,
    /// Seconds from the start of a prefill leg to the end of its reply.
    pub prefill: Family<ListenerLabels, Latency>,
    /// Requests that a decode endpoint served without a prefill.
    pub decode_only: Family<ListenerLabels, Counter>,
    /// Prefills that told no place of a KV cache.
    pub no_kv: Family<ListenerLabels, Counter>,
    /// Requests that named a revision that is not eligible, by set: llm-d's series.
    no_match: StrictNoMatch,
}

impl Metrics {
    /// Registers them all under `proxy_`; the caller's registry gives the prefix before that. `no_match` is
    /// registered by the caller, under llm-d's name.
    #[must_use]
    pub fn register(registry: &mut Registry, no_match: StrictNoMatch) -> Self {
        let metrics = Self { no_match, ..Self::default() };
        let registry = registry.sub_registry_with_prefix("proxy");
        registry.register("requests", "Requests answered", metrics.requests.clone());
        registry.register(
            "time_to_response_seconds",
            "From a request's head to its response's head",
            metrics.latency.clone(),
        );
        registry.register("requests_in_flight", "Requests in flight", metrics.in_flight.clone());
        registry.register("connections", "Client connections", metrics.connections.clone());
        registry.register("retries", "Tries after the first", metrics.retries.clone());
        registry.register("dials", "Connections made to endpoints", metrics.dials.clone());
        registry.register(
            "dials_repicked",
            "Dials that the kernel led to another endpoint of the same revision",
            metrics.repicked.clone(),
        );
        registry.register("reused", "Requests sent on a pooled connection", metrics.reused.clone());
        registry.register(
            "responses_broken",
            "Responses that broke off in their body",
            metrics.broken.clone(),
        );
        registry.register("breaker_opens", "Endpoint breakers that opened", metrics.breaker_opens.clone());
        registry.register(
            "crossed",
            "Requests that a gateway gave to another revision than the one named to it",
            metrics.crossed.clone(),
        );
        registry.register(
            "prefill_seconds",
            "From the start of a prefill leg to the end of its reply",
            metrics.prefill.clone(),
        );
        registry.register(
            "decode_only",
            "Requests that a decode endpoint served without a prefill",
            metrics.decode_only.clone(),
        );
        registry.register(
            "prefills_without_kv",
            "Prefills that told no place of a KV cache",
            metrics.no_kv.clone(),
        );
        metrics
    }

    /// The handles of one listener of one set on one worker.
    pub(super) fn listener(&self, name: &str, set: &Arc<str>, alive: Alive) -> ListenerMetrics {
        let labels = ListenerLabels { listener: name.to_owned() };
        ListenerMetrics {
            refused: Reason::ALL.map(|reason| {
                self.requests.get_or_create_owned(&RequestLabels {
                    listener: name.to_owned(),
                    revision: String::new(),
                    code: class(Some(reason.status())).1,
                    reason: reason.word(),
                })
            }),
            no_match: self.no_match.of_set(set),
            latency: self.latency.get_or_create_owned(&labels),
            in_flight: self.in_flight.get_or_create_owned(&labels),
            connections: self.connections.get_or_create_owned(&labels),
            retries: self.retries.get_or_create_owned(&labels),
            dials: self.dials.get_or_create_owned(&labels),
            repicked: self.repicked.get_or_create_owned(&labels),
            reused: self.reused.get_or_create_owned(&labels),
            broken: self.broken.get_or_create_owned(&labels),
            breaker_opens: self.breaker_opens.get_or_create_owned(&labels),
            crossed: self.crossed.get_or_create_owned(&labels),
            revisions: RefCell::default(),
            alive,
            name: name.to_owned(),
            requests: self.requests.clone(),
        }
    }

    /// What a pair listener counts besides.
    pub(super) fn pair(&self, name: &str) -> PairMetrics {
        let labels = ListenerLabels { listener: name.to_owned() };
        PairMetrics {
            prefill: self.prefill.get_or_create_owned(&labels),
            decode_only: self.decode_only.get_or_create_owned(&labels),
            no_kv: self.no_kv.get_or_create_owned(&labels),
        }
    }

    /// Drops every series of a listener that is gone; what its last requests still count is lost.
    pub(super) fn forget_listener(
        &self,
        name: &str,
        alive: &Alive,
        revisions: impl IntoIterator<Item = Arc<str>>,
    ) {
        alive.end();
        let labels = ListenerLabels { listener: name.to_owned() };
        for reason in Reason::ALL {
            self.requests.remove(&RequestLabels {
                listener: name.to_owned(),
                revision: String::new(),
                code: class(Some(reason.status())).1,
                reason: reason.word(),
            });
        }
        for revision in revisions {
            forget_revision(&self.requests, name, &revision);
        }
        forget_revision(&self.requests, name, "");
        for latency in [&self.latency, &self.prefill] {
            latency.remove(&labels);
        }
        for gauge in [&self.in_flight, &self.connections] {
            gauge.remove(&labels);
        }
        for counter in [
            &self.retries,
            &self.dials,
            &self.repicked,
            &self.reused,
            &self.broken,
            &self.breaker_opens,
            &self.crossed,
            &self.decode_only,
            &self.no_kv,
        ] {
            counter.remove(&labels);
        }
    }
}

/// Whether a listener's series may be made. Its requests may outlive it on workers of their own, and a series that one
/// of them made after it was forgotten would stay for ever.
#[derive(Clone, Debug, Default)]
pub(super) struct Alive {
    ended: Arc<Mutex<bool>>,
}

impl Alive {
    /// No series are made from here on.
    fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Makes a series, unless it is too late. Held for as long as that takes, once per series and worker.
    fn make<T>(&self, make: impl FnOnce() -> T) -> Option<T> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        (!*ended).then(make)
    }
}

/// A pair listener's handles besides, on one worker.
pub(super) struct PairMetrics {
    pub(super) prefill: Latency,
    pub(super) decode_only: Counter,
    pub(super) no_kv: Counter,
}

/// One listener's handles, on one worker.
pub(super) struct ListenerMetrics {
    refused: [Counter; Reason::ALL.len()],
    no_match: Counter,
    pub(super) latency: Latency,
    pub(super) in_flight: Gauge,
    pub(super) connections: Gauge,
    pub(super) retries: Counter,
    pub(super) dials: Counter,
    pub(super) repicked: Counter,
    pub(super) reused: Counter,
    pub(super) broken: Counter,
    pub(super) breaker_opens: Counter,
    pub(super) crossed: Counter,
    revisions: RefCell<HashMap<Arc<str>, Rc<RevisionMetrics>>>,
    alive: Alive,
    name: String,
    requests: Family<RequestLabels, Counter>,
}

impl ListenerMetrics {
    /// Counts a request that no endpoint answered.
    pub(super) fn refused(&self, reason: Reason) {
        if let Some(counter) = self.refused.get(reason as usize) {
            counter.inc();
        }
        if reason == Reason::RevisionNotEligible {
            self.no_match.inc();
        }
    }

    /// Counts a response that no endpoint made which is known, nor this agent.
    pub(super) fn foreign(&self, status: impl Into<Option<StatusCode>>) {
        self.revision(&"".into()).served(status);
    }

    /// The handles of one revision.
    pub(super) fn revision(&self, revision: &Arc<str>) -> Rc<RevisionMetrics> {
        let mut revisions = self.revisions.borrow_mut();
        Rc::clone(revisions.entry(Arc::clone(revision)).or_insert_with(|| {
            Rc::new(RevisionMetrics {
                listener: self.name.clone(),
                revision: Arc::clone(revision),
                requests: self.requests.clone(),
                classes: Default::default(),
                alive: self.alive.clone(),
                gone: Cell::new(false),
            })
        }))
    }

    /// Drops the series of a revision that is gone.
    pub(super) fn forget(&self, revision: &Arc<str>) {
        if let Some(gone) = self.revisions.borrow_mut().remove(revision) {
            gone.gone.set(true);
        }
        forget_revision(&self.requests, &self.name, revision);
    }
}

/// Drops the series of a revision.
fn forget_revision(requests: &Family<RequestLabels, Counter>, listener: &str, revision: &str) {
    for code in CLASSES {
        requests.remove(&RequestLabels {
            listener: listener.to_owned(),
            revision: revision.to_owned(),
            code,
            reason: "",
        });
    }
}

/// One revision's handles on one listener and worker, made when first counted.
pub(super) struct RevisionMetrics {
    listener: String,
    revision: Arc<str>,
    requests: Family<RequestLabels, Counter>,
    classes: [OnceCell<Counter>; CLASSES.len()],
    alive: Alive,
    /// Its series were dropped; requests that began before may still end.
    gone: Cell<bool>,
}

impl RevisionMetrics {
    /// Counts a response from an endpoint.
    pub(super) fn served(&self, status: impl Into<Option<StatusCode>>) {
        let (index, code) = class(status.into());
        let Some(counter) = self.classes.get(index).filter(|_| !self.gone.get()) else { return };
        if let Some(counter) = counter.get() {
            counter.inc();
            return;
        }
        let labels = RequestLabels {
            listener: self.listener.clone(),
            revision: self.revision.to_string(),
            code,
            reason: "",
        };
        if let Some(made) = self.alive.make(|| self.requests.get_or_create_owned(&labels)) {
            counter.get_or_init(|| made).inc();
        }
    }
}

const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "unknown"];

/// A status's class, as an index and a word.
fn class(status: Option<StatusCode>) -> (usize, &'static str) {
    match status.map(|status| status.as_u16()) {
        Some(..200) => (0, "1xx"),
        Some(200..300) => (1, "2xx"),
        Some(300..400) => (2, "3xx"),
        Some(400..500) => (3, "4xx"),
        Some(500..) => (4, "5xx"),
        None => (5, "unknown"),
    }
}

/// Upper bounds of the histogram's buckets, microseconds; what is above goes into the last, unbounded one.
const BOUNDS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000, 60_000_000,
];

/// A histogram of times made of atomics alone: the crate's own takes a lock for each observation.
#[derive(Clone, Debug, Default)]
pub struct Latency(Arc<Buckets>);

#[derive(Debug, Default)]
struct Buckets {
    counts: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Latency {
    /// Counts one time in microseconds.
    pub fn observe(&self, micros: u64) {
        if let Some(count) = self.0.counts.get(BOUNDS.partition_point(|bound| *bound < micros)) {
            count.fetch_add(1, Relaxed);
        }
        self.0.micros.fetch_add(micros, Relaxed);
    }
}

impl TypedMetric for Latency {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Latency {
    #[expect(clippy::cast_precision_loss, reason = "shown, not decided upon")]
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let seconds = |micros: u64| micros as f64 / 1e6;
        let bounds = BOUNDS.iter().map(|bound| seconds(*bound)).chain(std::iter::once(f64::INFINITY));
        let buckets: Vec<(f64, u64)> = bounds.zip(self.0.counts.iter().map(|n| n.load(Relaxed))).collect();
        let count = buckets.iter().map(|(_, n)| n).sum();
        encoder.encode_histogram::<NoLabelSet>(seconds(self.0.micros.load(Relaxed)), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests;
