//! What is kept once (P5): strings that many Pods have in common (label keys, most label values, namespaces, nodes), and
//! Pods that a new list shows as they were.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use super::Pod;

/// Fewer entries than this are never looked through for those that nobody has any more.
const LEAST_SWEPT: usize = 4096;

/// Strings that are known.
#[derive(Debug, Default)]
pub(super) struct Strings(HashSet<Arc<str>>);

impl Strings {
    /// Makes a Pod's strings those that are known.
    pub(super) fn share(&mut self, pod: &mut Pod) {
        let ports = pod.ports.iter_mut().filter_map(|port| port.name.as_mut());
        let own = [&mut pod.key.namespace].into_iter().chain(&mut pod.node);
        for text in own.chain(pod.labels.strings()).chain(ports) {
            match self.0.get(text) {
                Some(known) => text.clone_from(known),
                None => drop(self.0.insert(Arc::clone(text))),
            }
        }
    }
}

/// Pods and strings that are known.
#[derive(Debug, Default)]
pub(super) struct Interner {
    strings: Strings,
    /// By UID.
    pods: HashMap<Arc<str>, Weak<Pod>>,
    /// At that many they are looked through.
    sweep_at: usize,
}

impl Interner {
    /// Makes a Pod, or else its strings, those that are known, before anybody shares it.
    pub(super) fn share(&mut self, pod: &mut Arc<Pod>) {
        let known = |interner: &Self| interner.strings.0.len() + interner.pods.len();
        if known(self) >= self.sweep_at {
            self.pods.retain(|_, pod| pod.strong_count() > 0);
            self.strings.0.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = LEAST_SWEPT.max(2 * known(self));
        }
        let same = self.pods.get(&pod.key.uid).and_then(Weak::upgrade).filter(|known| known == pod);
        if let Some(same) = same {
            *pod = same;
            return;
        }
        if let Some(pod) = Arc::get_mut(pod) {
            self.strings.share(pod);
        }
        // With its key: what the old Pod was known by goes with it.
        self.pods.remove(&pod.key.uid);
        self.pods.insert(Arc::clone(&pod.key.uid), Arc::downgrade(pod));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::manifest::PodObject;

    fn pod(name: &str) -> Arc<Pod> {
        let object = json!({"metadata": {"name": name, "uid": name, "labels": {"app": "llm", "pod": name}}});
        Arc::new(serde_json::from_value::<PodObject>(object).unwrap().into_pod().unwrap())
    }

    fn shared(interner: &mut Interner, name: &str) -> Arc<Pod> {
        let mut shared = pod(name);
        interner.share(&mut shared);
        assert_eq!(shared, pod(name), "it is the same Pod");
        shared
    }

    #[test]
    fn equal_strings_are_one_and_those_of_nobody_go() {
        let mut interner = Interner::default();
        let (a, b) = (shared(&mut interner, "a"), shared(&mut interner, "b"));
        assert!(Arc::ptr_eq(a.labels.get("app").unwrap(), b.labels.get("app").unwrap()));
        assert!(Arc::ptr_eq(&a.key.namespace, &b.key.namespace));
        for n in 0..3 * LEAST_SWEPT {
            drop(shared(&mut interner, &n.to_string()));
        }
        assert!(interner.strings.0.len() <= LEAST_SWEPT + 8, "{}", interner.strings.0.len());
        assert!(interner.pods.len() <= LEAST_SWEPT + 8, "{}", interner.pods.len());
        assert!(interner.strings.0.contains("llm"));
    }

    #[test]
    fn a_pod_that_is_as_it_was_is_the_same_one() {
        let mut interner = Interner::default();
        let before = shared(&mut interner, "a");
        assert!(Arc::ptr_eq(&before, &shared(&mut interner, "a")));
        let mut other = pod("a");
        Arc::get_mut(&mut other).unwrap().ready = true;
        let mut changed = Arc::clone(&other);
        interner.share(&mut changed);
        assert_eq!(changed, other);
        assert!(!Arc::ptr_eq(&before, &shared(&mut interner, "a")), "the last one counts");
    }
}
