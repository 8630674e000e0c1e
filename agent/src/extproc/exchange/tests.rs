//! Every order of messages, and the bytes that come out (E1, E2).

use proptest::prelude::*;

use super::*;
use crate::extproc::{
    PIECE,
    proto::envoy::{
        config::core::v3::{HeaderMap, HeaderValue},
        service::ext_proc::v3::{BodyResponse, HttpTrailers, ProtocolConfiguration, body_mutation::Mutation},
    },
};

const LIMIT: u64 = 1 << 20;

fn message(request: Request) -> ProcessingRequest {
    ProcessingRequest { request: Some(request), ..ProcessingRequest::default() }
}

fn headers(path: &str, end_of_stream: bool) -> HttpHeaders {
    let header = |key: &str, value: &str| HeaderValue {
        key: key.into(),
        value: String::new(),
        raw_value: value.to_owned().into(),
    };
    let headers = vec![header(":method", "POST"), header(":path", path), header(":status", "200")];
    HttpHeaders { headers: Some(HeaderMap { headers }), end_of_stream }
}

fn part(body: impl Into<Bytes>, end_of_stream: bool) -> HttpBody {
    HttpBody { body: body.into(), end_of_stream }
}

/// A body matters at `/read`.
fn exchange() -> Exchange {
    Exchange::new(|head| head.first(":path") == b"/read", LIMIT)
}

fn destination() -> Destination {
    Destination {
        endpoints: "10.0.0.1:8000".into(),
        prefill: Some("10.0.0.2:8000".into()),
        remove: Vec::new(),
    }
}

/// Answers what is asked, until nothing is.
fn drive(exchange: &mut Exchange, message: ProcessingRequest) -> Result<(), Violation> {
    let mut question = exchange.receive(message)?;
    while let Some(asked) = question.take() {
        match asked {
            Question::Where { .. } => exchange.picked(destination()),
            Question::Who { .. } => question = exchange.stamped(Headers::new()),
            Question::Whole => {}
            Question::TooLong => {
                exchange.refused(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "body-too-large",
                    Headers::new(),
                    "no".into(),
                );
            }
        }
    }
    Ok(())
}

/// One word for each reply.
fn said(exchange: &mut Exchange) -> Vec<String> {
    let body = |of: &str, body: BodyResponse| match body.response.unwrap().body_mutation {
        None => format!("{of} unchanged"),
        Some(mutation) => {
            let Some(Mutation::StreamedResponse(piece)) = mutation.mutation else { panic!("{mutation:?}") };
            format!("{of} {}{}", piece.body.len(), if piece.end_of_stream { " end" } else { "" })
        }
    };
    std::iter::from_fn(|| exchange.next_reply())
        .map(|reply| match reply.response.unwrap() {
            Response::RequestHeaders(_) => "request".into(),
            Response::ResponseHeaders(_) => "response".into(),
            Response::RequestBody(part) => body("request", part),
            Response::ResponseBody(part) => body("response", part),
            Response::RequestTrailers(_) => "request trailers".into(),
            Response::ResponseTrailers(_) => "response trailers".into(),
            Response::ImmediateResponse(reply) => format!("immediate {}", reply.status.unwrap().code),
        })
        .collect()
}

#[test]
fn e1_headers_alone_are_answered_at_once() {
    let mut exchange = exchange();
    drive(&mut exchange, message(Request::RequestHeaders(headers("/read", true)))).unwrap();
    assert_eq!(said(&mut exchange), ["request"], "though bodies matter there: there is none");
    drive(&mut exchange, message(Request::ResponseHeaders(headers("", true)))).unwrap();
    assert_eq!(said(&mut exchange), ["response"]);
    let late = drive(&mut exchange, message(Request::ResponseBody(part("x", true))));
    assert_eq!(late, Err(Violation::Ended(RESPONSE)));
}

#[test]
fn e2_a_body_that_matters_and_is_not_there_is_empty() {
    for (path, empty) in [("/read", Some(Bytes::new())), ("/", None)] {
        let asked = exchange().receive(message(Request::RequestHeaders(headers(path, true)))).unwrap();
        let Some(Question::Where { body, .. }) = asked else { panic!("{asked:?}") };
        assert_eq!(body, empty, "{path}");
    }
}

