//! What the programs tell of connects that they denied, or would have, out of their ring buffer.
//!
//! Losing events loses nothing else: the counters count every outcome, and [`Reader::events`](super::Reader::events)
//! says how many events were left out.

use std::{
    fmt, io,
    os::fd::{AsRawFd, RawFd},
};

use aya::maps::{Map, MapData, MapError, RingBuf};
use bytemuck::pod_read_unaligned;
use revgate_common::layout::{Event, map};
use tokio::io::{Interest, unix::AsyncFd};

use super::{KernelError, pins::Pins};

/// The events, oldest first. There is to be one reader of them.
pub struct Events {
    ring: RingBuf<MapData>,
}

impl Events {
    /// Opens the ring and drops what happened while no agent was there: whose Pods those were is not known any more.
    pub(super) fn open(pins: &Pins) -> Result<Self, KernelError> {
        let failed =
            |source: MapError| KernelError::Read { table: map::EVENTS, source: io::Error::other(source) };
        let data = MapData::from_pin(pins.map(map::EVENTS)).map_err(failed)?;
        let mut events = Self { ring: RingBuf::try_from(Map::RingBuf(data)).map_err(failed)? };
        while events.take().is_some() {}
        Ok(events)
    }

    /// The next event, if there is one.
    pub fn take(&mut self) -> Option<Event> {
        loop {
            let item = self.ring.next()?;
            // The ring's shape was checked; another size cannot be, and would be skipped.
            if item.len() == size_of::<Event>() {
                return Some(pod_read_unaligned(&item));
            }
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

/// Readable when there are more.
impl AsRawFd for Events {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

/// The events, as they come.
#[derive(Debug)]
pub struct Incoming(AsyncFd<Events>);

impl Incoming {
    /// Waits for events from now on, on the runtime of the caller.
    #[expect(unsafe_code, reason = "a descriptor is handed to the runtime")]
    pub fn new(events: Events) -> io::Result<Self> {
        // SAFETY: the descriptor is the ring's own, the same for as long as the ring lives, which is inside.
        let registered = unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) };
        registered.map(Self).map_err(|refused| refused.into_parts().1)
    }

    /// The next event.
    pub async fn next(&mut self) -> io::Result<Event> {
        loop {
            let mut ready = self.0.readable_mut().await?;
            if let Some(event) = ready.get_inner_mut().take() {
                return Ok(event);
            }
            ready.clear_ready();
        }
    }
}
