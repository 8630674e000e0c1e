//! The Pod file (C5): every form that is read, every error with its line, and nothing that makes it panic (R2).
#![cfg(test)]

use std::fmt::Write as _;

use proptest::prelude::*;
use revgate::cluster::{
    Pod,
    list::{Listed, parse},
    pod::ContainerPort,
};

const MIXED: &str = r#"
# The short form, with everything that it has.
- name: prefill-0
  namespace: llm
  uid: u-1
  ip: 10.0.0.1
  ips: [10.0.0.1, "fd00::1"]
  labels: {disaggregatedset.x-k8s.io/revision: 12345678, disaggregatedset.x-k8s.io/role: prefill}
  annotations: {llm-d.ai/active-ports: "8000"}
  ready: false
  terminating: true
  node: n1
  hostNetwork: true
  ports: [8000, {name: http, containerPort: 8001}, {containerPort: 53, protocol: UDP}]
  cgroup: kubepods/pod1
# A full object.
- apiVersion: v1
  kind: Pod
  metadata: {name: decode-0, uid: u-2, labels: {a: b}, ownerReferences: [{kind: Job}]}
  spec: {nodeName: n2, containers: [{name: c, image: x}]}
  status: {phase: Running, podIP: 10.0.0.2, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: List
items:
- {kind: Pod, metadata: {name: decode-1}}
- {name: decode-2}
---
kind: PodList
metadata: {resourceVersion: "7"}
items:
- metadata: {name: decode-3}
---
# A document without anything is none.
---
name: decode-4
"#;

fn names(list: &[Listed]) -> Vec<String> {
    list.iter().map(|l| format!("{}/{}", l.pod.key.namespace, l.pod.key.name)).collect()
}

#[test]
fn all_forms_mix() {
    let list = parse(MIXED).unwrap();
    let all = [
        "llm/prefill-0",
        "default/decode-0",
        "default/decode-1",
        "default/decode-2",
        "default/decode-3",
        "default/decode-4",
    ];
    assert_eq!(names(&list), all);

    let Listed { pod, cgroup } = &list[0];
    assert_eq!(cgroup.as_deref(), Some("kubepods/pod1"));
    assert_eq!(&*pod.key.uid, "u-1");
    assert_eq!(pod.ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.1", "fd00::1"]);
    assert_eq!(pod.labels.get("disaggregatedset.x-k8s.io/revision").unwrap().as_ref(), "12345678");
    assert_eq!(pod.active_ports.as_deref(), Some("8000"));
    assert_eq!(pod.node.as_deref(), Some("n1"));
    assert!(!pod.ready && pod.terminating && pod.host_network);
    let port = |name: Option<&str>, number| ContainerPort { name: name.map(Into::into), number };
    assert_eq!(pod.ports, [port(None, 8000), port(Some("http"), 8001)]);

    let Listed { pod, cgroup } = &list[1];
    assert!(pod.ready && cgroup.is_none());
    assert_eq!((pod.ips[0].to_string().as_str(), pod.node.as_deref()), ("10.0.0.2", Some("n2")));

    let short = &list[3].pod;
    assert!(short.ready && !short.terminating && !short.host_network && short.ips.is_empty());
    assert!(!list[2].pod.ready, "a full object without a condition is not Ready");
}

#[test]
fn json_is_read_compact_pretty_and_with_tabs() {
    let value = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        {"kind": "Pod", "metadata": {"name": "a", "labels": {"k": "v\u{e9}\n\u{1F600}/"}}, "status": {"podIPs": [{"ip": "::1"}]}},
        {"name": "b", "ready": true, "labels": {}},
    ]});
    let compact = value.to_string();
    let pretty = serde_json::to_string_pretty(&value).unwrap();
    let tabs = pretty.replace("  ", "\t");
    let expected = parse(&compact).unwrap();
    assert_eq!(expected[0].pod.labels.get("k").unwrap().as_ref(), "v\u{e9}\n\u{1F600}/");
    assert_eq!(parse(&pretty).unwrap(), expected);
    assert_eq!(parse(&tabs).unwrap(), expected);
}

