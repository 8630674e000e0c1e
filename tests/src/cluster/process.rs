//! A server of the cluster: started with a log, watched while it is waited for, ended by its pid.

use std::{
    fmt::Debug,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::within;

/// Longest time for anything that a cluster does. Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// How long a server may take to end in order. The API server takes seconds.
const END: Duration = Duration::from_secs(40);

/// A running server. It ends with this value.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts it; what it says goes to `NAME.log` in this folder, after what one before it said.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    #[must_use]
    pub fn start(name: &str, mut command: Command, logs: &Path) -> Self {
        let log = logs.join(format!("{name}.log"));
        let file = File::options().create(true).append(true).open(&log).expect("a log");
        let copy = file.try_clone().expect("a log");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn();
        let child = child.unwrap_or_else(|error| panic!("start {name} ({command:?}): {error}"));
        Self { name: name.to_owned(), log, child }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its pid.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has said.
    #[must_use]
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Fails the test, with what it said last, if it has ended.
    ///
    /// # Panics
    ///
    /// When it has ended.
    pub fn is_alive(&mut self) {
        if let Some(status) = self.child.try_wait().expect("a child") {
            panic!("{} ended with {status}:\n{}", self.name, self.last_words());
        }
    }

    /// The last lines of its log.
    #[must_use]
    pub fn last_words(&self) -> String {
        let said = self.said();
        let from = said.lines().count().saturating_sub(15);
        said.lines().skip(from).collect::<Vec<_>>().join("\n")
    }

    /// SIGTERM; returns when it is gone. One that does not go is killed.
    pub fn stop(mut self) {
        self.end(Signal::TERM);
    }

    /// SIGKILL; returns when it is gone.
    pub fn kill(mut self) {
        self.end(Signal::KILL);
    }

    #[expect(clippy::disallowed_methods, reason = "the bound of a wait that would not end")]
    fn end(&mut self, signal: Signal) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It is a child that has not been waited for: the pid is still its own.
            let _ = kill_process(pid, signal);
        }
        let end = Instant::now() + END;
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(Signal::TERM);
    }
}

/// Looks until it is there, and returns what was seen then.
///
/// # Panics
///
/// When it is not there for too long; says what was seen last.
pub fn eventually<T: Debug>(what: &str, look: impl FnMut() -> T, there: impl Fn(&T) -> bool) -> T {
    within(PATIENCE, Duration::from_millis(100), what, look, there)
}
