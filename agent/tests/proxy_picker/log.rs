//! What the agent logs, in any of these tests.

use std::{
    io,
    sync::{Mutex, Once},
};

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps what is logged from here on.
pub(crate) fn keep() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
}

/// The lines with all of these words in them.
pub(crate) fn lines(words: &[&str]) -> Vec<String> {
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
    log.lines().filter(has_all).map(str::to_owned).collect()
}
