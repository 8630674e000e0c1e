//! What one worker knows of the endpoints of one role: prepared once per snapshot, read once per request.
//!
//! A [`Target`] is a worker's side of an endpoint: its idle connections, and everything that its responses need,
//! made once. Targets are made when first used and live as long as their endpoint stands in the current snapshot
//! with the same Pod, address and revision. That is the rule for pooled connections (H5) by construction: when an
//! endpoint leaves or its Pod is another, its target goes, and its idle connections with it.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
    sync::Arc,
};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    choose::{Candidates, Rules, Unavailable},
    error::ProxyError,
    link::Link,
    metrics::{ListenerMetrics, RevisionMetrics},
};
use crate::{
    config::GatingMode,
    gating::{self, Ask},
    snapshot::{Endpoint, SetView, Snapshot, owner::Published},
};

/// Set and role, as the kernel knows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Index of the set.
    pub(super) set: u8,
    /// Index of the role.
    pub(super) role: u8,
}

/// A worker's side of an endpoint.
pub(super) struct Target {
    /// The endpoint.
    pub(super) endpoint: Arc<Endpoint>,
    /// What its responses are stamped with.
    stamps: Box<[(HeaderName, HeaderValue)]>,
    /// Counters of its revision.
    pub(super) metrics: Rc<RevisionMetrics>,
    /// Idle connections with the time since when, the newest last.
    idle: RefCell<Vec<(Box<Link>, u64)>>,
    /// It stands in the current snapshot.
    live: Cell<bool>,
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
    /// The newest idle connection that is young enough.
    pub(super) fn take(&self, now: u64, limits: PoolLimits) -> Option<Box<Link>> {
        let mut idle = self.idle.borrow_mut();
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
        let mut idle = self.idle.borrow_mut();
        if self.live.get() && idle.len() < limits.count {
            idle.push((link, now));
        }
    }

    /// Closes connections that lay idle too long.
    fn expire(&self, now: u64, limits: PoolLimits) {
        self.idle.borrow_mut().retain(|(_, since)| now.saturating_sub(*since) < limits.idle);
    }

    fn retire(&self) {
        self.live.set(false);
        self.idle.borrow_mut().clear();
    }

    /// Writes who served, over whatever the engine sent.
    pub(super) fn stamp(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.stamps {
            headers.insert(name.clone(), value.clone());
        }
    }
}

/// A choice of an endpoint, with what a pin needs.
pub(super) struct Chosen {
    /// Whom.
    pub(super) target: Rc<Target>,
    /// Its revision's slot.
    pub(super) slot: u16,
    /// The epoch of the slot.
    pub(super) epoch: u32,
}

/// Endpoints of one revision, or of all where nothing gates.
#[derive(Default)]
struct Group {
    all: Vec<Arc<Endpoint>>,
    local: Vec<Arc<Endpoint>>,
}

impl Group {
    fn add<'a>(&mut self, endpoints: impl IntoIterator<Item = &'a Arc<Endpoint>>) {
        for endpoint in endpoints {
            self.all.push(Arc::clone(endpoint));
            if endpoint.local {
                self.local.push(Arc::clone(endpoint));
            }
        }
    }
}

/// The endpoints of one role of one set, as one worker sees them.
pub(super) struct RoleTable {
    set: Arc<str>,
    role: Arc<str>,
    metrics: Rc<ListenerMetrics>,
    snapshot: Option<Arc<Snapshot>>,
    /// Indices of the set and the role in the snapshot.
    at: Option<(usize, usize)>,
    /// The same order as the set's revisions.
    groups: Vec<Group>,
    /// All revisions together, where nothing gates.
    ungated: Option<Group>,
    /// By the address of the endpoint's vitals, which are the endpoint's identity across snapshots.
    targets: HashMap<usize, Rc<Target>>,
}

impl RoleTable {
    /// Of the role and set of these names.
    pub(super) fn new(set: Arc<str>, role: Arc<str>, metrics: Rc<ListenerMetrics>) -> Self {
        Self {
            set,
            role,
            metrics,
            snapshot: None,
            at: None,
            groups: Vec::new(),
            ungated: None,
            targets: HashMap::new(),
        }
    }

