//! What stands in `deploy/` is accepted by a real API server, and gives the agent the rights that it needs (O5, C10).
#![cfg(test)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use revgate_tests::cluster::{
    api::{AGENT as AGENTS, Api, ENGINES},
    kubectl::Kubectl,
    process::eventually,
    tools::repository,
};
use serde_json::{Value, json};

const AGENT: &str = env!("CARGO_BIN_EXE_revgate-under-test");

fn deploy() -> PathBuf {
    repository().join("deploy")
}

/// Every folder with a kustomization of this kind.
fn kustomizations(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let file = fs::read_to_string(folder.join("kustomization.yaml")).unwrap_or_default();
    let own = file.lines().any(|line| line == format!("kind: {kind}")).then(|| folder.to_path_buf());
    let mut below: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    below.sort();
    own.into_iter().chain(below.iter().flat_map(|below| kustomizations(below, kind))).collect()
}

/// The base with a component, which is nothing by itself.
fn overlay(component: &Path) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(component.file_name().unwrap());
    fs::create_dir_all(&folder).unwrap();
    let folder = folder.canonicalize().unwrap();
    // Kustomize takes no absolute path.
    let up = "../".repeat(folder.components().count() - 1);
    let relative = |path: &Path| format!("{up}{}", path.strip_prefix("/").unwrap().display());
    let text = format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: ['{}']\ncomponents: ['{}']\n",
        relative(&deploy().join("base")),
        relative(component),
    );
    fs::write(folder.join("kustomization.yaml"), text).unwrap();
    folder
}

/// Has the server look at manifests as if they were applied: unknown fields are errors.
fn validate(kubectl: &Kubectl, what: &str, manifests: &str) -> usize {
    let objects: Vec<Value> = serde_saphyr::from_multiple(manifests).unwrap();
    let namespaces: BTreeSet<&str> =
        objects.iter().filter_map(|object| object["metadata"]["namespace"].as_str()).collect();
    for namespace in namespaces {
        // A trial makes none, and without them there is nothing to try.
        let exists = kubectl.attempt(&["create", "namespace", namespace]);
        assert!(exists.as_ref().err().is_none_or(|error| error.contains("AlreadyExists")), "{exists:?}");
    }
    let tried =
        kubectl.attempt_with(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], manifests);
    let tried = tried.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(tried.lines().all(|line| line.ends_with("(server dry run)")), "{what}: {tried}");
    tried.lines().count()
}

#[test]
fn the_server_accepts_every_manifest_and_the_chart() {
    let Some(api) = Api::start() else { return };
    let kubectl = api.kubectl();
    kubectl.apply(&fs::read_to_string(repository().join("tests/cluster/crds.yaml")).unwrap());
    let kinds = ["crd/podmonitors.monitoring.coreos.com", "crd/prometheusrules.monitoring.coreos.com"];
    kubectl.run(&[&["wait", "--for=condition=Established"], &kinds[..]].concat());

    let mut folders = kustomizations(&deploy(), "Kustomization");
    let components = kustomizations(&deploy(), "Component");
    assert!(folders.len() >= 3 && !components.is_empty(), "{folders:?} {components:?}");
    folders.extend(components.iter().map(|component| overlay(component)));
    for folder in folders {
        let manifests = kubectl.read(&[
            "kustomize",
            "--load-restrictor=LoadRestrictionsNone",
            &folder.display().to_string(),
        ]);
        let objects = validate(&kubectl, &folder.display().to_string(), &manifests);
        assert!(objects > 0, "{}", folder.display());
    }

    let everything =
        ["podMonitor", "prometheusRule", "dashboard"].map(|part| format!("monitoring.{part}.enabled=true"));
    let with_everything = everything.iter().flat_map(|value| ["--set", value.as_str()]).collect::<Vec<_>>();
    for (what, values) in [
        ("default values", Vec::new()),
        ("everything", with_everything),
        ("detach", vec!["--set", "detach=true"]),
    ] {
        let mut helm = Command::new(api.tools().program("helm"));
        helm.args(["template", "revgate", "--namespace", AGENTS, "--kube-version", &version])
            .args(values)
            .arg(deploy().join("helm/revgate"));
        let output = helm.output().unwrap();
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        // Helm applies what names no namespace to that of the release.
        let _ = kubectl.attempt(&["create", "namespace", AGENTS]);
        let objects = validate(&kubectl, what, &String::from_utf8(output.stdout).unwrap());
        assert!(objects > 0, "{what}");
    }
}

#[test]
fn the_server_notices_a_field_that_does_not_exist() {
    let Some(api) = Api::start() else { return };
    let manifest = "---
{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {ports: [{port: 1}], selectors: {a: b}}}";
    let tried =
        api.kubectl().attempt_with(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], manifest);
    assert!(tried.as_ref().is_err_and(|error| error.contains("spec.selectors")), "{tried:?}");
}

#[test]
fn a_right_that_is_taken_from_the_role_is_named_by_check() {
    let Some((mut api, pods)) = Api::deployed() else { return };
    let kubectl = api.kubectl();
    pods.ready("prefill-a", "a", "prefill", "10.0.0.1");
    let server = api.plane().address();
    let agent = api.agent(AGENT, server);
    let findings = || -> Value { serde_json::from_slice(&agent.check().stdout).unwrap() };
    let failed = |findings: &Value| -> Vec<String> {
        let all = findings["preconditions"].as_array().unwrap().iter();
        all.filter(|found| found["verdict"] == "fail").map(ToString::to_string).collect()
    };
    let whole = findings();
    // The running agent has the admin address.
    let of_api =
        |findings: &Value| failed(findings).into_iter().filter(|f| !f.contains("admin")).collect::<Vec<_>>();
    assert!(of_api(&whole).is_empty(), "with all its rights: {whole:#}");

    let rule = kubectl.get(&["--namespace", ENGINES, "role", "revgate"])["rules"].clone();
    for verb in ["list", "watch"] {
        let mut without = rule.clone();
        for rule in without.as_array_mut().unwrap() {
            rule["verbs"].as_array_mut().unwrap().retain(|other| other != verb);
        }
        let patch = json!({"rules": without}).to_string();
        kubectl.run(&["--namespace", ENGINES, "patch", "role", "revgate", "--type=merge", "--patch", &patch]);
        // The server's own view of roles follows a moment later.
        let named = eventually(
            "check names the right that is missing",
            || of_api(&findings()),
            |failed| failed.iter().any(|failure| failure.contains(verb) && failure.contains("pods")),
        );
        assert!(named.iter().all(|failure| failure.contains("\"fix\"")), "{named:#?}");
    }
}
