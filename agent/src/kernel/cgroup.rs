//! Where the programs are attached: the root of cgroup2, proven to be it.
//!
//! In a container with a cgroup namespace of its own the mount shows a subtree as if it were the root; programs
//! attached there would see no other Pod. The real root has inode 1 and no `cgroup.type`.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// `CGROUP2_SUPER_MAGIC` of `linux/magic.h`.
const CGROUP2_MAGIC: i64 = 0x6367_7270;

/// `PROC_CGROUP_INIT_INO` of `linux/proc_ns.h`: the number of the host's cgroup namespace.
const FIRST_CGROUP_NAMESPACE: u32 = 0xEFFF_FFFB;
/// `PROC_USER_INIT_INO` of the same.
const FIRST_USER_NAMESPACE: u32 = 0xEFFF_FFFD;

/// Why there is no cgroup to attach to.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Nothing mounted.
    #[error(
        "no cgroup2 is mounted; mount one (mount -t cgroup2 none /sys/fs/cgroup/unified) or set kernel.cgroup"
    )]
    NotMounted,
    /// Only a part of it is mounted.
    #[error(
        "{path} is not the root of cgroup2 but a part of it: {why}{}; mount the host's /sys/fs/cgroup into the \
         container (a hostPath volume), or run the agent in the host's cgroup namespace",
        if *.private { ", and this process has a cgroup namespace of its own" } else { "" }
    )]
    NotRoot {
        /// The mount.
        path: PathBuf,
        /// What showed it.
        why: &'static str,
        /// The process has a cgroup namespace of its own, as in most containers.
        private: bool,
    },
    /// The configured directory is no cgroup2.
    #[error("kernel.cgroup: {path} is not on cgroup2")]
    NotCgroup2 {
        /// The directory.
        path: PathBuf,
    },
    /// It could not be looked at.
    #[error("look at {path}: {source}")]
    Io {
        /// What.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The cgroup to attach to: the configured one, or the proven root.
pub fn find(configured: Option<&Path>) -> Result<PathBuf, CgroupError> {
    if let Some(path) = configured {
        return if is_cgroup2(path)? {
            Ok(path.to_path_buf())
        } else {
            Err(CgroupError::NotCgroup2 { path: path.to_path_buf() })
        };
    }
    let mounts = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(mounts)
        .map_err(|source| CgroupError::Io { path: mounts.to_path_buf(), source })?;
    let mut refused = CgroupError::NotMounted;
    for path in cgroup2_mounts(&text) {
        match prove(&path) {
            Ok(()) => return Ok(path),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// What it means that a configured cgroup is not the root; `None` for the root.
pub(super) fn partial(path: &Path) -> Option<String> {
    prove(path).err()?;
    let path = path.display();
    Some(format!("{path} is not the root of cgroup2: processes outside of it are neither steered nor fenced"))
}

/// The id of a cgroup, as the programs see it: the inode of its directory.
pub fn id(path: &Path) -> Result<u64, CgroupError> {
    let metadata =
        fs::metadata(path).map_err(|source| CgroupError::Io { path: path.to_path_buf(), source })?;
    Ok(metadata.ino())
}

/// The mount points of cgroup2 in `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`), the whole hierarchy before parts.
fn cgroup2_mounts(mountinfo: &str) -> Vec<PathBuf> {
    let mut whole_first: Vec<(bool, PathBuf)> = mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3);
            let (root, point) = (fields.next()?, fields.next()?);
            kind.starts_with("cgroup2 ").then(|| (root != "/", PathBuf::from(point)))
        })
        .collect();
    whole_first.sort_by_key(|(part, _)| *part);
    whole_first.into_iter().map(|(_, path)| path).collect()
}

fn prove(path: &Path) -> Result<(), CgroupError> {
    let private = !in_first_namespace("cgroup", FIRST_CGROUP_NAMESPACE);
    let not_root = |why| Err(CgroupError::NotRoot { path: path.to_path_buf(), why, private });
    if !is_cgroup2(path)? {
        return Err(CgroupError::NotCgroup2 { path: path.to_path_buf() });
    }
    if id(path)? != 1 {
        return not_root("its inode is not 1");
    }
    if path.join("cgroup.type").exists() {
        return not_root("it has a cgroup.type");
    }
    Ok(())
}

/// Whether this process is in the user namespace of the host, where alone its capabilities count for bpf(2).
pub(super) fn in_host_user_namespace() -> bool {
    in_first_namespace("user", FIRST_USER_NAMESPACE)
}

/// Whether this process is in the namespace of that kind that the machine started with. Without proc: it may be.
fn in_first_namespace(kind: &str, number: u32) -> bool {
    let namespace = fs::read_link(format!("/proc/self/ns/{kind}"));
    namespace.map_or(true, |found| found == Path::new(&format!("{kind}:[{number}]")))
}

/// Whether controllers of cgroup v1 are mounted, beside cgroup2 (hybrid) or without it.
pub(super) fn has_v1() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split_once(" - ").is_some_and(|(_, kind)| kind.starts_with("cgroup ")))
}

/// Whether a path is on cgroup2.
pub(super) fn is_cgroup2(path: &Path) -> Result<bool, CgroupError> {
    match rustix::fs::statfs(path) {
        Ok(of) => Ok(of.f_type == CGROUP2_MAGIC),
        Err(error) => Err(CgroupError::Io { path: path.to_path_buf(), source: error.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_hierarchy_comes_before_a_part_and_other_file_systems_do_not_count() {
        let mountinfo = "\
            30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro\n\
            31 30 0:27 /kubepods/pod1 /part rw,nosuid shared:9 - cgroup2 cgroup2 rw\n\
            32 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 master:3 - cgroup2 cgroup2 rw,nsdelegate\n\
            33 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        assert_eq!(
            cgroup2_mounts(mountinfo),
            [PathBuf::from("/sys/fs/cgroup/unified"), PathBuf::from("/part")]
        );
    }
}
