//! What a worker does when nothing is ready: sleep, or look again for some microseconds.
//!
//! To fall asleep and be woken by another core can take a worker several times as long as a short request, above all on
//! a virtual machine, where waking a core is the hypervisor's work; and it is paid in CPU as well. Where the next event
//! comes soon, looking again is quicker and often cheaper. Waits for a model are a thousand times as long, and looking
//! for their end would only burn a core. Which of both it is depends on the machine, the load and who else runs there,
//! so it is not guessed: now and then a worker does both in turns, takes what CPU time each costs for the same work,
//! and goes on with the better one.
//!
//! [`Governor`] decides, without a clock; [`install`] is its place in the runtime.

use std::{
    cell::{Cell, RefCell},
    task::{Poll, Waker},
};

use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::runtime::Builder;

/// Looking longer than this is in vain, nanoseconds: about what a sleep takes where sleeps are dear.
const LONGEST: u64 = 60_000;
/// What is in vain ends a round of looking, if it comes to so much more than an eighth of what is not.
const IN_VAIN: u32 = 4;
/// Waits in a round.
const ROUND: u32 = 64;
/// Rounds in which both are tried in turns, and all until they are tried anew.
const TRIAL: u32 = 4;
const CYCLE: u32 = 64;
/// Per cent of the CPU time of sleeping that looking may cost: to be answered sooner is worth a little.
const WORTH: u64 = 120;

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

/// What one way took, in a trial.
#[derive(Clone, Copy, Default, Debug)]
struct Price {
    cpu: u64,
    work: u64,
}

/// Decides how to wait, from what past waits cost.
#[derive(Debug)]
struct Governor {
    /// Of this round.
    way: Way,
    /// The better one, by the last trial.
    better: Way,
    /// Within the cycle.
    round: u32,
    /// Waits left in this round.
    left: u32,
    /// When the wait began that goes on with looking.
    since: Option<u64>,
    /// Of this round: waits that an event ended while looking, and those that none did.
    met: u32,
    in_vain: u32,
    /// CPU time when this round began, and work since.
    began: u64,
    work: u64,
    sleep: Price,
    look: Price,
}

impl Governor {
    const fn new() -> Self {
        let free = Price { cpu: 0, work: 0 };
        Self {
            way: Way::Sleep,
            better: Way::Sleep,
            round: CYCLE - 1,
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

    /// Nothing is ready, after so much work since this was asked last: what to do. Asked again at once after a look
    /// that found nothing.
    fn next(&mut self, work: u64, clocks: &impl Clocks) -> Way {
        self.work += work;
        if let Some(since) = self.since {
            if work == 0 {
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

    /// A round is over. Trials begin with sleeping.
    fn turn(&mut self, hopeless: bool, clocks: &impl Clocks) {
        let trial = self.round < TRIAL;
        let cpu = if trial || self.round + 1 == CYCLE { clocks.cpu() } else { 0 };
        if trial {
            let price = if self.way == Way::Look { &mut self.look } else { &mut self.sleep };
            price.cpu += cpu.saturating_sub(self.began);
            price.work += self.work;
        }
        self.round += 1;
        if self.round == TRIAL {
            self.better = if !hopeless && self.look_pays() { Way::Look } else { Way::Sleep };
        } else if hopeless {
            self.better = Way::Sleep;
        }
        if self.round == CYCLE {
            (self.round, self.sleep, self.look) = Default::default();
        }
        self.way = match self.round {
            round if round >= TRIAL => self.better,
            round if round % 2 == 0 => Way::Sleep,
            _ => Way::Look,
        };
        (self.left, self.met, self.in_vain, self.work, self.began) = (ROUND, 0, 0, 0, cpu);
    }

    /// Without work there is nothing to compare.
    fn look_pays(&self) -> bool {
        let costs = |one: Price, other: Price| u128::from(one.cpu) * u128::from(other.work);
        let (look, sleep) = (costs(self.look, self.sleep), costs(self.sleep, self.look));
        self.look.work > 0 && self.sleep.work > 0 && look * 100 <= sleep * u128::from(WORTH)
    }
}

/// A worker's, on its thread.
struct Idle {
    governor: RefCell<Governor>,
    /// What was done since nothing was ready last.
    work: Cell<u64>,
    /// Wakes a task that does nothing: with a task ready, the runtime looks for events and does not sleep.
    waker: RefCell<Option<Waker>>,
}

thread_local! {
    static IDLE: Idle = const {
        Idle {
            governor: RefCell::new(Governor::new()),
            work: Cell::new(0),
            waker: RefCell::new(None),
        }
    };
}

/// Has a worker's runtime ask before it sleeps. Until [`watch`] runs on it, it sleeps.
pub(super) fn install(builder: &mut Builder) -> &mut Builder {
    builder.on_thread_park(|| IDLE.with(Idle::park))
}

/// A connection was looked after.
pub(super) fn worked() {
    IDLE.with(|idle| idle.work.set(idle.work.get() + 1));
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
        if let Some(waker) = self.waker.borrow().as_ref()
            && self.governor.borrow_mut().next(self.work.take(), &System) == Way::Look
        {
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
