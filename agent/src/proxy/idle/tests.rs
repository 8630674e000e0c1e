//! Waiting on machines that are made up, where it is known what sleeping and looking cost.

use super::*;

/// Nanoseconds.
const MICRO: u64 = 1000;

/// A machine with a worker on it.
struct Machine {
    /// CPU time of a sleep and its wake.
    sleep: u64,
    /// How much later than the event a sleeper is there.
    late: u64,
    /// CPU time and time of a look.
    look: u64,
    /// And of what a connection costs that is looked after, and each of its requests.
    poll: u64,
    request: u64,
    now: Cell<u64>,
    cpu: Cell<u64>,
}

impl Clocks for Machine {
    fn now(&self) -> u64 {
        self.now.get()
    }

    fn cpu(&self) -> u64 {
        self.cpu.get()
    }
}

impl Machine {
    fn new(sleep: u64) -> Self {
        Self {
            sleep: sleep * MICRO,
            late: 2 * sleep * MICRO,
            look: MICRO / 2,
            poll: 2 * MICRO,
            request: 8 * MICRO,
            now: Cell::new(0),
            cpu: Cell::new(0),
        }
    }

    fn pass(&self, cpu: u64, idle: u64) {
        self.cpu.set(self.cpu.get() + cpu);
        self.now.set(self.now.get() + cpu + idle);
    }

    /// Waits for one request after another, each so long after the last was answered. What share of the waits was slept
    /// through.
    fn run(&self, governor: &mut Governor, waits: impl IntoIterator<Item = u64>) -> f64 {
        let (mut slept, mut all, mut done) = (0_u32, 0_u32, NOTHING);
        for wait in waits {
            slept += u32::from(self.wait(governor, done, self.now() + wait));
            self.pass(self.poll + self.request, 0);
            done = Done { event: true, work: REQUEST };
            all += 1;
        }
        f64::from(slept) / f64::from(all)
    }

    /// Waits until then, by sleeping at last?
    fn wait(&self, governor: &mut Governor, mut done: Done, due: u64) -> bool {
        while governor.next(done, self) == Way::Look {
            done = NOTHING;
            self.pass(self.look, 0);
            if self.now() >= due {
                return false;
            }
        }
        // What is there already is taken without falling asleep.
        if self.now() < due {
            self.pass(self.sleep, due - self.now() + self.late);
        }
        true
    }

    /// Answers requests that come at these times all on one connection: whoever finds several does all at once. What
    /// share of the waits was slept through.
    fn run_together(&self, governor: &mut Governor, arrivals: impl IntoIterator<Item = u64>) -> f64 {
        let (mut slept, mut all, mut done) = (0_u32, 0_u32, NOTHING);
        let mut arrivals = arrivals.into_iter().peekable();
        while let Some(next) = arrivals.peek() {
            slept += u32::from(self.wait(governor, done, *next));
            self.pass(self.poll, 0);
            done = Done { event: true, work: 0 };
            while arrivals.next_if(|at| *at <= self.now()).is_some() {
                done.work += REQUEST;
                self.pass(self.request, 0);
            }
            all += 1;
        }
        f64::from(slept) / f64::from(all)
    }

    /// CPU time for the same requests if none is looked for.
    fn all_slept(&self, requests: u64) -> u64 {
        requests * (self.sleep + self.poll + self.request)
    }
}

fn waits(micros: u64, count: usize) -> impl Iterator<Item = u64> {
    std::iter::repeat_n(micros * MICRO, count)
}

#[test]
fn where_sleeping_is_dear_and_waits_are_short_it_looks() {
    let (machine, mut governor) = (Machine::new(30), Governor::new());
    let slept = machine.run(&mut governor, waits(15, 100_000));
    assert!(slept < 0.04, "{slept}");
    assert!(machine.cpu() < machine.all_slept(100_000) * 7 / 10, "and takes less CPU by it");
}

#[test]
fn where_sleeping_is_cheap_it_sleeps_through_short_waits_too() {
    let (machine, mut governor) = (Machine::new(3), Governor::new());
    let slept = machine.run(&mut governor, waits(15, 100_000));
    assert!(slept > 0.96, "{slept}");
    assert!(machine.cpu() < machine.all_slept(100_000) * 105 / 100);
}

#[test]
fn waits_that_end_later_than_one_looks_are_slept_through_at_next_to_no_cost() {
    for wait in [61, 1000, 20_000] {
        let (machine, mut governor) = (Machine::new(30), Governor::new());
        let slept = machine.run(&mut governor, waits(wait, 100_000));
        assert!(slept > 0.96, "{wait}: {slept}");
        assert!(machine.cpu() < machine.all_slept(100_000) * 102 / 100, "{wait}");
    }
}

#[test]
fn a_few_long_waits_between_do_not_stop_it_and_many_do() {
    for (every, looks) in [(100, true), (3, false)] {
        let (machine, mut governor) = (Machine::new(30), Governor::new());
        let mixed = (0..100_000).map(|at| if at % every == 0 { 500 * MICRO } else { 15 * MICRO });
        let slept = machine.run(&mut governor, mixed);
        assert_eq!(slept < 0.06, looks, "one of {every}: {slept}");
    }
}

