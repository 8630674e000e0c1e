//! By when an HTTP/2 connection must ask for more of each response.
//!
//! A client may keep one stream's window shut while the connection as a whole lives: no write waits, and the response
//! is just not asked for any more. HTTP/1.1 needs none of this.

use std::cell::RefCell;

/// A response's place; none where only one is on its way at a time.
#[derive(Debug, Default)]
pub(in super::super) struct Turn(Option<usize>);

/// The responses of one connection. As large as there were responses at once.
#[derive(Debug, Default)]
pub(super) struct Turns {
    entries: RefCell<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// In milliseconds of the proxy's clock; the largest number: no matter when.
    by: Vec<u64>,
    free: Vec<usize>,
}

impl Turns {
    /// For a response that is not there yet.
    pub(super) fn take(&self) -> Turn {
        let entries = &mut *self.entries.borrow_mut();
        Turn(Some(entries.free.pop().unwrap_or_else(|| {
            entries.by.push(u64::MAX);
            entries.by.len() - 1
        })))
    }

    /// It must be asked for more until then.
    pub(super) fn set(&self, turn: &Turn, by: u64) {
        if let Some(index) = turn.0
            && let Some(entry) = self.entries.borrow_mut().by.get_mut(index)
        {
            *entry = by;
        }
    }

    /// It is over.
    pub(super) fn give_back(&self, turn: &Turn) {
        self.set(turn, u64::MAX);
        self.entries.borrow_mut().free.extend(turn.0);
    }

    /// One of them was not asked for in time.
    pub(super) fn missed(&self, now: u64) -> bool {
        self.entries.borrow().by.iter().any(|by| *by <= now)
    }
}
