//! Spares a connection the wake-ups that mean nothing.
//!
//! hyper wakes the task of an HTTP/1.1 connection whenever a piece of a request's body is taken, so that it puts the
//! next one there; also when the last was taken, and there is none to come. The task is then polled once more for
//! nothing, which is a twelfth of what a short request costs. What wakes it while a piece is taken is therefore held
//! back, and whoever takes the piece decides.

use std::{
    cell::Cell,
    sync::Arc,
    task::{Wake, Waker},
};

thread_local! {
    /// None: wake-ups pass. Otherwise whether one was held back.
    static HELD: Cell<Option<bool>> = const { Cell::new(None) };
}

/// A waker whose wake-ups can be held back.
#[derive(Debug)]
struct Holdable(Waker);

impl Wake for Holdable {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if HELD.get().is_some() {
            HELD.set(Some(true));
        } else {
            self.0.wake_by_ref();
        }
    }
}

/// The same waker, but one that [`hold`] holds back.
pub(super) fn holdable(waker: &Waker) -> Waker {
    Arc::new(Holdable(waker.clone())).into()
}

/// Wake-ups pass again when it is gone, also after a panic.
struct Hold;

impl Drop for Hold {
    fn drop(&mut self) {
        HELD.set(None);
    }
}

/// Does something, and says whether a holdable waker was woken by it on this thread, which it then was not.
pub(super) fn hold<T>(task: impl FnOnce() -> T) -> (T, bool) {
    let _hold = Hold;
    HELD.set(Some(false));
    let done = task();
    (done, HELD.get() == Some(true))
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    pub(in crate::proxy) struct Count(pub(in crate::proxy) AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn what_is_held_back_is_told_and_everything_else_passes() {
        let count = Arc::new(Count::default());
        let plain = Waker::from(Arc::clone(&count));
        let waker = holdable(&plain);
        waker.wake_by_ref();
        assert_eq!(count.0.load(SeqCst), 1);
        assert_eq!(hold(|| waker.wake_by_ref()), ((), true));
        assert_eq!(count.0.load(SeqCst), 1, "held back");
        assert_eq!(hold(|| plain.wake_by_ref()), ((), false));
        assert_eq!(count.0.load(SeqCst), 2, "not one of these");
        std::thread::scope(|scope| {
            hold(|| scope.spawn(|| waker.wake_by_ref()).join().unwrap());
        });
        assert_eq!(count.0.load(SeqCst), 3, "another thread's");
        waker.wake();
        assert_eq!(count.0.load(SeqCst), 4);
    }

    #[test]
    fn nothing_is_held_back_after_a_panic() {
        let count = Arc::new(Count::default());
        let waker = holdable(&Waker::from(Arc::clone(&count)));
        assert!(std::panic::catch_unwind(|| hold(|| panic!("in the middle"))).is_err());
        waker.wake();
        assert_eq!(count.0.load(SeqCst), 1);
    }
}
