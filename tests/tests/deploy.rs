//! What stands in `deploy/` has the rights that it says, fits its own configuration, and is the same in both forms.
#![cfg(test)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use revgate_tests::require::skip;
use serde_json::{Value, json};

/// Labels that only a chart has.
const OF_HELM: [&str; 4] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy")
}

fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

/// Every YAML file below a folder that is YAML as it stands; the chart's templates are not.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("templates") {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &str) -> Vec<Value> {
    documents(&fs::read_to_string(deploy().join(path)).unwrap())
}

fn of_kind<'d>(documents: &'d [Value], kind: &str) -> Vec<&'d Value> {
    documents.iter().filter(|document| document["kind"] == kind).collect()
}

fn list<'v>(value: &'v Value, path: &str) -> &'v [Value] {
    value.pointer(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The objects of a kustomization, as `kubectl` renders them.
fn kustomized(folder: &str) -> Option<Vec<Value>> {
    let output = Command::new("kubectl").arg("kustomize").arg(deploy().join(folder)).output();
    rendered(&format!("kubectl kustomize {folder}"), "kubectl", output)
}

/// The objects of the chart, in the namespace that the base has.
fn chart(arguments: &[&str]) -> Option<Vec<Value>> {
    let program = std::env::var("HELM").unwrap_or_else(|_| "helm".to_owned());
    let mut helm = Command::new(program);
    helm.args(["template", "revgate", "--namespace", "revgate-system", "--kube-version", "1.34.0"])
        .args(arguments);
    rendered("helm template", "helm", helm.arg(deploy().join("helm/revgate")).output())
}

fn rendered(what: &str, tier: &str, output: std::io::Result<std::process::Output>) -> Option<Vec<Value>> {
    match output {
        Ok(output) => {
            assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
            Some(documents(&String::from_utf8(output.stdout).unwrap()))
        }
        Err(error) => {
            skip(tier, &format!("{what}: {error}"));
            None
        }
    }
}

#[test]
fn every_container_has_the_two_capabilities_and_no_other_right() {
    let mut containers = 0;
    for path in files(&deploy()) {
        for document in documents(&fs::read_to_string(&path).unwrap()) {
            if document["kind"] != "DaemonSet" {
                continue;
            }
            let pod = &document["spec"]["template"]["spec"];
            for right in ["hostNetwork", "hostPID", "hostIPC"] {
                assert_ne!(pod[right], json!(true), "{}: {right}", path.display());
            }
            for container in list(pod, "/containers").iter().chain(list(pod, "/initContainers")) {
                containers += 1;
                let want = json!({
                    "runAsUser": 0,
                    "runAsGroup": 0,
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"], "add": ["BPF", "NET_ADMIN"]},
                });
                assert_eq!(container["securityContext"], want, "{}", path.display());
            }
        }
    }
    assert_eq!(containers, 2, "the agent, and the step that detaches it");
}

#[test]
fn the_agent_may_read_and_nothing_else() {
    let documents = read("base/inference/rbac.yaml");
    let roles = of_kind(&documents, "Role");
    assert_eq!(roles.len(), 1);
    let mut resources = BTreeSet::new();
    for rule in list(roles[0], "/rules") {
        assert_eq!(rule["verbs"], json!(["get", "list", "watch"]));
        resources.extend(list(rule, "/resources").iter().map(|resource| resource.as_str().unwrap()));
    }
    assert_eq!(resources, BTreeSet::from(["inferencepools", "pods", "services"]));
    for path in files(&deploy()) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("ClusterRole"), "{}: a right in every namespace", path.display());
    }
}

#[test]
fn every_configuration_is_one_that_the_agent_takes() {
    for path in ["base/agent", "overlays/two-sets", "overlays/envoy", "components/detach"] {
        let path = deploy().join(path).join("revgate.yaml");
        let loaded = revgate::config::load(&path, Some("node-a")).unwrap_or_else(|error| panic!("{error}"));
        let idle = path.parent().unwrap().ends_with("detach");
        assert!(idle || loaded.warnings.is_empty(), "{}: {:?}", path.display(), loaded.warnings);
    }
}

/// The port of an address.
fn port(address: &Value) -> u64 {
    address.as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap()
}

