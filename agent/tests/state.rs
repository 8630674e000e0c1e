//! The state, fed with changes as a source would send them: identity and ownership (C2 to C4), endpoints and
//! distribution out of it. Everything here is pure.
#![cfg(test)]

use std::{collections::HashMap, sync::Arc};

use http::HeaderName;
use revgate::{
    cluster::{Change, Pod, PodKey},
    config::{AgentConfig, Config, GatingMode, PortRef, Selector, SetConfig},
    snapshot::{
        Snapshot,
        state::{Note, State},
    },
};

const REVISION: &str = "disaggregatedset.x-k8s.io/revision";
const ROLE: &str = "disaggregatedset.x-k8s.io/role";

fn set(name: &str, namespaces: &[&str]) -> SetConfig {
    let roles: Vec<Arc<str>> = vec!["prefill".into(), "decode".into()];
    SetConfig {
        name: name.into(),
        scope: Selector::default(),
        namespaces: namespaces.iter().map(|n| Arc::from(*n)).collect(),
        mode: GatingMode::MaxRole,
        required_roles: roles.clone(),
        ports: vec![vec![PortRef::Number(8000)]; roles.len()],
        pool: None,
        roles,
        revision_header: HeaderName::from_static("x-llm-d-disagg-revision"),
        revision_label: REVISION.into(),
        role_label: ROLE.into(),
        selectors: Vec::new(),
    }
}

fn config(sets: Vec<SetConfig>) -> Arc<Config> {
    Arc::new(Config { sets, agent: AgentConfig::default() })
}

fn state() -> State {
    State::new(config(vec![set("set", &[])]), HashMap::new(), 0)
}

/// A Ready Pod; `change` makes it something else.
fn pod(
    name: &str,
    uid: &str,
    ip: &str,
    revision: &str,
    role: &str,
    change: impl FnOnce(&mut Pod),
) -> Arc<Pod> {
    let mut pod = Pod {
        ips: vec![ip.parse().expect("an address")],
        labels: [(REVISION, revision), (ROLE, role)].map(|(k, v)| (k.into(), v.into())).into_iter().collect(),
        ready: true,
        ..Pod::new(PodKey { namespace: "default".into(), name: name.into(), uid: uid.into() })
    };
    change(&mut pod);
    Arc::new(pod)
}

fn label(pod: &mut Pod, key: &str, value: &str) {
    pod.labels = pod.labels.iter().cloned().chain([(key.into(), value.into())]).collect();
}

fn ready(name: &str, ip: &str, revision: &str, role: &str) -> Arc<Pod> {
    pod(name, &format!("uid-{name}"), ip, revision, role, |_| {})
}

/// `revision/role: address address; ...`, with the share in front, for the first set.
fn show(snapshot: &Snapshot) -> String {
    let set = &snapshot.sets[0];
    let total = set.distribution.total();
    let mut lines = Vec::new();
    for (view, share) in set.revisions.iter().zip(&set.distribution.revisions) {
        assert_eq!(view.name, share.name, "both lists are sorted by name");
        let roles: Vec<String> = set
            .roles
            .iter()
            .zip(&view.endpoints)
            .map(|(role, list)| {
                let list: Vec<String> = list.iter().map(|e| e.address.ip().to_string()).collect();
                format!("{role}[{}]", list.join(" "))
            })
            .collect();
        lines.push(format!("{} {}/{total} {}", view.name, share.weight, roles.join(" ")));
    }
    lines.join("; ")
}

fn replace(state: &mut State, pods: &[Arc<Pod>]) {
    state.apply(Change::Replace(pods.to_vec()));
}

fn pair(revision: &str, net: u8) -> [Arc<Pod>; 2] {
    ["prefill", "decode"].map(|role| {
        let ip = format!("10.0.{net}.{}", role.len());
        ready(&format!("{revision}-{role}"), &ip, revision, role)
    })
}

#[test]
fn nothing_is_news_before_the_first_list() {
    let mut state = state();
    state.apply(Change::Upsert(ready("p", "10.0.0.1", "a", "prefill")));
    assert!(!state.has_news());
    replace(&mut state, &[]);
    assert!(state.has_news());
    assert!(state.build().synced);
    assert!(!state.has_news(), "built");
}

