//! The lines that the programs write for every decision, with `kernel.trace`: to look at single connects, never to count.
//!
//! They come from another object than the one that runs otherwise, through a ring buffer that belongs to its programs
//! and is pinned nowhere. The next agent puts its own programs into the links, traced or not.

use std::{convert::Infallible, fmt, io};

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use revgate_common::counter::Counter;
use tokio::io::{Interest, unix::AsyncFd};
use tracing::info;

use super::KernelError;

/// The lines, oldest first.
pub struct Trace(Box<EbpfLogger<Lines>>);

impl Trace {
    /// Takes the ring buffer of programs that are loaded.
    pub(super) fn open(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        let logger = EbpfLogger::init_with_logger(ebpf, Lines);
        logger
            .map(|logger| Self(Box::new(logger)))
            .map_err(|source| KernelError::Load { source: Box::new(source) })
    }

    /// Writes them into the agent's log as they come.
    #[expect(unsafe_code, reason = "a descriptor is handed to the runtime")]
    pub async fn follow(self) -> io::Result<Infallible> {
        // SAFETY: the descriptor is the ring's own, the same for as long as the ring lives, which is inside.
        let registered = unsafe { AsyncFd::register_with_interest(self.0, Interest::READABLE) };
        let mut ring = registered.map_err(|refused| refused.into_parts().1)?;
        loop {
            let mut ready = ring.readable_mut().await?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").finish_non_exhaustive()
    }
}

/// Hands lines on to `tracing`.
struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        info!(target: "revgate::trace", "{}", with_word(&record.args().to_string()));
    }

    fn flush(&self) {}
}

/// The line with the word for its outcome, of which the programs know the number only.
fn with_word(line: &str) -> String {
    let outcome = |(head, number): (&str, &str)| {
        let number: u32 = number.parse().ok()?;
        let counter = Counter::ALL.into_iter().find(|counter| *counter as u32 == number)?;
        Some(format!("{head}: {}", counter.name()))
    };
    line.rsplit_once(": ").and_then(outcome).unwrap_or_else(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_gets_its_word_and_what_is_none_stays() {
        let line = "cgroup 7 to [::ffff:127.0.0.1]:80: ";
        assert_eq!(with_word(&format!("{line}2")), format!("{line}steered_weight"));
        for strange in ["", "cgroup 7: 99", "cgroup 7: x", "2"] {
            assert_eq!(with_word(strange), strange);
        }
    }
}