#[test]
fn the_pod_fits_its_configuration() {
    for folder in ["base", "overlays/two-sets", "overlays/envoy"] {
        let Some(objects) = kustomized(folder) else { return };
        let config =
            of_kind(&objects, "ConfigMap").into_iter().find(|map| map["metadata"]["name"] == "revgate");
        let config = documents(config.unwrap()["data"]["revgate.yaml"].as_str().unwrap());
        let agent = of_kind(&config, "AgentConfig")[0];
        let pod = &of_kind(&objects, "DaemonSet")[0]["spec"]["template"]["spec"];
        let container = &pod["containers"][0];

        // Each listener has a port of the container under its name, and so has the admin server.
        let mut want: BTreeMap<&str, u64> = list(agent, "/listeners")
            .iter()
            .map(|l| (l.get("name").unwrap_or(&l["role"]).as_str().unwrap(), port(&l["address"])))
            .collect();
        want.insert("admin", port(&agent["admin"]["address"]));
        let has: BTreeMap<&str, u64> = list(container, "/ports")
            .iter()
            .map(|port| (port["name"].as_str().unwrap(), port["containerPort"].as_u64().unwrap()))
            .collect();
        assert_eq!(has, want, "{folder}");

        let bpffs = list(container, "/volumeMounts").iter().find(|mount| mount["name"] == "bpffs").unwrap();
        assert_eq!(bpffs["mountPath"], agent["kernel"]["bpffs"], "{folder}");
        let deadline: u64 =
            agent["shutdown"]["deadline"].as_str().unwrap().strip_suffix('s').unwrap().parse().unwrap();
        assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > deadline, "{folder}");

        // It may read every namespace that it is to read, and finds every Service there that it is to follow.
        for namespace in list(agent, "/sets").iter().flat_map(|set| list(set, "/namespaces")) {
            assert!(has_object(&objects, "Role", namespace, &json!("revgate")), "{folder}: {namespace}");
        }
        for service in list(agent, "/vips").iter().map(|vip| &vip["service"]) {
            let (namespace, name) = (&service["namespace"], &service["name"]);
            assert!(has_object(&objects, "Service", namespace, name), "{folder}: {service}");
        }
    }
}

#[test]
fn envoy_is_sent_to_the_agents_port_and_has_no_rights() {
    let Some(objects) = kustomized("overlays/envoy") else { return };
    let envoy = of_kind(&objects, "Deployment")[0];
    let pod = &envoy["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(pod["automountServiceAccountToken"], false);
    let want = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(
        (&pod["securityContext"]["runAsNonRoot"], &container["securityContext"]),
        (&json!(true), &want)
    );

    let name = &pod["volumes"][0]["configMap"]["name"];
    let config = of_kind(&objects, "ConfigMap").into_iter().find(|map| map["metadata"]["name"] == *name);
    let config = &documents(config.unwrap()["data"]["envoy.yaml"].as_str().unwrap())[0];
    let listens = config.pointer("/static_resources/listeners/0/address/socket_address/port_value").unwrap();
    assert_eq!(*listens, container["ports"][0]["containerPort"]);
    let clusters = list(config, "/static_resources/clusters");
    let asks = clusters.iter().find(|cluster| cluster["name"] == "revgate").unwrap();
    let address = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
    let address = asks.pointer(address).unwrap();
    let service = of_kind(&objects, "Service").into_iter().find(|service| {
        let metadata = &service["metadata"];
        let name = |of: &Value| of.as_str().unwrap_or_default().to_owned();
        address["address"] == format!("{}.{}.svc", name(&metadata["name"]), name(&metadata["namespace"]))
    });
    let ports = list(service.unwrap(), "/spec/ports");
    let port = ports.iter().find(|port| port["port"] == address["port_value"]).unwrap();
    assert_eq!(port["targetPort"], "endpoint-picker", "which the test of the Pod finds in its configuration");
}

fn has_object(objects: &[Value], kind: &str, namespace: &Value, name: &Value) -> bool {
    of_kind(objects, kind)
        .iter()
        .any(|object| object["metadata"]["namespace"] == *namespace && object["metadata"]["name"] == *name)
}

#[test]
fn the_chart_has_the_configuration_of_the_base() {
    let values = &read("helm/revgate/values.yaml")[0]["config"];
    assert_eq!(read("base/agent/revgate.yaml"), [values["picker"].clone(), values["agent"].clone()]);
}

/// Objects by kind, namespace and name, without what tells a chart from a kustomization.
fn comparable(objects: Vec<Value>) -> BTreeMap<[String; 3], Value> {
    let mut found = BTreeMap::new();
    // A chart is installed into a namespace that is there.
    for mut object in objects.into_iter().filter(|object| object["kind"] != "Namespace") {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &mut object["metadata"];
        if let Some(labels) = metadata["labels"].as_object_mut() {
            labels.retain(|name, _| !OF_HELM.contains(&name.as_str()));
        }
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        if let Some(config) = object.pointer_mut("/data/revgate.yaml") {
            *config = documents(config.as_str().unwrap()).into();
        }
        let key = [text(&object["kind"]), namespace, name];
        assert!(found.insert(key.clone(), object).is_none(), "twice: {key:?}");
    }
    found
}

/// Fails with the first difference, as a whole object is too long to be read.
fn assert_same(chart: Vec<Value>, kustomization: Vec<Value>) {
    let (chart, kustomization) = (comparable(chart), comparable(kustomization));
    assert_eq!(chart.keys().collect::<Vec<_>>(), kustomization.keys().collect::<Vec<_>>());
    for (key, want) in &kustomization {
        same(&format!("{key:?}"), &chart[key], want);
    }
}

fn same(path: &str, chart: &Value, kustomization: &Value) {
    match (chart, kustomization) {
        (Value::Object(a), Value::Object(b)) => {
            assert_eq!(a.keys().collect::<BTreeSet<_>>(), b.keys().collect::<BTreeSet<_>>(), "{path}");
            a.iter().for_each(|(name, value)| same(&format!("{path}.{name}"), value, &b[name]));
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).enumerate().for_each(|(at, (a, b))| same(&format!("{path}[{at}]"), a, b));
        }
        _ => assert_eq!(chart, kustomization, "{path}"),
    }
}

