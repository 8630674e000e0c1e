//! The bpf(2) calls that aya has no name for, or not for maps it did not create: one function each.
//!
//! Attribute layouts are those of `union bpf_attr` in `include/uapi/linux/bpf.h`; the kernel takes any prefix of the
//! union and reads the rest as zero. All values cross as [`bytemuck::Pod`], so no padding and no invalid bits.

mod attached;
mod map;

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use bytemuck::{Pod, Zeroable};

pub(super) use attached::{Attached, LinkInfo, attached, effective, link_info, links};
pub(super) use map::Map;

/// A hash map (`BPF_MAP_TYPE_HASH`).
pub(super) const HASH: u32 = 1;
/// An array (`BPF_MAP_TYPE_ARRAY`).
pub(super) const ARRAY: u32 = 2;

/// Commands, `enum bpf_cmd`.
#[derive(Clone, Copy)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ObjPin = 6,
    ObjGet = 7,
    ProgTestRun = 10,
    ObjInfo = 15,
    ProgQuery = 16,
    MapFreeze = 22,
    MapUpdateBatch = 26,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkById = 30,
    LinkNextId = 31,
    LinkDetach = 34,
}

/// # Safety
///
/// Every address in `attr` must point to as much memory as the command reads or writes there, unshared where it
/// writes.
#[expect(unsafe_code, reason = "the one door to the kernel")]
unsafe fn bpf<A: Pod>(command: Command, attr: &mut A) -> io::Result<i32> {
    // SAFETY: `attr` is one live, initialised value of the given size; the caller answers for what it points to.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, std::ptr::from_mut(attr), size_of::<A>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(result).map_err(io::Error::other) }
}

/// A command that makes a file descriptor.
///
/// # Safety
///
/// As for [`bpf`], and the command must be one that returns a new descriptor.
#[expect(unsafe_code, reason = "the one door to the kernel")]
unsafe fn bpf_fd<A: Pod>(command: Command, attr: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: passed on to the caller.
    let fd = unsafe { bpf(command, attr)? };
    // SAFETY: the kernel just made this descriptor for us (close-on-exec, as all of bpf(2)).
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[expect(clippy::cast_sign_loss, reason = "an open descriptor is not negative")]
fn raw(fd: impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd() as u32
}

fn address<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>() as u64
}

fn address_mut<T: ?Sized>(value: &mut T) -> u64 {
    std::ptr::from_mut(value).cast::<u8>() as u64
}

fn size<T: TryFrom<usize>>(bytes: usize) -> io::Result<T> {
    T::try_from(bytes).map_err(|_| io::Error::other("too large for one call"))
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

/// Pins a map, program or link.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = Object { path: address(path.as_bytes_with_nul()), fd: raw(object), flags: 0 };
    // SAFETY: the path ends in 0 and lives through the call.
    #[expect(unsafe_code, reason = "bpf(2)")]
    unsafe {
        bpf(Command::ObjPin, &mut attr).map(drop)
    }
}

/// Opens a pinned map, program or link.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attr = Object { path: address(path.as_bytes_with_nul()), fd: 0, flags: 0 };
    // SAFETY: the path ends in 0 and lives through the call, which returns a descriptor.
    #[expect(unsafe_code, reason = "bpf(2)")]
    unsafe {
        bpf_fd(Command::ObjGet, &mut attr)
    }
}

/// Four words: `link_create` and `link_update` of `union bpf_attr`.
type Link = [u32; 4];

/// Attaches a program to a cgroup. The link ends when its last descriptor and pin are gone.
pub(super) fn link_create(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    let mut attr: Link = [raw(program), raw(cgroup), attach_type, 0];
    // SAFETY: no addresses in this command, and it returns a descriptor.
    #[expect(unsafe_code, reason = "bpf(2)")]
    unsafe {
        bpf_fd(Command::LinkCreate, &mut attr)
    }
}

/// Replaces the program of a live link in one step.
pub(super) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr: Link = [raw(link), raw(program), 0, 0];
    // SAFETY: no addresses in this command.
    #[expect(unsafe_code, reason = "bpf(2)")]
    unsafe {
        bpf(Command::LinkUpdate, &mut attr).map(drop)
    }
}

/// Detaches a link at once, whoever holds it. Closing the last descriptor or pin takes effect only some time later.
pub(super) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: no addresses in this command.
    #[expect(unsafe_code, reason = "bpf(2)")]
    unsafe {
        bpf(Command::LinkDetach, &mut raw(link)).map(drop)
    }
}

/// Runs a program once on a packet, which it may change; returns what the program returned.
pub(super) fn test_run(program: BorrowedFd<'_>, packet: &mut [u8]) -> io::Result<u32> {
    #[repr(C)]
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct Run {
        program: u32,
        returned: u32,
        size_in: u32,
        size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
    }
    let input = packet.to_vec();
    let mut attr = Run {
        program: raw(program),
        size_in: size(input.len())?,
        size_out: size(packet.len())?,
        data_in: address(input.as_slice()),
        data_out: address_mut(packet),
        repeat: 1,
        ..Run::zeroed()
    };
    // SAFETY: both buffers live through the call and are as long as said; the output is ours alone.
    #[expect(unsafe_code, reason = "bpf(2)")]
    unsafe {
        bpf(Command::ProgTestRun, &mut attr)?;
    }
    Ok(attr.returned)
}

/// The first fields of what the kernel tells of a map or link; `T` is their layout.
fn object_info<T: Pod>(object: BorrowedFd<'_>) -> io::Result<T> {
    #[repr(C)]
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct Ask {
        fd: u32,
        length: u32,
        info: u64,
    }
    let mut info = T::zeroed();
    let mut attr = Ask { fd: raw(object), length: size(size_of::<T>())?, info: address_mut(&mut info) };
    // SAFETY: `info` is ours alone and as long as said.
    #[expect(unsafe_code, reason = "bpf(2)")]
    unsafe {
        bpf(Command::ObjInfo, &mut attr)?;
    }
    Ok(info)
}
