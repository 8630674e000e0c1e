//! The messages of a gateway: any sequence of them, each with its length before it.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use prost::Message as _;

use crate::extproc::{
    Destination, Exchange, Head, Headers, Named, PIECE, Question, Stamps, Violation,
    proto::envoy::{
        extensions::filters::http::ext_proc::v3::processing_mode::BodySendMode,
        service::ext_proc::v3::{
            BodyResponse, ProcessingRequest, ProcessingResponse, body_mutation::Mutation,
            processing_request::Request, processing_response::Response,
        },
    },
};

/// Longest request body.
const LIMIT: u64 = 1000;

/// Whatever a gateway says: headers are answered once at most, bodies behind them and byte for byte, and nothing
/// comes behind a refusal.
pub fn ext_proc(mut data: &[u8]) {
    let mut messages = Vec::new();
    while let Ok(message) = ProcessingRequest::decode_length_delimited(&mut data) {
        messages.push(message);
    }
    for refuses in [false, true] {
        converse(&messages, refuses);
    }
}

fn converse(messages: &[ProcessingRequest], refuses: bool) {
    let mut exchange = Exchange::new(|head| head.first(":path").starts_with(b"/v1/"), LIMIT);
    let mut sides = [Side::default(), Side::default()];
    let duplex = duplex(messages);
    let mut begun = Destination::default();
    let mut is_over = false;
    for message in messages {
        if let Err(violation) = drive(&mut exchange, &mut begun, message.clone(), refuses) {
            assert!(!violation.to_string().is_empty());
            break;
        }
        for (side, duplex) in sides.iter_mut().zip(duplex) {
            side.duplex = duplex;
        }
        hear(&mut sides, message);
        while let Some(reply) = exchange.next_reply() {
            assert!(!is_over, "behind a refusal: {reply:?}");
            is_over = take(&mut sides, reply);
        }
        let [request, response] = &sides;
        if is_over {
            assert!(exchange.is_over());
            break;
        }
        assert!(!(exchange.is_owing() && request.answered), "owing what was answered");
        request.is_whole();
        response.is_whole();
    }
}

/// Which bodies go through the picker: requests', responses'. All do, where that is not said.
fn duplex(messages: &[ProcessingRequest]) -> [bool; 2] {
    let Some(config) = messages.first().and_then(|first| first.protocol_config.as_ref()) else {
        return [true; 2];
    };
    [config.request_body_mode(), config.response_body_mode()]
        .map(|mode| mode == BodySendMode::FullDuplexStreamed)
}

/// Takes a message and answers what is asked.
fn drive(
    exchange: &mut Exchange,
    begun: &mut Destination,
    message: ProcessingRequest,
    refuses: bool,
) -> Result<(), Violation> {
    let mut question = exchange.receive(message)?;
    while let Some(asked) = question.take() {
        match asked {
            Question::Begins { head, subset } => {
                *begun = destination(&head, subset.map_or(1, |subset| subset.len()));
                question = exchange.begun();
            }
            Question::Where { body } => {
                let long = body.is_some_and(|body| body.len() as u64 > LIMIT);
                assert!(!long, "a body beyond the limit");
                if refuses {
                    refuse(exchange, StatusCode::SERVICE_UNAVAILABLE);
                } else {
                    exchange.picked(begun.clone());
                }
            }
            Question::Who { .. } => question = exchange.stamped(Stamps::of(&stamps())),
            Question::Whole => {}
            Question::TooLong => refuse(exchange, StatusCode::PAYLOAD_TOO_LARGE),
        }
    }
    Ok(())
}

fn refuse(exchange: &mut Exchange, status: StatusCode) {
    exchange.refused(status, "refused", &stamps(), Bytes::from_static(b"no"));
}

fn destination(head: &Head, endpoints: usize) -> Destination {
    Destination {
        endpoints: Named::of([([10, 0, 0, 1], 8000).into()].into_iter().cycle().take(endpoints.min(16))),
        prefill: Some(Named::of([([10, 0, 0, 2], 8000).into()])),
        remove: head.iter().map(|(name, _)| name.to_owned()).collect(),
    }
}

fn stamps() -> Headers {
    vec![
        (HeaderName::from_static("x-rev"), Some(HeaderValue::from_static("a"))),
        (HeaderName::from_static("x-slice"), None),
    ]
}

/// What was said on one side, the gateway's words and the picker's.
#[derive(Default)]
struct Side {
    duplex: bool,
    answered: bool,
    ended: bool,
    heard: Vec<u8>,
    told: Vec<u8>,
}

impl Side {
    fn headers(&mut self) {
        assert!(!self.answered, "headers are answered twice");
        self.answered = true;
    }

    fn body(&mut self, reply: BodyResponse) {
        assert!(self.answered && !self.ended, "a body out of its place: {reply:?}");
        let mutation = reply.response.and_then(|response| response.body_mutation?.mutation);
        assert_eq!(mutation.is_some(), self.duplex, "a body that the gateway keeps, or not");
        if let Some(Mutation::StreamedResponse(piece)) = mutation {
            assert!(piece.body.len() <= PIECE, "longer than Envoy takes");
            self.told.extend_from_slice(&piece.body);
            self.ended = piece.end_of_stream;
        }
    }

    fn trailers(&mut self) {
        assert!(self.answered && !self.ended, "trailers out of their place");
        self.ended = true;
    }

    /// All that was heard is told once the headers are answered.
    fn is_whole(&self) {
        assert!(!self.answered || !self.duplex || self.heard == self.told, "{:?}", self.told);
        assert!(self.answered || self.told.is_empty());
    }
}

fn hear([request, response]: &mut [Side; 2], message: &ProcessingRequest) {
    if message.observability_mode {
        return;
    }
    match &message.request {
        Some(Request::RequestBody(body)) => request.heard.extend_from_slice(&body.body),
        Some(Request::ResponseBody(body)) => response.heard.extend_from_slice(&body.body),
        _ => {}
    }
}

/// True: it is a refusal.
fn take([request, response]: &mut [Side; 2], reply: ProcessingResponse) -> bool {
    assert!(reply.encoded_len() > 0, "a reply that says nothing");
    match reply.response {
        Some(Response::RequestHeaders(_)) => request.headers(),
        Some(Response::ResponseHeaders(_)) => response.headers(),
        Some(Response::RequestBody(body)) => request.body(body),
        Some(Response::ResponseBody(body)) => response.body(body),
        Some(Response::RequestTrailers(_)) => request.trailers(),
        Some(Response::ResponseTrailers(_)) => response.trailers(),
        Some(Response::ImmediateResponse(_)) => return true,
        None => unreachable!("a reply that answers nothing"),
    }
    false
}
