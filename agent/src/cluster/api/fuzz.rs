//! What an API server sends: objects, pages of a list, events of a watch, and what it says when it refuses.

#![allow(clippy::missing_panics_doc, reason = "to panic is how a target fails")]

use std::{collections::HashMap, sync::Arc};

use kube::core::WatchEvent;
use serde::de::DeserializeOwned;

use super::{
    follow::Page,
    object::{Item, Object, PoolObject, ServiceObject},
    problem::Cause,
};
use crate::{
    cluster::{Change, Pod, intern::Interner, manifest::PodObject},
    fuzz::{assert_pod, publish},
};

/// What is read of an answer makes a state; what cannot be used says why.
pub fn kubernetes_object(data: &[u8]) {
    let mut changes = Vec::new();
    objects::<PodObject>(data, &mut changes);
    objects::<ServiceObject>(data, &mut changes);
    objects::<PoolObject>(data, &mut changes);
    if !changes.is_empty() {
        publish(HashMap::new(), 0, changes);
    }
    if let Some(status) = read::<kube::core::Status>(data) {
        let cause = Cause::of_status(&status, 500);
        assert!(cause.code().is_some() && !cause.to_string().is_empty());
        let _ = cause.retry_after();
    }
}

fn read<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    serde_json::from_slice(data).ok()
}

fn objects<O: Object>(data: &[u8], changes: &mut Vec<Change>) {
    let mut objects: Vec<O> = read(data).into_iter().collect();
    objects.extend(read::<Page<O>>(data).into_iter().filter_map(|page| page.items).flatten());
    for line in data.split(|byte| *byte == b'\n') {
        match read(line) {
            Some(WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)) => {
                objects.push(object);
            }
            Some(WatchEvent::Error(status)) => drop(Cause::of_status(&status, 0).to_string()),
            Some(WatchEvent::Bookmark(_)) | None => {}
        }
    }
    let mut interner = Interner::default();
    for object in objects {
        assert!(object.version().is_none_or(|version| !version.is_empty()));
        match object.into_item() {
            Ok(item) => {
                let mut shared = match &item {
                    Item::Pod(pod) => Item::Pod(Arc::new(Pod::clone(pod))),
                    other => other.clone(),
                };
                shared.share(&mut interner);
                assert_eq!(shared, item, "shared strings are the same strings");
                changes.push(match item {
                    Item::Pod(pod) => {
                        assert_pod(&pod);
                        Change::Upsert(pod)
                    }
                    Item::Service(name, service) => {
                        assert!(service.ports.iter().all(|port| port.number != 0), "{name}: {service:?}");
                        Change::Service(name, Some(service))
                    }
                    Item::Pool(name, ports) => {
                        assert!(!ports.contains(&0), "{name}: {ports:?}");
                        Change::Pool(name, Some(ports))
                    }
                });
            }
            Err(unusable) => assert!(!unusable.why.is_empty()),
        }
    }
}
