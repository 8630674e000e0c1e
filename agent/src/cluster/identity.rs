//! Which Pod a cgroup is of, by its path (K10). Pure.
//!
//! The kubelet makes one cgroup per Pod, and the container runtime makes those of its containers below it:
//!
//! | driver | the Pod's cgroup, below the kubelet's `--cgroup-root` |
//! |---|---|
//! | cgroupfs | `kubepods/pod<uid>`, `kubepods/burstable/pod<uid>`, `kubepods/besteffort/pod<uid>` |
//! | systemd | `kubepods.slice/kubepods-pod<uid>.slice`, `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`, .. |
//! | systemd for the kubelet, cgroupfs for the runtime | none; each container has a `kubepods-burstable-pod<uid>.slice:cri-containerd:<id>` |
//!
//! Guaranteed Pods have no directory for their class. systemd writes `_` for the dashes of a UID, and puts the names of
//! the slices above into each slice's own, the cgroup root's too (`kubelet-kubepods.slice`). A node in a container has
//! all of it deeper. CRI-O, containerd and Docker differ only below the Pod.
//!
//! The outermost Pod counts: what a Pod makes inside its own cgroup, under whatever name, is still that Pod's. And
//! where Pods are, nothing else is: a name that is no Pod's may be that of a Pod all the same (a static Pod can choose
//! its UID), which may make any name inside.
//!
//! A path does not tell who made it. Whoever may make directories may make these, so a path only counts where nobody but
//! the owner of the root could: see [`cgroups`](super::cgroups).

use std::{borrow::Cow, path::Path};

/// Whose a cgroup is, as its path tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whose<'p> {
    /// A Pod's.
    Pod(Identity<'p>),
    /// No Pod's; those of Pods may be below it.
    Open,
    /// No Pod's, and so is all that is below it.
    Nobodys,
}

/// A Pod's cgroup, as its path tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity<'p> {
    /// The UID by which the kubelet knows the Pod.
    pub uid: Cow<'p, str>,
    /// How many directories below the root the Pod's cgroup is; 1 for a child of the root.
    pub level: u32,
}

/// What is above the next name.
#[derive(Clone, Copy)]
enum Above<'p> {
    /// Nothing that tells.
    Anything,
    /// A directory of the cgroupfs driver in which Pods are.
    Directory { class: bool },
    /// A slice in which Pods are, by its name without the ending.
    Slice { stem: &'p str, class: bool },
}

/// What a name is, below what it is below.
enum Step<'p> {
    Down(Above<'p>),
    Pod(Cow<'p, str>),
}

/// Whose cgroup this is, or the one that it is inside of. `path` is relative to the cgroup2 root; a leading `/` is
/// allowed.
#[must_use]
pub fn identify(path: &Path) -> Whose<'_> {
    let mut above = Above::Anything;
    for (level, name) in (1..).zip(path.strip_prefix("/").unwrap_or(path)) {
        // Neither the kubelet nor systemd writes another name.
        let name = name.to_str().unwrap_or_default();
        let step = match above {
            Above::Anything => Some(below_anything(name)),
            Above::Directory { class } => below_directory(class, name),
            Above::Slice { stem, class } => below_slice(stem, class, name),
        };
        match step {
            Some(Step::Down(next)) => above = next,
            Some(Step::Pod(uid)) => return Whose::Pod(Identity { uid, level }),
            None => return Whose::Nobodys,
        }
    }
    Whose::Open
}

fn below_anything(name: &str) -> Step<'_> {
    container_alone(name).unwrap_or_else(|| {
        Step::Down(match name.strip_suffix(".slice") {
            None if name == KUBEPODS => Above::Directory { class: false },
            Some(stem) if is_kubepods(stem) => Above::Slice { stem, class: false },
            _ => Above::Anything,
        })
    })
}

/// The directory of all Pods.
const KUBEPODS: &str = "kubepods";
/// Those that are not guaranteed have directories of their own.
const CLASSES: [&str; 2] = ["burstable", "besteffort"];

fn below_directory(class: bool, name: &str) -> Option<Step<'_>> {
    if !class && CLASSES.contains(&name) {
        return Some(Step::Down(Above::Directory { class: true }));
    }
    let uid = name.strip_prefix("pod").filter(|uid| is_uid(uid, '-'))?;
    Some(Step::Pod(uid.into()))
}

fn below_slice<'p>(stem: &str, class: bool, name: &'p str) -> Option<Step<'p>> {
    let slice = name.strip_suffix(".slice")?;
    let own = slice.strip_prefix(stem)?.strip_prefix('-')?;
    if !class && CLASSES.contains(&own) {
        return Some(Step::Down(Above::Slice { stem: slice, class: true }));
    }
    let uid = own.strip_prefix("pod").filter(|uid| is_uid(uid, '_'))?;
    Some(Step::Pod(uid.replace('_', "-").into()))
}

/// A container whose runtime takes the name of its Pod's slice, which is written for systemd, for a directory's.
fn container_alone(name: &str) -> Option<Step<'_>> {
    let (slice, container) = name.split_once(".slice:")?;
    container.split_once(':')?;
    let (stem, uid) = slice.rsplit_once("-pod")?;
    let class = CLASSES.iter().find_map(|class| stem.strip_suffix(class)?.strip_suffix('-'));
    let known = is_kubepods(class.unwrap_or(stem)) && is_uid(uid, '_');
    known.then(|| Step::Pod(uid.replace('_', "-").into()))
}

/// Whether a slice, by its name without the ending, is that of all Pods.
fn is_kubepods(stem: &str) -> bool {
    stem.strip_suffix(KUBEPODS).is_some_and(|root| root.is_empty() || root.ends_with('-'))
}

/// A UID of the API server (RFC 9562), or of a static Pod, which is a hash.
fn is_uid(uid: &str, dash: char) -> bool {
    if is_hash(uid) {
        return true;
    }
    uid.len() == 36
        && uid.char_indices().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => c == dash,
            _ => c.is_ascii_hexdigit(),
        })
}

/// Whether this is the UID that a kubelet gives a static Pod: the MD5 of its manifest.
#[must_use]
pub fn is_hash(uid: &str) -> bool {
    uid.len() == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
