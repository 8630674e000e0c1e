//! Waits for what cannot be awaited: neither another process nor the kernel says when it is there.

use std::{
    fmt::Debug,
    thread,
    time::{Duration, Instant},
};

use crate::echo::PATIENCE;

/// Looks until it is there, and returns what was seen then.
///
/// # Panics
///
/// When it is not there for too long; says what was seen last.
pub fn until<T: Debug>(what: &str, look: impl FnMut() -> T, there: impl Fn(&T) -> bool) -> T {
    within(PATIENCE, Duration::from_millis(5), what, look, there)
}

/// The same with another bound, and another pause between two looks.
///
/// # Panics
///
/// As [`until`].
#[expect(clippy::disallowed_methods, reason = "the bound of a wait that would not end")]
pub fn within<T: Debug>(
    patience: Duration,
    pause: Duration,
    what: &str,
    mut look: impl FnMut() -> T,
    there: impl Fn(&T) -> bool,
) -> T {
    let end = Instant::now() + patience;
    loop {
        let seen = look();
        if there(&seen) {
            return seen;
        }
        assert!(Instant::now() < end, "{what}: {seen:#?}");
        thread::sleep(pause);
    }
}
