//! Every order of messages, and the bytes that come out (E1, E2).

mod properties;

use prost::Message as _;

use super::*;
use crate::extproc::{
    Named,
    proto::envoy::{
        config::core::v3::{HeaderMap, HeaderValue},
        service::ext_proc::v3::{BodyResponse, HttpTrailers, body_mutation::Mutation},
    },
};

const LIMIT: u64 = 1 << 20;

/// Of a proxy that sends bodies so.
fn with(mode: Mode, request: Request) -> ProcessingRequest {
    let config = ProtocolConfiguration {
        request_body_mode: mode.into(),
        response_body_mode: mode.into(),
        ..ProtocolConfiguration::default()
    };
    ProcessingRequest {
        request: Some(request),
        protocol_config: Some(config),
        ..ProcessingRequest::default()
    }
}

/// As gateways do.
fn message(request: Request) -> ProcessingRequest {
    with(Mode::FullDuplexStreamed, request)
}

fn headers(path: &str, end_of_stream: bool) -> HttpHeaders {
    announced(path, "", end_of_stream)
}

/// With a length of the body.
fn announced(path: &str, length: &str, end_of_stream: bool) -> HttpHeaders {
    let header = |key: &str, value: &str| HeaderValue {
        key: key.into(),
        value: String::new(),
        raw_value: value.to_owned().into(),
    };
    let headers = [(":method", "POST"), (":path", path), (":status", "200"), ("content-length", length)];
    let headers = headers.iter().map(|(key, value)| header(key, value)).collect();
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
        endpoints: Named::of([([10, 0, 0, 1], 8000).into()]),
        prefill: Some(Named::of([([10, 0, 0, 2], 8000).into()])),
        remove: Vec::new(),
    }
}

/// What is asked of a request that may begin.
fn begin(exchange: &mut Exchange, message: ProcessingRequest) -> Option<Question> {
    let asked = exchange.receive(message).unwrap();
    assert!(matches!(asked, Some(Question::Begins { .. })), "{asked:?}");
    exchange.begun()
}

