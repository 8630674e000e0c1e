//! `revgate demo`: a whole rollout on this machine, steered by a real agent and, where that can be, by the kernel.
//!
//! In one process tree: simulated engines of two revisions, the agent as a child (`revgate run`), clients, and the
//! plan of a rollout played through the Pod file. Everything is on 127.0.0.0/8.
//!
//! `stage` holds addresses, engines and files, `isolation` the demo's own corner of the kernel, `child` the
//! agent, `traffic` and `member` the clients, `board` the score, `judge` and `chance` the verdict, and
//! `view` shows it.

mod board;
mod chance;
mod child;
mod isolation;
mod judge;
mod member;
mod peer;
mod stage;
mod traffic;
mod view;

use std::{fmt::Write as _, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    select,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    outcome::{Exit, Failure},
    output::Output,
};
use crate::{
    observe::{Report, report::Enforcement},
    rollout::{self, Limits, Step},
};
use board::Board;
use child::{Agent, Kernel};
use isolation::Isolation;
use judge::Played;
use member::Member;
use stage::{Handover, REVISIONS, ROLES, Stage};
use traffic::Way;
use view::View;

/// Prefill and Decode Pods of each revision.
const SIZE: [u32; 2] = [2, 10];
/// How far the rollout may go below that.
const LIMITS: Limits = Limits { max_unavailable: 2, max_surge: 0 };
/// Clients that ask for pairs.
const COORDINATORS: u64 = 8;
/// Clients that dial the VIP.
const DIALLERS: u64 = 4;
/// How long a step lasts at least, without `--fast`.
const STEP: Duration = Duration::from_secs(6);
/// Between two drawings.
const TICK: Duration = Duration::from_millis(250);
/// Longest time for the clients to end.
const FAREWELL: Duration = Duration::from_secs(20);

/// Watch a rollout being steered, on this machine and with no cluster.
///
/// Starts simulated engines of two revisions and an agent, plays a rollout of 2 Prefill and 10 Decode Pods, and sends
/// requests all the while: pairs of a Prefill and a Decode leg each, plain clients of a VIP, and processes of member
/// Pods. Every pair must stay on one revision, and every share must be what the Ready Pods say.
/// As root, with a bpffs mounted, the kernel programs take part, in a cgroup of the demo's own.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 all as it should be; 1 a pair was mixed, a request failed or a share was off beyond \
                  chance.\nWithout --fast it takes about 70 s."
)]
pub struct Args {
    /// Take less than 20 s, with fewer requests.
    #[arg(long)]
    fast: bool,
    /// Pairs, and VIP connections, whose shares are judged in each step [default: 1200, with --fast 300].
    #[arg(long, value_name = "REQUESTS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    requests_per_step: Option<u64>,
    /// The seed of the clients' requests.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Keep the configuration, the Pod file and the agent's log.
    #[arg(long)]
    keep: bool,
    /// Where a request's legs are put together: by a coordinator between two listeners, or by the agent itself.
    #[arg(long, value_enum, default_value_t = Layout::PerRole)]
    layout: Layout,
    /// How the engines hand the KV cache on; a coordinator knows `nixlv2` only.
    #[arg(long, value_enum, default_value_t = Handover::NixlV2)]
    connector: Handover,
    /// Leave the kernel programs out.
    #[arg(long)]
    no_kernel: bool,
    /// Be the process of a member Pod that dials this VIP.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    member: Option<SocketAddr>,
}

/// Who puts the legs of a request together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Layout {
    /// One router per role: coordinators, between a Prefill and a Decode listener.
    PerRole,
    /// One shared router: the agent's pair listener.
    Shared,
}

impl Args {
    fn requests(&self) -> u64 {
        self.requests_per_step.unwrap_or(if self.fast { 300 } else { 1200 })
    }

    /// The pace of one of several clients that together have a step's time for its requests.
    fn pace(&self, clients: u64) -> Option<Duration> {
        let per_client = u32::try_from(self.requests().div_ceil(clients)).unwrap_or(u32::MAX);
        (!self.fast).then(|| STEP / per_client.max(1))
    }
}

