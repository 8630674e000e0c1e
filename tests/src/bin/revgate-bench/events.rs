//! Events of an HTTP/1.1 answer in chunks, and when each was sent.

use revgate_engine::SENT;

use crate::Result;

/// Takes the events out of an answer as it comes.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// What is not taken apart yet.
    raw: Vec<u8>,
    /// The head is behind.
    begun: bool,
    /// Of the chunk that comes now, its end of line too.
    left: usize,
    /// What stands in the chunks, from the last whole line on.
    text: Vec<u8>,
}

impl Events {
    /// Whether the head has come.
    pub(crate) fn begun(&self) -> bool {
        self.begun
    }

    /// Takes what came. `sent` hears of each event when it was sent.
    pub(crate) fn push(&mut self, came: &[u8], mut sent: impl FnMut(u64)) -> Result<()> {
        self.raw.extend_from_slice(came);
        let mut at = 0;
        loop {
            let rest = self.raw.get(at..).unwrap_or_default();
            if self.left > 0 {
                let taken = rest.len().min(self.left);
                let data = taken.min(self.left.saturating_sub(2));
                self.text.extend_from_slice(rest.get(..data).unwrap_or_default());
                self.left -= taken;
                at += taken;
                if taken == 0 {
                    break;
                }
                continue;
            }
            let end: &[u8] = if self.begun { b"\r\n" } else { b"\r\n\r\n" };
            let Some(length) = rest.windows(end.len()).position(|bytes| bytes == end) else { break };
            let part = std::str::from_utf8(rest.get(..length).unwrap_or_default())?;
            if self.begun {
                let size = part.split(';').next().unwrap_or_default().trim();
                self.left = usize::from_str_radix(size, 16)? + 2;
                if self.left == 2 {
                    return Err("the stream ended before it was to".into());
                }
            } else if part.starts_with("HTTP/1.1 200") && part.to_ascii_lowercase().contains("chunked") {
                self.begun = true;
            } else {
                return Err(format!("not the stream of the engine:\n{part}").into());
            }
            at += length + end.len();
        }
        drop(self.raw.drain(..at));
        while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            if let Some(time) = time(std::str::from_utf8(&line)?) {
                sent(time);
            }
        }
        Ok(())
    }
}

/// When the event of a line was sent.
fn time(line: &str) -> Option<u64> {
    let (_, after) = line.strip_prefix("data:")?.split_once(SENT)?;
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    after.get(..digits)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_however_they_are_cut_and_chunked() {
        let stream = "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n\
                      19\r\ndata: {\"a\":1,\"sent\":12}\n\n\r\n\
                      a;x=y\r\ndata: {\"se\r\n9\r\nnt\":3}\n\nd\r\n6\r\nata:{}\r\n1\r\n\n\r\n"
            .as_bytes();
        for step in 1..stream.len() {
            let (mut events, mut times) = (Events::default(), Vec::new());
            for piece in stream.chunks(step) {
                events.push(piece, |time| times.push(time)).unwrap();
            }
            assert_eq!((times, events.begun()), (vec![12, 3], true), "{step}");
        }
    }

    #[test]
    fn what_is_no_stream_or_ends_is_an_error() {
        for bad in [
            "HTTP/1.1 503 Service Unavailable\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
        ] {
            assert!(Events::default().push(bad.as_bytes(), |_| {}).is_err(), "{bad}");
        }
    }
}
