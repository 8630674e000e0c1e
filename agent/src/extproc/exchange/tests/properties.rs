//! What holds for every order of messages and every body, however they are cut (E1, E2, R2).

use proptest::prelude::*;
use prost::Message;
use prost_types::{Struct, Value, value::Kind};

use super::*;
use crate::extproc::{PIECE, proto::envoy::config::core::v3::Metadata};

/// A body in parts, and how it ends.
fn body() -> impl Strategy<Value = (Vec<Vec<u8>>, bool)> {
    let part = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..200),
        1 => (any::<u8>(), 60_000..130_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ];
    // Only trailers end a body without a part.
    (prop::collection::vec(part, 0..6), any::<bool>())
        .prop_map(|(parts, trailers)| (parts.clone(), trailers || parts.is_empty()))
}

/// A message with everything in it that is read.
fn encoded((kind, end, mode): (usize, bool, i32)) -> Vec<u8> {
    let request = match kind {
        0 => Request::RequestHeaders(announced("/read", "7", end)),
        1 => Request::ResponseHeaders(headers("", end)),
        2 => Request::RequestBody(part("body", end)),
        3 => Request::ResponseBody(part("body", end)),
        4 => Request::RequestTrailers(HttpTrailers {}),
        _ => Request::ResponseTrailers(HttpTrailers {}),
    };
    let value = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let one = |name: &str, text: &str| Struct { fields: [(name.to_owned(), value(text))].into() };
    let metadata = [
        ("envoy.lb".to_owned(), one(head::SERVED, "10.0.0.1:80")),
        ("envoy.lb.subset_hint".to_owned(), one(head::SUBSET, "10.0.0.1:80,10.0.0.2:80")),
    ];
    let message = ProcessingRequest {
        request: Some(request),
        metadata_context: Some(Metadata { filter_metadata: metadata.into() }),
        attributes: [(
            "envoy.filters.http.ext_proc".to_owned(),
            one("response.code_details", "via_upstream"),
        )]
        .into(),
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: mode,
            response_body_mode: mode,
            ..ProtocolConfiguration::default()
        }),
        ..ProcessingRequest::default()
    };
    message.encode_to_vec()
}

/// What is whole decodes, or the property says nothing.
#[test]
fn r2_messages_that_nothing_was_done_to_are_understood() {
    for kind in 0..6 {
        let message = ProcessingRequest::decode(&encoded((kind, true, 4))[..]).unwrap();
        assert_eq!(message.metadata_context.unwrap().filter_metadata.len(), 2);
        assert!(message.request.is_some());
    }
}

