//! A member Pod that dials on its own: a process in a cgroup that the Pod file gives to a decode Pod.
//!
//! The kernel knows it by that cgroup and must steer it to its own revision, whatever the weights. The process is
//! this same binary; for each byte that it reads it dials once and answers with a line. It ends with its parent.

use std::{
    env,
    io::{self, Read, Write},
    net::SocketAddr,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream as StdUnixStream, process::CommandExt},
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    time::{interval, timeout},
};

use super::{
    board::{Board, Lane, Outcome},
    isolation, stage, traffic,
};

/// Between two connections of a member.
const PACE: Duration = Duration::from_millis(25);
/// Longest time for one.
const PATIENCE: Duration = Duration::from_secs(20);

/// A member process and the line to it. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Member {
    child: Child,
    revision: usize,
    line: BufReader<UnixStream>,
}

impl Member {
    /// Starts a process that dials `vip`, in the cgroup of a Pod of that revision.
    pub(super) fn start(revision: usize, cgroup: &Path, vip: SocketAddr) -> io::Result<Self> {
        let (here, there) = StdUnixStream::pair()?;
        let there = OwnedFd::from(there);
        let child = Command::new(env::current_exe()?)
            .args(["demo", "--member", &vip.to_string()])
            .stdin(Stdio::from(there.try_clone()?))
            .stdout(Stdio::from(there))
            .process_group(0)
            .spawn()?;
        here.set_nonblocking(true)?;
        // Made first, so that the child is reaped should a later step fail.
        let member = Self { child, revision, line: BufReader::new(UnixStream::from_std(here)?) };
        isolation::join(cgroup, member.child.id())?;
        Ok(member)
    }

    /// Dials as long as the board has tickets.
    pub(super) async fn play(mut self, board: Arc<Board>) {
        let mut pace = interval(PACE);
        loop {
            pace.tick().await;
            let Some(ticket) = board.ticket(Lane::Member(self.revision)).await else { return };
            let outcome = match timeout(PATIENCE, self.ask()).await {
                Ok(Ok(answer)) => self.judge(&answer),
                Ok(Err(error)) => Outcome::Failed(format!("member process: {error}")),
                Err(_) => Outcome::Failed("member process: no answer".to_owned()),
            };
            board.record(ticket, outcome);
        }
    }

    async fn ask(&mut self) -> io::Result<String> {
        self.line.get_mut().write_all(b".").await?;
        let mut answer = String::new();
        self.line.read_line(&mut answer).await?;
        Ok(answer)
    }

    fn judge(&self, answer: &str) -> Outcome {
        let answer = answer.trim_end();
        match answer.strip_prefix(SERVED).and_then(stage::revision_of) {
            Some(revision) if revision == self.revision => Outcome::Served(revision),
            Some(_) => Outcome::Mixed(format!(
                "a Pod of {:?} was steered: {answer}",
                stage::REVISIONS.get(self.revision)
            )),
            None => Outcome::Failed(format!("a Pod of {:?}: {answer}", stage::REVISIONS.get(self.revision))),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Both fail only when it has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Before the name of the engine that served.
const SERVED: &str = "served by ";

/// The life of the member process: dials once for each byte on stdin, until that ends.
pub(super) fn live(vip: SocketAddr) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for byte in io::stdin().lock().bytes() {
        byte?;
        let answer = match runtime.block_on(traffic::once(vip)) {
            Ok((engine, _)) => format!("{SERVED}{engine}\n"),
            Err(why) => format!("{}\n", why.replace('\n', " ")),
        };
        let mut stdout = io::stdout();
        stdout.write_all(answer.as_bytes())?;
        stdout.flush()?;
    }
    Ok(())
}