    /// Catches up with the current snapshot: one atomic load when nothing changed.
    pub(super) fn refresh(&mut self, published: &Published) {
        let current = published.load();
        if self.snapshot.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &current)) {
            return;
        }
        self.adopt(Arc::clone(&current));
    }

    fn adopt(&mut self, snapshot: Arc<Snapshot>) {
        let before: Vec<Arc<str>> = self.view().map_or_else(Vec::new, |view| {
            view.revisions.iter().map(|revision| Arc::clone(&revision.name)).collect()
        });
        self.at = snapshot.sets.iter().position(|set| set.name == self.set).and_then(|set| {
            let role = snapshot.sets.get(set)?.roles.iter().position(|role| *role == self.role)?;
            Some((set, role))
        });
        self.snapshot = Some(snapshot);
        let (mut groups, mut ungated) = (Vec::new(), None);
        if let (Some(view), Some((_, role))) = (self.view(), self.at) {
            for revision in &view.revisions {
                let mut group = Group::default();
                group.add(revision.endpoints.get(role).into_iter().flatten());
                groups.push(group);
            }
            if view.mode == GatingMode::Disabled {
                let mut together = Group::default();
                together.add(groups.iter().flat_map(|group| &group.all));
                ungated = Some(together);
            }
        }
        (self.groups, self.ungated) = (groups, ungated);
        let mut targets = std::mem::take(&mut self.targets);
        targets.retain(|_, target| {
            let stays = self.stands(&target.endpoint);
            if !stays {
                target.retire();
            }
            stays
        });
        self.targets = targets;
        for revision in before {
            if self.view().is_none_or(|view| view.revision(&revision).is_none()) {
                self.metrics.forget(&revision);
            }
        }
    }

    /// Whether the current snapshot has this endpoint, with the same Pod and revision.
    fn stands(&self, endpoint: &Endpoint) -> bool {
        self.find(&endpoint.revision, |found| found.address.cmp(&endpoint.address))
            .is_some_and(|found| found.pod.key == endpoint.pod.key)
    }

    /// The endpoint of a revision at an address.
    fn find(
        &self,
        revision: &str,
        compare: impl Fn(&Endpoint) -> std::cmp::Ordering,
    ) -> Option<&Arc<Endpoint>> {
        let view = self.view()?;
        let at = view.revisions.binary_search_by(|r| r.name.as_ref().cmp(revision)).ok()?;
        let all = &self.groups.get(at)?.all;
        all.binary_search_by(|found| compare(found)).ok().and_then(|at| all.get(at))
    }

    fn view(&self) -> Option<&SetView> {
        let (set, _) = self.at?;
        self.snapshot.as_ref()?.sets.get(set)
    }

    /// The header that names a revision.
    pub(super) fn revision_header(&self) -> Option<HeaderName> {
        self.view().map(|view| view.revision_header.clone())
    }

    /// The set's and the role's place in the kernel's tables.
    pub(super) fn place(&self) -> Option<Place> {
        let (set, role) = self.at?;
        Some(Place { set: u8::try_from(set).ok()?, role: u8::try_from(role).ok()? })
    }

    /// Chooses the revision of a request: `None` where nothing gates and nothing was named.
    pub(super) fn revision(&self, ask: Ask<'_>, draw: u32) -> Result<Option<Arc<str>>, ProxyError> {
        let view = self.ready()?;
        let gated = view.mode != GatingMode::Disabled;
        Ok(gating::choose(&view.distribution, gated, ask, draw)?.map(|revision| Arc::clone(&revision.name)))
    }

    /// The set, once its first Pod list is there.
    fn ready(&self) -> Result<&SetView, ProxyError> {
        match &self.snapshot {
            Some(snapshot) if snapshot.synced => self.view().ok_or(ProxyError::NotSynced),
            _ => Err(ProxyError::NotSynced),
        }
    }

    /// Chooses an endpoint of a revision (of any, with `None`), none of those tried. `None`: all were tried.
    pub(super) fn choose(
        &mut self,
        revision: Option<&str>,
        tried: &[Arc<Endpoint>],
        rules: Rules,
    ) -> Result<Option<Chosen>, ProxyError> {
        let view = self.ready()?;
        let group = match revision {
            Some(name) => view
                .revisions
                .binary_search_by(|r| r.name.as_ref().cmp(name))
                .ok()
                .and_then(|at| self.groups.get(at)),
            None => self.ungated.as_ref(),
        };
        let (all, local) = group.map_or((&[][..], &[][..]), |g| (&g.all[..], &g.local[..]));
        let endpoint = match (Candidates { all, local, tried }).choose(rules) {
            Ok(endpoint) => Arc::clone(endpoint),
            Err(Unavailable::AllTried) => return Ok(None),
            Err(Unavailable::NoEndpoint) => {
                return Err(ProxyError::NoEndpoint { role: Arc::clone(&self.role) });
            }
            Err(Unavailable::BreakersOpen) => {
                return Err(ProxyError::BreakersOpen { role: Arc::clone(&self.role) });
            }
        };
        let (slot, epoch) = view.revision(&endpoint.revision).map_or((0, 0), |r| (r.slot, r.epoch));
        Ok(Some(Chosen { target: self.target(&endpoint), slot, epoch }))
    }

    /// The target of the endpoint at an address of a revision, if the snapshot knows it.
    pub(super) fn at_address(&mut self, revision: &str, address: std::net::SocketAddr) -> Option<Rc<Target>> {
        let endpoint = Arc::clone(self.find(revision, |found| found.address.cmp(&address))?);
        Some(self.target(&endpoint))
    }

    fn target(&mut self, endpoint: &Arc<Endpoint>) -> Rc<Target> {
        let key = Arc::as_ptr(&endpoint.vitals).addr();
        if let Some(target) = self.targets.get(&key) {
            return Rc::clone(target);
        }
        let target = Rc::new(Target {
            stamps: self.stamps(endpoint),
            metrics: self.metrics.revision(&endpoint.revision),
            endpoint: Arc::clone(endpoint),
            idle: RefCell::default(),
            live: Cell::new(true),
        });
        self.targets.insert(key, Rc::clone(&target));
        target
    }

    /// The revision's header, and each selector's with the Pod's label.
    fn stamps(&self, endpoint: &Endpoint) -> Box<[(HeaderName, HeaderValue)]> {
        let Some(view) = self.view() else { return Box::default() };
        let selectors = view.selectors.iter().filter_map(|selector| {
            Some((selector.header.clone(), endpoint.pod.labels.get(&selector.label)?.as_ref()))
        });
        std::iter::once((view.revision_header.clone(), endpoint.revision.as_ref()))
            .chain(selectors)
            .filter_map(|(name, value)| Some((name, HeaderValue::from_str(value).ok()?)))
            .collect()
    }

    /// Closes connections that lay idle too long.
    pub(super) fn expire(&self, now: u64, limits: PoolLimits) {
        for target in self.targets.values() {
            target.expire(now, limits);
        }
    }
}
