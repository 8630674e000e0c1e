//! What several watches say, merged: order, gaps and duplicates.

use std::collections::BTreeSet;

use proptest::{collection, prelude::*};
use serde_json::json;

use super::*;
use crate::{
    cluster::{api::object::Object, manifest::PodObject},
    config::{self, Config},
    snapshot::{Snapshot, state::State},
};

fn target(namespace: &str) -> Target {
    Target { kind: Kind::Pods, namespace: Some(namespace.into()), name: None, labels: String::new() }
}

fn service() -> Target {
    Target {
        kind: Kind::Services,
        namespace: Some("n0".into()),
        name: Some("s".into()),
        labels: String::new(),
    }
}

/// A Pod of one of six names in a namespace; `state` says what it is now, its generation among that.
fn pod(namespace: usize, name: usize, state: u8) -> Item {
    let revision = if state & 1 == 0 { "a" } else { "b" };
    let role = if state & 2 == 0 { "prefill" } else { "decode" };
    let ready = if state & 4 == 0 { "True" } else { "False" };
    let object = json!({
        "metadata": {
            "namespace": format!("n{namespace}"), "name": format!("p{name}"), "uid": format!("u{}", state >> 3),
            "labels": {"app": "x", "rev": revision, "role": role},
        },
        "status": {
            "podIP": format!("10.0.{namespace}.{name}"),
            "conditions": [{"type": "Ready", "status": ready}],
        },
    });
    serde_json::from_value::<PodObject>(object).unwrap().into_item().unwrap()
}

fn names(change: &Change) -> BTreeSet<String> {
    let Change::Replace(pods) = change else { panic!("{change:?}") };
    pods.iter().map(|pod| format!("{}/{}", pod.key.namespace, pod.key.name)).collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn nothing_is_told_before_everything_has_been_listed_and_the_pods_come_last() {
    let mut union = Union::default();
    assert!(union.plan(&[target("n0"), target("n1"), service()]).is_empty());
    assert!(union.hear(&target("n0"), Said::Listed(vec![pod(0, 0, 0)])).is_empty());
    assert!(union.hear(&target("n0"), Said::Set(pod(0, 1, 0))).is_empty());
    assert!(union.hear(&service(), Said::Listed(Vec::new())).is_empty());
    let changes = union.hear(&target("n1"), Said::Listed(vec![pod(1, 0, 0)]));
    assert!(matches!(changes[0], Change::Service(_, None)), "{changes:?}");
    assert_eq!(names(&changes[1]), set(["n0/p0", "n0/p1", "n1/p0"]));
    assert_eq!(changes.len(), 2);
}

#[test]
fn a_plan_without_the_watch_that_was_waited_for_is_enough() {
    let mut union = Union::default();
    assert!(union.plan(&[target("n0"), target("n1")]).is_empty());
    assert!(union.hear(&target("n0"), Said::Listed(vec![pod(0, 0, 0)])).is_empty());
    let changes = union.plan(&[target("n0")]);
    assert_eq!(names(&changes[0]), set(["n0/p0"]));
}

#[test]
fn pods_of_a_watch_that_ends_stay_until_the_others_have_listed() {
    let mut union = Union::default();
    union.plan(&[target("n0")]);
    union.hear(&target("n0"), Said::Listed(vec![pod(0, 0, 0)]));
    assert_eq!(names(&union.plan(&[target("n1")])[0]), set(["n0/p0"]));
    assert!(union.hear(&target("n0"), Said::Set(pod(0, 1, 0))).is_empty(), "it is over");
    assert_eq!(names(&union.hear(&target("n1"), Said::Listed(vec![pod(1, 0, 0)]))[0]), set(["n1/p0"]));
}

#[test]
fn a_lost_object_is_removed_as_it_was_known() {
    let mut union = Union::default();
    union.plan(&[target("n0")]);
    union.hear(&target("n0"), Said::Listed(vec![pod(0, 0, 8)]));
    let name = ObjectName { namespace: "n0".into(), name: "p0".into() };
    let changes = union.hear(&target("n0"), Said::Lost(name.clone()));
    assert!(matches!(&changes[..], [Change::Remove(key)] if &*key.uid == "u1"), "{changes:?}");
    assert!(union.hear(&target("n0"), Said::Lost(name)).is_empty(), "nothing was known");
}

/// What happens in a cluster, and what of it a watch shows.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A Pod is made or changed.
    Put(usize, usize, u8),
    /// A Pod goes.
    Delete(usize, usize),
    /// The watch of a namespace lists.
    Relist(usize),
}

