//! Ends the process when a thread that it cannot do without panics.
//!
//! An agent whose owner or worker is gone would look alive and serve an ever older view. Its supervisor starts a new
//! one; the kernel tables stay in force meanwhile.

use std::{io::Write, process, thread};

/// Held by such a thread for as long as it lives.
#[derive(Debug)]
pub struct Indispensable(
    /// The thread's name, for its last words.
    pub &'static str,
);

impl Drop for Indispensable {
    fn drop(&mut self) {
        if thread::panicking() {
            // The panic's own message has been written by then; there is nowhere to say that stderr is closed.
            let _ = writeln!(std::io::stderr(), "revgate: its {} thread panicked; ending", self.0);
            process::abort();
        }
    }
}
