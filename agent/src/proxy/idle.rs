//! What a worker does when nothing is ready: sleep, or look again for some microseconds.
//!
//! To fall asleep and be woken by another core can take a worker several times as long as a short request, above all on
//! a virtual machine, where waking a core is the hypervisor's work; and it is paid in CPU as well. Where the next event
//! comes soon, looking again is quicker and often cheaper. Waits for a model are a thousand times as long, and looking
//! for their end would only burn a core; and who sleeps finds more to do at once, which is cheaper too. So it is not
//! guessed: now and then a worker tries both, takes what CPU time each costs for the same requests and pieces of
//! responses, and looks where that costs little more, as whoever waits for the answer has it sooner. (Elsewhere this is
//! called busy polling, and so is the setting, `http.busyPoll`.)
//!
//! [`Governor`] decides, by clocks that it is given; [`install`] is its place in the runtime.

use std::{
    cell::{Cell, RefCell},
    task::{Poll, Waker},
};

use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::runtime::Builder;

/// A wait that does not end within this was looked for in vain, nanoseconds: about what a sleep takes where it is dear.
const LONGEST: u64 = 60_000;
/// A round of looking is over when more waits were looked for in vain than this and an eighth of those that were not.
const IN_VAIN: u32 = 4;
/// Waits in a round.
const ROUND: u32 = 64;
/// The rounds of a trial: what disturbs more and more, or less and less, disturbs both ways alike.
const TRIAL: [Way; 4] = [Way::Sleep, Way::Look, Way::Look, Way::Sleep];
/// Rounds from one trial to the next, and at most, after trials that looking has lost.
const CYCLE: usize = 64;
const LONGEST_CYCLE: usize = 256;
/// Per cent of the CPU time of sleeping that looking may cost.
const MAY_COST: u128 = 120;
/// What a request counts for in a price; a piece of a response counts one.
const REQUEST: u64 = 8;

/// Of the system, nanoseconds.
trait Clocks {
    /// Time that passes for all.
    fn now(&self) -> u64;
    /// CPU time of this thread.
    fn cpu(&self) -> u64;
}

/// What is done when nothing is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Sleep,
    Look,
}

/// What one way took in a trial.
#[derive(Clone, Copy, Default, Debug)]
struct Price {
    cpu: u64,
    work: u64,
}

/// What came of the last answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Done {
    /// Something happened at all.
    event: bool,
    /// How much was done: requests and pieces of responses.
    work: u64,
}

/// Decides how to wait, from what past waits have cost.
#[derive(Debug)]
struct Governor {
    /// How this round's waits are spent.
    way: Way,
    /// Within the cycle: first those of the trial, then as the trial has decided.
    round: usize,
    /// Rounds in this cycle.
    cycle: usize,
    /// Waits left in this round.
    left: u32,
    /// When the wait began that goes on with looking.
    since: Option<u64>,
    /// Waits of this round that an event ended while looking.
    met: u32,
    /// Waits of this round that none ended.
    in_vain: u32,
    /// CPU time when this round began.
    began: u64,
    /// Done in this round.
    work: u64,
    sleep: Price,
    look: Price,
}

impl Governor {
    const fn new() -> Self {
        let free = Price { cpu: 0, work: 0 };
        Self {
            way: Way::Sleep,
            round: CYCLE - 1,
            cycle: CYCLE,
            left: 0,
            since: None,
            met: 0,
            in_vain: 0,
            began: 0,
            work: 0,
            sleep: free,
            look: free,
        }
    }

    /// Nothing is ready: what to do. Asked again at once after a look that found nothing.
    fn next(&mut self, done: Done, clocks: &impl Clocks) -> Way {
        self.work += done.work;
        if let Some(since) = self.since {
            if !done.event {
                if clocks.now().saturating_sub(since) < LONGEST {
                    return Way::Look;
                }
                self.since = None;
                self.in_vain += 1;
                return Way::Sleep;
            }
            self.since = None;
            self.met += 1;
        }
        let hopeless = self.way == Way::Look && self.in_vain > IN_VAIN + self.met / 8;
        if self.left == 0 || hopeless {
            self.turn(hopeless, clocks);
        }
        self.left -= 1;
        if self.way == Way::Look {
            self.since = Some(clocks.now());
        }
        self.way
    }

