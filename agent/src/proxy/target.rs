//! A worker's side of one endpoint: its idle connections, and everything that its responses need, made once.

use std::{
    cell::{Cell, OnceCell, RefCell},
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{link::Link, metrics::RevisionMetrics};
use crate::{
    extproc::{Named, Stamps},
    snapshot::{Endpoint, SetView, Vitals},
};

/// A worker's side of an endpoint.
pub(super) struct Target {
    /// The endpoint.
    pub(super) endpoint: Arc<Endpoint>,
    /// Every header that tells who served. `None`: the endpoint has no such label, and an engine's own header must
    /// not pass for one.
    stamps: Box<[(HeaderName, Option<HeaderValue>)]>,
    /// How gateways are told of it, once one has asked.
    named: OnceCell<Named>,
    /// The stamps, as gateways are told them.
    stamped: OnceCell<Stamps>,
    /// Counters of its revision.
    pub(super) metrics: Rc<RevisionMetrics>,
    /// Its connections, which outlive a change of its stamps.
    pool: Rc<Pool>,
}

/// Idle connections to an endpoint.
struct Pool {
    /// With the time since when, the newest last.
    idle: RefCell<Vec<(Box<Link>, u64)>>,
    /// The endpoint stands in the current snapshot.
    live: Cell<bool>,
}

impl Pool {
    fn new(live: bool) -> Rc<Self> {
        Rc::new(Self { idle: RefCell::default(), live: Cell::new(live) })
    }
}

/// The bounds of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLimits {
    /// How long a connection lies idle at most, milliseconds.
    pub(super) idle: u64,
    /// How many may.
    pub(super) count: usize,
}

impl Target {
    /// Of an endpoint that stands in the snapshot of this view.
    pub(super) fn new(endpoint: Arc<Endpoint>, view: &SetView, metrics: Rc<RevisionMetrics>) -> Self {
        let labels = &endpoint.pod.labels;
        let stamps = stamps(view, &endpoint.revision, |label| labels.get(label).map(AsRef::as_ref));
        Self {
            stamps,
            named: OnceCell::new(),
            stamped: OnceCell::new(),
            endpoint,
            metrics,
            pool: Pool::new(true),
        }
    }

    /// The same endpoint in a later snapshot, with what is stamped now and the connections that it has.
    pub(super) fn renewed(&self, endpoint: &Arc<Endpoint>, view: &SetView) -> Self {
        let renewed = Self::new(Arc::clone(endpoint), view, Rc::clone(&self.metrics));
        Self { pool: Rc::clone(&self.pool), ..renewed }
    }

    /// Whoever is at an address that no snapshot has shown yet. Only its revision is known: the labels and the
    /// account of failures are those of nobody, and its connection is not kept.
    pub(super) fn stranger(&self, address: SocketAddr, view: &SetView) -> Self {
        let known = &self.endpoint;
        let endpoint = Endpoint {
            address,
            pod: Arc::clone(&known.pod),
            revision: Arc::clone(&known.revision),
            role: known.role,
            local: false,
            vitals: Arc::new(Vitals::default()),
        };
        Self {
            stamps: stamps(view, &known.revision, |_| None),
            named: OnceCell::new(),
            stamped: OnceCell::new(),
            endpoint: Arc::new(endpoint),
            metrics: Rc::clone(&self.metrics),
            pool: Pool::new(false),
        }
    }

    /// Whether the current snapshot has it: otherwise there is nobody to account anything to.
    pub(super) fn is_live(&self) -> bool {
        self.pool.live.get()
    }

    /// The newest idle connection that is young enough.
    pub(super) fn take(&self, now: u64, limits: PoolLimits) -> Option<Box<Link>> {
        let mut idle = self.pool.idle.borrow_mut();
        let (link, since) = idle.pop()?;
        if now.saturating_sub(since) < limits.idle {
            return Some(link);
        }
        // The newest is too old, so all are.
        idle.clear();
        None
    }

    /// Keeps a connection for the next request, if there is to be one.
    pub(super) fn put(&self, link: Box<Link>, now: u64, limits: PoolLimits) {
        let mut idle = self.pool.idle.borrow_mut();
        if self.is_live() && idle.len() < limits.count {
            idle.push((link, now));
        }
    }

