//! The file source (C5): what it sends, when it sends nothing, and how it follows the file.
#![cfg(test)]

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use revgate::cluster::{
    Change, Pod,
    file::{FileError, FileSource, Reading, read},
};
use tempfile::TempDir;
use tokio::{
    sync::mpsc::{self, Receiver},
    task::JoinSet,
};

/// A bound on a wait that ends by an event, never a condition.
const LONG: Duration = Duration::from_mins(1);

/// A running source, what it sends and what it says.
struct Running {
    changes: Receiver<Change>,
    readings: Receiver<String>,
    tasks: JoinSet<Result<(), FileError>>,
}

fn start(path: PathBuf, cgroups: Option<&Path>) -> Running {
    let (send, changes) = mpsc::channel(16);
    let (say, readings) = mpsc::channel(16);
    let source = FileSource::new(path, cgroups.map(Path::to_owned));
    let mut tasks = JoinSet::new();
    tasks.spawn(source.run(send, move |reading| {
        let said = match reading {
            Reading::Sent { pods } => format!("sent {pods}"),
            Reading::Same => "same".to_owned(),
            Reading::Failed(error) => format!("failed: {error}"),
            Reading::NoCgroup { pod, why } => format!("{}: {why}", pod.key.name),
        };
        say.try_send(said).expect("the test reads what is said");
    }));
    Running { changes, readings, tasks }
}

impl Running {
    async fn said(&mut self) -> String {
        tokio::time::timeout(LONG, self.readings.recv()).await.expect("it says something").expect("it runs")
    }

    /// Waits for words; a file that is written in place may be read more than once.
    async fn says(&mut self, words: &str) {
        while !self.said().await.contains(words) {}
    }

    async fn sent(&mut self) -> Vec<Arc<Pod>> {
        let change = tokio::time::timeout(LONG, self.changes.recv()).await.expect("it sends something");
        match change.expect("it runs") {
            Change::Replace(pods) => pods,
            other => panic!("a file gives whole lists, not {other:?}"),
        }
    }
}

fn rename_over(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

#[tokio::test]
async fn the_list_is_sent_at_first_and_then_whenever_it_is_another() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    fs::write(&path, "- {name: a, ip: 127.0.0.1}\n").unwrap();
    let mut source = start(path.clone(), None);
    assert_eq!(source.sent().await.len(), 1);
    assert_eq!(source.said().await, "sent 1");

    // The same Pods in other words.
    rename_over(&path, "# a comment\nname: a\nips: [127.0.0.1]\n");
    source.says("same").await;

    rename_over(&path, "- {name: a, ip: 127.0.0.1}\n- {name: b}\n");
    source.says("sent 2").await;
    assert_eq!(source.sent().await.len(), 2);

    rename_over(&path, "[]");
    source.says("sent 0").await;
    assert!(source.sent().await.is_empty());
}

#[tokio::test]
async fn a_broken_file_is_told_and_keeps_the_last_list() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    fs::write(&path, "- name: a\n").unwrap();
    let mut source = start(path.clone(), None);
    source.says("sent 1").await;
    source.sent().await;

    rename_over(&path, "- name: a\n- name: b\n  colour: red\n");
    let said = source.said().await;
    assert!(said.starts_with(&format!("failed: {}:3:3: unknown field `colour`", path.display())), "{said}");
    fs::remove_file(&path).unwrap();
    source.says("failed: cannot read the Pod file").await;
    fs::write(&path, "").unwrap();
    source.says("no document").await;
    assert!(source.changes.try_recv().is_err(), "nothing was sent");

    rename_over(&path, "- name: a\n- name: b\n");
    source.says("sent 2").await;
    assert_eq!(source.sent().await.len(), 2);
}

#[tokio::test]
async fn a_file_that_comes_later_is_waited_for() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("later/pods.yaml");
    let mut source = start(path.clone(), None);
    source.says("failed: cannot read").await;
    fs::create_dir(path.parent().unwrap()).unwrap();
    rename_over(&path, "- name: a\n");
    source.says("sent 1").await;
    assert_eq!(source.sent().await.len(), 1);
}

#[tokio::test]
async fn it_ends_when_nobody_listens_and_when_the_path_is_no_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    fs::write(&path, "- name: a\n").unwrap();
    let Running { changes, readings: _readings, mut tasks } = start(path, None);
    drop(changes);
    let ended = tokio::time::timeout(LONG, tasks.join_next()).await.expect("it ends");
    assert!(ended.unwrap().unwrap().is_ok());

    let mut source = start(PathBuf::from("/"), None);
    let ended = tokio::time::timeout(LONG, source.tasks.join_next()).await.expect("it ends");
    assert!(matches!(ended.unwrap().unwrap(), Err(FileError::Path(_))));
}

#[tokio::test]
async fn a_cgroup_is_looked_up_below_the_root_and_a_missing_one_is_told() {
    let dir = TempDir::new().unwrap();
    // A directory tree stands for cgroup2: an id is the inode of a directory in both.
    let root = dir.path().join("cgroup");
    let pod = root.join("kubepods/pod1");
    fs::create_dir_all(&pod).unwrap();
    let path = dir.path().join("pods.yaml");
    let text = format!(
        "- {{name: a, cgroup: kubepods/pod1}}\n- {{name: b, cgroup: {}}}\n- {{name: c, cgroup: kubepods/gone}}\n\
         - {{name: d, cgroup: ../..}}\n- {{name: e, cgroup: .}}\n",
        pod.display()
    );
    fs::write(&path, text).unwrap();
    let mut source = start(path, Some(&root));
    for name in
        ["c: cgroup `kubepods/gone`: ", "d: cgroup `../..`: not below", "e: cgroup `.`: not a cgroup below"]
    {
        let said = source.said().await;
        assert!(said.starts_with(name), "{said}");
    }
    source.says("sent 5").await;
    let inode = fs::metadata(&pod).unwrap().ino();
    let found: Vec<_> = source.sent().await.iter().map(|pod| pod.cgroup.map(|c| (c.id, c.level))).collect();
    assert_eq!(found, [Some((inode, 2)), Some((inode, 2)), None, None, None]);
}

#[tokio::test]
async fn without_a_cgroup_root_it_says_so() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    fs::write(&path, "- {name: a, cgroup: x}\n").unwrap();
    let mut source = start(path, None);
    source.says("no cgroup2 root is known").await;
    assert_eq!(source.sent().await[0].cgroup, None);
}

#[test]
fn what_is_no_text_file_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    fs::write(&path, b"- name: a\xff\n").unwrap();
    assert!(matches!(read(&path), Err(FileError::NotText { at: 9, .. })));
    assert!(matches!(read(dir.path()), Err(FileError::Path(_))));
    // Sparse: no disk is filled.
    fs::File::create(&path).unwrap().set_len((64 << 20) + 1).unwrap();
    assert!(matches!(read(&path), Err(FileError::TooLarge { .. })));
}
