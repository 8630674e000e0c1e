//! Pods and cgroups joined by UID (K10), in whichever order they come. Pure.
#![cfg(test)]

use std::{collections::HashMap, sync::Arc};

use revgate::{
    cluster::{Cgroup, Change, Pod, PodCgroups, list, manifest::PodObject},
    config::Config,
    snapshot::{
        RevisionView, SourceView,
        state::{Note, State},
    },
};
use revgate_common::layout::MAX_REVISIONS;

const A: &str = "5ba3a4f8-9d3d-4c2b-8b2a-1f0c9e7d6a55";
const B: &str = "00000000-9d3d-4c2b-8b2a-1f0c9e7d6a55";
/// Of a static Pod: the kubelet's UID, which is not that of its object.
const HASH: &str = "0d1b2c3a4f5e6d7c8b9a0f1e2d3c4b5a";

const CONFIG: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  name: chat
  parameters:
    scope: {labelSelector: app=llm}
    revisionGating: {mode: max-role, requiredRoles: [decode]}
";

fn state() -> State {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, CONFIG).unwrap();
    let config: Config = revgate::config::load(&path, Some("here")).unwrap().config;
    State::new(Arc::new(config), HashMap::new(), 0)
}

/// A Pod as the API shows one before it is Ready: without an address.
fn object(name: &str, uid: &str, change: impl FnOnce(&mut serde_json::Value)) -> Arc<Pod> {
    let mut object = serde_json::json!({
        "metadata": {"name": name, "namespace": "llm", "uid": uid, "annotations": {}, "labels": {
            "app": "llm", "disaggregatedset.x-k8s.io/revision": "r1", "disaggregatedset.x-k8s.io/role": "decode",
        }},
        "spec": {"nodeName": "here"},
    });
    change(&mut object);
    Arc::new(serde_json::from_value::<PodObject>(object).unwrap().into_pod().unwrap())
}

fn plain(name: &str, uid: &str) -> Arc<Pod> {
    object(name, uid, |_| {})
}

fn cgroups(of: &[(&str, u64)]) -> PodCgroups {
    let mut cgroups = PodCgroups::new();
    for (uid, id) in of {
        cgroups.entry(Arc::from(*uid)).or_default().insert(Cgroup { id: *id, level: 3 });
    }
    cgroups
}

/// Pods and the ids of their cgroups, as the next snapshot has them.
fn sources(state: &mut State) -> Vec<(String, u64)> {
    let source = |source: SourceView| (source.pod.name.to_string(), source.cgroup.id);
    state.build().sources.into_iter().map(source).collect()
}

fn of(name: &str, id: u64) -> (String, u64) {
    (name.to_owned(), id)
}

#[test]
fn a_pod_is_known_by_its_cgroup_whichever_comes_first() {
    let mut state = state();
    state.apply(Change::Cgroups(cgroups(&[(A, 7)])));
    assert!(!state.has_news(), "no Pod list yet");
    state.apply(Change::Replace(vec![plain("a", A), plain("b", B)]));
    assert_eq!(
        sources(&mut state),
        [of("a", 7)],
        "the cgroup was there before the Pod, which is not Ready yet"
    );
    state.apply(Change::Cgroups(cgroups(&[(A, 7), (B, 8)])));
    assert!(state.has_news());
    assert_eq!(sources(&mut state), [of("a", 7), of("b", 8)], "and the other way round");
}

#[test]
fn it_is_forgotten_with_its_cgroup_and_known_again_by_the_next() {
    let mut state = state();
    state.apply(Change::Cgroups(cgroups(&[(A, 7)])));
    state.apply(Change::Replace(vec![plain("a", A)]));
    assert_eq!(sources(&mut state), [of("a", 7)]);
    state.apply(Change::Cgroups(PodCgroups::new()));
    assert_eq!(sources(&mut state), []);
    state.apply(Change::Cgroups(cgroups(&[(A, 9)])));
    assert_eq!(sources(&mut state), [of("a", 9)]);
}

/// Ids of cgroups, and slots and epochs of their Pods.
fn tenants(state: &mut State) -> Vec<(u64, u16, u32)> {
    state.build().sources.into_iter().map(|source| (source.cgroup.id, source.slot, source.epoch)).collect()
}

fn of_revision(name: &str, uid: &str, revision: &str) -> Arc<Pod> {
    object(name, uid, |pod| {
        pod["metadata"]["labels"]["disaggregatedset.x-k8s.io/revision"] = revision.into();
    })
}

