//! What an endpoint answers, in whatever pieces it comes; and that a request is written as one.

#![allow(clippy::missing_panics_doc, reason = "to panic is how a target fails")]

use http::{StatusCode, response};

use super::{Bytes, HeaderMap, Heads, Next, head, outbox::Framing, request};
use crate::{fuzz::PIECES, proxy::headers};

/// What may stand behind a response on a connection that persists.
const NEXT: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// The bytes are what came on a connection until its end. It is the same response in whatever pieces it came; where it
/// ends does not depend on what comes next.
pub fn response(data: &[u8]) {
    if data.len() > head::MAX_HEAD {
        return;
    }
    for to_head in [false, true] {
        let whole = receive(data, usize::MAX, to_head);
        for size in PIECES {
            assert_eq!(receive(data, size, to_head), whole, "in pieces of {size}");
        }
        if let Some(whole) = whole.filter(|whole| whole.persists) {
            let followed = receive(&[data, NEXT].concat(), usize::MAX, to_head);
            let rest = [&whole.rest[..], NEXT].concat();
            assert_eq!(followed, Some(Received { rest, ..whole }), "followed by another response");
        }
    }
}

/// A response, whole.
#[derive(PartialEq, Debug)]
struct Received {
    status: StatusCode,
    headers: HeaderMap,
    persists: bool,
    body: Vec<u8>,
    /// What came behind it.
    rest: Vec<u8>,
}

/// `None`: it is none, or it breaks off.
fn receive(data: &[u8], size: usize, to_head: bool) -> Option<Received> {
    let mut pieces = data.chunks(size);
    let mut more = || pieces.next().map(Bytes::copy_from_slice);
    let mut heads = Heads::default();
    let (head::Head { response, persists }, mut input) = loop {
        if let Some(found) = heads.add(more()?, to_head, &mut HeaderMap::new()).ok()? {
            break found;
        }
    };
    let (parts, mut decoder) = response.into_parts();
    let mut body = Vec::new();
    loop {
        match decoder.decode(&mut input).ok()? {
            Next::Data(piece) => {
                assert!(!piece.is_empty(), "an empty piece would end the body for who reads it");
                body.extend_from_slice(&piece);
            }
            Next::End => break,
            Next::More => {
                assert!(input.is_empty(), "more is asked for, and there is some");
                match more() {
                    Some(piece) => input = piece,
                    None if decoder.close() => {}
                    None => return None,
                }
            }
        }
    }
    let mut rest = input.to_vec();
    rest.extend(std::iter::from_fn(more).flatten());
    let response::Parts { status, headers, .. } = parts.clone();
    headers::fuzz::answers(parts);
    Some(Received { status, headers, persists, body, rest })
}

/// What is written of a request is one request with that head, whose body ends in one way.
pub(in crate::proxy) fn reads_back(parts: &request::Parts) {
    for framing in [None, Some(Framing::Length(u64::MAX)), Some(Framing::Chunked)] {
        let mut out = Vec::new();
        head::write(&mut out, parts, framing);
        let mut fields = vec![httparse::EMPTY_HEADER; parts.headers.len() + 1];
        let mut read = httparse::Request::new(&mut fields);
        let status = read.parse(&out);
        let text = String::from_utf8_lossy(&out);
        assert!(
            status.is_ok_and(|status| status == httparse::Status::Complete(out.len())),
            "{status:?}: {text}"
        );
        assert_eq!(read.method, Some(parts.method.as_str()), "{text}");
        let is_framing = |name: &str| {
            name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("transfer-encoding")
        };
        let (frames, others): (Vec<_>, Vec<_>) =
            read.headers.iter().partition(|field| is_framing(field.name));
        assert!(frames.len() <= 1 && (framing.is_none() || frames.len() == 1), "{text}");
        let headers = parts.headers.iter().filter(|(name, _)| !is_framing(name.as_str()));
        let headers: Vec<_> = headers.map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let others: Vec<_> =
            others.into_iter().map(|field: &httparse::Header<'_>| (field.name, field.value)).collect();
        assert_eq!(others, headers, "{text}");
    }
}
