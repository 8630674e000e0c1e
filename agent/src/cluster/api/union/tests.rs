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
    let labels = "app=x,rev,role".to_owned();
    Target { kind: Kind::Pods, namespace: Some(namespace.into()), name: None, labels }
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

/// The names of the Pods that are handed over as a whole, with a configuration or without.
fn names(changes: &[Change]) -> BTreeSet<String> {
    let changes = if let [Change::Together(changes)] = changes { changes } else { changes };
    let Some(Change::Replace(pods)) = changes.last() else { panic!("{changes:?}") };
    pods.iter().map(|pod| format!("{}/{}", pod.key.namespace, pod.key.name)).collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn nothing_is_told_before_everything_has_been_listed_and_then_all_of_it_at_once() {
    let mut union = Union::default();
    let vip = "vips: [{service: {name: s, namespace: n0}, role: prefill}]";
    assert!(union.plan(config("n0, n1", vip)).is_empty());
    assert!(union.hear(&target("n0"), Said::Listed(vec![pod(0, 0, 0)])).is_empty());
    assert!(union.hear(&target("n0"), Said::Set(pod(0, 1, 0))).is_empty());
    assert!(union.hear(&service(), Said::Listed(Vec::new())).is_empty());
    let changes = union.hear(&target("n1"), Said::Listed(vec![pod(1, 0, 0)]));
    let [Change::Together(whole)] = &changes[..] else { panic!("{changes:?}") };
    assert!(
        matches!(&whole[..], [Change::Service(_, None), Change::Config(_), Change::Replace(_)]),
        "{whole:?}"
    );
    assert_eq!(names(&changes), set(["n0/p0", "n0/p1", "n1/p0"]));
}

#[test]
fn a_plan_without_the_watch_that_was_waited_for_is_enough() {
    let mut union = Union::default();
    assert!(union.plan(config("n0, n1", "")).is_empty());
    assert!(union.hear(&target("n0"), Said::Listed(vec![pod(0, 0, 0)])).is_empty());
    assert_eq!(names(&union.plan(config("n0", ""))), set(["n0/p0"]));
    assert_eq!(union.targets().collect::<Vec<_>>(), [&target("n0")]);
}

#[test]
fn the_watches_in_force_go_on_until_all_that_come_next_have_listed() {
    let mut union = Union::default();
    union.plan(config("n0", ""));
    union.hear(&target("n0"), Said::Listed(vec![pod(0, 0, 0), pod(0, 1, 0)]));
    assert!(union.plan(config("n1, n2", "")).is_empty(), "the configuration waits");
    assert_eq!(union.targets().count(), 3);
    assert!(union.hear(&target("n1"), Said::Listed(vec![pod(1, 0, 0)])).is_empty());
    assert!(union.hear(&target("n1"), Said::Set(pod(1, 1, 0))).is_empty(), "it is not in force");
    let gone = union.hear(&target("n0"), Said::Gone(pod(0, 1, 0)));
    assert!(matches!(&gone[..], [Change::Remove(_)]), "{gone:?}");
    assert_eq!(names(&union.hear(&target("n0"), Said::Listed(vec![pod(0, 0, 0)]))), set(["n0/p0"]));
    let whole = union.hear(&target("n2"), Said::Listed(Vec::new()));
    assert!(matches!(&whole[..], [Change::Together(_)]), "{whole:?}");
    assert_eq!(names(&whole), set(["n1/p0", "n1/p1"]));
    assert!(union.hear(&target("n0"), Said::Set(pod(0, 1, 0))).is_empty(), "it is over");
    assert_eq!(union.targets().count(), 2);
}

#[test]
fn a_service_and_a_pool_that_are_named_no_more_are_ended() {
    let lines = "sets: [{namespaces: [n0], inferencePool: {name: pool}}]\n\
                 vips: [{service: {name: s, namespace: n0}, role: prefill}]";
    let mut union = Union::default();
    union.plan(config("n0", lines));
    let targets: Vec<Target> = union.targets().cloned().collect();
    assert_eq!(targets.len(), 4, "{targets:?}");
    for target in &targets {
        union.hear(target, Said::Listed(Vec::new()));
    }
    let changes = union.plan(config("n0", ""));
    let [Change::Together(whole)] = &changes[..] else { panic!("{changes:?}") };
    assert!(
        matches!(
            &whole[..],
            [Change::Service(_, None), Change::Pool(_, None), Change::Config(_), Change::Replace(_)]
        ),
        "{whole:?}"
    );
}

#[test]
fn a_lost_object_is_removed_as_it_was_known() {
    let mut union = Union::default();
    union.plan(config("n0", ""));
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
    /// One of `PLANS` is configured.
    Plan(usize),
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
        1 => (0..PLANS.len()).prop_map(Act::Plan),
    ];
    let way = prop_oneof![6 => Just(Way::Once), 1 => Just(Way::Twice), 2 => Just(Way::Never)];
    collection::vec((act, way), 0..80)
}