#[test]
fn a_pod_that_leaves_the_api_stays_a_member_while_its_cgroup_is_there() {
    let mut state = state();
    state.apply(Change::Cgroups(cgroups(&[(A, 7)])));
    state.apply(Change::Replace(vec![plain("a", A), plain("far", B)]));
    let before = tenants(&mut state);
    assert_eq!(before.len(), 1);

    // Each way to leave: told, left out of a list, replaced by another of its name.
    state.apply(Change::Remove(plain("a", A).key.clone()));
    assert_eq!(tenants(&mut state), before);
    for gone in [
        Change::Replace(vec![plain("far", B)]),
        Change::Upsert(plain("a", "ffffffff-0000-0000-0000-000000000000")),
    ] {
        state.apply(Change::Replace(vec![plain("a", A), plain("far", B)]));
        assert_eq!(tenants(&mut state), before);
        state.apply(gone);
        assert_eq!(tenants(&mut state), before);
    }
    state.apply(Change::Cgroups(PodCgroups::new()));
    assert!(state.has_news());
    assert_eq!(tenants(&mut state), []);
    state.apply(Change::Cgroups(cgroups(&[(A, 9)])));
    assert_eq!(tenants(&mut state), [], "it was forgotten with its cgroup");
}

#[test]
fn the_last_pod_of_a_revision_takes_no_other_revision_with_it() {
    let mut state = state();
    state.apply(Change::Cgroups(cgroups(&[(A, 7)])));
    state.apply(Change::Replace(vec![of_revision("a", A, "r1"), of_revision("b", B, "r2")]));
    let [(_, slot, epoch)] = tenants(&mut state)[..] else { panic!("one source") };
    state.apply(Change::Remove(of_revision("a", A, "r1").key.clone()));
    let snapshot = state.build();
    let [source] = &snapshot.sources[..] else { panic!("{:?}", snapshot.sources) };
    assert_eq!((source.slot, source.epoch), (slot, epoch));
    let same = |revision: &RevisionView| (revision.slot, revision.epoch) == (slot, epoch);
    assert!(!snapshot.sets[0].revisions.iter().any(same), "nobody is of its revision");

    // So many revisions later another one has its slot: it is still no stranger, and of none of them.
    for n in 0..MAX_REVISIONS {
        state.apply(Change::Upsert(of_revision(&format!("p{n}"), &format!("u{n}"), &format!("n{n}"))));
        if n + 1 == MAX_REVISIONS {
            state.apply(Change::Remove(of_revision("b", B, "r2").key.clone()));
        }
    }
    let snapshot = state.build();
    let tenants: Vec<_> = snapshot.sets[0].revisions.iter().map(|r| (r.slot, r.epoch)).collect();
    assert_eq!(tenants.len(), MAX_REVISIONS);
    assert!(tenants.iter().any(|(taken, _)| *taken == slot) && !tenants.contains(&(slot, epoch)));
    let [source] = &snapshot.sources[..] else { panic!("{:?}", snapshot.sources) };
    assert_eq!((source.cgroup.id, source.epoch), (7, 0));
}

#[test]
fn a_cgroup_that_two_pods_claim_is_of_neither() {
    let mirror = |name: &str, uid: &str, revision: &str| {
        object(name, uid, |pod| {
            let metadata = &mut pod["metadata"];
            metadata["labels"]["disaggregatedset.x-k8s.io/revision"] = revision.into();
            metadata["annotations"] = serde_json::json!({"kubernetes.io/config.mirror": HASH});
            metadata["ownerReferences"] = serde_json::json!([{"kind": "Node", "name": "here"}]);
        })
    };
    let mut state = state();
    state.apply(Change::Cgroups(cgroups(&[(HASH, 5)])));
    state.apply(Change::Replace(vec![mirror("static", A, "r1")]));
    let alone = tenants(&mut state);
    // A kubelet makes a mirror anew that somebody deleted.
    state.apply(Change::Remove(mirror("static", A, "r1").key.clone()));
    assert_eq!(tenants(&mut state), alone);
    state.apply(Change::Upsert(mirror("static", B, "r1")));
    assert_eq!(tenants(&mut state), alone);

    for name in ["a-liar", "z-liar"] {
        let uid = format!("of {name}");
        state.apply(Change::Upsert(mirror(name, &uid, "r2")));
        let [(5, _, 0)] = tenants(&mut state)[..] else { panic!("neither's") };
        // Nor does it help the liar to outlast the other mirror, or to leave.
        state.apply(Change::Remove(mirror("static", B, "r1").key.clone()));
        let [(5, _, 0)] = tenants(&mut state)[..] else { panic!("neither's") };
        state.apply(Change::Remove(mirror(name, &uid, "r2").key.clone()));
        let [(5, _, 0)] = tenants(&mut state)[..] else { panic!("neither's") };
        state.apply(Change::Cgroups(PodCgroups::new()));
        state.apply(Change::Cgroups(cgroups(&[(HASH, 5)])));
        state.apply(Change::Upsert(mirror("static", B, "r1")));
        assert_eq!(tenants(&mut state), alone, "it is over with the cgroup");
    }
}

#[test]
fn both_cgroups_of_a_pod_are_its_own() {
    let mut state = state();
    state.apply(Change::Cgroups(cgroups(&[(A, 7), (A, 8)])));
    state.apply(Change::Replace(vec![plain("a", A)]));
    assert_eq!(sources(&mut state), [of("a", 7), of("a", 8)]);
}