#[test]
fn the_seed_example_gives_b_forty_percent() {
    let mut state = state();
    let mut pods = Vec::new();
    for (revision, net, decode) in [("a", 1, 6), ("b", 2, 4)] {
        pods.push(ready(&format!("{revision}-p"), &format!("10.0.{net}.1"), revision, "prefill"));
        for i in 0..decode {
            pods.push(ready(&format!("{revision}-d{i}"), &format!("10.0.{net}.1{i}"), revision, "decode"));
        }
    }
    replace(&mut state, &pods);
    let snapshot = state.build();
    let distribution = &snapshot.sets[0].distribution;
    assert_eq!(distribution.revisions.iter().map(|r| r.weight).collect::<Vec<_>>(), [6, 4]);
    assert_eq!(distribution.dominant, Some(1));
}

#[test]
fn an_unchanged_pod_or_list_is_no_news() {
    let mut state = state();
    let pods = pair("a", 1);
    replace(&mut state, &pods);
    state.build();
    replace(&mut state, &pods);
    state.apply(Change::Upsert(Arc::new((*pods[0]).clone())));
    assert!(!state.has_news());
}

#[test]
fn a_list_removes_what_vanished_while_nobody_watched() {
    let mut state = state();
    replace(&mut state, &[pair("a", 1), pair("b", 2)].concat());
    replace(&mut state, &pair("b", 2));
    assert_eq!(show(&state.build()), "b 1/1 prefill[10.0.2.7] decode[10.0.2.6]");
}

#[test]
fn a_terminating_pod_leaves_though_still_ready() {
    let mut state = state();
    let [prefill, decode] = pair("a", 1);
    replace(&mut state, &[prefill, Arc::clone(&decode)]);
    let mut leaving = (*decode).clone();
    leaving.terminating = true;
    state.apply(Change::Upsert(Arc::new(leaving)));
    let snapshot = state.build();
    assert_eq!(show(&snapshot), "a 0/0 prefill[10.0.1.7] decode[]");
    assert_eq!(snapshot.sets[0].revisions[0].members.len(), 2, "still a member, for the fence");
}

#[test]
fn a_late_delete_of_an_old_uid_leaves_its_successor() {
    let mut state = state();
    replace(&mut state, &pair("a", 1));
    let successor = pod("a-decode", "uid-new", "10.0.1.99", "a", "decode", |_| {});
    let old = PodKey { uid: "uid-a-decode".into(), ..successor.key.clone() };
    state.apply(Change::Upsert(successor));
    state.apply(Change::Remove(old));
    assert_eq!(show(&state.build()), "a 1/1 prefill[10.0.1.7] decode[10.0.1.99]");
}

#[test]
fn a_reused_address_belongs_to_its_newest_ready_owner() {
    let mut state = state();
    replace(&mut state, &[pair("a", 1), pair("b", 2)].concat());
    // a-decode is gone but its delete has not arrived; its address now serves another role of another revision.
    state.apply(Change::Upsert(ready("b-prefill-2", "10.0.1.6", "b", "prefill")));
    assert_eq!(
        show(&state.build()),
        "a 0/2 prefill[10.0.1.7] decode[]; b 2/2 prefill[10.0.1.6 10.0.2.7] decode[10.0.2.6]"
    );
    // The late delete changes nothing for the new owner.
    state.apply(Change::Remove(PodKey {
        namespace: "default".into(),
        name: "a-decode".into(),
        uid: "uid-a-decode".into(),
    }));
    assert_eq!(
        show(&state.build()),
        "a 0/2 prefill[10.0.1.7] decode[]; b 2/2 prefill[10.0.1.6 10.0.2.7] decode[10.0.2.6]"
    );
}

#[test]
fn a_pod_that_is_not_ready_does_not_take_an_address_from_one_that_is() {
    let mut state = state();
    replace(&mut state, &pair("a", 1));
    state.apply(Change::Upsert(pod("late", "u", "10.0.1.6", "b", "decode", |p| p.ready = false)));
    assert_eq!(show(&state.build()), "a 1/1 prefill[10.0.1.7] decode[10.0.1.6]; b 0/1 prefill[] decode[]");
}

#[test]
fn a_change_without_an_address_removes_the_endpoint_of_the_stored_one() {
    let mut state = state();
    let [prefill, decode] = pair("a", 1);
    replace(&mut state, &[prefill, Arc::clone(&decode)]);
    let mut bare = (*decode).clone();
    bare.ips.clear();
    state.apply(Change::Upsert(Arc::new(bare)));
    assert_eq!(show(&state.build()), "a 0/0 prefill[10.0.1.7] decode[]");
}

