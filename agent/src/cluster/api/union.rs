//! What all watches have said, as one list. Pure.
//!
//! Nothing is told before every watch has its first list: a state without one namespace, or without the Services whose
//! VIPs an earlier agent left in the kernel, would be wrong and look right. From then on each watch tells what changes,
//! and a list replaces the whole at once, so that the state equals the lists exactly after it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    object::Item,
    target::{Kind, Target},
};
use crate::cluster::{Change, ObjectName, Pod};

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
    regions: BTreeMap<Target, Region>,
    /// Pods of watches that are over, kept until the watches that came in their place have listed.
    leaving: Pods,
    synced: bool,
}

impl Union {
    /// From now on these are the watches.
    pub(super) fn plan(&mut self, targets: &[Target]) -> Vec<Change> {
        let mut changes = Vec::new();
        for (target, region) in std::mem::take(&mut self.regions) {
            if targets.contains(&target) {
                self.regions.insert(target, region);
                continue;
            }
            self.leaving.extend(region.pods);
            if let (Kind::Services, Some(name)) = (target.kind, target.object_name()) {
                changes.push(Change::Service(name, None));
            }
        }
        for target in targets {
            self.regions.entry(target.clone()).or_default();
        }
        if !self.synced {
            return self.sync();
        }
        changes.extend(self.pool_changes(targets.iter()));
        changes.push(self.replace());
        changes
    }

    /// What a watch says, as what it means for the whole.
    pub(super) fn hear(&mut self, target: &Target, said: Said) -> Vec<Change> {
        let Some(region) = self.regions.get_mut(target) else { return Vec::new() };
        let listed = matches!(said, Said::Listed(_));
        region.listed |= listed;
        let change = region.hear(said);
        if !self.synced {
            return self.sync();
        }
        match (target.kind, target.object_name()) {
            (Kind::Services, Some(name)) => vec![self.service_change(target, name)],
            (Kind::Pools | Kind::OldPools, _) => self.pool_changes(std::iter::once(target)),
            _ if listed => vec![self.replace()],
            _ => change.into_iter().collect(),
        }
    }

    /// Whether every watch has listed.
    pub(super) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Everything, if that is known by now.
    fn sync(&mut self) -> Vec<Change> {
        self.synced = self.regions.values().all(|region| region.listed);
        if !self.synced {
            return Vec::new();
        }
        let targets: Vec<Target> = self.regions.keys().cloned().collect();
        let services = targets.iter().filter(|target| target.kind == Kind::Services);
        let services = services.filter_map(|target| Some(self.service_change(target, target.object_name()?)));
        let mut changes: Vec<Change> = services.collect();
        changes.extend(self.pool_changes(targets.iter()));
        // Last: it is what makes the owner publish.
        changes.push(self.replace());
        changes
    }

    fn replace(&mut self) -> Change {
        if self.regions.values().all(|region| region.listed) {
            self.leaving.clear();
        }
        let mut all = self.leaving.clone();
        for region in self.regions.values() {
            all.extend(region.pods.iter().map(|(name, pod)| (name.clone(), Arc::clone(pod))));
        }
        Change::Replace(all.into_values().collect())
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
            let found = self.regions.iter().find_map(|(target, region)| match &region.object {
                Some(Item::Pool(_, ports)) if target.object_name().as_ref() == Some(&name) => Some(ports),
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
                let mut known = std::mem::take(&mut self.pods);
                self.object = None;
                for mut item in items {
                    // One that is as it was is shared with the state, not held twice.
                    if let Item::Pod(pod) = &mut item
                        && let Some(same) = known.remove(&name_of(pod)).filter(|known| known == pod)
                    {
                        *pod = same;
                    }
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
