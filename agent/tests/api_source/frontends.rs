//! Services that are VIPs (C8), and InferencePools that say ports (C6).

use serde_json::{Value, json};

use super::{
    rig::{Rig, configuration, endpoints, pod},
    server::Server,
};

const SET: [(&str, &str); 1] = [("chat", "disaggregatedset.x-k8s.io/name=my-set")];
const VIP: &str = "sets: [{namespaces: [llm]}]\nvips: [{service: {name: decode, port: http}, role: decode}]";
const POOL: &str = "sets: [{namespaces: [llm], ports: {prefill: 9000}, inferencePool: {name: pool}}]";

const NEW: &str = "inference.networking.k8s.io";
const OLD: &str = "inference.networking.x-k8s.io";

fn service(ips: &[&str], port: u16) -> Value {
    json!({
        "metadata": {"namespace": "llm", "name": "decode"},
        "spec": {
            "clusterIP": ips.first().unwrap_or(&"None"), "clusterIPs": ips,
            "ports": [{"name": "metrics", "port": 9090}, {"name": "http", "port": port}],
        },
    })
}

async fn with_pods() -> Server {
    let server = Server::start().await;
    server.put("pods", pod("llm", "p-0", "a", "prefill", "10.0.0.1"));
    server.put("pods", pod("llm", "d-0", "a", "decode", "10.0.0.2"));
    server
}

impl Rig {
    /// Waits until the VIPs are exactly these.
    async fn until_vips(&self, wanted: &[&str]) {
        let same = |s: &revgate::snapshot::Snapshot| {
            s.synced && s.vips.iter().map(|vip| vip.address.to_string()).eq(wanted.iter().copied())
        };
        self.until(&format!("VIPs {wanted:?}"), same).await;
    }

    /// Waits until the decode endpoints are exactly these.
    async fn until_decode(&self, wanted: &[&str]) {
        self.until(&format!("{wanted:?}"), |s| s.synced && endpoints(s, "a", 1) == wanted).await;
    }
}

#[tokio::test]
async fn c8_a_vip_follows_its_service() {
    let server = with_pods().await;
    server.put("services", service(&["10.96.0.1"], 80));
    let rig = Rig::start(&server, configuration(&SET, VIP)).await;
    rig.until_vips(&["10.96.0.1:80"]).await;
    server.put("services", service(&["10.96.0.1", "fd00::1"], 8080));
    rig.until_vips(&["10.96.0.1:8080", "[fd00::1]:8080"]).await;
    server.put("services", service(&["10.96.0.7"], 8080));
    rig.until_vips(&["10.96.0.7:8080"]).await;
    server.delete("services", "llm", "decode");
    rig.until_vips(&[]).await;
    let snapshot = rig.published.load_full();
    assert_eq!(snapshot.missing_vips[0].why, "there is no such Service");
    assert_eq!((snapshot.sets[0].roles[snapshot.missing_vips[0].role].as_ref()), "decode");
    server.put("services", service(&[], 80));
    rig.until("headless", |s| s.missing_vips.iter().any(|vip| vip.why.contains("headless"))).await;
    server.put("services", service(&["10.96.0.8"], 80));
    rig.until_vips(&["10.96.0.8:80"]).await;
    assert!(rig.published.load().missing_vips.is_empty());
    assert_eq!(server.asked(&["services", "fieldSelector=metadata.name%3Ddecode"]), 2, "a list and a watch");
}

#[tokio::test]
async fn c8_a_service_that_is_not_there_yet_holds_nothing_back() {
    let server = with_pods().await;
    let rig = Rig::start(&server, configuration(&SET, VIP)).await;
    rig.until_decode(&["10.0.0.2:8000"]).await;
    assert_eq!(rig.published.load().missing_vips.len(), 1);
    server.put("services", service(&["10.96.0.1"], 80));
    rig.until_vips(&["10.96.0.1:80"]).await;
}