/// Plays the demo.
pub fn run(args: &Args, out: &mut Output) -> Result<Exit, Failure> {
    if let Some(vip) = args.member {
        return member::live(vip).map(|()| Exit::Done).map_err(Failure::failed);
    }
    if args.layout == Layout::PerRole && args.connector != Handover::NixlV2 {
        let error = Failure::usage(format!("--connector {} needs --layout shared", args.connector));
        return Err(error.hint("the coordinators of the other layout run the legs of nixlv2 only"));
    }
    // Made before the runtime, because it must outlive the processes that the runtime's tasks hold.
    let isolation = Isolation::enter(!args.no_kernel, &REVISIONS);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    let exit = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
        let mut view = View::new(out);
        // Dropped in the middle, the play ends its processes and removes its files.
        select! {
            exit = play(args, &isolation, &mut view) => exit,
            _ = interrupt.recv() => Err(Failure::failed("interrupted")),
            _ = terminate.recv() => Err(Failure::failed("terminated")),
        }
    });
    drop(runtime);
    let left = isolation.leave();
    let exit = exit?;
    left.map(|()| exit)
}

async fn play(args: &Args, isolation: &Isolation, view: &mut View<'_>) -> Result<Exit, Failure> {
    let plan = rollout::plan(&SIZE, &SIZE, LIMITS).map_err(Failure::failed)?;
    let mut stage = Stage::set(args.layout == Layout::Shared, args.connector).await?;
    if args.keep {
        let directory = stage.keep().display().to_string();
        view.say(&format!("files: {directory}\n"))?;
    }
    let wrong = Performance::start(args, &plan, &mut stage, isolation, view).await?.play(&plan, view).await?;
    Ok(if wrong { Exit::Failed } else { Exit::Done })
}

/// A play under way.
struct Performance<'a> {
    args: &'a Args,
    stage: &'a mut Stage,
    isolation: &'a Isolation,
    /// With kernel programs.
    kernel: bool,
    /// How many shares are left to chance.
    tests: usize,
    board: Arc<Board>,
    clients: JoinSet<()>,
    agent: Agent,
    faults: Vec<String>,
    /// What the kernel had done before the first step: the agent's own probe, say.
    opening: Kernel,
    /// What it had done when the step before ended.
    before: Kernel,
}

impl<'a> Performance<'a> {
    /// Starts the agent and the clients on the first step.
    async fn start(
        args: &'a Args,
        plan: &[Step],
        stage: &'a mut Stage,
        isolation: &'a Isolation,
        view: &mut View<'_>,
    ) -> Result<Self, Failure> {
        let Some(first) = plan.first() else { return Err(Failure::failed("a plan without a step")) };
        stage.raise(first).await?;
        stage.write_config(isolation)?;
        stage.write_pods(first, isolation)?;
        let mut agent = Agent::start(stage)?;
        let report = agent.in_force(first).await?;
        let kernel = report.kernel.mode == Enforcement::Ebpf;
        view.say(&opening(args, &report, isolation, view.styles().heading))?;

        let board = Arc::new(Board::new(REVISIONS.len()));
        let mut clients = JoinSet::new();
        let way = match args.layout {
            Layout::PerRole => Way::PerRole { prefill: stage.listener(0), decode: stage.listener(1) },
            Layout::Shared => Way::Shared(stage.listener(0)),
        };
        for client in 0..COORDINATORS {
            let seed = args.seed.wrapping_add(client);
            clients.spawn(traffic::coordinate(Arc::clone(&board), way, args.pace(COORDINATORS), seed));
        }
        if kernel {
            for _ in 0..DIALLERS {
                clients.spawn(traffic::dial(Arc::clone(&board), stage.vip(1), args.pace(DIALLERS)));
            }
            for revision in 0..REVISIONS.len() {
                if let Some(cgroup) = isolation.member(revision) {
                    let member = Member::start(revision, cgroup, stage.vip(0)).map_err(|error| {
                        Failure::failed(format!("cannot start a member process: {error}"))
                    })?;
                    clients.spawn(member.play(Arc::clone(&board)));
                }
            }
        }
        let tests = judge::tests(plan, if kernel { 2 } else { 1 });
        let opening = Kernel::of(&report);
        let before = opening;
        Ok(Self {
            args,
            stage,
            isolation,
            kernel,
            tests,
            board,
            clients,
            agent,
            faults: Vec::new(),
            opening,
            before,
        })
    }

