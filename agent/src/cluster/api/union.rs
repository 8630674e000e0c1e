//! What all watches have said, as one list. Pure.
//!
//! Nothing is told before every watch has its first list: a state without one namespace, or without the Services whose
//! VIPs an earlier agent left in the kernel, would be wrong and look right. From then on each watch tells what changes,
//! and a list replaces the whole at once, so that the state equals the lists exactly after it.
//!
//! The same holds for the next configuration: until each of its watches has listed, the one before stays in force, and
//! the watches of that go on. Then all changes hands at one moment.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use super::{
    object::Item,
    target::{self, Kind, Target},
};
use crate::{
    cluster::{Change, ObjectName, Pod},
    config::Config,
};

/// What a watch says of its objects.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Said {
    /// These are all.
    Listed(Vec<Item>),
    /// This one appeared or changed.
    Set(Item),
    /// This one is gone, shown as it was.
    Gone(Item),
    /// One of that name is there, and cannot be used.
    Lost(ObjectName),
}

/// Pods by name.
type Pods = HashMap<ObjectName, Arc<Pod>>;

#[derive(Debug, Default)]
struct Region {
    listed: bool,
    pods: Pods,
    /// The one object of a watch by name.
    object: Option<Item>,
}

/// The union.
#[derive(Debug, Default)]
pub(super) struct Union {
    /// Of the watches in force, and of those that come next.
    regions: BTreeMap<Target, Region>,
    /// The watches in force: what they say is told.
    current: BTreeSet<Target>,
    next: Option<Next>,
}

/// What comes into force when all of it has listed.
#[derive(Debug)]
struct Next {
    targets: BTreeSet<Target>,
    config: Arc<Config>,
}

impl Union {
    /// This is the configuration from when all of its watches have listed. One that waits still is given up.
    pub(super) fn plan(&mut self, config: Arc<Config>) -> Vec<Change> {
        let targets: BTreeSet<Target> = target::plan(&config).into_iter().collect();
        self.regions.retain(|target, _| self.current.contains(target) || targets.contains(target));
        for target in &targets {
            self.regions.entry(target.clone()).or_default();
        }
        self.next = Some(Next { targets, config });
        self.adopt().into_iter().collect()
    }

    /// What is to be watched at present.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Target> {
        self.regions.keys()
    }

    /// Whether a configuration waits for lists.
    pub(super) const fn is_waiting(&self) -> bool {
        self.next.is_some()
    }

    /// What a watch says, as what it means for the whole.
    pub(super) fn hear(&mut self, target: &Target, said: Said) -> Vec<Change> {
        let Some(region) = self.regions.get_mut(target) else { return Vec::new() };
        let listed = matches!(said, Said::Listed(_));
        region.listed |= listed;
        let change = region.hear(said);
        if let Some(whole) = self.adopt() {
            return vec![whole];
        }
        if !self.current.contains(target) {
            return Vec::new();
        }
        match (target.kind, target.object_name()) {
            (Kind::Services, Some(name)) => vec![self.service_change(target, name)],
            (Kind::Pools | Kind::OldPools, _) => self.pool_changes(std::iter::once(target)),
            _ if listed => vec![self.replace()],
            _ => change.into_iter().collect(),
        }
    }

    /// Brings the next configuration into force if all of it has listed; says everything, with what is no more.
    fn adopt(&mut self) -> Option<Change> {
        let regions = &self.regions;
        let has_listed = |target: &Target| regions.get(target).is_some_and(|region: &Region| region.listed);
        let next = self.next.take_if(|next| next.targets.iter().all(has_listed))?;
        let before = mem::replace(&mut self.current, next.targets);
        self.regions.retain(|target, _| self.current.contains(target));
        let all: BTreeSet<&Target> = before.union(&self.current).collect();
        let services = all.iter().filter(|target| target.kind == Kind::Services);
        let services = services.filter_map(|target| Some(self.service_change(target, target.object_name()?)));
        let mut changes: Vec<Change> = services.collect();
        changes.extend(self.pool_changes(all.iter().copied()));
        changes.push(Change::Config(next.config));
        changes.push(self.replace());
        Some(Change::Together(changes))
    }

    /// The Pods of the watches in force; no Pod is in two of them.
    fn replace(&self) -> Change {
        let regions = self.current.iter().filter_map(|target| self.regions.get(target));
        Change::Replace(regions.flat_map(|region| region.pods.values()).map(Arc::clone).collect())
    }

    fn service_change(&self, target: &Target, name: ObjectName) -> Change {
        let service = match self.regions.get(target).and_then(|region| region.object.as_ref()) {
            Some(Item::Service(_, service)) => Some(service.clone()),
            _ => None,
        };
        Change::Service(name, service)
    }

    /// The present group's pool is the pool; the older group's where there is none.
    fn pool_changes<'t>(&self, targets: impl Iterator<Item = &'t Target>) -> Vec<Change> {
        let mut names: Vec<ObjectName> = targets
            .filter(|target| matches!(target.kind, Kind::Pools | Kind::OldPools))
            .filter_map(Target::object_name)
            .collect();
        names.sort();
        names.dedup();
        let pool = |name: ObjectName| {
            let here = |target: &&Target| target.object_name().as_ref() == Some(&name);
            let mut regions = self.current.iter().filter(here).filter_map(|target| self.regions.get(target));
            let found = regions.find_map(|region| match &region.object {
                Some(Item::Pool(_, ports)) => Some(ports),
                _ => None,
            });
            Change::Pool(name, found.cloned())
        };
        names.into_iter().map(pool).collect()
    }
}

impl Region {
    /// Takes it in; for a Pod, what it means.
    fn hear(&mut self, said: Said) -> Option<Change> {
        match said {
            Said::Listed(items) => {
                self.pods.clear();
                self.object = None;
                for item in items {
                    self.set(item);
                }
                None
            }
            Said::Set(item) => self.set(item),
            Said::Gone(Item::Pod(pod)) => {
                let name = name_of(&pod);
                // A late end of an earlier Pod of that name ends nothing.
                if self.pods.get(&name).is_some_and(|known| known.key.uid == pod.key.uid) {
                    self.pods.remove(&name);
                }
                Some(Change::Remove(pod.key.clone()))
            }
            Said::Gone(Item::Service(..) | Item::Pool(..)) => {
                self.object = None;
                None
            }
            Said::Lost(name) => {
                self.object = None;
                self.pods.remove(&name).map(|pod| Change::Remove(pod.key.clone()))
            }
        }
    }

    fn set(&mut self, item: Item) -> Option<Change> {
        match item {
            Item::Pod(pod) => {
                self.pods.insert(name_of(&pod), Arc::clone(&pod));
                Some(Change::Upsert(pod))
            }
            object => {
                self.object = Some(object);
                None
            }
        }
    }
}

fn name_of(pod: &Pod) -> ObjectName {
    ObjectName { namespace: Arc::clone(&pod.key.namespace), name: Arc::clone(&pod.key.name) }
}

#[cfg(test)]
mod tests;
