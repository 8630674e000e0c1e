//! Pods and Services of a real API server, seen by an agent with its DaemonSet's rights (C1 to C4, C8, C10).
#![cfg(test)]

use revgate_tests::cluster::{
    api::{Api, ENGINES},
    pods::{Pods, REVISION, ROLE, SET},
    process::eventually,
};
use serde_json::json;

const AGENT: &str = env!("CARGO_BIN_EXE_revgate-under-test");
const CHAT: &str = "rollout-screener";

#[test]
fn pods_are_followed_from_their_first_label_to_their_end() {
    let Some((mut api, pods)) = Api::deployed() else { return };
    pods.ready("prefill-a", "a", "prefill", "10.0.0.1");
    pods.create("decode-a", "a", "decode");
    let server = api.plane().address();
    let mut agent = api.agent(AGENT, server);
    agent.is_ready();
    agent.sees(
        "a Pod without an address is a member",
        CHAT,
        &["a prefill llm/prefill-a 10.0.0.1:8000", "a 0"],
    );
    pods.status("decode-a", "10.0.0.2", false);
    pods.ready("decode-b", "b", "decode", "10.0.0.4");
    agent.sees(
        "one that is not Ready is no endpoint",
        CHAT,
        &["a prefill llm/prefill-a 10.0.0.1:8000", "b decode llm/decode-b 10.0.0.4:8000", "a 0", "b 0"],
    );
    pods.status("decode-a", "10.0.0.2", true);
    pods.ready("prefill-b", "b", "prefill", "10.0.0.3");
    let all = [
        "a prefill llm/prefill-a 10.0.0.1:8000",
        "a decode llm/decode-a 10.0.0.2:8000",
        "b prefill llm/prefill-b 10.0.0.3:8000",
        "b decode llm/decode-b 10.0.0.4:8000",
    ];
    agent.sees("both revisions are whole", CHAT, &[&all[..], &["a 1/2", "b 1/2"]].concat());

    pods.label("prefill-b", ROLE, "decode");
    agent.sees(
        "a role flipped on a Ready Pod",
        CHAT,
        &[
            all[0],
            all[1],
            "b decode llm/prefill-b 10.0.0.3:8000",
            "b decode llm/decode-b 10.0.0.4:8000",
            "a 1",
            "b 0",
        ],
    );
    pods.label("prefill-b", REVISION, "a");
    agent.sees(
        "a Pod moved to another revision",
        CHAT,
        &[all[0], all[1], "a decode llm/prefill-b 10.0.0.3:8000", all[3], "a 1", "b 0"],
    );
    pods.label("prefill-b", SET, "another-set");
    agent.sees("a Pod that left the scope", CHAT, &[all[0], all[1], all[3], "a 1", "b 0"]);

    pods.terminate("decode-b");
    agent.sees("a Pod that terminates, though Ready still", CHAT, &[all[0], all[1], "a 1", "b 0"]);
    pods.delete("decode-b");
    agent.sees("and is gone", CHAT, &[all[0], all[1], "a 1"]);
    pods.delete("decode-a");
    agent.sees("a Pod that goes at once", CHAT, &[all[0], "a 0"]);
}

#[test]
fn an_address_that_is_used_again_belongs_to_the_pod_that_has_it_now() {
    let Some((mut api, pods)) = Api::deployed() else { return };
    let server = api.plane().address();
    let mut agent = api.agent(AGENT, server);
    pods.ready("prefill-a", "a", "prefill", "10.0.0.1");
    pods.ready("decode-a", "a", "decode", "10.0.0.2");
    agent.sees(
        "both are there",
        CHAT,
        &["a prefill llm/prefill-a 10.0.0.1:8000", "a decode llm/decode-a 10.0.0.2:8000", "a 1"],
    );
    pods.terminate("decode-a");
    pods.ready("prefill-b", "b", "prefill", "10.0.0.2");
    let lines =
        ["a prefill llm/prefill-a 10.0.0.1:8000", "b prefill llm/prefill-b 10.0.0.2:8000", "a 0", "b 0"];
    agent.sees("its successor in another role and revision", CHAT, &lines);
    // The late delete of the first owner changes nothing for the second.
    pods.delete("decode-a");
    pods.ready("decode-b", "b", "decode", "10.0.0.3");
    agent.sees(
        "the late delete has passed",
        CHAT,
        &[lines[0], lines[1], "b decode llm/decode-b 10.0.0.3:8000", "a 0", "b 1"],
    );
    // The same name, a new Pod.
    pods.delete("decode-b");
    pods.ready("decode-b", "a", "decode", "10.0.0.4");
    agent.sees(
        "a rollback with the same Pod names",
        CHAT,
        &[lines[0], "a decode llm/decode-b 10.0.0.4:8000", lines[1], "a 1", "b 0"],
    );
}