    /// Plays all steps; whether anything was wrong.
    async fn play(mut self, plan: &[Step], view: &mut View<'_>) -> Result<bool, Failure> {
        let mut sum = Sum::default();
        let last = plan.len().saturating_sub(1);
        for (number, step) in plan.iter().enumerate() {
            let played = self.step(number, last, step, view).await?;
            sum.add(&played);
        }
        self.board.end();
        let Self { mut clients, agent, board, stage, mut faults, kernel, tests, opening, .. } = self;
        if timeout(FAREWELL, async { while clients.join_next().await.is_some() {} }).await.is_err() {
            faults.push("a client did not end".to_owned());
        }
        let report = agent.report().await.map_err(Failure::failed)?;
        agent.stop().await?;
        let (foreign, misplaced, alone) = stage.transgressions();
        if foreign > 0 {
            faults.push(format!("the engines refused KV of another revision {foreign} times"));
        }
        if misplaced > 0 {
            faults.push(format!("{misplaced} legs reached an engine of the wrong role"));
        }
        if alone > 0 {
            faults.push(format!("{alone} requests were served without a prefill"));
        }
        let styles = view.styles();
        let mut text = sum.tell(kernel.then(|| Kernel::of(&report).since(opening)), foreign, tests);
        for line in faults.iter().chain(&board.complaints()) {
            let _ = writeln!(text, "{0}wrong:{0:#} {line}", styles.bad);
        }
        let wrong = !faults.is_empty();
        let (style, verdict) =
            if wrong { (styles.bad, "NOT as it should be") } else { (styles.good, "all as it should be") };
        let _ = writeln!(text, "{style}{verdict}{style:#}");
        view.say(&text)?;
        Ok(wrong)
    }

    /// Brings one step into force and judges it.
    async fn step(
        &mut self,
        number: usize,
        last: usize,
        step: &Step,
        view: &mut View<'_>,
    ) -> Result<Played, Failure> {
        self.stage.raise(step).await?;
        self.board.loosen();
        self.stage.write_pods(step, self.isolation)?;
        let mut report = self.agent.in_force(step).await?;
        // What was under way may still end on Pods that are gone: they live until then, as real ones do.
        self.board.settle().await;
        self.stage.lower(step).await?;
        let mut faults = report.sets.first().map_or_else(Vec::new, |set| judge::disagreements(step, set));

        let requests = self.args.requests();
        // A member dials where its revision has both its own Pod and a Prefill to reach.
        let whole = |counts: &Vec<u32>| counts.len() == ROLES.len() && counts.iter().all(|count| *count > 0);
        let members = [&step.old, &step.new].map(whole).to_vec();
        self.board.open(requests, if self.kernel { requests } else { 0 }, members);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let board = Arc::clone(&self.board);
        let mut judged = std::pin::pin!(board.judged());
        loop {
            select! {
                () = judged.as_mut() => break,
                _ = ticks.tick() => {
                    if let Ok(fresh) = self.agent.report().await {
                        report = fresh;
                    }
                    let played = self.played(number, last, step, &report);
                    view.draw(&view::step(&played, "...", self.kernel, &view.styles()))?;
                }
            }
        }
        self.board.settle().await;
        let report = self.agent.report().await.map_err(Failure::failed)?;
        let played = self.played(number, last, step, &report);
        self.board.take();
        self.before = Kernel::of(&report);
        faults.extend(played.faults(self.tests));
        let styles = view.styles();
        let end = if faults.is_empty() {
            format!("{0}ok{0:#}", styles.good)
        } else {
            format!("{0}WRONG{0:#}", styles.bad)
        };
        view.say(&view::step(&played, &end, self.kernel, &styles))?;
        self.faults.extend(faults.into_iter().map(|fault| format!("step {number}: {fault}")));
        Ok(played)
    }

