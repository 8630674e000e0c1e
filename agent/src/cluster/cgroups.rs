//! The cgroups of this machine's Pods, followed as the kubelet makes and removes them (K10).
//!
//! Level-triggered: each look gives all of them, and what happened in between does not matter. inotify tells when to
//! look: a directory that is made or removed in cgroup2 is seen through every mount of it, whoever did it. Each
//! directory is watched before it is listed, so none is missed in between. A slow look of its own accord catches what
//! no event tells.
//!
//! Directories inside a Pod's are neither listed nor watched: they are the Pod's, see [`identity`](super::identity).
//! Nor are those of another owner than the root's, which is uid 0, and what is below them: systemd delegates cgroups to
//! users, who may make any path there. So a node in a rootless container has no Pods here.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirEntryExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
};
use tokio::{
    sync::mpsc::{Sender, WeakSender},
    time::Instant,
};
use tracing::warn;

use super::{
    Change,
    identity::{Whose, identify},
    pod::{Cgroup, PodCgroups},
};
use crate::fatal::Indispensable;

/// The time to the next look when nothing happens.
const RESCAN: Duration = Duration::from_secs(30);
/// The same where some directory cannot be watched, and after a look that failed.
const UNWATCHED: Duration = Duration::from_secs(1);
/// Events are answered once they have come for so long: a Pod's start is several.
const SETTLE: Duration = Duration::from_millis(2);
/// Of the time, one part in so many is spent looking, however much happens.
const IDLE_PARTS: u32 = 10;
/// But no Pod waits longer than this for the next look, however slow the last was.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// What is said when events are missing.
const NO_EVENTS: &str = "no events of cgroups, which are looked for instead; see sysctl fs.inotify";
/// Deeper than any node puts its Pods, in a container or not.
const DEEPEST: u32 = 32;

/// Follows the cgroups below one root.
#[derive(Debug)]
pub struct CgroupWatch {
    root: PathBuf,
    /// `None` when the system gives none.
    inotify: Option<OwnedFd>,
    /// Some directory is not watched.
    blind: bool,
    /// What went wrong with the last look; what was found before it stays.
    trouble: Option<io::Error>,
    found: PodCgroups,
}