proptest! {
    /// What is nearly a message decodes often enough, to something that no proxy says.
    #[test]
    fn r2_no_bytes_make_it_panic(
        kinds in prop::collection::vec((0..6_usize, any::<bool>(), 0..5_i32), 1..8),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_usize), 0..6),
    ) {
        let mut all: Vec<Vec<u8>> = kinds.iter().map(|kind| encoded(*kind)).collect();
        let size: usize = all.iter().map(Vec::len).sum();
        for (at, byte, what) in changes {
            let mut at = at.index(size);
            for bytes in &mut all {
                if at < bytes.len() {
                    match what {
                        0 => bytes[at] = byte,
                        1 => bytes.insert(at, byte),
                        _ => { bytes.remove(at); }
                    }
                    break;
                }
                at -= bytes.len();
            }
        }
        let mut exchange = exchange();
        for bytes in all {
            if let Ok(message) = ProcessingRequest::decode(&bytes[..]) {
                let _ = drive(&mut exchange, message);
                said(&mut exchange);
                let _ = (exchange.due(), exchange.is_owing());
            }
        }
    }

    /// What goes in comes out, once, in order, in pieces that the proxy takes, and behind the answer to the headers.
    #[test]
    fn e2_every_body_goes_on_whole((parts, trailers) in body(), read in any::<bool>(), reply in any::<bool>()) {
        let mut exchange = exchange();
        let path = if read { "/read" } else { "/" };
        drive(&mut exchange, message(Request::RequestHeaders(headers(path, false)))).unwrap();
        if reply {
            drive(&mut exchange, message(Request::ResponseHeaders(headers("", false)))).unwrap();
        }
        let mut replies = Vec::new();
        for (index, bytes) in parts.iter().enumerate() {
            let end = !trailers && index + 1 == parts.len();
            let part = part(bytes.clone(), end);
            let request = if reply { Request::ResponseBody(part) } else { Request::RequestBody(part) };
            // The request's headers stay unanswered while its body is read.
            drive(&mut exchange, message(request)).unwrap();
            replies.extend(std::iter::from_fn(|| exchange.next_reply()));
        }
        if trailers {
            let request = if reply { Request::ResponseTrailers(HttpTrailers {}) } else { Request::RequestTrailers(HttpTrailers {}) };
            drive(&mut exchange, message(request)).unwrap();
            replies.extend(std::iter::from_fn(|| exchange.next_reply()));
        }
        let (mut out, mut ends, mut answered, mut last) = (Vec::new(), 0, 0, false);
        for each in replies {
            let body = match each.response.unwrap() {
                Response::RequestHeaders(_) => { answered += i32::from(!reply); continue }
                Response::ResponseHeaders(_) => { answered += i32::from(reply); continue }
                Response::RequestBody(body) if !reply => body,
                Response::ResponseBody(body) if reply => body,
                Response::RequestTrailers(_) | Response::ResponseTrailers(_) => { last = true; continue }
                other => panic!("{other:?}"),
            };
            let Some(Mutation::StreamedResponse(piece)) = body.response.unwrap().body_mutation.unwrap().mutation else {
                panic!("not streamed")
            };
            prop_assert!(answered == 1 && ends == 0 && !last && piece.body.len() <= PIECE);
            ends += i32::from(piece.end_of_stream);
            out.extend_from_slice(&piece.body);
        }
        prop_assert_eq!(out, parts.concat());
        prop_assert_eq!((ends, last), (i32::from(!trailers), trailers));
    }

    /// Whatever comes in whatever order: no panic, one answer to headers at most, nothing behind a refusal.
    #[test]
    fn e1_no_order_of_messages_is_answered_out_of_order(
        kinds in prop::collection::vec((0..7_usize, any::<bool>(), 0..3_usize), 0..12),
        refuse in any::<bool>(),
    ) {
        let mut exchange = exchange();
        let mut words = Vec::new();
        for (kind, end, size) in kinds {
            let body = part(vec![0; size * 50_000], end);
            let request = match kind {
                0 => Some(Request::RequestHeaders(headers(if size == 0 { "/read" } else { "/" }, end))),
                1 => Some(Request::ResponseHeaders(headers("", end))),
                2 => Some(Request::RequestBody(body)),
                3 => Some(Request::ResponseBody(body)),
                4 => Some(Request::RequestTrailers(HttpTrailers {})),
                5 => Some(Request::ResponseTrailers(HttpTrailers {})),
                _ => None,
            };
            let message = ProcessingRequest { request, ..message(Request::RequestTrailers(HttpTrailers {})) };
            let begun = match exchange.receive(message) {
                Ok(Some(Question::Begins { .. })) => Ok(exchange.begun()),
                other => other,
            };
            let outcome = match begun {
                Ok(Some(Question::Where { .. })) if refuse => {
                    exchange.refused(StatusCode::SERVICE_UNAVAILABLE, "no-endpoint", &Headers::new(), Bytes::new());
                    Ok(None)
                }
                Ok(Some(Question::Where { .. })) => { exchange.picked(destination()); Ok(None) }
                Ok(Some(Question::Who { .. })) => Ok(exchange.stamped(Stamps::of(&[]))),
                other => other,
            };
            words.extend(said(&mut exchange));
            // The call ends with the first of them.
            if outcome.is_err() {
                break;
            }
        }
        let place = |word: &str| words.iter().position(|said| said == word);
        let count = |word: &str| words.iter().filter(|said| *said == word).count();
        for side in ["request", "response"] {
            prop_assert!(count(side) <= 1);
            let of_body = words.iter().position(|said| said.starts_with(side) && said != side);
            prop_assert!(of_body.is_none() || place(side) < of_body && place(side).is_some());
        }
        if let Some(at) = words.iter().position(|said| said.starts_with("immediate")) {
            prop_assert_eq!(at + 1, words.len());
        }
    }
}