    fn played(&self, number: usize, last: usize, step: &Step, report: &Report) -> Played {
        let kernel = Kernel::of(report).since(self.before);
        Played { number, last, step: step.clone(), score: self.board.score(), kernel }
    }
}

/// What is told before the first step.
fn opening(
    args: &Args,
    report: &Report,
    isolation: &Isolation,
    heading: clap::builder::styling::Style,
) -> String {
    let [prefill, decode] = SIZE;
    let mut text = format!(
        "{heading}A rollout of {prefill} Prefill and {decode} Decode Pods from revision A to B, max unavailable \
         {}{heading:#}\n",
        LIMITS.max_unavailable
    );
    if report.kernel.mode == Enforcement::Ebpf {
        text.push_str("kernel  eBPF programs steer VIPs and check every connection of the agent\n");
    } else {
        let reason = isolation.reason().or(report.kernel.reason.as_deref()).unwrap_or("not told");
        let _ = write!(
            text,
            "kernel  NO kernel programs: the agent gates in user space, VIPs are left out\n        {reason}\n"
        );
    }
    let layout = match args.layout {
        Layout::PerRole => "one router per role: coordinators carry the revision from leg to leg",
        Layout::Shared => "one shared router: the agent runs both legs of a request",
    };
    let _ = writeln!(text, "layout  {layout} ({})", args.connector);
    let _ = writeln!(text, "judged  {} requests of each kind in each step\n", args.requests());
    text
}

/// The sums over all steps.
#[derive(Debug, Default)]
struct Sum {
    requests: [u64; 3],
    judged: u64,
    mixed: u64,
    failed: u64,
    restarted: u64,
}

impl Sum {
    fn add(&mut self, played: &Played) {
        let score = &played.score;
        for (sum, requests) in self.requests.iter_mut().zip(score.requests) {
            *sum = sum.saturating_add(requests);
        }
        self.judged = self.judged.saturating_add(score.pairs.iter().chain(&score.vip).sum());
        self.mixed = self.mixed.saturating_add(score.mixed);
        self.failed = self.failed.saturating_add(score.failed);
        self.restarted = self.restarted.saturating_add(score.restarted);
    }

    fn tell(&self, kernel: Option<Kernel>, foreign: u64, tests: usize) -> String {
        let Self { requests: [pairs, vip, members], judged, mixed, failed, restarted } = self;
        let mut text = format!(
            "\npairs   {pairs}, mixed {mixed}, failed {failed}, begun anew {restarted} (their revision ended between \
             the legs)\nengines refused KV of another revision {foreign} times\n"
        );
        if let Some(kernel) = kernel {
            let _ = writeln!(
                text,
                "kernel  {} connects of pinned sockets, {} by weight, {} by the dialler's own revision, {} denied\n\
                 VIPs    {vip} connections of plain clients, {members} of member Pods",
                kernel.pin, kernel.weight, kernel.own, kernel.denied
            );
        }
        let _ = writeln!(
            text,
            "shares  {judged} requests judged by {tests} exact binomial tests, together wrong by chance once in {:.0}",
            chance::FAMILY_ERROR.recip()
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_together_have_a_steps_time_for_its_requests() {
        let args = |fast| Args {
            fast,
            requests_per_step: Some(800),
            seed: 0,
            keep: false,
            layout: Layout::PerRole,
            connector: Handover::NixlV2,
            no_kernel: false,
            member: None,
        };
        assert_eq!(args(false).pace(8), Some(STEP / 100));
        assert_eq!(args(true).pace(8), None);
    }
}
