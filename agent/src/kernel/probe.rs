//! Proves the effect of the programs with a connect that they must deny (K9), from another cgroup than the agent's own
//! where the agent may make one.
//!
//! [`PROBE`](layout::PROBE) is a loopback address on which nobody listens: a connect to it is refused by the kernel's
//! own TCP where no program runs (`ECONNREFUSED`), and by the programs with `EHOSTUNREACH` and a counter of its own.
//!
//! | what | proves | takes |
//! |---|---|---|
//! | the agent dials | its own dials, which carry pins, meet the programs | nothing |
//! | the kernel is asked what runs in each cgroup below the root | the programs are in force there, whoever dials | `CAP_NET_ADMIN` |
//! | a process in a cgroup made for it, outside the agent's, dials | connects of others meet the programs | a cgroup2 that can be written, from the host's cgroup namespace |
//!
//! The last says nothing that the second does not; but the second is the kernel's word and not an observation.

use std::{
    fmt, fs,
    fs::File,
    io,
    net::{SocketAddr, TcpStream},
    os::fd::AsFd,
    path::Path,
    time::Duration,
};

use revgate_common::layout;

use super::{
    KernelError,
    elsewhere::connect_inside,
    object::{HOOKS, Hook},
    pins::Pins,
    sys,
};

/// A connect on loopback answers at once; this only bounds a machine that drops such packets.
const PATIENCE: Duration = Duration::from_secs(1);
/// Made below the cgroup with the programs for the time of one connect.
const ELSEWHERE: &str = "revgate-probe";

/// What was seen to act, and what is only known from the kernel.
#[derive(Debug)]
pub struct Proof {
    /// In so many cgroups next to each other, and in all below them, the kernel runs the programs.
    pub cgroups: usize,
    /// Why no process outside the agent's cgroup dialled; `None`: one did.
    pub only_here: Option<io::Error>,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.only_here {
            None => f.write_str("seen on a connect of the agent and on one from another cgroup")?,
            Some(why) => write!(f, "seen on a connect of the agent; not on one from another cgroup ({why})")?,
        }
        write!(f, "; in force in {} cgroups below the root and all of theirs", self.cgroups)
    }
}

/// Looks at all of it. After the first publication: before, the tables do not know the address.
pub(super) fn probe(cgroup: &Path, pins: &Pins) -> Result<Proof, KernelError> {
    let no_effect = |found| KernelError::NoEffect { found, cgroup: cgroup.to_path_buf() };
    let to: SocketAddr = layout::PROBE.into();
    match TcpStream::connect_timeout(&to, PATIENCE) {
        Err(error) if error.kind() == io::ErrorKind::HostUnreachable => {}
        Err(error) => return Err(no_effect(format!("a connect to {to} ended with: {error}"))),
        Ok(_) => return Err(no_effect(format!("a connect to {to} succeeded"))),
    }
    let cgroups = in_force_below(cgroup, pins)?;
    let only_here = match from_elsewhere(cgroup, to) {
        Ok(Some(error)) if error.kind() == io::ErrorKind::HostUnreachable => None,
        Ok(ended) => {
            let ended = ended.map_or_else(|| "success".to_owned(), |error| error.to_string());
            return Err(no_effect(format!("a connect from {ELSEWHERE} to {to} ended with: {ended}")));
        }
        Err(error) => Some(error),
    };
    Ok(Proof { cgroups, only_here })
}

/// Asks the kernel of every cgroup just below one: this agent's programs must be among those that run there. Returns how
/// many there are.
fn in_force_below(cgroup: &Path, pins: &Pins) -> Result<usize, KernelError> {
    let mut ours = Vec::with_capacity(HOOKS.len());
    for Hook { program, attach_type } in HOOKS {
        let Some(link) = pins.open_link(program)? else { continue };
        ours.extend(pins.link_info(program, link.as_fd())?.map(|info| (program, attach_type, info.program)));
    }
    let list = |source| KernelError::Attach { program: "programs", cgroup: cgroup.to_path_buf(), source };
    let mut asked = 0;
    for entry in fs::read_dir(cgroup).map_err(list)? {
        let entry = entry.map_err(list)?;
        if !entry.file_type().map_err(list)?.is_dir() {
            continue;
        }
        let directory = match File::open(entry.path()) {
            // One that has gone meanwhile runs nothing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(list)?,
        };
        for (program, attach_type, id) in &ours {
            let failed = |source| KernelError::Attach { program, cgroup: cgroup.to_path_buf(), source };
            match sys::effective(directory.as_fd(), *attach_type) {
                Ok(running) if running.contains(id) => {}
                Ok(_) => {
                    let found =
                        format!("program {id} ({program}) does not run in {}", entry.path().display());
                    return Err(KernelError::NoEffect { found, cgroup: cgroup.to_path_buf() });
                }
                // It has gone.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        asked += 1;
    }
    Ok(asked)
}

/// How a connect ends from a cgroup that is made for it; `None`: it succeeded. An error: it could not be tried.
fn from_elsewhere(cgroup: &Path, to: SocketAddr) -> io::Result<Option<io::Error>> {
    let elsewhere = cgroup.join(ELSEWHERE);
    match fs::create_dir(&elsewhere) {
        // Left by an agent that was killed in between.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let entrance = File::options().write(true).open(elsewhere.join("cgroup.procs"));
    let ended = entrance.and_then(|entrance| connect_inside(entrance.as_fd(), to));
    if let Err(error) = fs::remove_dir(&elsewhere) {
        tracing::warn!(path = %elsewhere.display(), %error, "the cgroup of the probe stays; remove it by hand");
    }
    ended
}
