//! What a Pod is to a set: one test for each rule.

use std::net::IpAddr;

use http::HeaderName;

use super::*;
use crate::{
    cluster::pod::{ContainerPort, PodKey},
    config::GatingMode,
};

const REVISION: &str = "disaggregatedset.x-k8s.io/revision";
const ROLE: &str = "disaggregatedset.x-k8s.io/role";

/// A set of Prefill (port 8000) and Decode (ports 8000 and 8001).
fn set() -> SetConfig {
    SetConfig {
        name: "set".into(),
        scope: "app=vllm".parse().unwrap(),
        namespaces: Vec::new(),
        mode: GatingMode::MaxRole,
        required_roles: vec!["prefill".into(), "decode".into()],
        roles: vec!["prefill".into(), "decode".into()],
        ports: vec![vec![PortRef::Number(8000)], vec![PortRef::Number(8000), PortRef::Number(8001)]],
        pool: None,
        revision_header: HeaderName::from_static("x-llm-d-disagg-revision"),
        revision_label: REVISION.into(),
        role_label: ROLE.into(),
        selectors: Vec::new(),
    }
}

/// A Ready Pod of revision `a`.
fn pod(role: &str) -> Pod {
    let labels = [("app", "vllm"), (REVISION, "a"), (ROLE, role)];
    Pod {
        ips: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
        labels: labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
        ready: true,
        ..Pod::new(PodKey { namespace: "llm".into(), name: "p".into(), uid: "u".into() })
    }
}

fn with_label(mut pod: Pod, key: &str, value: &str) -> Pod {
    pod.labels = pod.labels.iter().cloned().chain([(key.into(), value.into())]).collect();
    pod
}

fn without_label(mut pod: Pod, key: &str) -> Pod {
    pod.labels = pod.labels.iter().filter(|(known, _)| known.as_ref() != key).cloned().collect();
    pod
}

fn ports(member: &Member) -> Vec<u16> {
    member.endpoints.iter().map(SocketAddr::port).collect()
}

#[test]
fn a_ready_pod_counts_and_has_an_endpoint_at_its_primary_address() {
    let member = member(&pod("prefill"), &set()).unwrap();
    assert_eq!((&*member.revision, &*member.role, member.counts), ("a", "prefill", true));
    assert_eq!(member.endpoints, ["10.0.0.7:8000".parse().unwrap()]);
    assert_eq!(member.warning, None);
}

#[test]
fn out_of_scope_or_namespace_or_without_a_label_it_is_no_member() {
    let mut elsewhere = set();
    elsewhere.namespaces = vec!["other".into()];
    assert_eq!(member(&pod("decode"), &elsewhere), None);
    elsewhere.namespaces.push("llm".into());
    assert!(member(&pod("decode"), &elsewhere).is_some());
    assert_eq!(member(&with_label(pod("decode"), "app", "other"), &set()), None);
    for label in [REVISION, ROLE] {
        assert_eq!(member(&without_label(pod("decode"), label), &set()), None);
        assert_eq!(member(&with_label(pod("decode"), label, ""), &set()), None);
    }
}

#[test]
fn not_ready_or_terminating_it_stays_a_member_but_counts_for_nothing() {
    let unready = Pod { ready: false, ..pod("decode") };
    let terminating = Pod { terminating: true, ..pod("decode") };
    for pod in [unready, terminating] {
        let member = member(&pod, &set()).unwrap();
        assert!(!member.counts && member.endpoints.is_empty());
    }
}

#[test]
fn a_follower_of_a_group_counts_but_takes_no_requests() {
    for (index, endpoints) in [("0", 2), ("1", 0), ("", 0)] {
        let member = member(&with_label(pod("decode"), WORKER_INDEX, index), &set()).unwrap();
        assert!(member.counts);
        assert_eq!(member.endpoints.len(), endpoints, "worker index `{index}`");
    }
}

#[test]
fn without_an_address_it_counts_but_takes_no_requests() {
    let member = member(&Pod { ips: Vec::new(), ..pod("decode") }, &set()).unwrap();
    assert!(member.counts && member.endpoints.is_empty());
}

#[test]
fn a_role_that_takes_no_traffic_has_no_endpoints() {
    let member = member(&pod("encode"), &set()).unwrap();
    assert!(member.counts && member.endpoints.is_empty() && member.warning.is_none());
}

#[test]
fn several_ports_make_several_endpoints_in_their_order() {
    let mut set = set();
    assert_eq!(ports(&member(&pod("decode"), &set).unwrap()), [8000, 8001]);
    set.ports[1] = vec![PortRef::Number(9), PortRef::Number(3), PortRef::Number(9)];
    assert_eq!(ports(&member(&pod("decode"), &set).unwrap()), [9, 3]);
    let v6: IpAddr = "fd00::7".parse().unwrap();
    let member = member(&Pod { ips: vec![v6], ..pod("decode") }, &set).unwrap();
    assert_eq!(member.endpoints[0].to_string(), "[fd00::7]:9");
}

#[test]
fn a_named_port_is_the_containers() {
    let mut set = set();
    set.ports[1] = vec![PortRef::Name("http".into()), PortRef::Number(8001)];
    let declared = |name: &str, number| ContainerPort { name: Some(name.into()), number };
    let ports_of = vec![declared("metrics", 8200), declared("http", 8100)];
    let found = member(&Pod { ports: ports_of, ..pod("decode") }, &set).unwrap();
    assert_eq!((ports(&found), &found.warning), (vec![8100, 8001], &None));
    let missing = member(&Pod { ports: vec![declared("metrics", 8200)], ..pod("decode") }, &set).unwrap();
    assert_eq!(ports(&missing), [8001], "the other ports still serve");
    assert_eq!(missing.warning.unwrap(), "no container port is named `http`; the Pod names metrics");
}

#[test]
fn the_annotation_narrows_the_ports() {
    for (annotation, expected) in [
        ("8000", Some(vec![8000])),
        ("8001", Some(vec![8001])),
        (" 8001 , 8000 ", Some(vec![8000, 8001])),
        ("8000,8000", Some(vec![8000])),
        ("9000", None),
        ("8000,9000", None),
        ("8000,", None),
        ("", None),
        ("http", None),
        ("-1", None),
        ("70000", None),
    ] {
        let member = member(&Pod { active_ports: Some(annotation.into()), ..pod("decode") }, &set()).unwrap();
        assert!(member.counts);
        assert_eq!(ports(&member), expected.clone().unwrap_or_default(), "`{annotation}`");
        assert_eq!(member.warning.is_none(), expected.is_some(), "`{annotation}`: {:?}", member.warning);
    }
}

#[test]
fn a_warning_is_the_same_whether_the_pod_is_ready_or_not() {
    let ready = Pod { active_ports: Some("x".into()), ..pod("decode") };
    let unready = Pod { ready: false, ..ready.clone() };
    assert_eq!(member(&ready, &set()).unwrap().warning, member(&unready, &set()).unwrap().warning);
}

#[test]
fn other_selectors_are_of_requests_and_do_not_filter_members() {
    let mut set = set();
    set.selectors.push(crate::config::HeaderSelector {
        name: "slice".into(),
        header: HeaderName::from_static("x-slice"),
        label: "slice".into(),
        mode: crate::config::SelectorMode::Strict,
    });
    assert!(member(&pod("decode"), &set).unwrap().counts);
}
