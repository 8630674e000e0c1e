//! What one worker knows of the endpoints of one role: prepared once per snapshot, read once per request.
//!
//! [`Target`]s are made when first used and live as long as their endpoint stands in the current snapshot with the
//! same Pod, address and revision. That is the rule for pooled connections (H5) by construction: when an endpoint
//! leaves or its Pod is another, its target goes, and its idle connections with it. When only what its responses
//! tell has changed (a label, a header of the configuration), the target is made again over the same connections.

use std::{collections::HashMap, net::SocketAddr, rc::Rc, sync::Arc};

use http::HeaderName;
use revgate_common::pick;

use super::{
    choose::{Candidates, Probes, Rules, Unavailable, Want},
    error::ProxyError,
    metrics::ListenerMetrics,
    target::{PoolLimits, Target},
};
use crate::{
    config::{GatingMode, HeaderSelector},
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

/// A choice of an endpoint, with what a pin needs.
pub(super) struct Chosen {
    /// Whom.
    pub(super) target: Rc<Target>,
    /// Its revision's slot.
    pub(super) slot: u16,
    /// The epoch of the slot.
    pub(super) epoch: u32,
    /// It rests, and the request has claimed its probe.
    probe: bool,
}

impl Chosen {
    /// Nothing is asked of it after all: what was claimed by these rules is for another request.
    pub(super) fn give_back(&self, rules: Rules) {
        if self.probe {
            self.target.endpoint.vitals.unclaim_probe(rules.now, rules.breaker);
        }
    }
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
        let stamped = self.headers().map(|(revision, selectors)| (revision.clone(), Arc::clone(selectors)));
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
        let same_headers =
            self.headers() == stamped.as_ref().map(|(revision, selectors)| (revision, selectors));
        let mut targets = std::mem::take(&mut self.targets);
        targets.retain(|_, target| {
            let Some((view, endpoint)) = self.view().zip(self.standing(&target.endpoint)) else {
                target.retire();
                return false;
            };
            if !same_headers || !Arc::ptr_eq(endpoint, &target.endpoint) {
                *target = Rc::new(target.renewed(endpoint, view));
            }
            true
        });
        self.targets = targets;
        for revision in before {
            if self.view().is_none_or(|view| view.revision(&revision).is_none()) {
                self.metrics.forget(&revision);
            }
        }
    }

    /// The endpoint as the current snapshot has it, with the same Pod and revision.
    fn standing(&self, endpoint: &Endpoint) -> Option<&Arc<Endpoint>> {
        self.find(&endpoint.revision, endpoint.address)
            .filter(|found| Arc::ptr_eq(&found.vitals, &endpoint.vitals))
    }

    /// The endpoint of a revision at an address.
    fn find(&self, revision: &str, address: SocketAddr) -> Option<&Arc<Endpoint>> {
        let view = self.view()?;
        let at = view.revisions.binary_search_by(|r| r.name.as_ref().cmp(revision)).ok()?;
        let all = &self.groups.get(at)?.all;
        all.binary_search_by(|found| found.address.cmp(&address)).ok().and_then(|at| all.get(at))
    }

    fn view(&self) -> Option<&SetView> {
        let (set, _) = self.at?;
        self.snapshot.as_ref()?.sets.get(set)
    }

    /// The header that names a revision, and the selectors with theirs.
    pub(super) fn headers(&self) -> Option<(&HeaderName, &Arc<[HeaderSelector]>)> {
        self.view().map(|view| (&view.revision_header, &view.selectors))
    }

    /// The role's name.
    pub(super) fn role(&self) -> Arc<str> {
        Arc::clone(&self.role)
    }

    /// The set's and the role's place in the kernel's tables.
    pub(super) fn place(&self) -> Option<Place> {
        let (set, role) = self.at?;
        Some(Place { set: u8::try_from(set).ok()?, role: u8::try_from(role).ok()? })
    }

    /// Chooses the revision of a request: `None` where nothing gates and nothing was named.
    pub(super) fn revision(&self, ask: Ask<'_>, draw: u32) -> Result<Option<Arc<str>>, ProxyError> {
        let view = self.ready()?;
        Ok(gating::choose(&view.distribution, self.is_gated(), ask, draw)?
            .map(|revision| Arc::clone(&revision.name)))
    }

    /// The same among the revisions that have endpoints which fit, by name: in proportion to these where nothing gates.
    /// Where none has any, and where one is named, the choice is as without it: the choice of an endpoint will say why
    /// there is none.
    pub(super) fn revision_among(
        &self,
        ask: Ask<'_>,
        draw: u32,
        fitting: impl Fn(&str) -> usize,
    ) -> Result<Option<Arc<str>>, ProxyError> {
        let view = self.ready()?;
        let as_without = || self.revision(ask, draw);
        if matches!(ask, Ask::Named(_)) {
            return as_without();
        }
        if view.mode == GatingMode::Disabled {
            let counts = view
                .revisions
                .iter()
                .map(|revision| (&revision.name, u32::try_from(fitting(&revision.name)).unwrap_or(u32::MAX)));
            let counts: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
            let total = counts.iter().fold(0_u32, |sum, (_, count)| sum.saturating_add(*count));
            let mut place = pick::index(draw, total);
            for (name, count) in counts {
                match place.checked_sub(count) {
                    Some(left) => place = left,
                    None => return Ok(Some(Arc::clone(name))),
                }
            }
            return as_without();
        }
        let only = view.distribution.only(|revision| fitting(&revision.name) > 0);
        if !only.revisions.iter().any(|revision| revision.eligible) {
            return as_without();
        }
        Ok(gating::choose(&only, true, ask, draw)?.map(|revision| Arc::clone(&revision.name)))
    }

    /// Sees that a request which asks for that can have a revision.
    pub(super) fn admits(&self, ask: Ask<'_>) -> Result<(), ProxyError> {
        let ask = if matches!(ask, Ask::Named(_)) { ask } else { Ask::Any };
        self.revision(ask, 0).map(drop)
    }

    /// Whether revisions share the traffic by weight.
    pub(super) fn is_gated(&self) -> bool {
        self.view().is_some_and(|view| view.mode != GatingMode::Disabled)
    }

    /// The set, once its first Pod list is there.
    fn ready(&self) -> Result<&SetView, ProxyError> {
        match &self.snapshot {
            Some(snapshot) if snapshot.synced => self.view().ok_or(ProxyError::NotSynced),
            _ => Err(ProxyError::NotSynced),
        }
    }

    /// Chooses an endpoint of a revision (of any, with `None`) that is what is wanted, none of those tried.
    /// `None`: all were tried.
    pub(super) fn choose(
        &mut self,
        revision: Option<&str>,
        tried: &[Arc<Endpoint>],
        wants: &[Want],
        rules: Rules,
    ) -> Result<Option<Chosen>, ProxyError> {
        self.ready()?;
        let role = || Arc::clone(&self.role);
        let endpoint = match self.candidates(revision, tried, wants).choose(rules) {
            Ok(endpoint) => Arc::clone(endpoint),
            Err(Unavailable::AllTried) => return Ok(None),
            Err(Unavailable::NoEndpoint) => return Err(ProxyError::NoEndpoint { role: role() }),
            Err(Unavailable::NoneMatches) if wants.iter().any(|want| matches!(want, Want::OneOf(_))) => {
                return Err(ProxyError::OutsideSubset { role: role() });
            }
            Err(Unavailable::NoneMatches) => return Err(ProxyError::NoMatchingEndpoint { role: role() }),
            Err(Unavailable::BreakersOpen) => return Err(ProxyError::BreakersOpen { role: role() }),
        };
        let probe = rules.probes == Probes::Claim && endpoint.vitals.is_open();
        Ok(self.chosen(&endpoint).map(|chosen| Chosen { probe, ..chosen }))
    }

    fn chosen(&mut self, endpoint: &Arc<Endpoint>) -> Option<Chosen> {
        let revision = self.view()?.revision(&endpoint.revision);
        let (slot, epoch) = revision.map_or((0, 0), |revision| (revision.slot, revision.epoch));
        self.target(endpoint).map(|target| Chosen { target, slot, epoch, probe: false })
    }

    /// The first of these addresses that is an endpoint of the revision (of any, with `None`).
    pub(super) fn named(&mut self, revision: Option<&str>, addresses: &[SocketAddr]) -> Option<Chosen> {
        let endpoint = addresses.iter().find_map(|address| match revision {
            Some(revision) => self.find(revision, *address),
            None => self.find_any(*address),
        });
        let endpoint = Arc::clone(endpoint?);
        self.chosen(&endpoint)
    }

    /// The endpoint at an address, of any revision that may be chosen.
    fn find_any(&self, address: SocketAddr) -> Option<&Arc<Endpoint>> {
        let mut eligible = self.view()?.distribution.revisions.iter().filter(|revision| revision.eligible);
        eligible.find_map(|revision| self.find(&revision.name, address))
    }

    /// How many endpoints of a revision are what is wanted.
    pub(super) fn fitting(&self, revision: &str, wants: &[Want]) -> usize {
        self.candidates(Some(revision), &[], wants).fitting()
    }

    /// How many of those do not rest.
    pub(super) fn working(&self, revision: &str, wants: &[Want], now: u64) -> usize {
        self.candidates(Some(revision), &[], wants).working(now)
    }

    /// Whether there are others than those tried.
    pub(super) fn has_others(&self, revision: Option<&str>, tried: &[Arc<Endpoint>], wants: &[Want]) -> bool {
        self.candidates(revision, tried, wants).are_left()
    }

    fn candidates<'a>(
        &'a self,
        revision: Option<&str>,
        tried: &'a [Arc<Endpoint>],
        wants: &'a [Want],
    ) -> Candidates<'a> {
        let group = match revision {
            Some(name) => self
                .view()
                .and_then(|view| view.revisions.binary_search_by(|r| r.name.as_ref().cmp(name)).ok())
                .and_then(|at| self.groups.get(at)),
            None => self.ungated.as_ref(),
        };
        let (all, local) = group.map_or((&[][..], &[][..]), |g| (&g.all[..], &g.local[..]));
        Candidates { all, local, tried, wants }
    }

    /// The target at the address to which the kernel led a connection meant for `chosen`. The kernel may be ahead
    /// of the snapshot: the revision is right all the same, and nothing else is known of who is there.
    pub(super) fn landed(&mut self, chosen: &Target, address: SocketAddr) -> Option<Rc<Target>> {
        if let Some(endpoint) = self.find(&chosen.endpoint.revision, address) {
            let endpoint = Arc::clone(endpoint);
            return self.target(&endpoint);
        }
        self.view().map(|view| Rc::new(chosen.stranger(address, view)))
    }

    /// The target of an endpoint of the current snapshot.
    fn target(&mut self, endpoint: &Arc<Endpoint>) -> Option<Rc<Target>> {
        let key = Arc::as_ptr(&endpoint.vitals).addr();
        if let Some(target) = self.targets.get(&key) {
            return Some(Rc::clone(target));
        }
        let metrics = self.metrics.revision(&endpoint.revision);
        let target = Rc::new(Target::new(Arc::clone(endpoint), self.view()?, metrics));
        self.targets.insert(key, Rc::clone(&target));
        Some(target)
    }

    /// Closes connections that lay idle too long.
    pub(super) fn expire(&self, now: u64, limits: PoolLimits) {
        for target in self.targets.values() {
            target.expire(now, limits);
        }
    }
}
