//! The agent as a process of its own, `revgate run`, and what it reports of itself.

use std::{
    env, fs,
    fs::File,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep, timeout};

use super::stage::{REVISIONS, ROLES, Stage};
use crate::{
    cli::{fetch, outcome::Failure},
    observe::{
        Report,
        report::{Enforcement, RevisionReport},
    },
    rollout::Step,
};

/// Longest time for the agent to start, or to bring a step into force.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at its report.
const INTERVAL: Duration = Duration::from_millis(20);
/// Longest time for it to end after SIGTERM.
const FAREWELL: Duration = Duration::from_secs(8);
/// Lines of its log that are shown when it fails.
const LOG_LINES: usize = 15;

/// The running agent. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Agent {
    child: Child,
    address: fetch::Address,
    log: PathBuf,
}

impl Agent {
    /// Starts this same binary as `revgate run`.
    pub(super) fn start(stage: &Stage) -> Result<Self, Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| Failure::failed(format!("{what}: {error}"));
        let log = stage.directory().join("agent.log");
        let file = File::create(&log).map_err(|error| failed("cannot make the agent's log", &error))?;
        let copy = file.try_clone().map_err(|error| failed("cannot make the agent's log", &error))?;
        let binary = env::current_exe().map_err(|error| failed("cannot find this binary", &error))?;
        let child = Command::new(binary)
            .args(["run", "--config"])
            .arg(stage.config_path())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            // Ctrl-C is for the demo, which ends the agent in order.
            .process_group(0)
            .spawn()
            .map_err(|error| failed("cannot start the agent", &error))?;
        let address = stage.admin().to_string().parse().map_err(Failure::failed)?;
        Ok(Self { child, address, log })
    }

    /// Its report.
    pub(super) async fn report(&self) -> Result<Report, fetch::FetchError> {
        fetch::fetch(&self.address).await
    }

    /// Waits until a step is in force: in user space, and in the kernel where that is on.
    pub(super) async fn in_force(&mut self, step: &Step) -> Result<Report, Failure> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = String::new();
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(self.with_log(Failure::failed(format!("the agent ended: {status}"))));
            }
            match timeout(PATIENCE, self.report()).await {
                Ok(Ok(report)) if shows(&report, step) => return Ok(report),
                Ok(Ok(report)) => {
                    last = format!("it is at generation {}: {:?}", report.generation, report.waiting);
                }
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => "it does not answer".clone_into(&mut last),
            }
            sleep(INTERVAL).await;
        }
        let message =
            format!("the agent did not bring the step into force within {} s; {last}", PATIENCE.as_secs());
        Err(self.with_log(Failure::failed(message)))
    }

    fn with_log(&self, failure: Failure) -> Failure {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let skip = lines.len().saturating_sub(LOG_LINES);
        lines.into_iter().skip(skip).fold(failure.hint("The agent's last words:"), Failure::hint)
    }

    /// Ends it in order; an error says how it ended instead.
    pub(super) async fn stop(mut self) -> Result<(), Failure> {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + FAREWELL;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(self.with_log(Failure::failed(format!("the agent ended badly: {status}"))));
                }
                Ok(None) => sleep(INTERVAL).await,
                Err(error) => return Err(Failure::failed(format!("cannot wait for the agent: {error}"))),
            }
        }
        Err(self.with_log(Failure::failed("the agent did not end after SIGTERM and was killed")))
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(process, signal);
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Both fail only when it has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the Ready counts of a step are in force.
fn shows(report: &Report, step: &Step) -> bool {
    let Some(set) = report.sets.first().filter(|_| report.ready && report.synced) else { return false };
    let kernel = report.kernel.mode == Enforcement::UserSpace || report.kernel.in_step;
    let counts = |name: &str| -> Vec<u32> {
        let ready = |revision: &RevisionReport, role: &str| {
            revision.roles.iter().find(|report| report.name == role).map_or(0, |report| report.ready)
        };
        let revision = set.revisions.iter().find(|revision| revision.name == name);
        ROLES.iter().map(|role| revision.map_or(0, |revision| ready(revision, role))).collect()
    };
    kernel && REVISIONS.iter().zip([&step.old, &step.new]).all(|(name, expected)| counts(name) == *expected)
}

/// What the kernel has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Kernel {
    /// By pin.
    pub(super) pin: u64,
    /// By the dialling Pod's own revision.
    pub(super) own: u64,
    /// By weight.
    pub(super) weight: u64,
    /// Denied, for whatever reason.
    pub(super) denied: u64,
}

impl Kernel {
    /// Reads it out of a report; all 0 without kernel programs.
    pub(super) fn of(report: &Report) -> Self {
        let mut kernel = Self::default();
        for outcome in &report.kernel.connects {
            match outcome.outcome.as_str() {
                "steered_pin" => kernel.pin = outcome.count,
                "steered_own" => kernel.own = outcome.count,
                "steered_weight" => kernel.weight = outcome.count,
                denied if denied.starts_with("denied_") => {
                    kernel.denied = kernel.denied.saturating_add(outcome.count);
                }
                _ => {}
            }
        }
        kernel
    }

    /// What it has done since.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            pin: self.pin.saturating_sub(earlier.pin),
            own: self.own.saturating_sub(earlier.own),
            weight: self.weight.saturating_sub(earlier.weight),
            denied: self.denied.saturating_sub(earlier.denied),
        }
    }

    pub(super) fn steered(self) -> u64 {
        self.pin.saturating_add(self.own).saturating_add(self.weight)
    }
}
