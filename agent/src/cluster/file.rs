//! The embedded source: Pods from a YAML or JSON file, re-read on change (C5).
//!
//! A file that cannot be read or parsed changes nothing: the last good list stays in force, and the agent is not
//! ready before the first good one. Write a new file beside it and rename it over, as editors and the kubelet do;
//! a file written in place may be seen half done, which [`FileWatch`] makes unlikely but cannot exclude.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read as _},
    mem,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::mpsc;

use super::{
    Cgroup, Change, Pod, PodKey,
    files::{FileWatch, NotAFile},
    intern::Interner,
    list::{self, Invalid, Listed},
};

/// The largest file that is read, in bytes: some 300,000 Pods in the short form, 10,000 as the API prints them.
pub const MAX_BYTES: u64 = 64 << 20;

/// Why the file gives no list.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path cannot be a file.
    #[error(transparent)]
    Path(#[from] NotAFile),
    /// It cannot be read.
    #[error("cannot read the Pod file {path}: {source}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is larger than [`MAX_BYTES`].
    #[error("the Pod file {path} is larger than {MAX_BYTES} bytes; split the cluster or use the short form", path = path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// It is not text.
    #[error("the Pod file {path} is not UTF-8 (byte {at}); save it as UTF-8", path = path.display())]
    NotText {
        /// Which.
        path: PathBuf,
        /// The first bad byte.
        at: usize,
    },
    /// It is no list of Pods.
    #[error("{path}:{invalid}", path = path.display())]
    Invalid {
        /// Which.
        path: PathBuf,
        /// What is wrong, and on which line.
        invalid: Invalid,
    },
}

/// How one reading went; for logs and metrics.
#[derive(Debug)]
pub enum Reading<'a> {
    /// A list that is not the one before was sent.
    Sent {
        /// How many Pods it has.
        pods: usize,
    },
    /// The list is the one before.
    Same,
    /// The file gives no list; the one before, if any, stays in force.
    Failed(&'a FileError),
    /// A Pod names a cgroup that cannot be used; the Pod is sent without it. Said once, until it can.
    NoCgroup {
        /// The Pod.
        pod: &'a Pod,
        /// Why.
        why: &'a str,
    },
}

/// The source.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    cgroups: Option<PathBuf>,
}

impl FileSource {
    /// A source that reads `path`; `cgroups` is the cgroup2 root of this machine, where it is known.
    #[must_use]
    pub fn new(path: PathBuf, cgroups: Option<PathBuf>) -> Self {
        Self { path, cgroups }
    }

    /// Sends the list, then each new one, until the receiver is gone. `hook` hears how each reading went.
    ///
    /// The only error is a path that cannot be a file; everything else is waited out.
    pub async fn run(
        self,
        changes: mpsc::Sender<Change>,
        mut hook: impl FnMut(Reading<'_>),
    ) -> Result<(), FileError> {
        // Watch first, read second: a change in between is then seen by the next wait.
        let mut watch = FileWatch::new(&self.path)?;
        let mut last: Option<Vec<Arc<Pod>>> = None;
        let mut interner = Interner::default();
        let mut said = HashSet::new();
        loop {
            match self.read(&mut interner, &mut said, &mut hook).await {
                Ok(pods) if last.as_ref() == Some(&pods) => hook(Reading::Same),
                Ok(pods) => {
                    let count = pods.len();
                    if changes.send(Change::Replace(pods.clone())).await.is_err() {
                        return Ok(());
                    }
                    last = Some(pods);
                    hook(Reading::Sent { pods: count });
                }
                Err(error) => hook(Reading::Failed(&error)),
            }
            tokio::select! {
                () = watch.changed() => {}
                () = changes.closed() => return Ok(()),
            }
        }
    }

    /// `interner` knows the Pods before; `said` are those whose cgroup cannot be used, of which the hook has heard.
    async fn read(
        &self,
        interner: &mut Interner,
        said: &mut HashSet<PodKey>,
        hook: &mut impl FnMut(Reading<'_>),
    ) -> Result<Vec<Arc<Pod>>, FileError> {
        let path = self.path.clone();
        let cgroups = self.cgroups.clone();
        let mut known = mem::take(interner);
        // Parsing ten thousand Pods takes a while; other tasks of this thread go on.
        let work = move || {
            let read = read(&path).map(|listed| {
                listed
                    .into_iter()
                    .map(|listed| resolve(listed, cgroups.as_deref(), &mut known))
                    .collect::<Vec<_>>()
            });
            (known, read)
        };
        let (known, read) = tokio::task::spawn_blocking(work).await.map_err(|stopped| FileError::Read {
            path: self.path.clone(),
            source: io::Error::other(stopped),
        })?;
        *interner = known;
        let read = read?;
        let mut pods = Vec::with_capacity(read.len());
        let mut without = HashSet::new();
        for (pod, problem) in read {
            if let Some(why) = problem {
                if !said.contains(&pod.key) {
                    hook(Reading::NoCgroup { pod: &pod, why: &why });
                }
                without.insert(pod.key.clone());
            }
            pods.push(pod);
        }
        *said = without;
        Ok(pods)
    }
}

/// Reads and parses a Pod file.
pub fn read(path: &Path) -> Result<Vec<Listed>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let metadata = fs::metadata(path).map_err(failed)?;
    // Opening a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err(FileError::Path(NotAFile { path: path.to_owned() }));
    }
    // One byte more, in which the end is seen.
    let length = metadata.len().min(MAX_BYTES) + 1;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(FileError::TooLarge { path: path.to_owned() });
    }
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| FileError::NotText { path: path.to_owned(), at: error.valid_up_to() })?;
    list::parse(text).map_err(|invalid| FileError::Invalid { path: path.to_owned(), invalid })
}

/// The Pod with its cgroup looked up, and what was wrong with that.
fn resolve(listed: Listed, cgroups: Option<&Path>, known: &mut Interner) -> (Arc<Pod>, Option<String>) {
    let Listed { mut pod, cgroup } = listed;
    let mut problem = None;
    if let Some(path) = cgroup {
        match find_cgroup(Path::new(&path), cgroups) {
            Ok(found) => Arc::make_mut(&mut pod).cgroup = Some(found),
            Err(why) => problem = Some(format!("cgroup `{path}`: {why}")),
        }
    }
    known.share(&mut pod);
    (pod, problem)
}

fn find_cgroup(path: &Path, root: Option<&Path>) -> Result<Cgroup, String> {
    let root = root.ok_or("no cgroup2 root is known on this machine")?;
    let root = root.canonicalize().map_err(|error| format!("{}: {error}", root.display()))?;
    let found = root.join(path).canonicalize().map_err(|error| error.to_string())?;
    let below = found.strip_prefix(&root).map_err(|_| format!("not below {}", root.display()))?;
    let level = u32::try_from(below.components().count()).unwrap_or(u32::MAX);
    let metadata = found.metadata().map_err(|error| error.to_string())?;
    if level == 0 || !metadata.is_dir() {
        return Err("not a cgroup below the root".to_owned());
    }
    Ok(Cgroup { id: metadata.ino(), level })
}
