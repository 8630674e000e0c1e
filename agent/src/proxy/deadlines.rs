//! Deadlines of requests, looked at by the worker's sweep.
//!
//! Nearly every response comes long before its deadline, so what counts is the price of setting one and taking it
//! back: an entry in a table, where a timer would be two walks through a timer wheel. The price is precision: a
//! deadline fires up to one sweep late.

use std::{
    cell::RefCell,
    future::poll_fn,
    rc::Rc,
    task::{Context, Poll, Waker},
};

/// The deadlines of one worker's requests.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    entries: Rc<RefCell<Entries>>,
}

#[derive(Debug, Default)]
struct Entries {
    waiting: Vec<Option<(u64, Waker)>>,
    free: Vec<usize>,
}

impl Deadlines {
    /// Wakes a task at the first sweep from `at` on, in milliseconds of the proxy's clock.
    pub(super) fn set(&self, at: u64, waker: Waker) -> Deadline {
        let entries = &mut *self.entries.borrow_mut();
        let index = entries.free.pop().unwrap_or_else(|| {
            entries.waiting.push(None);
            entries.waiting.len() - 1
        });
        if let Some(place) = entries.waiting.get_mut(index) {
            *place = Some((at, waker));
        }
        Deadline { of: Rc::clone(&self.entries), index, at }
    }

    /// The next sweep, unless something else wakes the task before it.
    pub(super) async fn swept(&self) {
        let mut deadline = None;
        poll_fn(|cx| {
            if deadline.is_some() {
                return Poll::Ready(());
            }
            deadline = Some(self.set(0, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Wakes whose deadline has come.
    pub(super) fn sweep(&self, now: u64) {
        for (at, waker) in self.entries.borrow().waiting.iter().flatten() {
            if *at <= now {
                waker.wake_by_ref();
            }
        }
    }
}

/// How long something has not come that is waited for.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Since when, in milliseconds; 0: it came.
    since: u64,
    /// Wakes who waits, to look again. Kept when something came: setting one costs more than being woken in vain.
    deadline: Option<Deadline>,
}

impl Silence {
    /// It came.
    pub(super) fn end(&mut self) {
        self.since = 0;
    }

    /// It has not come yet: for `longest` milliseconds by now?
    pub(super) fn lasts(&mut self, longest: u64, now: u64, deadlines: &Deadlines, cx: &Context<'_>) -> bool {
        if self.since == 0 {
            self.since = now;
        }
        let at = self.since.saturating_add(longest);
        if at <= now {
            return true;
        }
        if self.deadline.as_ref().is_none_or(|deadline| deadline.at <= now || deadline.at > at) {
            self.deadline = Some(deadlines.set(at, cx.waker().clone()));
        }
        false
    }
}

/// A deadline, taken back when dropped.
#[derive(Debug)]
pub(super) struct Deadline {
    of: Rc<RefCell<Entries>>,
    index: usize,
    /// When.
    pub(super) at: u64,
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let mut entries = self.of.borrow_mut();
        if let Some(place) = entries.waiting.get_mut(self.index) {
            *place = None;
        }
        entries.free.push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{Arc, atomic::Ordering::SeqCst},
    };

    use super::*;
    use crate::proxy::wakes::tests::Count;

    #[test]
    fn a_silence_is_looked_at_again_when_it_would_be_too_long_and_begins_anew_when_something_came() {
        let (deadlines, count) = (Deadlines::default(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        let cx = Context::from_waker(&waker);
        let mut silence = Silence::default();
        assert!(!silence.lasts(100, 10, &deadlines, &cx) && !silence.lasts(100, 109, &deadlines, &cx));
        deadlines.sweep(110);
        assert_eq!(count.0.load(SeqCst), 1);
        assert!(silence.lasts(100, 110, &deadlines, &cx));
        silence.end();
        assert!(!silence.lasts(100, 110, &deadlines, &cx));
        silence.end();
        assert!(!silence.lasts(20, 120, &deadlines, &cx), "what is waited for now has another limit");
        deadlines.sweep(140);
        assert_eq!(count.0.load(SeqCst), 2, "and is not woken at the former one");
        assert!(silence.lasts(20, 140, &deadlines, &cx));
    }

    #[test]
    fn whoever_waits_for_a_sweep_has_the_next_one() {
        let (deadlines, count) = (Deadlines::default(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let mut swept = pin!(deadlines.swept());
        assert!(swept.as_mut().poll(&mut cx).is_pending());
        deadlines.sweep(1);
        assert_eq!(count.0.load(SeqCst), 1);
        assert!(swept.as_mut().poll(&mut cx).is_ready());
        deadlines.sweep(2);
        assert_eq!(count.0.load(SeqCst), 1, "it waits no more");
    }

    #[test]
    fn a_deadline_wakes_once_it_has_come_unless_taken_back() {
        let (deadlines, early, late) =
            (Deadlines::default(), Arc::new(Count::default()), Arc::new(Count::default()));
        let first = deadlines.set(10, Arc::clone(&early).into());
        let second = deadlines.set(20, Arc::clone(&late).into());
        deadlines.sweep(9);
        assert_eq!((early.0.load(SeqCst), late.0.load(SeqCst)), (0, 0));
        deadlines.sweep(10);
        assert_eq!((early.0.load(SeqCst), late.0.load(SeqCst)), (1, 0));
        drop(first);
        let third = deadlines.set(5, Arc::clone(&late).into());
        assert_eq!(third.index, 0, "a free place is used again");
        drop(second);
        deadlines.sweep(100);
        assert_eq!((early.0.load(SeqCst), late.0.load(SeqCst)), (1, 1));
    }
}
