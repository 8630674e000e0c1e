//! The pins in bpffs, which keep programs and tables alive without the agent.
//!
//! ```text
//! <bpffs>/revgate/            locked by the agent that runs
//!                 v5/maps/      the maps of the object, by name
//!                    links/     what is attached
//!                    programs/  what the links run
//!                    tables/    the inner maps: vips, members, sources, set-0 ..
//! ```
//!
//! The inner maps are pinned because opening one by its id, as the outer map gives it, takes `CAP_SYS_ADMIN`. A table
//! is pinned before it is swapped in, so that what an agent finds after a crash is never older than what the
//! kernel has.
//!
//! Pins of this version that are damaged, or of another shape, are set aside under another name beside it. What they
//! keep attached goes on, as what another version's pins keep does, until it is [taken over](super::takeover).

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use aya::maps::MapInfo;
use bytemuck::Pod;
use revgate_common::layout::{PIN_DIRECTORY, map};
use rustix::fs::{FlockOperation, Mode, OFlags, StatVfsMountFlags};

use super::{
    KernelError, object,
    sys::{self, Map},
    writer::set_index,
};

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPFFS_MAGIC: i64 = 0xcafe_4a11;

/// The directory of pins.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    root: PathBuf,
}

/// Held while an agent runs; the kernel lets it go when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    directory: OwnedFd,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread starts has a copy of the descriptor until its exec. An
        // unlock that fails leaves it to the close.
        let _ = rustix::fs::flock(&self.directory, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Locks a directory, or says who has it.
    pub(super) fn take(path: &Path) -> Result<Self, KernelError> {
        let directory = rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|source| failed("open", path, source.into()))?;
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { directory }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(KernelError::Locked { path: path.to_path_buf() }),
            Err(source) => Err(failed("lock", path, source.into())),
        }
    }
}

impl Pins {
    /// The directory below a bpffs mount. Nothing is touched.
    pub(super) fn below(bpffs: &Path) -> Self {
        Self { root: bpffs.join(PIN_DIRECTORY) }
    }

    /// Makes the directories and takes the lock.
    pub(super) fn open(bpffs: &Path) -> Result<(Self, Lock), KernelError> {
        if !is_bpffs(bpffs) {
            return Err(KernelError::NoBpffs { path: bpffs.to_path_buf() });
        }
        let pins = Self::below(bpffs);
        pins.make()?;
        // Above the version: agents of two layouts exclude each other too.
        let lock = Lock::take(pins.above())?;
        Ok((pins, lock))
    }

    fn above(&self) -> &Path {
        self.root.parent().unwrap_or(&self.root)
    }

    /// The directories beside this one.
    pub(super) fn others(&self) -> Result<Vec<Self>, KernelError> {
        let beside = names(self.above())?.into_iter().map(|name| Self { root: self.above().join(name) });
        Ok(beside.filter(|other| other.root != self.root).collect())
    }

    /// Gives this directory another name, with all that is in it, and makes a new one.
    pub(super) fn set_aside(&self) -> Result<(), KernelError> {
        let name = self.root.file_name().unwrap_or_default().to_string_lossy();
        let aside = (0_u32..).map(|n| self.root.with_file_name(format!("{name}-aside-{n}")));
        let Some(aside) = aside.into_iter().find(|path| !path.exists()) else { return Ok(()) };
        fs::rename(&self.root, &aside).map_err(|source| failed("set aside", &self.root, source))?;
        self.make()
    }

    fn make(&self) -> Result<(), KernelError> {
        for kind in ["maps", "links", "programs", "tables"] {
            let path = self.root.join(kind);
            fs::create_dir_all(&path).map_err(|source| failed("make", &path, source))?;
        }
        Ok(())
    }

    /// Where a map is pinned.
    pub(super) fn map(&self, name: &str) -> PathBuf {
        self.root.join("maps").join(name)
    }

    /// Where a link is pinned.
    pub(super) fn link(&self, program: &str) -> PathBuf {
        self.root.join("links").join(program)
    }

    /// Opens a map of the object.
    pub(super) fn open_map(&self, name: &str) -> Result<OwnedFd, KernelError> {
        let path = self.map(name);
        sys::open(&path).map_err(|source| failed("open", &path, source))
    }

