//! Room for client connections, shared by all workers (H14).
//!
//! A count and a limit, where a semaphore would hold permits: the limit can be lowered below what is open now, and
//! is then kept as soon as enough connections have gone.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use tokio::sync::Notify;

/// How many connections there are and may be.
#[derive(Debug)]
pub(super) struct Room {
    taken: AtomicUsize,
    limit: AtomicUsize,
    /// A connection has gone, or the limit has changed.
    freed: Notify,
}

impl Room {
    /// For so many connections.
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { taken: AtomicUsize::new(0), limit: AtomicUsize::new(limit), freed: Notify::new() })
    }

    /// For so many from now on. Those that are over it stay; no other comes before they have gone.
    pub(super) fn resize(&self, limit: usize) {
        self.limit.store(limit, SeqCst);
        self.freed.notify_waiters();
    }

    /// A place, if there is one.
    fn try_enter(self: &Arc<Self>) -> Option<Seat> {
        let limit = self.limit.load(SeqCst);
        let taken = self.taken.try_update(SeqCst, SeqCst, |taken| (taken < limit).then_some(taken + 1));
        taken.is_ok().then(|| Seat(Arc::clone(self)))
    }

    /// Waits for a place. Cancel safe.
    pub(super) async fn enter(self: &Arc<Self>) -> Seat {
        loop {
            if let Some(seat) = self.try_enter() {
                return seat;
            }
            let mut freed = pin!(self.freed.notified());
            // In line before the second look, so that a place that is freed in between wakes this one.
            freed.as_mut().enable();
            if let Some(seat) = self.try_enter() {
                return seat;
            }
            freed.await;
        }
    }
}

/// A connection's place, given back when dropped.
#[derive(Debug)]
pub(super) struct Seat(Arc<Room>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, SeqCst);
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn h14_a_lower_limit_is_kept_once_enough_have_gone_and_a_higher_one_at_once() {
        let room = Room::new(3);
        let mut seats: Vec<Seat> = std::iter::from_fn(|| room.try_enter()).collect();
        assert_eq!(seats.len(), 3);
        room.resize(1);
        for _ in 0..2 {
            assert!(seats.pop().is_some());
            assert!(room.try_enter().is_none(), "one is there still");
        }
        assert!(seats.pop().is_some());
        seats.extend(room.try_enter());
        assert_eq!(seats.len(), 1);
        assert!(room.try_enter().is_none());
        room.resize(2);
        seats.extend(room.try_enter());
        assert!(room.try_enter().is_none());
        assert_eq!(seats.len(), 2);
    }

    #[test]
    fn each_place_that_is_freed_goes_to_one_who_waits() {
        let room = Room::new(2);
        let seats = [room.try_enter(), room.try_enter()];
        let (mut first, mut second, mut third) =
            (Box::pin(room.enter()), Box::pin(room.enter()), Box::pin(room.enter()));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(seats);
        assert!(matches!(first.as_mut().poll(&mut cx), Poll::Ready(_)));
        let Poll::Ready(seat) = second.as_mut().poll(&mut cx) else { panic!("it was woken") };
        let kept = room.try_enter();
        assert!(third.as_mut().poll(&mut cx).is_pending());
        room.resize(3);
        assert!(matches!(third.as_mut().poll(&mut cx), Poll::Ready(_)));
        drop((seat, kept));
    }
}