#[test]
fn revisions_keep_their_spelling_though_they_look_like_numbers() {
    for revision in ["0012e4", "12345678", "1e10", "0x10", "007", "1_000", "true"] {
        let list = parse(&format!("- {{name: a, labels: {{r: {revision}}}}}")).unwrap();
        assert_eq!(list[0].pod.labels.get("r").unwrap().as_ref(), revision);
    }
}

#[test]
fn without_a_uid_the_identity_is_the_name_and_outlives_other_changes() {
    let key = |text: &str| parse(text).unwrap()[0].pod.key.clone();
    let before = key("- {name: a, namespace: n, ip: 10.0.0.1, labels: {r: x}}");
    assert_eq!(before, key("- {name: a, namespace: n, ip: 10.0.0.2, labels: {r: y}, ready: false}"));
    assert_ne!(before.uid, key("- {name: b, namespace: n}").uid);
    assert_ne!(before.uid, key("- {name: a, namespace: m}").uid);
}

#[test]
fn no_pods_is_said_by_an_empty_list_and_not_by_an_empty_file() {
    assert_eq!(parse("[]").unwrap(), []);
    assert_eq!(parse("kind: List\nitems: []\n").unwrap(), []);
    for nothing in ["", "\n\n", "# soon\n", "---\n", "null"] {
        assert!(parse(nothing).unwrap_err().what.contains("write `[]`"), "{nothing:?}");
    }
}

#[test]
fn errors_say_where_and_what_is_allowed() {
    for (text, line, words) in [
        (
            "- name: a\n- name: b\n  lables: {}\n",
            3,
            &["`lables`", "did you mean `labels`?", "allowed: name, namespace"][..],
        ),
        ("- name: a\n  colour: red\n", 2, &["`colour`", "allowed"]),
        ("- name: a\n- ip: 10.0.0.1\n", 2, &["needs a `name`"]),
        ("- name: a\n  ip: 10.0.0.300\n", 2, &["`10.0.0.300`", "10.0.0.7"]),
        ("- name: a\n  ips:\n  - ::1\n  - here\n", 4, &["`here`"]),
        ("- name: a\n\n- name: b\n- {name: a, namespace: default}\n", 4, &["default/a", "already on line 1"]),
        ("- name: a\n  ready: maybe\n", 2, &["bool"]),
        ("- name: a\n  ports: [80000]\n", 2, &["80000", "no port"]),
        ("- name: a\n  ports: [http]\n", 2, &["a port number"]),
        ("- name: a\n  name: b\n", 2, &["name"]),
        ("kind: Service\nmetadata: {name: s}\n", 1, &["`Service`", "Pod, PodList, List"]),
        ("- kind: Pod\n  metadata: {labels: {}}\n", 1, &["`metadata.name`"]),
        ("- kind: Pod\n  metadata:\n    name: [a]\n", 3, &["string"]),
        ("- 7\n", 1, &["a Pod"]),
        ("seven\n", 1, &["a list of Pods"]),
        ("- name: a\n - name: b\n", 2, &[]),
        ("- name: b\n- {name: a\n", 2, &[]),
    ] {
        let error = parse(text).expect_err(text);
        assert_eq!(error.line, line, "{text}{error}");
        for word in words {
            assert!(error.what.contains(word), "{text}{error}");
        }
        assert!(!error.what.contains(" at line "), "the place is said once: {error}");
        assert!(!error.what.contains('\n'), "one line: {error}");
    }
}

#[test]
fn anchors_and_merges_work() {
    let text = "- &base {name: a, node: n1, labels: {r: x}}\n- {<<: *base, name: b}\n";
    let list = parse(text).unwrap();
    assert_eq!(list[1].pod.labels, list[0].pod.labels);
    assert_eq!(list[1].pod.node.as_deref(), Some("n1"));
}

#[test]
fn alias_bombs_and_deep_nesting_are_refused() {
    let mut bomb = String::from("- {name: a, x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}\n");
    for level in 1..12 {
        let refs = vec![format!("*x{}", level - 1); 10].join(", ");
        writeln!(bomb, "- {{name: a, x{level}: &x{level} [{refs}]}}").unwrap();
    }
    assert!(parse(&bomb).is_err());
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", "")] {
        for depth in [65, 1_000, 200_000] {
            let deep = open.repeat(depth) + &close.repeat(depth);
            assert!(parse(&deep).is_err(), "{open} {depth}");
            assert!(parse(&format!("- {{name: a, x: {deep}}}")).is_err(), "{open} {depth}");
        }
    }
}

