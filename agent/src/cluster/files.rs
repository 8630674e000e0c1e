//! Tells when a file may have changed, however it changes: written in place, renamed over, deleted and made again,
//! behind a symlink that is swapped (a ConfigMap's `..data`), or in a directory that comes later.
//!
//! inotify watches directories, not files: each name that the path goes through and that can change is watched in
//! the directory that holds it. After every event the path is walked again, as the next names may be others now. A
//! slow poll of the file's identity catches what events cannot show (network file systems, lost events, no inotify
//! instances left).

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::{sync::Notify, time::Instant};

/// How often the file's identity is compared, events or not.
const POLL: Duration = Duration::from_secs(2);

/// A change is reported once it has been quiet for so long, so that a file written in pieces is read once.
const QUIET: Duration = Duration::from_millis(20);

/// A change is reported after so long, quiet or not.
const LONGEST_BURST: Duration = Duration::from_millis(500);

/// As many symlinks as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// The path names something that is no file: a directory or a device, or nothing at all.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{path}` is no regular file; give the path of one", path = path.display())]
pub struct NotAFile {
    /// The path.
    pub path: PathBuf,
}

/// What tells one content from another without reading it. `None` while there is no file.
type Identity = Option<(u64, u64, u64, i64, i64, i64, i64)>;

/// Watches one file.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    poll: Duration,
    /// As it was when the last change was reported.
    identity: Identity,
    /// An event came and was not reported yet; kept here so that a dropped `changed` loses nothing.
    pending: bool,
    signal: Arc<Signal>,
    /// `None` when the system gives no watcher: then the poll alone is left.
    watcher: Option<RecommendedWatcher>,
    directories: BTreeSet<PathBuf>,
}

/// What the watcher's thread and the waiting task share.
#[derive(Debug, Default)]
struct Signal {
    /// The paths that matter.
    names: Mutex<BTreeSet<PathBuf>>,
    event: Notify,
}

impl FileWatch {
    /// Starts to watch. The file and its directories need not exist. Changes from here on are reported.
    pub fn new(path: &Path) -> Result<Self, NotAFile> {
        Self::with_poll(path, POLL)
    }

    fn with_poll(path: &Path, poll: Duration) -> Result<Self, NotAFile> {
        let bad = || NotAFile { path: path.to_owned() };
        if path.file_name().is_none() {
            return Err(bad());
        }
        let path = std::path::absolute(path).map_err(|_| bad())?;
        let signal = Arc::new(Signal::default());
        let heard = Arc::clone(&signal);
        let watcher = notify::recommended_watcher(move |event| heard.on_event(&event));
        let watcher = watcher
            .inspect_err(|error| tracing::warn!(%error, ?poll, "no file events; files are polled"))
            .ok();
        let mut watch = Self {
            path,
            poll,
            identity: None,
            pending: false,
            signal,
            watcher,
            directories: BTreeSet::new(),
        };
        watch.follow();
        watch.identity = identity(&watch.path);
        Ok(watch)
    }

    /// Waits until the file's content may have changed since the last report, or since `new`.
    ///
    /// May report a change that is none, never misses one: what is read after the report is at least as new as the
    /// change. Cancel safe.
    pub async fn changed(&mut self) {
        while !self.pending {
            let signal = Arc::clone(&self.signal);
            // The end of the wait without an event is the poll.
            self.pending = tokio::time::timeout(self.poll, signal.event.notified()).await.is_ok();
            self.follow();
            self.pending |= identity(&self.path) != self.identity;
        }
        let latest = Instant::now() + LONGEST_BURST;
        while Instant::now() < latest {
            let signal = Arc::clone(&self.signal);
            if tokio::time::timeout(QUIET, signal.event.notified()).await.is_err() {
                break;
            }
        }
        self.follow();
        self.identity = identity(&self.path);
        self.pending = false;
    }

    /// Watches every directory on which the path depends now.
    fn follow(&mut self) {
        // A name may change between the walk and the watch: walk until it finds nothing new. A path that changes
        // faster than that is caught by its events, or by the next poll.
        for _ in 0..4 {
            let names = names_of(&self.path);
            let directories: BTreeSet<PathBuf> =
                names.iter().filter_map(|name| name.parent()).map(Path::to_owned).collect();
            let mut relevant = self.signal.names.lock().unwrap_or_else(PoisonError::into_inner);
            let settled = *relevant == names;
            *relevant = names;
            // A watched directory that goes is reported under its own path.
            relevant.extend(directories.iter().cloned());
            drop(relevant);
            let Some(watcher) = &mut self.watcher else { return };
            for gone in self.directories.difference(&directories) {
                // It may be gone from the disk as well; then there is nothing left to stop.
                drop(watcher.unwatch(gone));
            }
            for directory in &directories {
                // Watching again is free, and needed when the directory was made anew. One that has just gone
                // fails, and the next walk finds its parent.
                drop(watcher.watch(directory, RecursiveMode::NonRecursive));
            }
            let same = self.directories == directories;
            self.directories = directories;
            if same && settled {
                return;
            }
        }
    }
}

impl Signal {
    fn on_event(&self, event: &notify::Result<Event>) {
        let matters = match event {
            // Opening and reading is what this agent itself does after each change.
            Ok(Event { kind: EventKind::Access(access), .. })
                if *access != AccessKind::Close(AccessMode::Write) =>
            {
                false
            }
            Ok(event) if !event.need_rescan() && !event.paths.is_empty() => {
                let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
                event.paths.iter().any(|path| names.contains(path))
            }
            // Events were lost, or the watcher failed: look.
            _ => true,
        };
        if matters {
            self.event.notify_one();
        }
    }
}

/// The names on which `path` depends: its last one, every symlink on the way, and the first one that is missing.
/// Each with the real directory that holds it.
fn names_of(path: &Path) -> BTreeSet<PathBuf> {
    let mut names = BTreeSet::new();
    let mut rest: Vec<OsString> = Vec::new();
    let push = |rest: &mut Vec<OsString>, path: &Path| {
        rest.extend(path.components().rev().map(|component| component.as_os_str().to_owned()));
    };
    push(&mut rest, path);
    let mut at = PathBuf::new();
    let mut links = 0;
    while let Some(name) = rest.pop() {
        match Path::new(&name).components().next() {
            Some(Component::Normal(name)) => at.push(name),
            Some(Component::ParentDir) => {
                at.pop();
                continue;
            }
            Some(Component::RootDir) => {
                at = PathBuf::from("/");
                continue;
            }
            _ => continue,
        }
        match fs::symlink_metadata(&at) {
            Ok(metadata) if metadata.is_symlink() => {
                names.insert(at.clone());
                links += 1;
                let Ok(target) = fs::read_link(&at) else { break };
                if links > MAX_LINKS {
                    break;
                }
                at.pop();
                push(&mut rest, &target);
            }
            Ok(metadata) if metadata.is_dir() && !rest.is_empty() => {}
            // The file itself, or something that is in its directories' way, or nothing there yet.
            _ => {
                names.insert(at.clone());
                break;
            }
        }
    }
    names
}

fn identity(path: &Path) -> Identity {
    let read =
        |m: fs::Metadata| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    let metadata: io::Result<fs::Metadata> = fs::metadata(path);
    metadata.ok().map(read)
}

#[cfg(test)]
mod tests;
