//! What can go wrong between the agent and the kernel.

use std::{borrow::Cow, io, path::PathBuf};

use super::tables::TooLarge;

/// What went wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The agent was built on a machine without the tools for the BPF target.
    #[error(
        "this agent was built without kernel programs; install the tools with `make setup` and build it again, or set \
         kernel.mode: off"
    )]
    NotBuilt,
    /// No cgroup2 root, or not the real one.
    #[error(transparent)]
    Cgroup(#[from] super::cgroup::CgroupError),
    /// The directory for pins is not on a bpffs.
    #[error("{path} is not on a BPF file system; mount one: mount -t bpf bpf {path}")]
    NoBpffs {
        /// The configured mount.
        path: PathBuf,
    },
    /// Another agent runs.
    #[error("another agent holds {path}; stop it first (two agents would publish over each other)")]
    Locked {
        /// The locked directory.
        path: PathBuf,
    },
    /// A pin could not be made, opened or removed.
    #[error("{action} {path}: {source}{}", permission(source))]
    Pin {
        /// What was done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The object did not load, or a program was refused.
    #[error("load the kernel object: {}", causes(source.as_ref()))]
    Load {
        /// What the loader or the verifier said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A program could not be attached.
    #[error("attach {program} to {cgroup}: {source}{}", permission(source))]
    Attach {
        /// The program.
        program: &'static str,
        /// The cgroup.
        cgroup: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Somebody's program does not let others onto the hook.
    #[error(
        "attach {program} to {cgroup}: program {id} is attached to {at} alone, without BPF_F_ALLOW_MULTI; have its \
         owner attach it with that flag, or detach it: bpftool cgroup detach {at} {program} id {id}"
    )]
    Exclusive {
        /// The program that was to be attached.
        program: &'static str,
        /// Where.
        cgroup: PathBuf,
        /// The cgroup where the other is, the same or one above.
        at: PathBuf,
        /// The id of the other.
        id: u32,
    },
    /// A program of an agent before could not be replaced or detached.
    #[error("replace {program} of the agent before: {source}{}", permission(source))]
    Replace {
        /// The program.
        program: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A table could not be written.
    #[error("write {table}: {source}{}", permission(source))]
    Write {
        /// The map.
        table: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A table could not be read.
    #[error("read {table}: {source}")]
    Read {
        /// The map.
        table: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The state does not fit into the tables.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The programs are attached, and a connect was not touched by them.
    #[error(
        "the kernel programs are attached and have no effect: {found}; is that outside the cgroup {cgroup}, or does \
         another program come first?"
    )]
    NoEffect {
        /// What the probe saw.
        found: String,
        /// The cgroup.
        cgroup: PathBuf,
    },
}

/// What a permission error of bpf(2) means here.
fn permission(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (the agent needs CAP_BPF and CAP_NET_ADMIN; see `revgate check`)"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            " (mount it for writing: mount -o remount,rw on the BPF file system)"
        }
        _ => "",
    }
}

/// An error and its causes in one line: the loader keeps the useful part below.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut hint = "";
    let mut next = Some(error);
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        if let Some(error) = cause.downcast_ref() {
            hint = permission(error);
        }
        next = cause.source();
    }
    format!("{}{hint}", bounded(&text))
}

/// Most bytes of the start of a message, which says what failed.
const HEAD: usize = 512;
/// Most bytes of the end of a message, where the verifier says why.
const TAIL: usize = 1024;

/// The start and the end of a text: the verifier's log has thousands of lines between them.
fn bounded(text: &str) -> Cow<'_, str> {
    let (head, rest) = text.split_at(text.floor_char_boundary(HEAD));
    let (middle, tail) = rest.split_at(rest.ceil_char_boundary(rest.len().saturating_sub(TAIL)));
    match middle.len() {
        0 => text.into(),
        left_out => format!("{head} [{left_out} bytes] {tail}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_verifier_log_the_start_and_the_end_are_told_and_what_may_be_missing() {
        #[derive(Debug, thiserror::Error)]
        #[error("the program is refused: {log}")]
        struct Refused {
            log: String,
            source: io::Error,
        }
        let log = format!("{}R5 pointer arithmetic", "0: (b7) r1 = 0 \u{2026}\n".repeat(1000));
        let error = Refused { log, source: io::Error::from_raw_os_error(libc::EACCES) };
        let text = KernelError::Load { source: Box::new(error) }.to_string();
        assert!(text.len() < 2048, "{}", text.len());
        assert!(text.starts_with("load the kernel object: the program is refused"), "{text}");
        assert!(text.contains("R5 pointer arithmetic") && text.contains("CAP_BPF"), "{text}");
    }
}