    /// Opens a map with the types of its keys and values.
    pub(super) fn map_of<K: Pod, V: Pod>(&self, name: &str) -> Result<Map<K, V>, KernelError> {
        let map = Map::new(self.open_map(name)?);
        map.map_err(|source| failed("open", &self.map(name), source))
    }

    /// Opens an inner map; `None` while there is none.
    pub(super) fn open_table(&self, name: &str) -> Result<Option<OwnedFd>, KernelError> {
        open_if_there(&self.root.join("tables").join(name))
    }

    /// Pins an inner map in the place of the one before.
    pub(super) fn keep_table(&self, name: &str, table: BorrowedFd<'_>) -> Result<(), KernelError> {
        replace(table, &self.root.join("tables").join(name))
    }

    /// Pins a program in the place of the one before.
    pub(super) fn keep_program(&self, name: &str, program: BorrowedFd<'_>) -> Result<(), KernelError> {
        replace(program, &self.root.join("programs").join(name))
    }

    /// Pins a link; there must be none.
    pub(super) fn keep_link(&self, program: &str, link: BorrowedFd<'_>) -> Result<(), KernelError> {
        let path = self.link(program);
        sys::pin(link, &path).map_err(|source| failed("pin", &path, source))
    }

    /// Makes a link that another directory or nobody pins this one's. There must be none here.
    pub(super) fn adopt_link(
        &self,
        program: &str,
        link: BorrowedFd<'_>,
        pin: Option<&Path>,
    ) -> Result<(), KernelError> {
        let path = self.link(program);
        match pin.map(|pin| fs::rename(pin, &path)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("move to", &path, error))
            }
            // Its pin is gone: a new one.
            _ => self.keep_link(program, link),
        }
    }

    /// Opens a link; `None` where there is none.
    pub(super) fn open_link(&self, program: &str) -> Result<Option<OwnedFd>, KernelError> {
        open_if_there(&self.link(program))
    }

    /// What a link that was opened here is; `None` for one that is not to a cgroup.
    pub(super) fn link_info(
        &self,
        program: &str,
        link: BorrowedFd<'_>,
    ) -> Result<Option<sys::LinkInfo>, KernelError> {
        sys::link_info(link).map_err(|source| failed("look at", &self.link(program), source))
    }

    /// The id of a link; `None` where there is none.
    pub(super) fn link_id(&self, program: &str) -> Result<Option<u32>, KernelError> {
        let Some(link) = self.open_link(program)? else { return Ok(None) };
        Ok(self.link_info(program, link.as_fd())?.map(|info| info.id))
    }

    /// Forgets a map of the object, if there is one: programs that run keep theirs.
    pub(super) fn drop_map(&self, name: &str) -> Result<(), KernelError> {
        remove(&self.map(name))
    }

    /// Forgets an inner map, if there is one.
    pub(super) fn drop_table(&self, name: &str) -> Result<(), KernelError> {
        remove(&self.root.join("tables").join(name))
    }

    /// Detaches a program and forgets its link, if there is one.
    pub(super) fn drop_link(&self, program: &str) -> Result<(), KernelError> {
        let path = self.link(program);
        let Some(link) = open_if_there(&path)? else { return Ok(()) };
        // A link whose cgroup is gone is detached already.
        match sys::link_detach(link.as_fd()) {
            Err(source) if source.raw_os_error() != Some(libc::ENOENT) => {
                Err(failed("detach", &path, source))
            }
            _ => remove(&path),
        }
    }

    /// The names of the inner maps.
    pub(super) fn tables(&self) -> Result<Vec<String>, KernelError> {
        names(&self.root.join("tables"))
    }

    /// The sets that have a table.
    pub(super) fn sets(&self) -> Result<Vec<u32>, KernelError> {
        Ok(self.tables()?.iter().filter_map(|name| set_index(name)).collect())
    }

    /// What is wrong with the pinned maps and tables: the first whose type, key, value, size or flags are not those
    /// of this agent's layout, or that is missing below programs that run. `None`: nothing, or nothing is pinned.
    pub(super) fn unusable(&self) -> Result<Option<String>, KernelError> {
        if !names(&self.root.join("links"))?.is_empty() {
            let tables = ["vips", "members", "sources"].map(|name| self.root.join("tables").join(name));
            let missing =
                map::ALL.map(|name| self.map(name)).into_iter().chain(tables).find(|pin| !pin.exists());
            if let Some(missing) = missing {
                return Ok(Some(format!("{} is missing", missing.display())));
            }
        }
        for name in map::ALL {
            let path = self.map(name);
            if let (true, Some(shape)) = (path.exists(), object::shape(name))
                && let Some(wrong) = differs(&path, shape, true)?
            {
                return Ok(Some(wrong));
            }
        }
        for name in self.tables()? {
            let path = self.root.join("tables").join(&name);
            match object::table_shape(&name) {
                Some(shape) => {
                    if let Some(wrong) = differs(&path, shape, false)? {
                        return Ok(Some(wrong));
                    }
                }
                // Left by an agent that was killed between two steps of `replace`.
                None => remove(&path)?,
            }
        }
        Ok(None)
    }

    /// Removes everything, links first: no program runs without its tables. Returns what was removed.
    pub(super) fn remove(&self) -> Result<Vec<PathBuf>, KernelError> {
        let mut removed = Vec::new();
        for kind in ["links", "programs", "tables", "maps"] {
            let directory = self.root.join(kind);
            for name in names(&directory)? {
                let path = directory.join(&name);
                if kind == "links" {
                    self.drop_link(&name)?;
                } else {
                    remove(&path)?;
                }
                removed.push(path);
            }
            remove_directory(&directory)?;
        }
        remove_directory(&self.root)?;
        Ok(removed)
    }

    /// Removes the directory above, which must be empty.
    pub(super) fn remove_above(&self) -> Result<(), KernelError> {
        remove_directory(self.above())
    }
}