    /// A round is over.
    fn turn(&mut self, hopeless: bool, clocks: &impl Clocks) {
        let trial = self.round < TRIAL.len();
        if trial {
            let price = if self.way == Way::Look { &mut self.look } else { &mut self.sleep };
            price.cpu += clocks.cpu().saturating_sub(self.began);
            price.work += self.work;
        }
        self.round += 1;
        if trial && (hopeless || self.round == TRIAL.len()) {
            self.round = TRIAL.len();
            let lost = hopeless || !self.look_pays();
            self.way = if lost { Way::Sleep } else { Way::Look };
            self.cycle = if lost { (2 * self.cycle).min(LONGEST_CYCLE) } else { CYCLE };
        } else if self.round >= self.cycle || !trial && hopeless {
            // What was decided is old, or what it was decided by has changed.
            (self.round, self.sleep, self.look) = Default::default();
        }
        if let Some(way) = TRIAL.get(self.round) {
            self.way = *way;
            self.began = clocks.cpu();
        }
        (self.left, self.met, self.in_vain, self.work) = (ROUND, 0, 0, 0);
    }

    /// Without work there is nothing to compare.
    fn look_pays(&self) -> bool {
        let costs = |one: Price, other: Price| u128::from(one.cpu) * u128::from(other.work);
        let (look, sleep) = (costs(self.look, self.sleep), costs(self.sleep, self.look));
        self.look.work > 0 && self.sleep.work > 0 && look * 100 <= sleep * MAY_COST
    }
}

/// A worker's, on its thread.
struct Idle {
    governor: RefCell<Governor>,
    /// What was done since nothing was ready last.
    done: Cell<Done>,
    /// Wakes a task that does nothing: with a task ready, the runtime looks for events and does not sleep.
    waker: RefCell<Option<Waker>>,
    /// What is configured.
    may_look: Cell<bool>,
}

const NOTHING: Done = Done { event: false, work: 0 };

thread_local! {
    static IDLE: Idle = const {
        Idle {
            governor: RefCell::new(Governor::new()),
            done: Cell::new(NOTHING),
            waker: RefCell::new(None),
            may_look: Cell::new(false),
        }
    };
}

/// Has a worker's runtime ask before it sleeps. Until [`watch`] runs on its thread and it [may look](configure), it sleeps.
pub(super) fn install(builder: &mut Builder) -> &mut Builder {
    builder.on_thread_park(|| IDLE.with(Idle::park))
}

/// Whether this thread's worker may look at all. What past waits have cost is forgotten.
pub(super) fn configure(may_look: bool) {
    IDLE.with(|idle| {
        idle.may_look.set(may_look);
        idle.governor.replace(Governor::new());
    });
}

/// A connection came, or was looked after.
pub(super) fn event() {
    done(0);
}

/// A request came.
pub(super) fn request() {
    done(REQUEST);
}

/// A piece of a response was handed on.
pub(super) fn piece() {
    done(1);
}

fn done(work: u64) {
    IDLE.with(|idle| idle.done.set(Done { event: true, work: idle.done.get().work + work }));
}

/// The task that is woken so that the runtime does not sleep. It never ends.
pub(super) async fn watch() {
    std::future::poll_fn(|cx| {
        IDLE.with(|idle| {
            let mut waker = idle.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
        });
        Poll::<()>::Pending
    })
    .await;
}

impl Idle {
    /// The runtime has nothing to do.
    fn park(&self) {
        if !self.may_look.get() {
            return;
        }
        let waker = self.waker.borrow();
        let Some(waker) = waker.as_ref() else { return };
        let way = self.governor.borrow_mut().next(self.done.replace(NOTHING), &System);
        if way == Way::Look {
            waker.wake_by_ref();
        }
    }
}

/// The real clocks.
struct System;

impl Clocks for System {
    fn now(&self) -> u64 {
        nanoseconds(ClockId::Monotonic)
    }

    fn cpu(&self) -> u64 {
        nanoseconds(ClockId::ThreadCPUTime)
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    // Neither clock is ever negative.
    tv_sec.unsigned_abs() * 1_000_000_000 + tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests;
