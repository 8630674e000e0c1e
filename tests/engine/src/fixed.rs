//! The cheap server for benchmarks: one prepared answer to whatever is asked.
//!
//! It does not look at a request beyond where it ends (and whether it asks for the models, or for a stream), so that a
//! proxy under measurement, not the engine behind it, takes the machine. The end of a chunked body is looked for chunk
//! by chunk: Envoy sends one where it may change it.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    select,
    sync::watch,
};

use crate::{
    Pace,
    counters::{Tallies, Tick},
    pace,
};

/// Largest request head, bytes.
const MAX_HEAD: usize = 64 * 1024;

/// Largest request, bytes.
const MAX_REQUEST: usize = 64 * 1024 * 1024;

/// Answers requests until the client leaves, `stop` is set, or a request cannot be followed.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    body: usize,
    pace: Option<&Pace>,
    tallies: &Tallies,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let (answer, models) = (answer(&text(body)), answer(MODELS));

    let mut buffer = Vec::with_capacity(16 * 1024);
    loop {
        // One request is answered as soon as it is whole, also where several came in one read.
        match request_length(&buffer) {
            Some(Request::Whole(length)) if length <= buffer.len() => {
                tallies.add(Tick::Requests, 1);
                tallies.add(Tick::Other, 1);
                let asks_for_models = buffer.starts_with(b"GET /v1/models ");
                let streams = pace.filter(|_| asks_for_stream(buffer.get(..length).unwrap_or_default()));
                buffer.drain(..length);
                if let Some(pace) = streams {
                    let ended = events(&mut stream, pace, &mut stop).await;
                    tallies.add(Tick::Cancelled, 1);
                    return ended;
                }
                stream.write_all(if asks_for_models { &models } else { &answer }).await?;
                tallies.add(Tick::Completed, 1);
                continue;
            }
            Some(Request::More) if buffer.len() > MAX_REQUEST => return Ok(()),
            Some(Request::Whole(length)) if length > MAX_REQUEST => return Ok(()),
            Some(Request::Whole(length)) => buffer.reserve(length.min(MAX_HEAD)),
            None if buffer.len() > MAX_HEAD => return Ok(()),
            Some(Request::More) | None => {}
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

/// Written before the time in an event, nanoseconds of [`now`](crate::now).
pub const SENT: &str = "\"sent\":";

fn asks_for_stream(request: &[u8]) -> bool {
    const MEMBER: &[u8] = b"\"stream\":true";
    request.windows(MEMBER.len()).any(|window| window == MEMBER)
}

/// Sends events until the client leaves.
async fn events<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    pace: &Pace,
    stop: &mut watch::Receiver<bool>,
) -> io::Result<()> {
    const HEAD: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(HEAD).await?;
    loop {
        select! {
            // The end, or a client that does not wait for it.
            _ = stream.read_u8() => return Ok(()),
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            () = pace.turn() => {}
        }
        stream.write_all(event(pace::now()).as_bytes()).await?;
    }
}

/// A chunk with an event as long as an engine's.
fn event(now: u64) -> String {
    let event = format!(
        "data: {{\"id\":\"fixed\",\"object\":\"text_completion\",\"created\":0,\"model\":\"bench\",\
         \"choices\":[{{\"index\":0,\"text\":\" token\",\"logprobs\":null,\"finish_reason\":null}}],{SENT}{now}}}\n\n"
    );
    format!("{:x}\r\n{event}\r\n", event.len())
}

/// What routers ask before they begin.
const MODELS: &str =
    r#"{"object":"list","data":[{"id":"bench","object":"model","created":0,"owned_by":"fixed"}]}"#;

fn answer(text: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
    format!("{head}{}\r\n\r\n{text}", text.len()).into_bytes()
}

/// An answer of so many bytes that does for either leg of a request, and for one without legs; no shorter than that
/// takes. As vLLM by default, it tells nothing of cached tokens.
fn text(length: usize) -> String {
    const BEFORE: &str = concat!(
        r#"{"id":"fixed","object":"text_completion","created":0,"model":"bench","#,
        r#""usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10,"prompt_tokens_details":null},"#,
        r#""kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"fixed","#,
        r#""remote_block_ids":[1,2,3,4],"remote_host":"127.0.0.1","remote_port":5600,"tp_size":1},"#,
        r#""choices":[{"index":0,"finish_reason":"length","text":""#,
    );
    const AFTER: &str = r#""}]}"#;
    let filling = length.saturating_sub(BEFORE.len() + AFTER.len());
    [BEFORE, &"x".repeat(filling), AFTER].concat()
}

#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// Bytes of head and body together.
    Whole(usize),
    /// Chunks, the last of which is not there yet.
    More,
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
            let end = chunks(buffer.get(head..)?);
            return Some(end.map_or(Request::More, |end| Request::Whole(head.saturating_add(end))));
        }
    }
    Some(Request::Whole(head.saturating_add(body)))
}

/// Where chunks end, once the last one is there. Trailers are not looked for.
fn chunks(body: &[u8]) -> Option<usize> {
    let mut at = 0_usize;
    loop {
        let rest = body.get(at..)?;
        let line = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(rest.get(..line)?).ok()?, 16).ok()?;
        at = at.checked_add(size)?.checked_add(line + 4)?;
        if size == 0 {
            return (at <= body.len()).then_some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_json_of_the_length_that_was_asked_for() {
        for length in [0, 1024, 32 * 1024] {
            let text = text(length);
            assert!(text.len() == length || length == 0);
            let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(answer["kv_transfer_params"]["do_remote_prefill"], true);
        }
    }

    #[test]
    fn an_event_is_a_chunk_of_json_that_tells_its_time() {
        let chunk = event(12);
        let (size, event) = chunk.split_once("\r\n").unwrap();
        assert_eq!(usize::from_str_radix(size, 16).unwrap() + 2, event.len());
        let json: serde_json::Value =
            serde_json::from_str(event.strip_prefix("data: ").unwrap().trim()).unwrap();
        assert_eq!(json["sent"], 12);
    }

    #[test]
    fn a_request_ends_after_its_declared_body() {
        assert_eq!(request_length(b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET"), Some(Request::Whole(27)));
        assert_eq!(
            request_length(b"POST / HTTP/1.1\r\nContent-Length: 5 \r\n\r\nabcde"),
            Some(Request::Whole(44))
        );
        assert_eq!(request_length(b"GET / HTTP/1.1\r\nhost: a\r\n"), None);
        let chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(request_length(chunked), Some(Request::Whole(chunked.len())));
        for part in 47..chunked.len() {
            assert_eq!(request_length(&chunked[..part]), Some(Request::More), "{part}");
        }
    }
}