/// Whether a path is on a BPF file system.
pub(super) fn is_bpffs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|of| of.f_type == BPFFS_MAGIC)
}

/// Opens a pin; `None` where there is none.
fn open_if_there(path: &Path) -> Result<Option<OwnedFd>, KernelError> {
    match sys::open(path) {
        Ok(fd) => Ok(Some(fd)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed("open", path, source)),
    }
}

/// Whether a path is on a file system that is mounted read-only.
pub(super) fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|of| of.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Whether there are pinned links, of any version, below a bpffs mount.
pub(super) fn anything_attached(bpffs: &Path) -> bool {
    let versions = bpffs.join(Path::new(PIN_DIRECTORY).parent().unwrap_or(Path::new("")));
    let versions = names(&versions).unwrap_or_default().into_iter().map(|version| versions.join(version));
    versions.into_iter().any(|version| names(&version.join("links")).is_ok_and(|links| !links.is_empty()))
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> KernelError {
    KernelError::Pin { action, path: path.to_path_buf(), source }
}

/// Pins under a second name and renames it: there is always one.
fn replace(object: BorrowedFd<'_>, path: &Path) -> Result<(), KernelError> {
    let next = {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        // bpffs allows no dots.
        name.push("-next");
        path.with_file_name(name)
    };
    remove(&next)?;
    sys::pin(object.as_fd(), &next).map_err(|source| failed("pin", &next, source))?;
    fs::rename(&next, path).map_err(|source| failed("replace", path, source))
}

fn remove(path: &Path) -> Result<(), KernelError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, error)),
        _ => Ok(()),
    }
}

fn remove_directory(path: &Path) -> Result<(), KernelError> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, error)),
        _ => Ok(()),
    }
}

fn names(directory: &Path) -> Result<Vec<String>, KernelError> {
    let list = match fs::read_dir(directory) {
        Ok(list) => list,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(failed("list", directory, source)),
    };
    let mut names = Vec::new();
    for entry in list {
        let entry = entry.map_err(|source| failed("list", directory, source))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// How a pinned map differs from what it should be.
fn differs(path: &Path, want: object::Shape, whole: bool) -> Result<Option<String>, KernelError> {
    drop(sys::open(path).map_err(|source| failed("open", path, source))?);
    // What opens and cannot be read as a map is none.
    let read = MapInfo::from_pin(path).and_then(|info| Ok((info.map_type()? as u32, info)));
    let (map_type, info) = match read {
        Ok(read) => read,
        Err(error) => return Ok(Some(format!("{} is no map: {error}", path.display()))),
    };
    let size = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let has = object::Shape {
        map_type,
        key: size(info.key_size()),
        value: size(info.value_size()),
        entries: if whole { size(info.max_entries()) } else { 0 },
        flags: info.map_flags(),
    };
    Ok((has != want).then(|| format!("{} is {has:?}, not {want:?}", path.display())))
}