#[test]
fn cgroups_of_pods_that_are_no_members_are_no_news() {
    let mut state = state();
    let other = object("other", B, |pod| pod["metadata"]["labels"] = serde_json::json!({}));
    state.apply(Change::Replace(vec![plain("a", A), other]));
    let _ = state.build();
    state.apply(Change::Cgroups(cgroups(&[(B, 8), (HASH, 9)])));
    assert!(!state.has_news());
    assert_eq!(sources(&mut state), []);
}

#[test]
fn a_pod_of_another_node_is_not_here_whatever_its_uid() {
    let mut state = state();
    let there = object("a", A, |pod| pod["spec"]["nodeName"] = "there".into());
    state.apply(Change::Cgroups(cgroups(&[(A, 7)])));
    state.apply(Change::Replace(vec![there]));
    assert_eq!(sources(&mut state), []);
}

#[test]
fn a_static_pod_is_known_by_the_hash_and_nobody_takes_a_uid_that_way() {
    let owner =
        |kind: &str, name: &str| serde_json::json!([{"apiVersion": "v1", "kind": kind, "name": name}]);
    let mirror = |name, uid, hash: &str| {
        let annotations =
            serde_json::json!({"kubernetes.io/config.mirror": hash, "kubernetes.io/config.hash": hash});
        object(name, uid, |pod| {
            pod["metadata"]["annotations"] = annotations;
            pod["metadata"]["ownerReferences"] = owner("Node", "here");
        })
    };
    let mut state = state();
    state.apply(Change::Cgroups(cgroups(&[(HASH, 5), (A, 7)])));
    state.apply(Change::Replace(vec![mirror("static", B, HASH)]));
    assert_eq!(sources(&mut state), [of("static", 5)]);
    let mut state = self::state();
    state.apply(Change::Cgroups(cgroups(&[(HASH, 5), (A, 7)])));
    // Annotations are for everybody to write.
    state.apply(Change::Replace(vec![mirror("liar", B, A)]));
    assert_eq!(sources(&mut state), []);
    // What a kubelet would not have written, each in one point.
    let mut lies: [(&str, &str, serde_json::Value); 6] = [
        ("no mirror", "/metadata/annotations", serde_json::json!({"kubernetes.io/config.hash": HASH})),
        ("nobody's", "/metadata/ownerReferences", serde_json::Value::Null),
        ("another kind's", "/metadata/ownerReferences", owner("ReplicaSet", "here")),
        ("another node's", "/metadata/ownerReferences", owner("Node", "there")),
        ("not scheduled", "/spec/nodeName", serde_json::Value::Null),
        ("elsewhere", "/spec/nodeName", "there".into()),
    ];
    for (why, field, value) in &mut lies {
        let annotations = serde_json::json!({"kubernetes.io/config.mirror": HASH});
        let liar = object("liar", B, |pod| {
            pod["metadata"]["annotations"] = annotations;
            pod["metadata"]["ownerReferences"] = owner("Node", "here");
            *pod.pointer_mut(field).unwrap() = value.take();
        });
        state.apply(Change::Replace(vec![liar]));
        assert_eq!(sources(&mut state), [], "{why}");
    }
}

#[test]
fn the_short_form_is_joined_where_it_has_a_uid() {
    let labels = "{app: llm, disaggregatedset.x-k8s.io/revision: r1, disaggregatedset.x-k8s.io/role: decode}";
    let text =
        format!("- {{name: with, uid: {A}, labels: {labels}}}\n- {{name: without, labels: {labels}}}\n");
    let pods = list::parse(&text).unwrap().into_iter().map(|listed| listed.pod).collect();
    let mut state = state();
    state.apply(Change::Cgroups(cgroups(&[(A, 7), (B, 8)])));
    state.apply(Change::Replace(pods));
    assert_eq!(sources(&mut state), [of("with", 7)]);
}

#[test]
fn a_member_here_with_a_kernel_of_its_own_is_told_once() {
    let class = |name, uid, class: &str, node: &str| {
        object(name, uid, |pod| {
            pod["spec"] = serde_json::json!({"nodeName": node, "runtimeClassName": class});
        })
    };
    let pods = || {
        vec![
            class("kata", A, "kata-qemu", "here"),
            class("gpu", B, "nvidia", "here"),
            class("far", HASH, "gvisor", "there"),
        ]
    };
    let mut state = state();
    state.apply(Change::Replace(pods()));
    let notes = state.take_notes();
    let [Note::Pod { pod, warning }] = notes.as_slice() else { panic!("{notes:?}") };
    assert_eq!((&*pod.name, warning.contains("kata-qemu")), ("kata", true), "{warning}");
    state.apply(Change::Replace(pods()));
    let ready = object("kata", A, |pod| {
        pod["spec"] = serde_json::json!({"nodeName": "here", "runtimeClassName": "kata-qemu"});
        pod["status"] = serde_json::json!({"conditions": [{"type": "Ready", "status": "True"}]});
    });
    state.apply(Change::Upsert(ready));
    assert_eq!(state.take_notes(), []);
}