/// A set in these namespaces, unless these lines of the agent's document say more of it.
fn config(namespaces: &str, lines: &str) -> Arc<Config> {
    let set = format!("sets: [{{namespaces: [{namespaces}]}}]");
    let set = if lines.contains("sets:") { "" } else { &set };
    let text = format!(
        "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  parameters:
    scope: {{labelSelector: app=x}}
    revisionGating: {{mode: max-role, requiredRoles: [prefill, decode], revisionLabelKey: rev, roleLabelKey: role}}
---
apiVersion: revgate.dev/v1alpha1
kind: AgentConfig
source: {{kubernetes: {{}}}}
{set}
{lines}
"
    );
    let loaded = config::parse("x".as_ref(), text.as_bytes(), None);
    Arc::new(loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).config)
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

/// Applies what is told; `in_force` is the configuration that came with it last.
fn apply(state: &mut State, in_force: &mut Option<Arc<Config>>, changes: Vec<Change>) {
    for change in changes {
        if let Change::Together(whole) = &change {
            for part in whole {
                if let Change::Config(new) = part {
                    *in_force = Some(Arc::clone(new));
                }
            }
        }
        state.apply(change);
    }
}

/// What may be configured: the namespaces. The watch of n2 never lists.
const PLANS: [&str; 4] = ["n0, n1", "n0", "n1", "n0, n1, n2"];

proptest! {
    /// C1: whatever was lost or came twice, after a list of each namespace the state is the list's. Reloads, and one
    /// that waits for ever, change nothing about that.
    #[test]
    fn any_history_and_then_a_list_is_as_good_as_the_list(acts in acts()) {
        let spaces = [target("n0"), target("n1")];
        let mut union = Union::default();
        let mut state = State::new(config(PLANS[0], ""), HashMap::new(), 0);
        let mut cluster: BTreeMap<(usize, usize), Item> = BTreeMap::new();
        let mut in_force = None;
        union.plan(config(PLANS[0], ""));
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
                Act::Plan(plan) => {
                    apply(&mut state, &mut in_force, union.plan(config(PLANS[plan], "")));
                    continue;
                }
            };
            let times = match way {
                Way::Once => 1,
                Way::Twice => 2,
                Way::Never => 0,
            };
            for said in std::iter::repeat_n(said, times).flatten() {
                apply(&mut state, &mut in_force, union.hear(&spaces[space], said));
            }
        }
        for (space, target) in spaces.iter().enumerate() {
            apply(&mut state, &mut in_force, union.hear(target, list(&cluster, space)));
        }
        let Some(now) = in_force.clone() else { return Ok(()) };
        let mut other = Union::default();
        let mut expected = State::new(Arc::clone(&now), HashMap::new(), 0);
        other.plan(now);
        for (space, target) in spaces.iter().enumerate() {
            apply(&mut expected, &mut in_force, other.hear(target, list(&cluster, space)));
        }
        prop_assert_eq!(seen(&state.build()), seen(&expected.build()));
    }
}
