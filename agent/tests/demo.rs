//! The demo as a user starts it: a rollout from the first step to the verdict, with and without the kernel.
#![cfg(feature = "demo")]
#![cfg(test)]

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// Runs the demo; its process id, which names what it makes, and what came of it.
fn demo(arguments: &[&str]) -> (u32, Output) {
    let child = Command::new(env!("CARGO_BIN_EXE_revgate"))
        .args(["demo", "--fast", "--requests-per-step", "40"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    (child.id(), child.wait_with_output().expect("the binary ends"))
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{err}", output.status)
}

#[test]
fn a_rollout_in_user_space_keeps_every_pair_on_one_revision() {
    let (_, output) = demo(&["--no-kernel"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    // Steps 0 to 10, each said to be right, and why the kernel has no part.
    assert_eq!(text.matches("  ok\n").count(), 11, "{text}");
    assert!(text.contains("NO kernel programs") && text.contains("asked for by --no-kernel"), "{text}");
    assert!(text.contains("all as it should be"), "{text}");
    assert!(!text.contains('\x1b'), "no redrawing without a terminal: {text}");
}

#[test]
fn a_rollout_behind_a_shared_router_keeps_both_legs_of_every_request_on_one_revision() {
    let (_, output) = demo(&["--no-kernel", "--layout", "shared"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("  ok\n").count(), 11, "{text}");
    assert!(text.contains("the agent runs both legs") && text.contains("all as it should be"), "{text}");
}

#[test]
fn a_rollout_behind_a_shared_router_is_as_well_steered_with_the_other_connectors() {
    for connector in ["shared-storage", "sglang"] {
        let (_, output) = demo(&["--no-kernel", "--layout", "shared", "--connector", connector]);
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains(&format!("({connector})")) && text.contains("all as it should be"), "{text}");
    }
    let (_, output) = demo(&["--no-kernel", "--connector", "sglang"]);
    assert_eq!(output.status.code(), Some(64), "{}", text(&output));
}

#[test]
fn a_rollout_with_the_kernel_steers_members_plain_clients_and_the_agent() {
    let (process, output) = demo(&[]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    if text.contains("NO kernel programs") {
        let required = env::var("REVGATE_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|tier| tier.trim() == "bpf"),
            "REVGATE_REQUIRE asks for bpf:\n{text}"
        );
        eprintln!("SKIPPED: the demo with kernel programs\n{text}");
        return;
    }
    let kernel =
        text.lines().find(|line| line.contains("connects of pinned sockets")).expect("a kernel line");
    let numbers: Vec<u64> = kernel.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert_eq!(numbers.len(), 4, "{kernel}");
    assert!(numbers.iter().take(3).all(|count| *count > 0), "pins, weights and own revisions: {kernel}");
    for directory in ["/sys/fs/bpf", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"] {
        let left = Path::new(directory).join(format!("revgate-demo-{process}"));
        assert!(!left.exists(), "left behind: {}", left.display());
    }
}

#[test]
fn interrupted_in_the_middle_it_leaves_no_process_and_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_revgate"))
        .args(["demo"])
        .env("TMPDIR", directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = child.id();
    // Its first finished step: everything is running.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("step  0/10")));
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let children: Vec<&str> = children.split_whitespace().collect();
    assert!(fs::read_dir(directory.path()).unwrap().next().is_some());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
    for child in children {
        assert!(!Path::new("/proc").join(child).exists(), "the process {child} is left behind");
    }
    for directory in ["/sys/fs/bpf", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"] {
        let left = Path::new(directory).join(format!("revgate-demo-{process}"));
        assert!(!left.exists(), "left behind: {}", left.display());
    }
}