#[test]
fn a_flipped_role_or_revision_label_moves_a_ready_pod_at_once() {
    let mut state = state();
    let [prefill, decode] = pair("a", 1);
    replace(&mut state, &[prefill, Arc::clone(&decode)]);
    for (revision, role, expected) in [
        ("a", "prefill", "a 0/0 prefill[10.0.1.6 10.0.1.7] decode[]"),
        ("b", "decode", "a 0/0 prefill[10.0.1.7] decode[]; b 0/0 prefill[] decode[10.0.1.6]"),
        ("a", "decode", "a 1/1 prefill[10.0.1.7] decode[10.0.1.6]"),
    ] {
        state.apply(Change::Upsert(ready("a-decode", "10.0.1.6", revision, role)));
        assert_eq!(show(&state.build()), expected);
    }
}

#[test]
fn a_follower_of_a_group_counts_but_takes_no_requests() {
    let mut state = state();
    let follower = pod("a-decode-1", "u", "10.0.1.8", "a", "decode", |p| {
        label(p, "leaderworkerset.sigs.k8s.io/worker-index", "1");
    });
    replace(&mut state, &[&pair("a", 1)[..], &[follower]].concat());
    assert_eq!(show(&state.build()), "a 2/2 prefill[10.0.1.7] decode[10.0.1.6]");
}

#[test]
fn decode_ready_while_prefill_starts_gets_no_traffic() {
    let mut state = state();
    replace(&mut state, &pair("a", 1));
    state.apply(Change::Upsert(ready("b-decode", "10.0.2.6", "b", "decode")));
    let starting = pod("b-prefill", "u", "10.0.2.7", "b", "prefill", |p| p.ready = false);
    state.apply(Change::Upsert(starting));
    assert_eq!(
        show(&state.build()),
        "a 1/1 prefill[10.0.1.7] decode[10.0.1.6]; b 0/1 prefill[] decode[10.0.2.6]"
    );
}

#[test]
fn the_same_set_name_in_two_namespaces_stays_apart() {
    let sets = vec![set("left", &["left"]), set("right", &["right"])];
    let mut state = State::new(config(sets), HashMap::new(), 0);
    let in_namespace = |ns: &str, net: u8| {
        pair("a", net).map(|p| {
            let mut p = (*p).clone();
            p.key.namespace = ns.into();
            Arc::new(p)
        })
    };
    replace(&mut state, &[in_namespace("left", 1), in_namespace("right", 2)].concat());
    let snapshot = state.build();
    for (set, ip) in snapshot.sets.iter().zip(["10.0.1.6", "10.0.2.6"]) {
        let [only] = &set.revisions[0].endpoints[1][..] else { panic!("one endpoint each") };
        assert_eq!(only.address.ip().to_string(), ip);
    }
}

#[test]
fn a_rollback_with_the_same_pod_names_gets_the_old_tenancy_and_new_endpoints() {
    let mut state = state();
    replace(&mut state, &pair("a", 1));
    let first = state.build();
    let rolled: Vec<_> = ["prefill", "decode"]
        .map(|role| pod(&format!("a-{role}"), "uid-b", &format!("10.0.2.{}", role.len()), "b", role, |_| {}))
        .into();
    replace(&mut state, &rolled);
    assert_eq!(show(&state.build()), "b 1/1 prefill[10.0.2.7] decode[10.0.2.6]");
    let back: Vec<_> = ["prefill", "decode"]
        .map(|role| pod(&format!("a-{role}"), "uid-c", &format!("10.0.3.{}", role.len()), "a", role, |_| {}))
        .into();
    replace(&mut state, &back);
    let last = state.build();
    assert_eq!(show(&last), "a 1/1 prefill[10.0.3.7] decode[10.0.3.6]");
    let tenancy = |s: &Snapshot| (s.sets[0].revisions[0].slot, s.sets[0].revisions[0].epoch);
    assert_eq!(tenancy(&first), tenancy(&last));
}

