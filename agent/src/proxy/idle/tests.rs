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
    /// And of the work that an event brings.
    work: u64,
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
            work: 10 * MICRO,
            now: Cell::new(0),
            cpu: Cell::new(0),
        }
    }

    fn pass(&self, cpu: u64, idle: u64) {
        self.cpu.set(self.cpu.get() + cpu);
        self.now.set(self.now.get() + cpu + idle);
    }

    /// Waits for one event after another, each so long after the last was dealt with. What share of them was slept for.
    fn run(&self, governor: &mut Governor, waits: impl IntoIterator<Item = u64>) -> f64 {
        let (mut slept, mut all, mut work) = (0_u32, 0_u32, 0);
        for wait in waits {
            let due = self.now() + wait;
            loop {
                if governor.next(std::mem::take(&mut work), self) == Way::Sleep {
                    let idle = due.saturating_sub(self.now());
                    // What is there already is taken without falling asleep.
                    if idle > 0 {
                        self.pass(self.sleep, idle + self.late);
                    }
                    slept += 1;
                    break;
                }
                self.pass(self.look, 0);
                if self.now() >= due {
                    break;
                }
            }
            self.pass(self.work, 0);
            work = 1;
            all += 1;
        }
        f64::from(slept) / f64::from(all)
    }

    /// CPU time for the same waits if none is looked for.
    fn all_slept(&self, waits: u64) -> u64 {
        waits * (self.sleep + self.work)
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
fn it_follows_a_load_that_changes_within_two_cycles() {
    let (machine, mut governor) = (Machine::new(30), Governor::new());
    let two = 2 * usize::try_from(CYCLE * ROUND).unwrap();
    for _ in 0..3 {
        machine.run(&mut governor, waits(15, two));
        assert!(machine.run(&mut governor, waits(15, two)) < 0.04);
        let before = machine.cpu();
        machine.run(&mut governor, waits(20_000, 20));
        let took = machine.cpu() - before;
        assert!(took < machine.all_slept(20) + 20 * LONGEST, "long waits are given up at once: {took}");
        machine.run(&mut governor, waits(20_000, two));
        assert!(machine.run(&mut governor, waits(20_000, two)) > 0.96);
    }
}

#[test]
fn wakes_without_work_never_make_it_look() {
    let (machine, mut governor) = (Machine::new(30), Governor::new());
    for _ in 0..100_000 {
        // What woke it was no connection: a beat, or a command.
        while governor.next(0, &machine) == Way::Look {
            machine.pass(machine.look, 0);
        }
        machine.pass(machine.sleep, 500 * MICRO);
    }
    assert_eq!(governor.better, Way::Sleep);
    assert!(machine.cpu() < 100_000 * machine.sleep * 102 / 100);
}

#[test]
fn a_runtime_that_looks_serves_its_tasks_and_ends() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = install(builder.enable_all()).build_local(tokio::runtime::LocalOptions::default()).unwrap();
    let mut asked = false;
    runtime.block_on(async {
        tokio::task::spawn_local(watch());
        let (question, mut questions) = tokio::sync::mpsc::unbounded_channel();
        let (answer, mut answers) = tokio::sync::mpsc::unbounded_channel();
        let echo = std::thread::spawn(move || {
            while let Some(number) = questions.blocking_recv() {
                answer.send(number).unwrap();
            }
        });
        for number in 0..u64::from(2 * CYCLE * ROUND) {
            question.send(number).unwrap();
            assert_eq!(answers.recv().await, Some(number));
            worked();
            asked |= IDLE.with(|idle| idle.governor.borrow().left > 0);
        }
        drop(question);
        echo.join().unwrap();
    });
    assert!(asked, "nothing was ever waited for");
}

#[test]
fn a_runtime_looks_for_as_long_as_it_is_told_to_and_then_sleeps() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = install(builder.enable_all()).build_local(tokio::runtime::LocalOptions::default()).unwrap();
    let looking =
        Governor { way: Way::Look, better: Way::Look, round: TRIAL, left: ROUND, ..Governor::new() };
    IDLE.with(|idle| *idle.governor.borrow_mut() = looking);
    runtime.block_on(async {
        tokio::task::spawn_local(watch());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    });
    // A try is in vain only after it was asked again and again, which a runtime that sleeps does not do.
    assert!(IDLE.with(|idle| idle.governor.borrow().in_vain) > 0);
}