#[tokio::test]
async fn a_service_that_may_not_be_read_holds_the_first_snapshot_back() {
    let server = with_pods().await;
    server.put("services", service(&["10.96.0.1"], 80));
    server.fault(|faults| faults.forbidden.extend([("list", "services")]));
    let mut rig = Rig::start(&server, configuration(&SET, VIP)).await;
    rig.until_said(&["may not list services llm/decode", "resources: [services]"]).await;
    assert!(!rig.published.load().synced, "an earlier agent's VIPs must not go");
    server.fault(|faults| faults.forbidden.clear());
    rig.until_vips(&["10.96.0.1:80"]).await;
}

#[tokio::test]
async fn a_service_of_the_next_configuration_is_followed_and_the_one_before_is_not() {
    let server = with_pods().await;
    server.put("services", service(&["10.96.0.1"], 80));
    let rig = Rig::start(&server, configuration(&SET, "sets: [{namespaces: [llm]}]")).await;
    rig.until_decode(&["10.0.0.2:8000"]).await;
    assert_eq!(server.asked(&["services"]), 0, "no right is used that is not needed");
    rig.reconfigure(configuration(&SET, VIP));
    rig.until_vips(&["10.96.0.1:80"]).await;
    rig.reconfigure(configuration(&SET, "sets: [{namespaces: [llm]}]"));
    rig.until_vips(&[]).await;
}

fn pool(spec: &Value) -> Value {
    json!({"metadata": {"namespace": "llm", "name": "pool"}, "spec": spec})
}

#[tokio::test]
async fn c6_a_pool_says_the_ports_that_the_file_does_not() {
    let server = with_pods().await;
    server.fault(|faults| faults.absent.extend([OLD]));
    server.put("inferencepools", pool(&json!({"targetPorts": [{"number": 8200}, {"number": 8201}]})));
    let rig = Rig::start(&server, configuration(&SET, POOL)).await;
    rig.until_decode(&["10.0.0.2:8200", "10.0.0.2:8201"]).await;
    assert_eq!(endpoints(&rig.published.load(), "a", 0), ["10.0.0.1:9000"], "the file says this one");
    server.put("inferencepools", pool(&json!({"targetPorts": [{"number": 8300}]})));
    rig.until_decode(&["10.0.0.2:8300"]).await;
    server.delete("inferencepools", "llm", "pool");
    rig.until_decode(&["10.0.0.2:8000"]).await;
}

#[tokio::test]
async fn c6_the_older_groups_pool_is_read_where_the_present_one_is_not_installed() {
    let server = with_pods().await;
    server.fault(|faults| faults.absent.extend([NEW]));
    server.put("inferencepools", pool(&json!({"targetPortNumber": 8200})));
    let mut rig = Rig::start(&server, configuration(&SET, POOL)).await;
    rig.until_said(&["Absent", "kind: Pools"]).await;
    rig.until_decode(&["10.0.0.2:8200"]).await;
}

#[tokio::test]
async fn c6_without_any_pool_the_default_port_it_is() {
    let server = with_pods().await;
    server.fault(|faults| faults.absent.extend([NEW, OLD]));
    let rig = Rig::start(&server, configuration(&SET, POOL)).await;
    rig.until_decode(&["10.0.0.2:8000"]).await;
    assert_eq!(endpoints(&rig.published.load(), "a", 0), ["10.0.0.1:9000"]);
}

#[tokio::test]
async fn c6_a_pool_whose_resource_is_removed_while_the_watch_is_cut_is_no_more() {
    let server = with_pods().await;
    server.fault(|faults| faults.absent.extend([OLD]));
    server.put("inferencepools", pool(&json!({"targetPorts": [{"number": 8200}]})));
    let rig = Rig::start(&server, configuration(&SET, POOL)).await;
    rig.until_decode(&["10.0.0.2:8200"]).await;
    server.fault(|faults| faults.absent.extend([NEW]));
    server.cut(false);
    rig.until_decode(&["10.0.0.2:8000"]).await;
}