#[test]
fn the_chart_renders_what_the_base_has() {
    let (Some(chart), Some(base)) = (chart(&[]), kustomized("base")) else { return };
    assert_same(chart, base);
}

#[test]
fn the_chart_opens_the_ports_of_every_kind_of_listener() {
    let listeners = json!([
        {"address": "0.0.0.0:8081", "role": "prefill"},
        {"address": "0.0.0.0:8082", "pair": {}, "tls": {"certificate": "c", "key": "k"}},
        {"endpointPicker": {}},
        {"name": "epp", "address": "0.0.0.0:9003", "role": "decode", "endpointPicker": {}},
    ]);
    let Some(chart) = chart(&["--set-json", &format!("config.agent.listeners={listeners}")]) else { return };
    let services = of_kind(&chart, "Service");
    let service = services.iter().find(|service| service["metadata"]["name"] == "revgate").unwrap();
    let port = |name: &str, port: u16, protocol: &str| json!({"name": name, "port": port, "targetPort": name, "appProtocol": protocol});
    let h2c = "kubernetes.io/h2c";
    assert_eq!(
        service["spec"]["ports"],
        json!([
            port("prefill", 8081, "http"),
            port("pair", 8082, "https"),
            port("endpoint-picker", 9002, h2c),
            port("epp", 9003, h2c),
        ])
    );
    let ports = list(of_kind(&chart, "DaemonSet")[0], "/spec/template/spec/containers/0/ports");
    let opened: Vec<_> = ports.iter().filter_map(|port| port["containerPort"].as_u64()).collect();
    assert_eq!(opened, [8081, 8082, 9002, 9003, 9901]);
}

#[test]
fn the_chart_has_the_same_monitoring_and_the_same_way_out() {
    let flags =
        ["podMonitor", "prometheusRule", "dashboard"].map(|part| format!("monitoring.{part}.enabled=true"));
    let set = format!("{},detach=true", flags.join(","));
    let Some(chart) = chart(&["--set", &set]) else { return };
    let (Some(mut all), Some(monitoring)) =
        (kustomized("overlays/detach"), kustomized("components/monitoring"))
    else {
        return;
    };
    all.extend(monitoring);
    assert_same(chart, all);
}

#[test]
fn the_alerts_are_raised_when_they_should_be() {
    let folder = tempfile::tempdir().unwrap();
    let rules = read("components/monitoring/prometheusrule.yaml");
    fs::write(folder.path().join("rules.yaml"), rules[0]["spec"].to_string()).unwrap();
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/alerts.yaml");
    fs::copy(cases, folder.path().join("alerts.yaml")).unwrap();
    for arguments in
        [&["check", "rules", "--lint-fatal", "rules.yaml"][..], &["test", "rules", "alerts.yaml"]]
    {
        match Command::new("promtool").args(arguments).current_dir(&folder).output() {
            Ok(output) => assert!(
                output.status.success(),
                "{arguments:?}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => skip("promtool", &format!("promtool: {error} (apt-get install prometheus)")),
        }
    }
}
