//! The cheap server for benchmarks: one prepared answer to whatever is asked.
//!
//! It does not look at a request beyond where it ends, so that a proxy under measurement, not the engine behind it,
//! takes the machine. Requests with a chunked body are refused (their end costs a parser).

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    select,
    sync::watch,
};

use crate::counters::{Tallies, Tick};

/// Largest request head, bytes.
const MAX_HEAD: usize = 64 * 1024;

/// Largest request, bytes.
const MAX_REQUEST: usize = 64 * 1024 * 1024;

const REFUSAL: &[u8] = b"HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Answers requests until the client leaves, `stop` is set, or a request cannot be followed.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    body: usize,
    tallies: &Tallies,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: {body}\r\n\r\n"
    )
    .into_bytes();
    answer.resize(answer.len().saturating_add(body), b'x');

    let mut buffer = Vec::with_capacity(16 * 1024);
    loop {
        // One request is answered as soon as it is whole, also where several came in one read.
        match request_length(&buffer) {
            Some(Request::Whole(length)) if length <= buffer.len() => {
                tallies.add(Tick::Requests, 1);
                tallies.add(Tick::Other, 1);
                buffer.drain(..length);
                stream.write_all(&answer).await?;
                tallies.add(Tick::Completed, 1);
                continue;
            }
            Some(Request::Chunked) => return stream.write_all(REFUSAL).await,
            Some(Request::Whole(length)) if length > MAX_REQUEST => return Ok(()),
            Some(Request::Whole(length)) => buffer.reserve(length.min(MAX_HEAD)),
            None if buffer.len() > MAX_HEAD => return Ok(()),
            None => {}
        }
        let read = select! {
            read = stream.read_buf(&mut buffer) => read?,
            _ = stop.wait_for(|stop| *stop) => 0,
        };
        if read == 0 {
            return Ok(());
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// Bytes of head and body together.
    Whole(usize),
    Chunked,
}

/// Where the first request of the buffer ends; `None` while its head is not whole.
fn request_length(buffer: &[u8]) -> Option<Request> {
    let head = buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let mut body = 0;
    for line in buffer.get(..head)?.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = line.split_at(colon);
        if name.eq_ignore_ascii_case(b"content-length") {
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            body = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()).unwrap_or(0);
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Some(Request::Chunked);
        }
    }
    Some(Request::Whole(head.saturating_add(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_after_its_declared_body() {
        assert_eq!(request_length(b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET"), Some(Request::Whole(27)));
        assert_eq!(
            request_length(b"POST / HTTP/1.1\r\nContent-Length: 5 \r\n\r\nabcde"),
            Some(Request::Whole(44))
        );
        assert_eq!(request_length(b"GET / HTTP/1.1\r\nhost: a\r\n"), None);
        assert_eq!(
            request_length(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"),
            Some(Request::Chunked)
        );
    }
}