impl CgroupWatch {
    /// Looks for the first time. `root` is the root of cgroup2: levels are counted from it.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let inotify = inotify.inspect_err(|error| warn!(%error, every = ?UNWATCHED, "{NO_EVENTS}")).ok();
        let blind = inotify.is_none();
        let mut watch = Self { root, inotify, blind, trouble: None, found: PodCgroups::new() };
        let _ = watch.refresh();
        watch
    }

    /// What was found last.
    #[must_use]
    pub fn found(&self) -> &PodCgroups {
        &self.found
    }

    /// What went wrong with the last look. The next one comes soon.
    #[must_use]
    pub fn trouble(&self) -> Option<&io::Error> {
        self.trouble.as_ref()
    }

    /// Whether some cgroups come without an event, so that they are found later.
    #[must_use]
    pub fn is_blind(&self) -> bool {
        self.blind
    }

    /// Sends what is found whenever it has changed, on a thread of its own, until nobody else sends changes: it keeps
    /// no one waiting for its end.
    pub fn follow(self, changes: &Sender<Change>) -> io::Result<()> {
        let changes = changes.downgrade();
        let run = move || {
            let _indispensable = Indispensable("cgroups");
            self.run(&changes);
        };
        thread::Builder::new().name("cgroups".into()).spawn(run).map(drop)
    }

    fn run(mut self, changes: &WeakSender<Change>) {
        loop {
            self.wait(if self.blind || self.trouble.is_some() { UNWATCHED } else { RESCAN });
            let start = Instant::now();
            let is_new = self.refresh();
            let took = start.elapsed();
            let Some(changes) = changes.upgrade() else { return };
            if is_new && changes.blocking_send(Change::Cgroups(self.found.clone())).is_err() {
                return;
            }
            drop(changes);
            thread::sleep(pause(took));
        }
    }

    /// Looks again: whether something else is found.
    fn refresh(&mut self) -> bool {
        match self.look() {
            Ok(found) => {
                self.trouble = None;
                let changed = found != self.found;
                self.found = found;
                changed
            }
            Err(error) => {
                if self.trouble.is_none() {
                    warn!(root = %self.root.display(), %error, "the cgroups of Pods cannot be read; those known stay");
                }
                self.trouble = Some(error);
                false
            }
        }
    }

    /// Waits for an event, or until it is time to look anyway.
    fn wait(&self, patience: Duration) {
        let Some(inotify) = &self.inotify else { return thread::sleep(patience) };
        let timeout = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: 0 };
        // Where it cannot wait, it looks at once, and the pause after that is its limit.
        let heard = poll(&mut [PollFd::new(inotify, PollFlags::IN)], Some(&timeout));
        if heard.is_ok_and(|ready| ready > 0) {
            thread::sleep(SETTLE);
            // What happened does not matter: all of it is looked at after this.
            let mut events = [0_u8; 4096];
            while rustix::io::read(inotify, &mut events).is_ok_and(|read| read > 0) {}
        }
    }

    /// Every Pod's cgroups as they are now: all of them or an error, as a Pod that is left out counts as gone.
    fn look(&mut self) -> io::Result<PodCgroups> {
        let owner = fs::metadata(&self.root)?.uid();
        let mut found = PodCgroups::new();
        let mut unwatched = None;
        let mut waiting = vec![(PathBuf::new(), 1)];
        while let Some((below, level)) = waiting.pop() {
            let directory = self.root.join(&below);
            let mut list = || {
                if fs::metadata(&directory)?.uid() != owner {
                    return Ok(());
                }
                if let Err(error) = self.watch(&directory) {
                    unwatched.get_or_insert((directory.clone(), error));
                }
                for entry in fs::read_dir(&directory)? {
                    let entry = entry?;
                    if !entry.file_type()?.is_dir() {
                        continue;
                    }
                    let path = below.join(entry.file_name());
                    match identify(&path) {
                        Whose::Pod(pod) => {
                            let cgroup = Cgroup { id: entry.ino(), level };
                            found.entry(pod.uid.as_ref().into()).or_default().insert(cgroup);
                        }
                        Whose::Open if level < DEEPEST => waiting.push((path, level + 1)),
                        Whose::Open | Whose::Nobodys => {}
                    }
                }
                Ok(())
            };
            match list() {
                // It has gone since it was listed.
                Err(error) if level > 1 && is_gone(&error) => {}
                listed => listed?,
            }
        }
        let blind = self.inotify.is_none() || unwatched.is_some();
        if let (Some((directory, error)), false) = (unwatched, self.blind) {
            warn!(directory = %directory.display(), %error, every = ?UNWATCHED, "{NO_EVENTS}");
        }
        self.blind = blind;
        Ok(found)
    }

    /// Watches a directory. Again changes nothing; one that is gone needs no watch.
    fn watch(&self, directory: &Path) -> Result<(), Errno> {
        let Some(inotify) = &self.inotify else { return Ok(()) };
        let wanted = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        match inotify::add_watch(inotify, directory, wanted) {
            Err(error) if error != Errno::NOENT => Err(error),
            _ => Ok(()),
        }
    }
}

/// The pause after a look that took so long.
fn pause(took: Duration) -> Duration {
    took.saturating_mul(IDLE_PARTS).min(LONGEST_PAUSE)
}

