//! What agents before left attached, and how it is replaced without a connect in between that nobody steers.
//!
//! Programs of this layout are replaced at once: they read the same maps. Those of another layout, or on maps that
//! are damaged or lost, stay attached to theirs until the new tables are in force; then each link gets the new
//! program in one step and becomes this agent's. A hook so runs one copy at every moment, the old or the new.
//!
//! | found | what it is |
//! |---|---|
//! | another directory beside this layout's | another version's pins, or this version's that were set aside |
//! | a link that nobody pins | its pins were removed while somebody held it |
//!
//! The second can only be seen with `CAP_SYS_ADMIN`; a link ends with its last pin and holder, so it is rare.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use aya::{maps::loaded_maps, programs::loaded_programs};
use revgate_common::layout::map;

use super::{
    KernelError,
    object::{HOOKS, Hook},
    pins::Pins,
    sys,
};

/// What is attached to the cgroup and not by a pin of this layout.
#[derive(Debug)]
pub(super) struct Left {
    links: Vec<LeftLink>,
    directories: Vec<Pins>,
}

#[derive(Debug)]
struct LeftLink {
    program: &'static str,
    link: OwnedFd,
    id: u32,
    pin: Option<PathBuf>,
}

impl Left {
    /// Looks for it.
    pub(super) fn find(pins: &Pins, cgroup: u64) -> Result<Self, KernelError> {
        let mut left = Self { links: Vec::new(), directories: pins.others()? };
        let mut known = Vec::new();
        for directory in std::iter::once(pins).chain(&left.directories) {
            for Hook { program, .. } in HOOKS {
                let Some(link) = directory.open_link(program)? else { continue };
                let Some(info) = directory.link_info(program, link.as_fd())? else { continue };
                known.push(info.id);
                if !std::ptr::eq(directory, pins) && info.cgroup == cgroup {
                    left.links.push(LeftLink {
                        program,
                        link,
                        id: info.id,
                        pin: Some(directory.link(program)),
                    });
                }
            }
        }
        match strays(cgroup, &known) {
            Ok(strays) => left.links.extend(strays),
            Err(error) => tracing::debug!(%error, "links without a pin cannot be looked for"),
        }
        Ok(left)
    }

    /// Nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty() && self.directories.is_empty()
    }

    /// Whether a program of this name runs.
    pub(super) fn runs(&self, program: &str) -> bool {
        self.links.iter().any(|left| left.program == program)
    }

    /// Detaches and forgets it all. Returns the pins that were removed.
    pub(super) fn remove(&self) -> Result<Vec<PathBuf>, KernelError> {
        for LeftLink { program, link, .. } in &self.links {
            sys::link_detach(link.as_fd()).map_err(|source| failed(program, source))?;
        }
        let mut removed = Vec::new();
        for directory in &self.directories {
            removed.extend(directory.remove()?);
        }
        Ok(removed)
    }
}

/// What is left and what comes in its place.
#[derive(Debug)]
pub(super) struct Takeover {
    pins: Pins,
    left: Left,
    programs: Vec<(&'static str, OwnedFd)>,
}

impl Takeover {
    /// `programs` are loaded, and attached nowhere.
    pub(super) fn new(pins: &Pins, left: Left, programs: Vec<(&'static str, OwnedFd)>) -> Self {
        Self { pins: pins.clone(), left, programs }
    }

    /// Puts the programs into the links that are left, and removes what is then left over. After an error it can be
    /// called again.
    pub(super) fn run(&self) -> Result<(), KernelError> {
        for LeftLink { program, link, id, pin } in &self.left.links {
            let next = self.programs.iter().find(|(name, _)| name == program);
            match (self.pins.link_id(program)?, next) {
                // It was taken over before an error.
                (Some(ours), _) if ours == *id => {}
                (None, Some((name, next))) => {
                    sys::link_update(link.as_fd(), next.as_fd()).map_err(|source| failed(program, source))?;
                    self.pins.adopt_link(name, link.as_fd(), pin.as_deref())?;
                    self.pins.keep_program(name, next.as_fd())?;
                }
                // Another link runs it already, and this one would be a second copy.
                _ => sys::link_detach(link.as_fd()).map_err(|source| failed(program, source))?,
            }
        }
        for directory in &self.left.directories {
            directory.remove()?;
        }
        Ok(())
    }
}

fn failed(program: &'static str, source: io::Error) -> KernelError {
    KernelError::Replace { program, source }
}

/// Links to the cgroup that run programs of revgate and are not among the known ones.
fn strays(cgroup: u64, known: &[u32]) -> io::Result<Vec<LeftLink>> {
    let mut strays = Vec::new();
    for link in sys::links()? {
        let Some(info) = sys::link_info(link.as_fd())? else { continue };
        if info.cgroup != cgroup || known.contains(&info.id) {
            continue;
        }
        let hook = HOOKS.iter().find(|hook| hook.attach_type == info.attach_type);
        if let Some(Hook { program, .. }) = hook
            && is_ours(info.program, program)?
        {
            strays.push(LeftLink { program, link, id: info.id, pin: None });
        }
    }
    Ok(strays)
}

/// Whether a program is one of revgate's: by its name, which others may use too, and by the map of peers that all of
/// revgate's programs share.
fn is_ours(id: u32, name: &str) -> io::Result<bool> {
    let program = loaded_programs().filter_map(Result::ok).find(|program| program.id() == id);
    let Some(program) = program.filter(|program| program.name_as_str() == Some(name)) else {
        return Ok(false);
    };
    let maps = program.map_ids().map_err(io::Error::other)?.unwrap_or_default();
    Ok(loaded_maps()
        .filter_map(Result::ok)
        .any(|found| maps.contains(&found.id()) && found.name_as_str() == Some(map::PEERS)))
}