/// Answers what is asked, until nothing is.
fn drive(exchange: &mut Exchange, message: ProcessingRequest) -> Result<(), Violation> {
    let mut question = exchange.receive(message)?;
    while let Some(asked) = question.take() {
        match asked {
            Question::Begins { .. } => question = exchange.begun(),
            Question::Where { .. } => exchange.picked(destination()),
            Question::Who { .. } => question = exchange.stamped(Stamps::of(&[])),
            Question::Whole => {}
            Question::TooLong => {
                exchange.refused(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "body-too-large",
                    &Headers::new(),
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
        let asked = begin(&mut exchange(), message(Request::RequestHeaders(headers(path, true))));
        let Some(Question::Where { body }) = asked else { panic!("{asked:?}") };
        assert_eq!(body, empty, "{path}");
    }
}

#[test]
fn e2_the_answer_waits_for_the_body_where_it_matters_and_nowhere_else() {
    let mut exchange = exchange();
    assert_eq!(begin(&mut exchange, message(Request::RequestHeaders(headers("/read", false)))), None);
    assert_eq!(exchange.receive(message(Request::RequestBody(part("ab", false)))), Ok(None));
    let asked = exchange.receive(message(Request::RequestBody(part("c", true)))).unwrap();
    let Some(Question::Where { body: Some(body) }) = asked else { panic!("{asked:?}") };
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

/// By the numbers of Envoy's own definitions: `response_headers` is 2 and `dynamic_metadata` 8 of a `ProcessingResponse`,
/// `response` is 1 of a `HeadersResponse`; `fields` is 1 of a `Struct`.
#[test]
fn what_is_written_once_is_written_as_a_message() {
    let mut exchange = exchange();
    drive(&mut exchange, message(Request::RequestHeaders(headers("/", true)))).unwrap();
    let picked = exchange.next_reply().unwrap().encode_to_vec();
    let metadata = Named::of([([10, 0, 0, 1], 8000).into()]).metadata;
    let tail = [&[8 << 3 | 2, u8::try_from(metadata.len()).unwrap()], &metadata[..]].concat();
    assert!(picked.ends_with(&tail) && metadata[0] == 1 << 3 | 2, "{picked:x?}");
    drive(&mut exchange, message(Request::ResponseHeaders(headers("/", true)))).unwrap();
    assert_eq!(exchange.next_reply().unwrap().encode_to_vec(), [2 << 3 | 2, 2, 1 << 3 | 2, 0]);
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
    let metadata = prost_types::Struct::decode(reply.dynamic_metadata).unwrap();
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
    assert_eq!(early, Err(Violation::Unanswered(REQUEST)), "it has not begun");
    assert!(exchange.begun().is_some());
    let early = exchange.receive(message(Request::RequestBody(part("x", false))));
    assert_eq!(early, Err(Violation::Unanswered(REQUEST)), "it goes nowhere yet");
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
    let modes = [Mode::None, Mode::Streamed, Mode::Buffered, Mode::BufferedPartial];
    for first in modes.map(of_read) {
        let mut exchange = exchange();
        let what = format!("{:?}", first.protocol_config);
        drive(&mut exchange, first).unwrap();
        drive(&mut exchange, message(Request::RequestBody(part("x", true)))).unwrap();
        assert_eq!(said(&mut exchange), ["request", "request unchanged"], "{what}");
    }
}

#[test]
fn e1_a_proxy_that_does_not_say_how_it_sends_bodies_gets_its_answer_at_once_and_its_bodies_back() {
    let mut exchange = exchange();
    let untold = |request| ProcessingRequest { protocol_config: None, ..message(request) };
    drive(&mut exchange, untold(Request::RequestHeaders(headers("/read", false)))).unwrap();
    assert_eq!(said(&mut exchange), ["request"]);
    drive(&mut exchange, untold(Request::RequestBody(part("x", true)))).unwrap();
    assert_eq!(said(&mut exchange), ["request 1 end"]);
    drive(&mut exchange, untold(Request::ResponseHeaders(headers("/", false)))).unwrap();
    drive(&mut exchange, untold(Request::ResponseBody(part("y", false)))).unwrap();
    drive(&mut exchange, untold(Request::ResponseBody(part("z", true)))).unwrap();
    assert_eq!(said(&mut exchange), ["response", "response 1", "response 1 end"]);
}

/// The beginning of a request whose body matters.
fn of_read(mode: Mode) -> ProcessingRequest {
    with(mode, Request::RequestHeaders(headers("/read", false)))
}

#[test]
fn e1_a_body_mode_that_is_not_known_is_an_error() {
    for (number, violation) in
        [(5, Violation::Grpc), (6, Violation::UnknownMode(6)), (-1, Violation::UnknownMode(-1))]
    {
        for request in [true, false] {
            let mut first = of_read(Mode::None);
            let config = first.protocol_config.as_mut().unwrap();
            *(if request { &mut config.request_body_mode } else { &mut config.response_body_mode }) = number;
            assert_eq!(exchange().receive(first), Err(violation));
        }
    }
}

#[test]
fn h11_a_length_over_the_limit_is_refused_before_the_body_comes_where_it_would_come() {
    for (path, mode, length, refused) in [
        ("/read", Mode::FullDuplexStreamed, LIMIT + 1, true),
        ("/", Mode::FullDuplexStreamed, LIMIT + 1, true),
        ("/", Mode::Buffered, LIMIT + 1, true),
        ("/", Mode::FullDuplexStreamed, LIMIT, false),
        ("/read", Mode::None, LIMIT + 1, false),
    ] {
        let mut exchange = exchange();
        let headers = announced(path, &length.to_string(), false);
        drive(&mut exchange, with(mode, Request::RequestHeaders(headers))).unwrap();
        let wanted = if refused { "immediate 413" } else { "request" };
        assert_eq!(said(&mut exchange), [wanted], "{path} {mode:?} {length}");
    }
}

#[test]
fn h14_what_is_waited_for_is_known_at_every_point() {
    let mut exchange = exchange();
    assert_eq!((exchange.due(), exchange.is_owing()), (Due::Request, false));
    for (request, due, owing) in [
        (Request::RequestHeaders(headers("/read", false)), Due::Request, true),
        (Request::RequestBody(part("x", false)), Due::Request, true),
        (Request::RequestBody(part("x", true)), Due::Response, false),
        (Request::ResponseHeaders(headers("", false)), Due::Body, false),
        (Request::ResponseBody(part("x", false)), Due::Body, false),
        (Request::ResponseBody(part("x", true)), Due::End, false),
    ] {
        drive(&mut exchange, message(request)).unwrap();
        assert_eq!((exchange.due(), exchange.is_owing()), (due, owing));
    }
    let mut exchange = self::exchange();
    drive(&mut exchange, of_read(Mode::None)).unwrap();
    assert_eq!(exchange.due(), Due::Response);
    drive(&mut exchange, message(Request::ResponseHeaders(headers("", false)))).unwrap();
    assert_eq!(exchange.due(), Due::Nothing, "the body is not shown");
}

#[test]
fn e1_who_only_observes_gets_no_answer() {
    let mut exchange = exchange();
    let mut observed = message(Request::RequestHeaders(headers("/", true)));
    observed.observability_mode = true;
    drive(&mut exchange, observed).unwrap();
    assert_eq!(said(&mut exchange), [""; 0]);
}