/// Whether a directory cannot be read because it is there no more.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};
    use tempfile::TempDir;
    use tokio::sync::mpsc;

    use super::*;

    const A: &str = "5ba3a4f8-9d3d-4c2b-8b2a-1f0c9e7d6a55";
    const B: &str = "00000000-9d3d-4c2b-8b2a-1f0c9e7d6a55";

    /// Waits for the next list. Any directories will do: the paths tell, not the file system.
    fn next(changes: &mut mpsc::Receiver<Change>) -> Vec<(String, Vec<u32>)> {
        match changes.blocking_recv().expect("a change") {
            Change::Cgroups(found) => shown(&found),
            other => panic!("{other:?}"),
        }
    }

    fn shown(found: &PodCgroups) -> Vec<(String, Vec<u32>)> {
        let levels = |(uid, cgroups): (&std::sync::Arc<str>, &std::collections::BTreeSet<Cgroup>)| {
            // They are kept in the order of their numbers, and a file system gives those away as it likes.
            let mut levels: Vec<u32> = cgroups.iter().map(|cgroup| cgroup.level).collect();
            levels.sort_unstable();
            (uid.to_string(), levels)
        };
        found.iter().map(levels).collect()
    }

    #[test]
    fn what_is_there_what_comes_and_what_goes_is_told_each_time_as_a_whole() {
        let root = TempDir::new().unwrap();
        let make = |path: &str| fs::create_dir_all(root.path().join(path)).unwrap();
        make(&format!("kubepods/besteffort/pod{A}/c1"));
        make("system.slice/kubelet.service");
        let watch = CgroupWatch::new(root.path().to_owned());
        assert_eq!(shown(watch.found()), [(A.to_owned(), vec![3])]);
        let (sender, mut changes) = mpsc::channel(8);
        watch.follow(&sender).unwrap();
        // In a directory that was not there, below one that was.
        make(&format!("kubepods/burstable/pod{B}"));
        assert_eq!(next(&mut changes), [(B.to_owned(), vec![3]), (A.to_owned(), vec![3])]);
        fs::remove_dir_all(root.path().join("kubepods/besteffort")).unwrap();
        assert_eq!(next(&mut changes), [(B.to_owned(), vec![3])]);
        // A kubelet whose driver was changed has left the other's directories.
        let unit = B.replace('-', "_");
        make(&format!("kubepods.slice/kubepods-pod{unit}.slice"));
        assert_eq!(next(&mut changes), [(B.to_owned(), vec![2, 3])]);
    }

    #[test]
    fn a_cgroup_made_anew_under_the_same_name_is_another_one() {
        let root = TempDir::new().unwrap();
        let pod = root.path().join(format!("kubepods/pod{A}"));
        fs::create_dir_all(&pod).unwrap();
        let mut watch = CgroupWatch::new(root.path().to_owned());
        let before = watch.found().clone();
        // The old one is kept, so that its number is not given away again.
        fs::rename(&pod, root.path().join("gone")).unwrap();
        fs::create_dir(&pod).unwrap();
        let after = watch.look().unwrap();
        assert_eq!(shown(&before), shown(&after));
        assert_ne!(before, after);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_an_error_and_hides_no_pod() {
        let root = TempDir::new().unwrap();
        fs::create_dir_all(root.path().join(format!("kubepods/pod{A}"))).unwrap();
        let mut watch = CgroupWatch::new(root.path().to_owned());
        // So deep that its path is too long for a call.
        let name = "d".repeat(255);
        let mut above = OwnedFd::from(fs::File::open(root.path()).unwrap());
        for _ in 0..17 {
            rustix::fs::mkdirat(&above, &name, Mode::RWXU).unwrap();
            above = rustix::fs::openat(&above, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        assert!(watch.look().is_err());
        assert_eq!(shown(watch.found()), [(A.to_owned(), vec![2])], "what was known stays");
        fs::remove_dir_all(root.path()).unwrap();
        assert!(watch.look().is_err(), "nor is a root that is gone one without Pods");
    }

    #[test]
    fn only_what_is_gone_is_gone() {
        let is_gone = |number: Errno| is_gone(&number.into());
        assert!(is_gone(Errno::NOENT) && is_gone(Errno::NODEV));
        assert!(![Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS].into_iter().any(is_gone));
    }

    #[test]
    fn a_slow_look_does_not_keep_the_next_pod_waiting() {
        assert_eq!(pause(Duration::from_millis(3)), Duration::from_millis(30));
        assert_eq!(pause(Duration::from_secs(9)), LONGEST_PAUSE);
        assert_eq!(pause(Duration::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn it_ends_with_the_others_that_send() {
        let root = TempDir::new().unwrap();
        let (sender, mut changes) = mpsc::channel(1);
        CgroupWatch::new(root.path().to_owned()).follow(&sender).unwrap();
        drop(sender);
        assert!(changes.blocking_recv().is_none());
    }

    #[test]
    fn a_first_look_that_fails_is_said_and_made_up_for() {
        let parent = TempDir::new().unwrap();
        let root = parent.path().join("later");
        let watch = CgroupWatch::new(root.clone());
        assert!(watch.trouble().is_some() && watch.found().is_empty());
        let (sender, mut changes) = mpsc::channel(8);
        watch.follow(&sender).unwrap();
        fs::create_dir_all(root.join(format!("kubepods/pod{A}"))).unwrap();
        assert_eq!(next(&mut changes), [(A.to_owned(), vec![2])]);
    }
}
