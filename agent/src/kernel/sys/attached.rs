//! What is attached where, asked of the kernel.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use bytemuck::{Pod, Zeroable};

use super::{Command, address_mut, bpf, bpf_fd, object_info, raw, size};

/// `BPF_LINK_TYPE_CGROUP`.
const CGROUP: u32 = 3;
/// `BPF_F_ALLOW_MULTI`.
const ALLOW_MULTI: u32 = 1 << 1;
/// `BPF_F_QUERY_EFFECTIVE`.
const QUERY_EFFECTIVE: u32 = 1;
/// More than run anywhere: on one hook of one cgroup there are at most 64 (`BPF_CGROUP_MAX_PROGS`).
const MOST: usize = 1024;

/// `struct bpf_link_info` of a link to a cgroup.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(in super::super) struct LinkInfo {
    link_type: u32,
    /// Of the link itself.
    pub(in super::super) id: u32,
    /// Of the program that it runs.
    pub(in super::super) program: u32,
    zero: u32,
    /// Of the cgroup; 0 once that is gone.
    pub(in super::super) cgroup: u64,
    /// `enum bpf_attach_type`.
    pub(in super::super) attach_type: u32,
    zero2: u32,
}

/// What a link is; `None` for one that is not to a cgroup.
pub(in super::super) fn link_info(link: BorrowedFd<'_>) -> io::Result<Option<LinkInfo>> {
    let info: LinkInfo = object_info(link)?;
    Ok((info.link_type == CGROUP).then_some(info))
}

/// Three words: a first id or the id to open, the next id, flags.
type Ids = [u32; 3];

/// Every link of the machine. Takes `CAP_SYS_ADMIN`.
pub(in super::super) fn links() -> io::Result<Vec<OwnedFd>> {
    let mut links = Vec::new();
    let mut ids: Ids = [0; 3];
    loop {
        // SAFETY: no addresses in this command.
        #[expect(unsafe_code, reason = "bpf(2)")]
        let next = unsafe { bpf(Command::LinkNextId, &mut ids) };
        match next {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(links),
            next => next?,
        };
        let id = ids[1];
        let mut attr: Ids = [id, 0, 0];
        // SAFETY: no addresses in this command, and it returns a descriptor.
        #[expect(unsafe_code, reason = "bpf(2)")]
        let link = unsafe { bpf_fd(Command::LinkById, &mut attr) };
        match link {
            Ok(link) => links.push(link),
            // It ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
        ids = [id, 0, 0];
    }
}

/// What is attached to one hook of one cgroup.
pub(in super::super) struct Attached {
    /// The ids of the programs, in the order in which they run.
    pub(in super::super) programs: Vec<u32>,
    /// It was attached without `BPF_F_ALLOW_MULTI`, and no other program may be.
    pub(in super::super) alone: bool,
}

/// What is attached to a hook of a cgroup itself; not to those above, which run too.
pub(in super::super) fn attached(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<Attached> {
    let (programs, flags) = query(cgroup, attach_type, 0)?;
    Ok(Attached { alone: !programs.is_empty() && flags & ALLOW_MULTI == 0, programs })
}

/// The ids of all programs that run on a hook in a cgroup, those of the cgroups above it too.
pub(in super::super) fn effective(cgroup: BorrowedFd<'_>, attach_type: u32) -> io::Result<Vec<u32>> {
    query(cgroup, attach_type, QUERY_EFFECTIVE).map(|(programs, _)| programs)
}

/// The ids of programs, in the order in which they run, and the flags with which they were attached.
fn query(cgroup: BorrowedFd<'_>, attach_type: u32, flags: u32) -> io::Result<(Vec<u32>, u32)> {
    /// `query` of `union bpf_attr`.
    #[repr(C)]
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct Query {
        target: u32,
        attach_type: u32,
        flags: u32,
        attach_flags: u32,
        programs: u64,
        count: u32,
        zero: u32,
    }
    let mut programs = [0_u32; MOST];
    let mut attr = Query {
        target: raw(cgroup),
        attach_type,
        flags,
        programs: address_mut(&mut programs),
        count: size(MOST)?,
        ..Query::zeroed()
    };
    // SAFETY: `programs` is ours alone and has room for `count` ids.
    #[expect(unsafe_code, reason = "bpf(2)")]
    unsafe {
        bpf(Command::ProgQuery, &mut attr)?;
    }
    Ok((programs.into_iter().take_while(|id| *id != 0).collect(), attr.attach_flags))
}