    /// Closes connections that lay idle too long.
    pub(super) fn expire(&self, now: u64, limits: PoolLimits) {
        self.pool.idle.borrow_mut().retain(|(_, since)| now.saturating_sub(*since) < limits.idle);
    }

    /// Its endpoint has left: its connections go, and those in use when they are done.
    pub(super) fn retire(&self) {
        self.pool.live.set(false);
        self.pool.idle.borrow_mut().clear();
    }

    /// How gateways are told of it.
    pub(super) fn named(&self) -> Named {
        self.named.get_or_init(|| Named::of([self.endpoint.address])).clone()
    }

    /// Every header that tells who served, with its value, if any.
    pub(super) fn stamps(&self) -> &[(HeaderName, Option<HeaderValue>)] {
        &self.stamps
    }

    /// The same, as gateways are told it.
    pub(super) fn stamped(&self) -> Stamps {
        self.stamped.get_or_init(|| Stamps::of(&self.stamps)).clone()
    }

    /// Writes who served, over whatever the engine sent.
    pub(super) fn stamp(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.stamps {
            match value {
                Some(value) => headers.insert(name, value.clone()),
                None => headers.remove(name),
            };
        }
    }
}

/// The revision's header, and each selector's with the Pod's label.
fn stamps<'p>(
    view: &SetView,
    revision: &str,
    label: impl Fn(&str) -> Option<&'p str>,
) -> Box<[(HeaderName, Option<HeaderValue>)]> {
    let value = |text: &str| HeaderValue::from_str(text).ok();
    let selectors = view
        .selectors
        .iter()
        .map(|selector| (selector.header.clone(), label(&selector.label).and_then(value)));
    std::iter::once((view.revision_header.clone(), value(revision))).chain(selectors).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Pod, PodKey},
        config::{GatingMode, HeaderSelector, SelectorMode},
        gating::{Census, Distribution, Gating},
        observe::metrics::StrictNoMatch,
        proxy::{Metrics, metrics::Alive},
    };

    const REVISION: HeaderName = HeaderName::from_static("x-revision");
    const SLICE: HeaderName = HeaderName::from_static("x-slice");

    fn view() -> SetView {
        let selector = HeaderSelector {
            name: "s".into(),
            header: SLICE,
            label: "slice".into(),
            mode: SelectorMode::Strict,
        };
        let gating = Gating { mode: GatingMode::Disabled, required: 1 };
        SetView {
            name: "set".into(),
            mode: gating.mode,
            revision_header: REVISION,
            selectors: [selector].into(),
            roles: ["decode".into()].into(),
            required: 1,
            distribution: Distribution::of(&Census::new(1), gating),
            revisions: Vec::new(),
            left_out: Vec::new(),
        }
    }

    fn known() -> Target {
        let pod = Pod {
            labels: [("slice".into(), "1".into())].into_iter().collect(),
            ready: true,
            ..Pod::new(PodKey { namespace: "n".into(), name: "p".into(), uid: "u".into() })
        };
        let endpoint = Endpoint {
            address: ([127, 0, 0, 1], 1).into(),
            pod: Arc::new(pod),
            revision: "a".into(),
            role: 0,
            local: true,
            vitals: Arc::new(Vitals::default()),
        };
        let metrics = Metrics::register(
            &mut prometheus_client::registry::Registry::default(),
            StrictNoMatch::default(),
        );
        let metrics =
            metrics.listener("decode", &"set".into(), Alive::default()).revision(&endpoint.revision);
        Target::new(Arc::new(endpoint), &view(), metrics)
    }

    #[test]
    fn of_a_stranger_only_the_revision_is_told_and_nothing_is_accounted_or_kept() {
        let known = known();
        let stranger = known.stranger(([127, 0, 0, 1], 2).into(), &view());
        let mut headers = HeaderMap::from_iter([(SLICE, HeaderValue::from_static("forged"))]);
        stranger.stamp(&mut headers);
        assert_eq!(headers, HeaderMap::from_iter([(REVISION, HeaderValue::from_static("a"))]));
        assert!(!stranger.is_live(), "no connection is kept and no failure counted");
        assert!(!Arc::ptr_eq(&stranger.endpoint.vitals, &known.endpoint.vitals));
        assert!(!Rc::ptr_eq(&stranger.pool, &known.pool));
        known.stamp(&mut headers);
        assert_eq!(headers[SLICE], "1");
    }
}
