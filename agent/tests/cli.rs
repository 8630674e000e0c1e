//! The commands as a shell sees them: exit codes, streams, help, and what `status` and `explain` make of an agent.
#![cfg(test)]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    thread,
};

use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

/// A report as `/debug/state` gives it.
const REPORT: &str = include_str!("data/report.json");

fn revgate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_revgate")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs a command and returns its exit code, stdout and stderr.
fn outcome(arguments: &[&str]) -> (i32, String, String) {
    let output = revgate(arguments);
    (output.status.code().unwrap(), text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
}

/// A peer on loopback that answers every request with this; returns its address.
fn peer(status: &'static str, body: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), status, body);
        }
    });
    address
}

fn answer(mut stream: TcpStream, status: &str, body: &str) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    let length = body.len();
    // The client may be gone, as one that was told to be.
    let _ =
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
}

/// An address on loopback that is taken and where nobody listens, for as long as the socket lives.
fn nobody() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

#[test]
fn every_command_has_help_on_stdout() {
    let (code, help, stderr) = outcome(&["--help"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let names: Vec<&str> = commands
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    for expected in ["run", "check", "status", "explain", "detach", "completions"] {
        assert!(names.contains(&expected), "{names:?}");
    }
    for name in names {
        let (code, help, _) = outcome(&[name, "--help"]);
        assert_eq!(code, 0, "{name}");
        assert!(
            help.contains("Usage: revgate ") && help.lines().next().unwrap().len() > 10,
            "{name}: {help}"
        );
    }
}

#[test]
fn wrong_usage_exits_64_and_says_so_on_stderr() {
    for arguments in [
        &[][..],
        &["nosuch"],
        &["status", "--nosuch"],
        &["status", "-o", "xml"],
        &["status", "--admin", "nowhere"],
        &["explain", "--revision", "a", "--decision-id", "b"],
        &["completions", "tcsh"],
    ] {
        let (code, stdout, stderr) = outcome(arguments);
        assert_eq!((code, stdout.as_str()), (64, ""), "{arguments:?}");
        assert!(!stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn version_is_that_of_the_package() {
    assert_eq!(
        outcome(&["--version"]),
        (0, format!("revgate {}\n", env!("CARGO_PKG_VERSION")), String::new())
    );
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, _) = outcome(&["completions", shell]);
        assert!(code == 0 && script.contains("revgate") && script.contains("explain"), "{shell}");
    }
}

#[test]
fn status_shows_the_agents_sets() {
    let admin = peer("200 OK", REPORT).to_string();
    let (code, stdout, stderr) = outcome(&["status", "--admin", &admin]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    for part in ["chat: max-role by decode", "5c9d7a1b  3/5    60.0       3", "lacks a Ready prefill Pod"] {
        assert!(stdout.contains(part), "{part}\n{stdout}");
    }
    assert!(!stdout.contains('\x1b'), "no colours in a pipe");
    let (_, wide, _) = outcome(&["status", "--admin", &admin, "-o", "wide"]);
    assert!(wide.contains("SLOT") && wide.contains("steered_pin"), "{wide}");
}

#[test]
fn status_as_json_and_yaml_holds_everything() {
    let admin = peer("200 OK", REPORT).to_string();
    let expected: serde_json::Value = serde_json::from_str(REPORT).unwrap();
    let (_, json, _) = outcome(&["status", "--admin", &admin, "-o", "json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), expected);
    assert_eq!(json.lines().count(), 1, "one line, for --watch and for pipes");
    let (_, yaml, _) = outcome(&["status", "--admin", &admin, "-o", "yaml"]);
    assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&yaml).unwrap(), expected, "{yaml}");
}

#[test]
fn watch_shows_it_again_until_nobody_reads() {
    let admin = peer("200 OK", REPORT).to_string();
    let mut child = Command::new(env!("CARGO_BIN_EXE_revgate"))
        .args(["status", "--watch", "-o", "json", "--admin", &admin])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (first, second) = (lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap());
    assert!(first.starts_with('{') && first == second);
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn explain_tells_the_agents_own_choice() {
    let admin = peer("200 OK", REPORT).to_string();
    let (code, stdout, _) = outcome(&["explain", "--admin", &admin, "--revision", "9e11bb23"]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("is refused with 503 (revision-not-eligible): 9e11bb23 lacks a Ready prefill Pod"),
        "{stdout}"
    );
    let (_, stdout, _) = outcome(&["explain", "--admin", &admin, "--role", "decode", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(json["answer"]["kind"], "weighted");
    assert_eq!(json["draws"][0]["last"], 2_576_980_377_u32);
    let (code, _, stderr) = outcome(&["explain", "--admin", &admin, "--set", "nosuch"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("no set `nosuch`; it has chat"), "{stderr}");
}

#[test]
fn without_an_agent_the_error_says_what_to_check() {
    let (_socket, admin) = nobody();
    let admin = admin.to_string();
    for command in ["status", "explain"] {
        let (code, stdout, stderr) = outcome(&[command, "--admin", &admin]);
        assert_eq!((code, stdout.as_str()), (1, ""));
        assert!(stderr.starts_with(&format!("error: no agent answers at {admin}")), "{stderr}");
        assert!(stderr.contains("revgate run") && stderr.contains("--admin"), "{stderr}");
    }
}

#[test]
fn something_else_at_the_address_is_told_apart() {
    for (status, body) in [("200 OK", "hello"), ("200 OK", "{}"), ("404 Not Found", "")] {
        let (code, _, stderr) = outcome(&["status", "--admin", &peer(status, body).to_string()]);
        assert_eq!(code, 1);
        assert!(stderr.contains("is no revgate of this version"), "{stderr}");
    }
}

const CONFIG: &str = "\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: disaggregatedset-rollout-screener
  name: chat
  parameters:
    scope: { labelSelector: app=chat }
    revisionGating: { mode: max-role, requiredRoles: [prefill, decode] }
";

/// A folder with `config.yaml`; `PODS` in the text is a Pod file beside it, which holds `pods`.
fn folder(config: &str, pods: Option<&str>) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let path = |name| folder.path().join(name);
    let pod_file = path("pods.yaml");
    fs::write(path("config.yaml"), config.replace("PODS", pod_file.to_str().unwrap())).unwrap();
    if let Some(pods) = pods {
        fs::write(&pod_file, pods).unwrap();
    }
    let config = path("config.yaml").to_str().unwrap().to_owned();
    (folder, config)
}

/// With a source, and an admin address that is free.
fn whole_config() -> String {
    format!(
        "{CONFIG}---\napiVersion: revgate.dev/v1alpha1\nkind: AgentConfig\n\
         source: {{ file: {{ path: PODS }} }}\nadmin: {{ address: 127.66.0.1:9901 }}\nkernel: {{ mode: \"off\" }}\n"
    )
}

const POD: &str = "- name: a\n  ip: 127.1.0.1\n  ready: true\n  labels:\n    app: chat\n    \
    disaggregatedset.x-k8s.io/revision: r1\n    disaggregatedset.x-k8s.io/role: decode\n";

#[test]
fn check_passes_where_everything_is_in_place() {
    let (_folder, config) = folder(&whole_config(), Some(POD));
    let (code, stdout, stderr) = outcome(&["check", "--config", &config]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(
        stdout.contains("pass    set chat ") && stdout.contains("  1 member, 1 Ready, 1 endpoint\n"),
        "{stdout}"
    );
}

#[test]
fn check_fails_with_1_and_a_fix_where_the_machine_is_not_ready() {
    let (_folder, config) = folder(&whole_config(), None);
    let (code, stdout, _) = outcome(&["check", "--config", &config]);
    assert_eq!(code, 1);
    assert!(
        stdout.contains("FAIL    Pod file")
            && stdout.contains("\nTo do:\n")
            && stdout.contains("\n  Pod file: "),
        "{stdout}"
    );
    let (code, stdout, _) = outcome(&["check", "--config", &config, "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["ok"]), (1, &false.into()));
    assert!(
        json["preconditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|p| p["verdict"] == "fail" && p["fix"].is_string())
    );
}

#[test]
fn check_exits_64_on_a_bad_configuration_and_names_the_place() {
    let (_folder, config) = folder(&CONFIG.replace("max-role", "max-roll"), None);
    let (code, stdout, stderr) = outcome(&["check", "--config", &config]);
    assert_eq!((code, stdout.as_str()), (64, ""));
    assert!(stderr.contains("config.yaml:8:") && stderr.contains("did you mean `max-role`"), "{stderr}");
    let (code, stdout, _) = outcome(&["check", "--config", &config, "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["ok"], &json["faults"][0]["line"]), (64, &false.into(), &8.into()));
    for command in ["check", "detach"] {
        let (code, _, stderr) = outcome(&[command, "--config", "/nonexistent/config.yaml"]);
        assert!(code == 64 && stderr.contains("/nonexistent/config.yaml"), "{stderr}");
    }
}

#[test]
fn a_closed_pipe_is_no_panic() {
    for arguments in [&["completions", "zsh"][..], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_revgate"))
            .args(arguments)
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{arguments:?}");
    }
}