#[test]
fn sets_of_one_name_in_two_namespaces_are_two() {
    let Some((mut api, chat)) = Api::deployed() else { return };
    let code = Pods::of(&api.kubectl(), "code");
    // The agent's right to the second namespace, as deploy/base has it for the first.
    let role =
        api.kubectl().read(&["--namespace", ENGINES, "get", "role,rolebinding", "revgate", "-o", "json"]);
    let mut role: serde_json::Value = serde_json::from_str(&role).unwrap();
    for item in role["items"].as_array_mut().unwrap() {
        item["metadata"] = json!({"name": "revgate", "namespace": "code"});
    }
    api.kubectl().apply(&role.to_string());
    let picker = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: disaggregatedset-rollout-screener, name: chat, parameters: &set {
    scope: {labelSelector: disaggregatedset.x-k8s.io/name=my-set},
    revisionGating: {mode: max-role, requiredRoles: [prefill, decode]}}}
- {type: disaggregatedset-rollout-screener, name: code, parameters: *set}";
    let server = api.plane().address();
    let sets = "sets: [{name: chat, namespaces: [llm]}, {name: code, namespaces: [code]}]";
    let mut agent = api.agent_with(AGENT, server, picker, sets);
    for (pods, net) in [(&chat, 1), (&code, 2)] {
        pods.ready("prefill", "a", "prefill", &format!("10.0.{net}.1"));
        pods.ready("decode", "a", "decode", &format!("10.0.{net}.2"));
    }
    let of = |namespace: &str, net: u8| {
        [
            format!("a prefill {namespace}/prefill 10.0.{net}.1:8000"),
            format!("a decode {namespace}/decode 10.0.{net}.2:8000"),
            "a 1".to_owned(),
        ]
    };
    for (set, namespace, net) in [("chat", ENGINES, 1), ("code", "code", 2)] {
        let lines = of(namespace, net);
        agent.sees("its own Pods and no others", set, &lines.each_ref().map(String::as_str));
    }
}

#[test]
fn a_vip_follows_its_service() {
    let Some((mut api, _)) = Api::deployed() else { return };
    let kubectl = api.kubectl();
    let server = api.plane().address();
    let mut agent = api.agent(AGENT, server);
    let vips = |agent: &mut revgate_tests::cluster::watcher::Watcher| {
        let vips = agent.report().map(|report| report.vips);
        vips.map(|vips| {
            vips.into_iter().map(|vip| format!("{} {}", vip.role, vip.address)).collect::<Vec<_>>()
        })
    };
    let ip = |service: &str| {
        let service = kubectl.get(&["--namespace", ENGINES, "service", service]);
        service["spec"]["clusterIP"].as_str().unwrap().to_owned()
    };
    let (prefill, decode) = (ip("prefill"), ip("decode"));
    let want = vec![format!("prefill {prefill}:8000"), format!("decode {decode}:8000")];
    let _ = eventually(
        "the VIPs are at their Services' addresses",
        || vips(&mut agent),
        |seen| seen.as_ref().is_ok_and(|seen| *seen == want),
    );
    // A Service's address never changes; a new Service has a new one.
    kubectl.run(&["--namespace", ENGINES, "delete", "service", "decode"]);
    let _ = eventually(
        "a VIP without its Service is nowhere",
        || vips(&mut agent),
        |seen| seen.as_ref().is_ok_and(|seen| seen[..] == want[..1]),
    );
    kubectl.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: decode, namespace: llm},
          spec: {clusterIP: 10.98.77.77, ports: [{name: metrics, port: 1}, {name: http, port: 8080}]}}",
    );
    let want = vec![want[0].clone(), "decode 10.98.77.77:8080".to_owned()];
    let _ = eventually(
        "the VIP is where the new Service is",
        || vips(&mut agent),
        |seen| seen.as_ref().is_ok_and(|seen| *seen == want),
    );
}