#[test]
fn e2_the_answer_waits_for_the_body_where_it_matters_and_nowhere_else() {
    let mut exchange = exchange();
    let asked = exchange.receive(message(Request::RequestHeaders(headers("/read", false)))).unwrap();
    assert_eq!(asked, None);
    assert_eq!(exchange.receive(message(Request::RequestBody(part("ab", false)))), Ok(None));
    let asked = exchange.receive(message(Request::RequestBody(part("c", true)))).unwrap();
    let Some(Question::Where { body: Some(body), .. }) = asked else { panic!("{asked:?}") };
    assert_eq!(body, "abc");
    assert_eq!(said(&mut exchange), [""; 0], "nothing before it is known where");
    exchange.picked(destination());
    assert_eq!(said(&mut exchange), ["request", "request 3 end"]);

    let mut exchange = self::exchange();
    drive(&mut exchange, message(Request::RequestHeaders(headers("/", false)))).unwrap();
    assert_eq!(said(&mut exchange), ["request"]);
    drive(&mut exchange, message(Request::RequestBody(part("ab", false)))).unwrap();
    assert_eq!(said(&mut exchange), ["request 2"], "each part goes on as it comes");
}

#[test]
fn e2_pieces_are_of_62_000_bytes_at_most() {
    for (length, pieces) in [
        (0, vec!["request 0 end"]),
        (62_000, vec!["request 62000 end"]),
        (62_001, vec!["request 62000", "request 1 end"]),
        (124_000, vec!["request 62000", "request 62000 end"]),
    ] {
        for path in ["/", "/read"] {
            let mut exchange = exchange();
            drive(&mut exchange, message(Request::RequestHeaders(headers(path, false)))).unwrap();
            drive(&mut exchange, message(Request::RequestBody(part(vec![7; length], true)))).unwrap();
            assert_eq!(said(&mut exchange)[1..], pieces, "{length} bytes at {path}");
        }
    }
}

#[test]
fn e2_the_destination_is_said_in_a_header_and_in_metadata_alike() {
    let mut exchange = exchange();
    drive(&mut exchange, message(Request::RequestHeaders(headers("/", true)))).unwrap();
    let reply = exchange.next_reply().unwrap();
    let Some(Response::RequestHeaders(answer)) = reply.response else { panic!("{reply:?}") };
    let common = answer.response.unwrap();
    assert!(common.clear_route_cache);
    let mutation = common.header_mutation.unwrap();
    let set: Vec<(String, Bytes)> = mutation
        .set_headers
        .into_iter()
        .map(|option| option.header.unwrap())
        .map(|header| (header.key, header.raw_value))
        .collect();
    assert_eq!(
        set,
        [("x-gateway-destination-endpoint", "10.0.0.1:8000"), ("x-prefiller-host-port", "10.0.0.2:8000")]
            .map(|(name, value)| (name.into(), value.into()))
    );
    assert_eq!(mutation.remove_headers, ["x-prefiller-host-port"], "a client's value goes, in every line");
    let metadata = reply.dynamic_metadata.unwrap();
    let Some(prost_types::value::Kind::StructValue(space)) = &metadata.fields["envoy.lb"].kind else {
        panic!("{metadata:?}")
    };
    let value = prost_types::value::Kind::StringValue("10.0.0.1:8000".into());
    assert_eq!(space.fields["x-gateway-destination-endpoint"].kind, Some(value));
}

#[test]
fn e1_trailers_end_a_body_and_go_on_behind_it() {
    for (path, before) in [("/", vec!["request", "request 2"]), ("/read", vec![])] {
        let mut exchange = exchange();
        drive(&mut exchange, message(Request::RequestHeaders(headers(path, false)))).unwrap();
        drive(&mut exchange, message(Request::RequestBody(part("ab", false)))).unwrap();
        let mut all = said(&mut exchange);
        assert_eq!(all, before);
        drive(&mut exchange, message(Request::RequestTrailers(HttpTrailers {}))).unwrap();
        all.extend(said(&mut exchange));
        assert_eq!(all, ["request", "request 2", "request trailers"], "{path}");
        let again = drive(&mut exchange, message(Request::RequestTrailers(HttpTrailers {})));
        assert_eq!(again, Err(Violation::Ended(REQUEST)));
    }
}

#[test]
fn e1_a_body_before_its_headers_or_before_their_answer_is_an_error() {
    let mut exchange = exchange();
    let early = exchange.receive(message(Request::RequestBody(part("x", false))));
    assert_eq!(early, Err(Violation::Headless(REQUEST)));
    assert!(exchange.receive(message(Request::RequestHeaders(headers("/", false)))).unwrap().is_some());
    let early = exchange.receive(message(Request::RequestBody(part("x", false))));
    assert_eq!(early, Err(Violation::Unanswered(REQUEST)));
    let again = exchange.receive(message(Request::RequestHeaders(headers("/", false))));
    assert_eq!(again, Err(Violation::Again(REQUEST)));
    assert_eq!(exchange.receive(ProcessingRequest::default()), Err(Violation::Unknown));
}

