//! Loads the object onto the pinned maps and puts its programs into the hooks.
//!
//! A link that is there gets the new program in one step, so that no connect finds none or two. Only a link that
//! cannot be used (its cgroup is gone, or is another one) is made anew.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use aya::{Ebpf, EbpfLoader, programs::Program};
use revgate_common::layout::map;

use super::{
    KernelError, cgroup,
    object::{self, HOOKS, Hook},
    pins::Pins,
    sys,
};

/// Loads the object: maps are opened where they are pinned, and else made and pinned.
pub(super) fn load(pins: &Pins) -> Result<Ebpf, KernelError> {
    let object = object::bytes().ok_or(KernelError::NotBuilt)?;
    let mut loader = EbpfLoader::new();
    for name in map::ALL {
        loader.map_pin_path(name, pins.map(name));
    }
    loader.load(object).map_err(|source| KernelError::Load { source: Box::new(source) })
}

/// Attaches every program to the cgroup, each in the place of the one before.
pub(super) fn attach(ebpf: &mut Ebpf, pins: &Pins, path: &Path) -> Result<(), KernelError> {
    let failed = |program: &'static str| {
        move |source: io::Error| KernelError::Attach { program, cgroup: path.to_path_buf(), source }
    };
    // All, before the first is attached: half of them would be worse than none.
    for Hook { program, .. } in HOOKS {
        verify(ebpf, program)?;
    }
    let directory = File::open(path).map_err(failed("programs"))?;
    let id = cgroup::id(path)?;
    for Hook { program, attach_type } in HOOKS {
        let fd = ready(ebpf, program)?;
        if !update(pins, program, id, fd)? {
            pins.drop_link(program)?;
            let link = sys::link_create(fd, directory.as_fd(), attach_type).map_err(failed(program))?;
            pins.keep_link(program, link.as_fd())?;
        }
        pins.keep_program(program, fd)?;
    }
    Ok(())
}

/// Replaces the program of the pinned link. False: there is no link, or it is of no use.
fn update(pins: &Pins, program: &str, cgroup: u64, fd: BorrowedFd<'_>) -> Result<bool, KernelError> {
    let path = pins.link(program);
    let failed = |source| KernelError::Pin { action: "update", path: path.clone(), source };
    let link = match sys::open(&path) {
        Ok(link) => link,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(failed(source)),
    };
    if sys::link_cgroup(link.as_fd()).map_err(failed)? != cgroup {
        return Ok(false);
    }
    sys::link_update(link.as_fd(), fd).map_err(failed)?;
    Ok(true)
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
