//! Every way in which people and tools change a file.

use std::{
    os::unix::fs::symlink,
    pin::pin,
    task::{Context, Waker},
};

use tempfile::TempDir;

use super::*;

/// A bound on a wait that ends by an event, never a condition.
const LONG: Duration = Duration::from_mins(1);

/// With the poll out of reach, only events can end a wait.
const NEVER: Duration = Duration::from_hours(1);

fn events_only(path: &Path) -> FileWatch {
    FileWatch::with_poll(path, NEVER).unwrap()
}

async fn reported(watch: &mut FileWatch) {
    tokio::time::timeout(LONG, watch.changed()).await.expect("the change is reported");
}

/// Whether the watch would wake now.
fn woken(watch: &FileWatch) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    pin!(watch.signal.event.notified()).poll(&mut context).is_ready()
}

#[tokio::test]
async fn a_write_in_place_is_reported() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    fs::write(&path, "a").unwrap();
    let mut watch = events_only(&path);
    fs::write(&path, "b").unwrap();
    reported(&mut watch).await;
}

#[test]
fn only_what_can_change_the_file_wakes() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    let watch = events_only(&path);
    let wakes = |kind, path: &Path| {
        watch.signal.on_event(&Ok(Event::new(kind).add_path(path.to_owned())));
        woken(&watch)
    };
    let write = EventKind::Access(AccessKind::Close(AccessMode::Write));
    let modify = EventKind::Modify(notify::event::ModifyKind::Any);
    assert!(wakes(write, &path) && wakes(modify, &path) && wakes(modify, dir.path()));
    // Its own reading would wake the agent for ever.
    assert!(!wakes(EventKind::Access(AccessKind::Open(AccessMode::Any)), &path));
    assert!(!wakes(EventKind::Access(AccessKind::Close(AccessMode::Read)), &path));
    assert!(!wakes(modify, &dir.path().join("neighbour")));
    // Lost events may have been of this file.
    watch.signal.on_event(&Ok(Event::new(EventKind::Other).set_flag(notify::event::Flag::Rescan)));
    assert!(woken(&watch));
}

#[tokio::test]
async fn a_rename_over_is_reported_every_time() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    fs::write(&path, "0").unwrap();
    let mut watch = events_only(&path);
    for round in 0..3 {
        let new = dir.path().join("new");
        fs::write(&new, round.to_string()).unwrap();
        fs::rename(&new, &path).unwrap();
        reported(&mut watch).await;
    }
}

#[tokio::test]
async fn deletion_and_creation_are_reported() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    fs::write(&path, "a").unwrap();
    let mut watch = events_only(&path);
    fs::remove_file(&path).unwrap();
    reported(&mut watch).await;
    fs::write(&path, "a").unwrap();
    reported(&mut watch).await;
}

#[tokio::test]
async fn a_config_map_swap_is_reported_every_time() {
    let dir = TempDir::new().unwrap();
    let write = |version: &str| {
        fs::create_dir(dir.path().join(version)).unwrap();
        fs::write(dir.path().join(version).join("pods.yaml"), version).unwrap();
        symlink(version, dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    };
    write("..v1");
    let path = dir.path().join("pods.yaml");
    symlink("..data/pods.yaml", &path).unwrap();
    let mut watch = events_only(&path);
    for version in ["..v2", "..v3"] {
        write(version);
        reported(&mut watch).await;
        assert_eq!(fs::read_to_string(&path).unwrap(), version);
    }
    // The kubelet removes the old directory; a write behind the links is seen too.
    fs::remove_dir_all(dir.path().join("..v2")).unwrap();
    fs::write(dir.path().join("..v3/pods.yaml"), "edited").unwrap();
    reported(&mut watch).await;
}

#[tokio::test]
async fn directories_that_come_later_are_followed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a/b/pods.yaml");
    let mut watch = events_only(&path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "1").unwrap();
    reported(&mut watch).await;
    fs::write(&path, "2").unwrap();
    reported(&mut watch).await;
    // And when the directory is replaced by another one.
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("pods.yaml"), "3").unwrap();
    fs::rename(dir.path().join("a/b"), dir.path().join("a/old")).unwrap();
    fs::rename(&other, dir.path().join("a/b")).unwrap();
    reported(&mut watch).await;
    fs::write(&path, "4").unwrap();
    reported(&mut watch).await;
}

#[tokio::test]
async fn a_change_before_the_wait_and_one_in_a_dropped_wait_are_not_lost() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    fs::write(&path, "a").unwrap();
    let mut watch = events_only(&path);
    fs::write(&path, "b").unwrap();
    drop(tokio::time::timeout(Duration::from_millis(5), watch.changed()).await);
    reported(&mut watch).await;
}

#[tokio::test(start_paused = true)]
async fn without_events_the_poll_reports() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pods.yaml");
    let mut watch = FileWatch::new(&path).unwrap();
    watch.watcher = None;
    fs::write(&path, "a").unwrap();
    reported(&mut watch).await;
    fs::write(&path, "ab").unwrap();
    reported(&mut watch).await;
    fs::remove_file(&path).unwrap();
    reported(&mut watch).await;
}

#[test]
fn a_path_without_a_name_is_refused_and_a_loop_of_links_ends() {
    assert!(FileWatch::new(Path::new("/")).is_err());
    assert!(FileWatch::new(Path::new("")).is_err());
    let dir = TempDir::new().unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    assert_eq!(names_of(&dir.path().join("loop/x")), BTreeSet::from([dir.path().join("loop")]));
}