#[test]
fn what_aliases_repeat_is_bounded_by_the_length_of_the_file() {
    let repeated = |length: usize, times: usize| {
        let labels = (0..times).map(|n| format!("l{n}: *x")).collect::<Vec<_>>().join(", ");
        let value = "v".repeat(length);
        parse(&format!("- {{name: a, node: &x {value}}}\n- {{name: b, labels: {{{labels}}}}}\n"))
    };
    assert_eq!(repeated(100, 50).unwrap().len(), 2, "which is what people write");
    assert!(repeated(1 << 20, 30).is_err());
}

/// In a time that does not grow with the square of their number.
#[test]
fn each_address_of_a_hundred_thousand_is_there_once() {
    let ips =
        |n: u32| (0..n).map(|n| format!("'{}'", std::net::Ipv4Addr::from(n % 90_000))).collect::<Vec<_>>();
    let pods = parse(&format!("- {{name: a, ips: [{}]}}\n", ips(100_000).join(", "))).unwrap();
    assert_eq!(pods[0].pod.ips.len(), 90_000);
    assert_eq!(pods[0].pod.ips[1], std::net::IpAddr::from([0, 0, 0, 1]));
}

#[test]
fn of_two_mistakes_the_first_is_told() {
    let twice = "- {name: a}\n- {name: a}\n";
    let nameless = "- {ip: 127.0.0.1}\n";
    for (text, line, what) in [
        (format!("{twice}{nameless}"), 2, "already on line 1"),
        (format!("{nameless}{twice}"), 1, "needs a `name`"),
        (
            format!("{{kind: List, items: [{{name: a}}, {{name: a}}]}}\n---\n{nameless}"),
            1,
            "already on line 1",
        ),
        (format!("{{kind: List, items: [{{ip: 127.0.0.1}}]}}\n---\n{twice}"), 1, "needs a `name`"),
    ] {
        let error = parse(&text).unwrap_err();
        assert_eq!(error.line, line, "{error}");
        assert!(error.what.contains(what), "{error}");
    }
}

#[test]
fn ten_thousand_full_pods_are_within_the_bounds() {
    let one = |n: usize| {
        let labels: serde_json::Map<_, _> =
            (0..20).map(|label| (format!("label-{label}"), serde_json::json!("value"))).collect();
        serde_json::json!({"kind": "Pod", "metadata": {"name": format!("p{n}"), "labels": labels}})
    };
    let list = serde_json::json!({"kind": "List", "items": (0..10_000).map(one).collect::<Vec<_>>()});
    assert_eq!(parse(&list.to_string()).unwrap().len(), 10_000);
}

/// One edit of a good file.
fn edited() -> impl Strategy<Value = Vec<u8>> {
    let edit = (any::<prop::sample::Index>(), 0_u8..4, any::<u8>(), any::<prop::sample::Index>());
    prop::collection::vec(edit, 1..8).prop_map(|edits| {
        let mut bytes = MIXED.as_bytes().to_vec();
        for (at, what, byte, end) in edits {
            let at = at.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.drain(at..at + end.index(bytes.len() - at))),
                _ => {
                    let piece = bytes[at..at + end.index(bytes.len() - at)].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
            if bytes.is_empty() {
                bytes.push(byte);
            }
        }
        bytes
    })
}

/// Whatever is read has what the rest of the agent relies on.
fn sound(pod: &Pod) -> bool {
    !pod.key.name.is_empty() && !pod.key.namespace.is_empty() && !pod.key.uid.is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_edit_of_a_good_file_panics(bytes in edited()) {
        if let Ok(list) = parse(&String::from_utf8_lossy(&bytes)) {
            prop_assert!(list.iter().all(|listed| sound(&listed.pod)));
        }
    }

    #[test]
    fn no_text_panics(text in any::<String>()) {
        drop(parse(&text));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(parse(&String::from_utf8_lossy(&bytes)));
    }
}
