//! The rules that hold for every file and member of the workspace, where no compiler lint can hold them.
#![cfg(test)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A longer file has two ideas in it.
const MAX_LINES: usize = 450;

/// The packages, by folder.
const MEMBERS: [&str; 5] = ["agent", "common", "ebpf", "tests", "tests/engine"];

/// What may stand at the top.
const TOP: [&str; 18] = [
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "agent",
    "clippy.toml",
    "common",
    "deny.toml",
    "deploy",
    "docs",
    "ebpf",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "tests",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Every file that git knows or would take, relative to the root.
fn files() -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let files: Vec<PathBuf> = String::from_utf8(listed.stdout)
        .unwrap()
        .split_terminator('\0')
        .map(PathBuf::from)
        .filter(|path| root().join(path).exists())
        .collect();
    assert!(files.iter().any(|path| path.ends_with("workspace.rs")), "the listing lacks this very file");
    files
}

fn sources() -> impl Iterator<Item = (PathBuf, String)> {
    files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")).map(|path| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        (path, text)
    })
}

#[test]
fn every_member_inherits_the_lints_and_the_package_fields() {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = workspace.lines().find(|line| line.starts_with("members = ")).unwrap();
    assert_eq!(members, format!("members = {MEMBERS:?}"));
    for member in MEMBERS {
        let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true\n"), "{member} does not inherit the lints");
        for field in ["version", "edition", "rust-version", "publish"] {
            assert!(manifest.contains(&format!("{field}.workspace = true\n")), "{member}: {field}");
        }
    }
}

#[test]
fn no_file_is_too_long_and_each_says_why_it_exists() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{}: {lines} lines, at most {MAX_LINES}; split it", path.display());
        let header = text.lines().next().unwrap_or_default();
        assert!(header.starts_with("//! "), "{}: no header comment in its first line", path.display());
    }
}

#[test]
fn modules_are_named_by_their_file() {
    for (path, _) in sources() {
        assert!(!path.ends_with("mod.rs"), "{}: name it by its module", path.display());
    }
}

#[test]
fn nothing_is_left_undone_without_an_owner() {
    // In two pieces each, so that this file does not find itself.
    let marks =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimpl", "emented!(")];
    for (path, text) in sources() {
        for (at, line) in text.lines().enumerate() {
            let Some(mark) = marks.iter().find(|mark| line.contains(**mark)) else { continue };
            let owned = line.contains(&format!("{mark}(#"));
            assert!(owned, "{}:{}: {mark} without the issue that owns it: {line}", path.display(), at + 1);
        }
    }
}

#[test]
fn the_top_holds_what_it_is_meant_to() {
    for path in files() {
        let top = path.iter().next().unwrap().to_str().unwrap();
        assert!(TOP.contains(&top), "{top}: not part of the layout (see ARCHITECTURE.md)");
    }
}
