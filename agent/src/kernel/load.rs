//! Loads the object onto the pinned maps and puts its programs into the hooks.
//!
//! A link that is there gets the new program in one step, so that no connect finds none or two. Only a link that
//! cannot be used (its cgroup is gone, or is another one) is made anew. New links allow others on the same hook: the
//! kernel attaches every link with `BPF_F_ALLOW_MULTI`.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use aya::{Ebpf, EbpfLoader, programs::Program};
use revgate_common::layout::map;

use super::{
    KernelError, cgroup,
    object::{COUNT, HOOKS, Hook},
    pins::Pins,
    sys,
    takeover::{Left, Takeover},
};

/// Lets go of the places of TCP sockets where nobody may have heard of their ends: they would be taken for ever.
pub(super) fn forget_unheard(pins: &Pins, path: &Path) -> Result<(), KernelError> {
    if live_link(pins, COUNT, cgroup::id(path)?)?.is_none() {
        pins.drop_map(map::PEERS)?;
    }
    Ok(())
}

/// Loads an object: maps are opened where they are pinned, and else made and pinned.
pub(super) fn load(object: &[u8], pins: &Pins) -> Result<Ebpf, KernelError> {
    let mut loader = EbpfLoader::new();
    for name in map::ALL {
        loader.map_pin_path(name, pins.map(name));
    }
    loader.load(object).map_err(|source| KernelError::Load { source: Box::new(source) })
}

/// Attaches every program to the cgroup, each in the place of the one before.
///
/// Where a hook still runs a program on other maps than these, nothing is attached: that is [`Takeover`]'s, which is
/// returned, once the tables are in force.
pub(super) fn attach(ebpf: &mut Ebpf, pins: &Pins, path: &Path) -> Result<Option<Takeover>, KernelError> {
    let failed =
        |source: io::Error| KernelError::Attach { program: "programs", cgroup: path.to_path_buf(), source };
    // All, before the first is attached: half of them would be worse than none.
    for Hook { program, .. } in HOOKS {
        verify(ebpf, program)?;
    }
    let directory = File::open(path).map_err(failed)?;
    let id = cgroup::id(path)?;
    let left = Left::find(pins, id)?;
    let mut later = Vec::new();
    let mut made = Vec::new();
    for hook in HOOKS {
        let program = hook.program;
        let fd = ready(ebpf, program)?;
        if update(pins, program, id, fd)? {
            pins.keep_program(program, fd)?;
        } else if left.runs(program) {
            pins.drop_link(program)?;
            later.push((program, fd.try_clone_to_owned().map_err(failed)?));
        } else {
            pins.drop_link(program)?;
            let link = sys::link_create(fd, directory.as_fd(), hook.attach_type);
            let link = match link.map_err(|source| refused(&hook, path, source)) {
                Ok(link) => link,
                Err(error) => {
                    // Half of the programs is worth nothing.
                    for made in made {
                        pins.drop_link(made)?;
                    }
                    return Err(error);
                }
            };
            pins.keep_link(program, link.as_fd())?;
            pins.keep_program(program, fd)?;
            made.push(program);
        }
    }
    Ok((!left.is_empty()).then(|| Takeover::new(pins, left, later)))
}

/// Why a program was not attached: the kernel says no more than "not permitted" when another is there alone.
fn refused(hook: &Hook, cgroup: &Path, source: io::Error) -> KernelError {
    if source.kind() == io::ErrorKind::PermissionDenied {
        for at in cgroup.ancestors().take_while(|at| cgroup::is_cgroup2(at).unwrap_or(false)) {
            let found = File::open(at).and_then(|at| sys::attached(at.as_fd(), hook.attach_type));
            if let Ok(sys::Attached { programs, alone: true }) = found
                && let Some(id) = programs.first().copied()
            {
                let (cgroup, at) = (cgroup.to_path_buf(), at.to_path_buf());
                return KernelError::Exclusive { program: hook.program, cgroup, at, id };
            }
        }
    }
    KernelError::Attach { program: hook.program, cgroup: cgroup.to_path_buf(), source }
}

/// Replaces the program of the pinned link. False: there is no link, or it is of no use.
fn update(pins: &Pins, program: &str, cgroup: u64, fd: BorrowedFd<'_>) -> Result<bool, KernelError> {
    let failed = |source| KernelError::Pin { action: "update", path: pins.link(program), source };
    let Some(link) = live_link(pins, program, cgroup)? else { return Ok(false) };
    sys::link_update(link.as_fd(), fd).map_err(failed)?;
    Ok(true)
}

/// The pinned link of a program, if it is to this cgroup.
fn live_link(pins: &Pins, program: &str, cgroup: u64) -> Result<Option<OwnedFd>, KernelError> {
    let Some(link) = pins.open_link(program)? else { return Ok(None) };
    let info = pins.link_info(program, link.as_fd())?;
    Ok(info.is_some_and(|info| info.cgroup == cgroup).then_some(link))
}

/// Hands a program to the verifier, once.
fn verify(ebpf: &mut Ebpf, name: &str) -> Result<(), KernelError> {
    match ebpf.program_mut(name) {
        Some(Program::CgroupSockAddr(program)) => program.load(),
        Some(Program::SockOps(program)) => program.load(),
        _ => return Err(missing(name)),
    }
    .map_err(|source| KernelError::Load { source: Box::new(source) })
}

/// A program that passed the verifier.
fn ready<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<BorrowedFd<'e>, KernelError> {
    let program = ebpf.program(name).ok_or_else(|| missing(name))?;
    let fd = program.fd().map_err(|source| KernelError::Load { source: Box::new(source) })?;
    Ok(fd.as_fd())
}

fn missing(name: &str) -> KernelError {
    KernelError::Load { source: format!("the object has no program {name}").into() }
}