#[test]
fn it_follows_a_load_that_changes() {
    let (machine, mut governor) = (Machine::new(30), Governor::new());
    let two = (2 + LONGEST_CYCLE / CYCLE) * CYCLE * usize::try_from(ROUND).unwrap();
    for _ in 0..3 {
        machine.run(&mut governor, waits(15, two));
        assert!(machine.run(&mut governor, waits(15, two)) < 0.04);
        let before = machine.cpu();
        machine.run(&mut governor, waits(20_000, 20));
        let took = machine.cpu() - before;
        assert!(took < machine.all_slept(20) + 13 * LONGEST, "long waits are given up at once: {took}");
        machine.run(&mut governor, waits(20_000, two));
        assert!(machine.run(&mut governor, waits(20_000, two)) > 0.96);
    }
}

#[test]
fn a_trial_that_is_lost_costs_little_also_where_looking_is_dear_and_never_in_vain() {
    let (mut machine, mut governor) = (Machine::new(3), Governor::new());
    machine.request = MICRO;
    let slept = machine.run(&mut governor, waits(55, 1_000_000));
    assert!(slept > 0.98, "{slept}");
    assert!(machine.cpu() < machine.all_slept(1_000_000) * 108 / 100);
}

#[test]
fn that_a_sleeper_does_more_at_once_is_in_the_price() {
    let (mut machine, mut governor) = (Machine::new(8), Governor::new());
    (machine.late, machine.poll, machine.request) = (40 * MICRO, 3 * MICRO, 3 * MICRO);
    // 15 µs from one to the next in the mean.
    let gaps = [3, 40, 5, 12, 25, 8, 2, 30, 10].into_iter().cycle().take(200_000);
    let arrivals = gaps.scan(0, |at, gap| {
        *at += gap * MICRO;
        Some(*at)
    });
    let slept = machine.run_together(&mut governor, arrivals);
    assert!(slept > 0.9, "{slept}");
}

#[test]
fn looking_may_cost_a_little_more_and_no_more() {
    for (per_cent, looks) in [(119, true), (121, false)] {
        let mut governor = Governor::new();
        governor.sleep = Price { cpu: 100_000, work: 700 };
        governor.look = Price { cpu: 1000 * per_cent, work: 700 };
        assert_eq!(governor.look_pays(), looks);
        governor.look.work = 0;
        assert!(!governor.look_pays(), "nothing was done");
    }
}

#[test]
fn wakes_without_work_never_make_it_look() {
    let (machine, mut governor) = (Machine::new(30), Governor::new());
    for _ in 0..100_000 {
        // What woke it was no connection: a beat, or a command.
        assert!(machine.wait(&mut governor, NOTHING, machine.now() + 500 * MICRO));
    }
    assert!(machine.cpu() < 100_000 * machine.sleep * 102 / 100);
}

/// A worker's runtime.
fn runtime() -> tokio::runtime::LocalRuntime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    install(builder.enable_all()).build_local(tokio::runtime::LocalOptions::default()).unwrap()
}

#[test]
fn a_runtime_is_asked_and_serves_its_tasks_and_ends() {
    let mut asked = false;
    runtime().block_on(async {
        tokio::task::spawn_local(watch());
        configure(true);
        let (question, mut questions) = tokio::sync::mpsc::unbounded_channel();
        let (answer, mut answers) = tokio::sync::mpsc::unbounded_channel();
        let echo = std::thread::spawn(move || {
            while let Some(number) = questions.blocking_recv() {
                answer.send(number).unwrap();
            }
        });
        for number in 0..2 * CYCLE * 64 {
            question.send(number).unwrap();
            assert_eq!(answers.recv().await, Some(number));
            request();
            asked |= IDLE.with(|idle| idle.governor.borrow().left > 0);
        }
        drop(question);
        echo.join().unwrap();
    });
    assert!(asked, "nothing was ever waited for");
}

/// Whether a worker that has been told to look does so, within a second.
async fn looks() -> bool {
    tokio::task::spawn_local(watch());
    // On a busy machine all of a wait may pass between two looks.
    for _ in 0..50 {
        let (round, left) = (TRIAL.len(), ROUND);
        let looking = Governor { way: Way::Look, round, left, ..Governor::new() };
        IDLE.with(|idle| idle.governor.replace(looking));
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        // A wait is in vain only after it was asked again, which a runtime that sleeps does not do.
        if IDLE.with(|idle| idle.governor.borrow().in_vain) > 0 {
            return true;
        }
    }
    false
}

#[test]
fn a_runtime_looks_for_as_long_as_it_is_told_to_and_then_sleeps() {
    runtime().block_on(async {
        configure(true);
        assert!(looks().await);
    });
}

#[test]
fn a_runtime_that_may_not_look_sleeps() {
    runtime().block_on(async {
        assert!(!looks().await, "nothing was configured");
        configure(true);
        configure(false);
        assert!(!looks().await);
    });
}