/// How an event reaches the watch.
#[derive(Clone, Copy, Debug)]
enum Way {
    Once,
    Twice,
    Never,
}

fn acts() -> impl Strategy<Value = Vec<(Act, Way)>> {
    let act = prop_oneof![
        8 => (0..2_usize, 0..6_usize, 0..32_u8).prop_map(|(space, name, state)| Act::Put(space, name, state)),
        4 => (0..2_usize, 0..6_usize).prop_map(|(space, name)| Act::Delete(space, name)),
        1 => (0..2_usize).prop_map(Act::Relist),
    ];
    let way = prop_oneof![6 => Just(Way::Once), 1 => Just(Way::Twice), 2 => Just(Way::Never)];
    collection::vec((act, way), 0..80)
}

fn config() -> Arc<Config> {
    let text = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {labelSelector: app=x}
    revisionGating: {mode: max-role, requiredRoles: [prefill, decode], revisionLabelKey: rev, roleLabelKey: role}
";
    Arc::new(config::parse("x".as_ref(), text.as_bytes(), None).unwrap().config)
}

/// What readers see of a revision: its Ready Pods by role, its endpoints, its members.
type Seen = (String, Vec<u32>, Vec<String>, Vec<String>);

fn seen(snapshot: &Snapshot) -> Vec<Seen> {
    let set = &snapshot.sets[0];
    let revision = |view: &crate::snapshot::RevisionView| {
        let ready = set.distribution.by_name(&view.name).unwrap().ready.clone();
        let endpoints =
            view.endpoints.iter().flatten().map(|e| format!("{} {}", e.role, e.address)).collect();
        let members = view.members.iter().map(|pod| format!("{} {}", pod.key.name, pod.key.uid)).collect();
        (view.name.to_string(), ready, endpoints, members)
    };
    set.revisions.iter().map(revision).collect()
}

fn apply(state: &mut State, changes: Vec<Change>) {
    for change in changes {
        state.apply(change);
    }
}

proptest! {
    /// C1: whatever was lost or came twice, after a list of each namespace the state is the list's.
    #[test]
    fn any_history_and_then_a_list_is_as_good_as_the_list(acts in acts()) {
        let spaces = [target("n0"), target("n1")];
        let mut union = Union::default();
        let mut state = State::new(config(), HashMap::new(), 0);
        let mut cluster: BTreeMap<(usize, usize), Item> = BTreeMap::new();
        union.plan(&spaces);
        let list = |cluster: &BTreeMap<(usize, usize), Item>, space: usize| {
            Said::Listed(cluster.iter().filter(|((of, _), _)| *of == space).map(|(_, pod)| pod.clone()).collect())
        };
        for (act, way) in acts {
            let (space, said) = match act {
                Act::Put(space, name, state) => {
                    cluster.insert((space, name), pod(space, name, state));
                    (space, Some(Said::Set(pod(space, name, state))))
                }
                Act::Delete(space, name) => (space, cluster.remove(&(space, name)).map(Said::Gone)),
                Act::Relist(space) => (space, Some(list(&cluster, space))),
            };
            let times = match way {
                Way::Once => 1,
                Way::Twice => 2,
                Way::Never => 0,
            };
            for said in std::iter::repeat_n(said, times).flatten() {
                apply(&mut state, union.hear(&spaces[space], said));
            }
        }
        for (space, target) in spaces.iter().enumerate() {
            apply(&mut state, union.hear(target, list(&cluster, space)));
        }
        let mut other = Union::default();
        let mut expected = State::new(config(), HashMap::new(), 0);
        other.plan(&spaces);
        for (space, target) in spaces.iter().enumerate() {
            apply(&mut expected, other.hear(target, list(&cluster, space)));
        }
        prop_assert_eq!(seen(&state.build()), seen(&expected.build()));
    }
}
