//! What is kept once (P5): strings that many Pods have in common (label keys, most label values, namespaces, nodes), and
//! Pods that a new list shows as they were.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::{Arc, Weak},
};

use super::object::Item;
use crate::cluster::Pod;

/// Fewer entries than this are never looked through for those that nobody has any more.
const LEAST_SWEPT: usize = 4096;

/// What is known.
#[derive(Debug, Default)]
pub(super) struct Interner {
    known: HashSet<Arc<str>>,
    /// By UID.
    pods: HashMap<Arc<str>, Weak<Pod>>,
    /// At that many they are looked through.
    sweep_at: usize,
}

impl Interner {
    /// Makes an object, or else its strings, those that are known, before anybody shares it.
    pub(super) fn share(&mut self, item: &mut Item) {
        let Item::Pod(pod) = item else { return };
        if self.known.len() + self.pods.len() >= self.sweep_at {
            self.pods.retain(|_, pod| pod.strong_count() > 0);
            self.known.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = LEAST_SWEPT.max(2 * (self.known.len() + self.pods.len()));
        }
        let same = self.pods.get(&pod.key.uid).and_then(Weak::upgrade).filter(|known| known == pod);
        if let Some(same) = same {
            *pod = same;
            return;
        }
        if let Some(pod) = Arc::get_mut(pod) {
            self.share_strings(pod);
        }
        self.pods.insert(Arc::clone(&pod.key.uid), Arc::downgrade(pod));
    }

    fn share_strings(&mut self, pod: &mut Pod) {
        let labels = mem::take(&mut pod.labels);
        pod.labels = labels.into_iter().map(|(key, value)| (self.one(key), self.one(value))).collect();
        pod.key.namespace = self.one(Arc::clone(&pod.key.namespace));
        pod.node = pod.node.take().map(|node| self.one(node));
        for port in &mut pod.ports {
            port.name = port.name.take().map(|name| self.one(name));
        }
    }

    fn one(&mut self, text: Arc<str>) -> Arc<str> {
        if let Some(known) = self.known.get(&text) {
            return Arc::clone(known);
        }
        self.known.insert(Arc::clone(&text));
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::{api::object::Object, manifest::PodObject};

    fn pod(name: &str) -> Item {
        let object = json!({"metadata": {"name": name, "uid": name, "labels": {"app": "llm", "pod": name}}});
        serde_json::from_value::<PodObject>(object).unwrap().into_item().unwrap()
    }

    fn shared(interner: &mut Interner, name: &str) -> Arc<Pod> {
        let mut item = pod(name);
        interner.share(&mut item);
        assert_eq!(item, pod(name), "it is the same Pod");
        let Item::Pod(pod) = item else { panic!("a Pod") };
        pod
    }

    #[test]
    fn equal_strings_are_one_and_those_of_nobody_go() {
        let mut interner = Interner::default();
        let (a, b) = (shared(&mut interner, "a"), shared(&mut interner, "b"));
        assert!(Arc::ptr_eq(&a.labels["app"], &b.labels["app"]));
        assert!(Arc::ptr_eq(&a.key.namespace, &b.key.namespace));
        for n in 0..3 * LEAST_SWEPT {
            drop(shared(&mut interner, &n.to_string()));
        }
        assert!(interner.known.len() <= LEAST_SWEPT + 8, "{}", interner.known.len());
        assert!(interner.pods.len() <= LEAST_SWEPT + 8, "{}", interner.pods.len());
        assert!(interner.known.contains("llm"));
    }

    #[test]
    fn a_pod_that_is_as_it_was_is_the_same_one() {
        let mut interner = Interner::default();
        let before = shared(&mut interner, "a");
        assert!(Arc::ptr_eq(&before, &shared(&mut interner, "a")));
        let Item::Pod(mut other) = pod("a") else { panic!("a Pod") };
        Arc::get_mut(&mut other).unwrap().ready = true;
        let mut changed = Item::Pod(Arc::clone(&other));
        interner.share(&mut changed);
        assert_eq!(changed, Item::Pod(other));
        assert!(!Arc::ptr_eq(&before, &shared(&mut interner, "a")), "the last one counts");
    }
}