#[test]
fn e1_a_response_may_come_before_the_request_is_whole() {
    let mut exchange = exchange();
    drive(&mut exchange, message(Request::RequestHeaders(headers("/", false)))).unwrap();
    drive(&mut exchange, message(Request::ResponseHeaders(headers("", false)))).unwrap();
    drive(&mut exchange, message(Request::RequestBody(part("ab", true)))).unwrap();
    drive(&mut exchange, message(Request::ResponseBody(part("abc", true)))).unwrap();
    assert_eq!(said(&mut exchange), ["request", "response", "request 2 end", "response 3 end"]);
}

#[test]
fn e4_a_refusal_is_the_last_word() {
    let mut exchange = exchange();
    drive(&mut exchange, message(Request::RequestHeaders(headers("/read", false)))).unwrap();
    let long = part(vec![0; usize::try_from(LIMIT).unwrap()], false);
    drive(&mut exchange, message(Request::RequestBody(long))).unwrap();
    assert!(!exchange.is_over());
    drive(&mut exchange, message(Request::RequestBody(part("x", false)))).unwrap();
    assert_eq!(said(&mut exchange), ["immediate 413"]);
    assert!(exchange.is_over());
    drive(&mut exchange, message(Request::RequestBody(part("x", true)))).unwrap();
    assert_eq!(said(&mut exchange), [""; 0]);
}

#[test]
fn e4_a_body_that_goes_on_as_it_comes_is_bounded_too() {
    let mut exchange = exchange();
    drive(&mut exchange, message(Request::RequestHeaders(headers("/", false)))).unwrap();
    for _ in 0..16 {
        drive(&mut exchange, message(Request::RequestBody(part(vec![0; 1 << 16], false)))).unwrap();
    }
    assert!(said(&mut exchange).iter().all(|word| word.starts_with("request")));
    drive(&mut exchange, message(Request::RequestBody(part("x", true)))).unwrap();
    assert_eq!(said(&mut exchange), ["immediate 413"]);
}

#[test]
fn e1_a_proxy_that_keeps_the_body_is_not_kept_waiting() {
    for mode in [Mode::None, Mode::Streamed, Mode::Buffered, Mode::BufferedPartial] {
        let config = ProtocolConfiguration {
            request_body_mode: mode.into(),
            response_body_mode: mode.into(),
            ..ProtocolConfiguration::default()
        };
        let mut exchange = exchange();
        let mut first = message(Request::RequestHeaders(headers("/read", false)));
        first.protocol_config = Some(config);
        drive(&mut exchange, first).unwrap();
        drive(&mut exchange, message(Request::RequestBody(part("x", true)))).unwrap();
        assert_eq!(said(&mut exchange), ["request", "request unchanged"], "{mode:?}");
    }
}

#[test]
fn e1_who_only_observes_gets_no_answer() {
    let mut exchange = exchange();
    let mut observed = message(Request::RequestHeaders(headers("/", true)));
    observed.observability_mode = true;
    drive(&mut exchange, observed).unwrap();
    assert_eq!(said(&mut exchange), [""; 0]);
}

/// A body in parts, and how it ends.
fn body() -> impl Strategy<Value = (Vec<Vec<u8>>, bool)> {
    let part = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..200),
        1 => (any::<u8>(), 60_000..130_000_usize).prop_map(|(byte, length)| vec![byte; length]),
    ];
    (prop::collection::vec(part, 1..6), any::<bool>())
}

proptest! {
    #[test]
    fn r2_no_bytes_make_it_panic(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..6)) {
        let mut exchange = exchange();
        for bytes in messages {
            if let Ok(message) = <ProcessingRequest as prost::Message>::decode(&bytes[..]) {
                let _ = drive(&mut exchange, message);
                said(&mut exchange);
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
            let message = ProcessingRequest { request, ..ProcessingRequest::default() };
            let outcome = match exchange.receive(message) {
                Ok(Some(Question::Where { .. })) if refuse => {
                    exchange.refused(StatusCode::SERVICE_UNAVAILABLE, "no-endpoint", Headers::new(), Bytes::new());
                    Ok(None)
                }
                Ok(Some(Question::Where { .. })) => { exchange.picked(destination()); Ok(None) }
                Ok(Some(Question::Who { .. })) => Ok(exchange.stamped(Headers::new())),
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
