//! The beat of a worker: what makes it look around now and then.
//!
//! A timer of the runtime would do, but while one is set every wait for the next request has a timeout, for which the
//! kernel arms a timer of its own and stops it again: on a virtual machine that can take longer than the request. This
//! timer is armed once, and repeats.

use std::{future::pending, io, os::fd::OwnedFd, time::Duration};

use rustix::{
    io::read,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};
use tokio::io::{Interest, unix::AsyncFd};

/// A timer that repeats.
#[derive(Debug)]
pub(super) struct Beat(AsyncFd<OwnedFd>);

impl Beat {
    /// The first beat comes after one period. Needs a runtime around it.
    #[expect(unsafe_code, reason = "a descriptor is handed to the runtime")]
    pub(super) fn every(period: Duration) -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let period = period.try_into().map_err(io::Error::other)?;
        timerfd_settime(
            &timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: period, it_value: period },
        )?;
        // SAFETY: the descriptor is owned by what is registered, and the same for as long as that lives.
        let registered = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) };
        registered.map(Self).map_err(|refused| refused.into_parts().1)
    }

    /// The next beat. Beats that nobody waited for are one.
    pub(super) async fn next(&self) {
        loop {
            // An error says that the runtime ends, and this future with it.
            let Ok(mut ready) = self.0.readable().await else { return pending().await };
            if ready.try_io(|timer| Ok(read(timer, &mut [0; 8])?)).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the real timer is looked at")]
    fn it_beats_again_and_again_and_late_beats_are_one() {
        const PERIOD: Duration = Duration::from_millis(20);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let start = Instant::now();
            let beat = Beat::every(PERIOD).unwrap();
            beat.next().await;
            beat.next().await;
            assert!(start.elapsed() >= 2 * PERIOD);
            std::thread::sleep(3 * PERIOD);
            for _ in 0..3 {
                beat.next().await;
            }
            assert!(start.elapsed() >= 7 * PERIOD, "three that nobody waited for were one");
        });
    }
}