#[test]
fn an_endpoint_keeps_its_load_and_health_while_its_pod_lives() {
    let mut state = state();
    let [prefill, decode] = pair("a", 1);
    replace(&mut state, &[Arc::clone(&prefill), Arc::clone(&decode)]);
    let first = state.build();
    let mut relabelled = (*decode).clone();
    label(&mut relabelled, "slice", "1");
    state.apply(Change::Upsert(Arc::new(relabelled)));
    let second = state.build();
    let of = |s: &Snapshot, role: usize| Arc::clone(&s.sets[0].revisions[0].endpoints[role][0]);
    assert!(Arc::ptr_eq(&of(&first, 0), &of(&second, 0)), "untouched: the same endpoint");
    assert!(!Arc::ptr_eq(&of(&first, 1), &of(&second, 1)));
    assert!(Arc::ptr_eq(&of(&first, 1).vitals, &of(&second, 1).vitals));
    // A successor on the same address starts afresh.
    state.apply(Change::Upsert(pod("a-decode", "uid-new", "10.0.1.6", "a", "decode", |_| {})));
    assert!(!Arc::ptr_eq(&of(&second, 1).vitals, &of(&state.build(), 1).vitals));
}

#[test]
fn pods_on_their_nodes_network_own_their_port_only() {
    let mut state = state();
    let on_host = |name: &str, revision: &str, port: &str| {
        pod(name, name, "10.9.9.9", revision, "decode", |p| {
            p.host_network = true;
            p.active_ports = Some(port.into());
        })
    };
    let mut two_ports = set("set", &[]);
    two_ports.ports = vec![vec![PortRef::Number(8000), PortRef::Number(8001)]; 2];
    state.apply(Change::Config(config(vec![two_ports])));
    replace(&mut state, &[on_host("x", "a", "8000"), on_host("y", "b", "8001")]);
    let snapshot = state.build();
    let addresses: Vec<String> = snapshot.sets[0]
        .revisions
        .iter()
        .flat_map(|r| &r.endpoints[1])
        .map(|e| e.address.to_string())
        .collect();
    assert_eq!(addresses, ["10.9.9.9:8000", "10.9.9.9:8001"]);
}

#[test]
fn a_new_configuration_changes_what_pods_are() {
    let mut state = state();
    replace(&mut state, &pair("a", 1));
    state.build();
    let mut other = set("set", &[]);
    other.namespaces = vec!["elsewhere".into()];
    state.apply(Change::Config(config(vec![other])));
    assert!(state.has_news());
    assert_eq!(show(&state.build()), "");
}

#[test]
fn a_warning_is_said_once_per_pod() {
    let mut state = state();
    let bad = |ready: bool| {
        pod("p", "u", "10.0.0.1", "a", "decode", |p| {
            p.active_ports = Some("none".into());
            p.ready = ready;
        })
    };
    replace(&mut state, &[bad(true)]);
    assert!(matches!(&state.take_notes()[..], [Note::Pod { pod, .. }] if pod.name.as_ref() == "p"));
    state.apply(Change::Upsert(bad(false)));
    state.apply(Change::Upsert(bad(true)));
    assert_eq!(state.take_notes(), []);
}

#[test]
fn more_revisions_than_slots_are_left_out_and_said_once() {
    let mut state = state();
    let pods: Vec<_> = (0..66_u8)
        .map(|i| ready(&format!("p{i}"), &format!("10.1.0.{i}"), &format!("r{i:02}"), "decode"))
        .collect();
    replace(&mut state, &pods);
    assert_eq!(state.build().sets[0].revisions.len(), 64);
    let notes = state.take_notes();
    assert!(matches!(&notes[..], [Note::Crowded { revisions, .. }] if revisions.len() == 2), "{notes:?}");
    state.apply(Change::Upsert(ready("p0", "10.1.0.200", "r00", "decode")));
    state.build();
    assert_eq!(state.take_notes(), []);
}

#[test]
fn a_restarted_agent_keeps_slots_epochs_and_the_count_of_generations() {
    let mut before = state();
    replace(&mut before, &[pair("a", 1), pair("b", 2)].concat());
    let left = before.build();
    let view = &left.sets[0];
    let tenants =
        view.revisions.iter().map(|r| (r.slot, revgate::snapshot::slots::name_hash(&r.name), r.epoch));
    let roles = ["prefill", "decode"].map(Arc::from);
    let restored = HashMap::from([(revgate::snapshot::slots::set_hash("set", &roles), tenants.collect())]);

    let mut after = State::new(config(vec![set("set", &[])]), restored, left.generation);
    replace(&mut after, &pair("b", 2));
    let now = after.build();
    assert!(now.generation > left.generation);
    let b = view.revision("b").expect("b was there");
    assert_eq!((now.sets[0].revisions[0].slot, now.sets[0].revisions[0].epoch), (b.slot, b.epoch));
}
