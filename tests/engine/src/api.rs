//! From a request to a response: paths, KV transfer, and the faults that strike before the body.

use std::{io, sync::Arc};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::json;

use crate::{
    Fault, NAME_HEADER,
    answer::{Ask, Dialect, Script},
    behaviour::Behaviour,
    body::{EngineBody, Flight, Mishap},
    counters::Tick,
    handover::{self, KV_MISMATCH, Leg, Refusal},
    shared::{Recorded, Shared},
    wire::Link,
};

/// Largest request body, bytes.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// An answer without KV or streaming: status, content type, body.
struct Plain(StatusCode, &'static str, Bytes);

impl Plain {
    fn json(status: StatusCode, body: &serde_json::Value) -> Self {
        Self(status, "application/json", body.to_string().into())
    }

    /// The error shape of the OpenAI API.
    fn error(status: StatusCode, code: &str, message: &str) -> Self {
        let kind = if status.is_client_error() { "invalid_request_error" } else { "server_error" };
        Self::json(status, &json!({"error": {"message": message, "type": kind, "code": code, "param": null}}))
    }
}

/// Answers one request. An error ends the connection without a response.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    link: Arc<Link>,
    request: Request<Incoming>,
) -> Result<Response<EngineBody>, io::Error> {
    let flight = Flight::begin(&shared.tallies, &link);
    let behaviour = shared.behaviour();
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            shared.tallies.add(Tick::Other, 1);
            let plain = Plain::error(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "body above 64 MiB");
            return respond(&shared, &behaviour, plain, flight);
        }
        Err(error) => return Err(io::Error::other(error)),
    };
    shared.record(behaviour.record, || Recorded {
        method: head.method.clone(),
        uri: head.uri.clone(),
        headers: head.headers.clone(),
        body: body.clone(),
    });

    let Some(dialect) = Dialect::of(head.uri.path()) else {
        shared.tallies.add(Tick::Other, 1);
        return respond(
            &shared,
            &behaviour,
            other(&shared, &behaviour, &head.method, head.uri.path()),
            flight,
        );
    };
    if head.method != Method::POST {
        shared.tallies.add(Tick::Other, 1);
        let plain = Plain::error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "POST only");
        return respond(&shared, &behaviour, plain, flight);
    }
    infer(&shared, &behaviour, dialect, &body, flight).await
}

/// The paths that are not inference.
fn other(shared: &Shared, behaviour: &Behaviour, method: &Method, path: &str) -> Plain {
    match (method, path) {
        (&Method::GET | &Method::HEAD, "/health") if behaviour.healthy => {
            Plain(StatusCode::OK, "text/plain", Bytes::new())
        }
        (&Method::GET | &Method::HEAD, "/health") => {
            Plain(StatusCode::SERVICE_UNAVAILABLE, "text/plain", Bytes::new())
        }
        (&Method::GET, "/v1/models") => Plain::json(
            StatusCode::OK,
            &json!({"object": "list", "data": [{"id": "sim", "object": "model", "created": 0, "owned_by": "sim"}]}),
        ),
        (&Method::GET, "/metrics") => {
            Plain(StatusCode::OK, "text/plain; version=0.0.4", shared.metrics().into())
        }
        _ => Plain::error(StatusCode::NOT_FOUND, "not_found", "no such path"),
    }
}

async fn infer(
    shared: &Shared,
    behaviour: &Behaviour,
    dialect: Dialect,
    body: &[u8],
    flight: Flight,
) -> Result<Response<EngineBody>, io::Error> {
    let ask: Ask = match serde_json::from_slice(body) {
        Ok(ask) => ask,
        Err(error) => {
            shared.tallies.add(Tick::Other, 1);
            let plain = Plain::error(StatusCode::BAD_REQUEST, "bad_json", &error.to_string());
            return respond(shared, behaviour, plain, flight);
        }
    };
    let leg = shared.leg(&ask);
    shared.count_leg(&leg);

    let fault = shared.next_fault(behaviour);
    match fault {
        Some(Fault::Status(status)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let plain = Plain::error(status, "injected_fault", "this engine was told to fail");
            return respond(shared, behaviour, plain, flight);
        }
        Some(Fault::ResetBeforeHead) => {
            flight.link.reset();
            return Err(io::Error::from(io::ErrorKind::ConnectionReset));
        }
        Some(Fault::Stall) => std::future::pending().await,
        Some(Fault::ResetMidBody | Fault::StallMidBody) | None => {}
    }
    let mishap = match fault {
        Some(Fault::ResetMidBody) => Some(Mishap::Reset),
        Some(Fault::StallMidBody) => Some(Mishap::Stall),
        _ => None,
    };

    let sequence = shared.next_sequence();
    let decodes = matches!(leg, Leg::Decode(_));
    let transfer = match handover::transfer(shared, leg, &ask, sequence).await {
        Ok(transfer) => transfer,
        Err(refusal) => {
            let foreign = matches!(refusal, Refusal::Foreign { .. });
            if foreign && decodes {
                shared.tallies.add(Tick::Mixed, 1);
            }
            return respond(shared, behaviour, refused(&refusal), flight);
        }
    };
    // Every token of the prompt came as a block, or as many as it is said to have cached.
    let cached_tokens = if transfer.fetched { ask.prompt_tokens() } else { behaviour.cached_tokens };
    if !behaviour.first_byte_delay.is_zero() {
        tokio::time::sleep(behaviour.first_byte_delay).await;
    }
    let script = Script::new(dialect, &ask, sequence, behaviour.tokens, cached_tokens);
    let (content_type, body) = if ask.stream {
        ("text/event-stream", EngineBody::stream(script, behaviour.token_delay, flight))
    } else {
        let whole = script.with_kv(transfer.reply).filled_to(behaviour.min_body).whole();
        ("application/json", EngineBody::whole(whole, flight))
    };
    finish(shared, behaviour, StatusCode::OK, content_type, body.with_mishap(mishap))
}

fn refused(refusal: &Refusal) -> Plain {
    let (status, code) = match refusal {
        Refusal::Foreign { .. } => (StatusCode::INTERNAL_SERVER_ERROR, KV_MISMATCH),
        Refusal::Incomplete(_) => (StatusCode::BAD_REQUEST, "kv_params_invalid"),
        Refusal::Broken(_) => (StatusCode::INTERNAL_SERVER_ERROR, "kv_transfer_failed"),
    };
    Plain::error(status, code, &refusal.to_string())
}

fn respond(
    shared: &Shared,
    behaviour: &Behaviour,
    Plain(status, content_type, body): Plain,
    flight: Flight,
) -> Result<Response<EngineBody>, io::Error> {
    finish(shared, behaviour, status, content_type, EngineBody::whole(body, flight))
}

fn finish(
    shared: &Shared,
    behaviour: &Behaviour,
    status: StatusCode,
    content_type: &'static str,
    body: EngineBody,
) -> Result<Response<EngineBody>, io::Error> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in &behaviour.headers {
        headers.append(name, value.clone());
    }
    if behaviour.reveal {
        headers.insert(NAME_HEADER, HeaderValue::try_from(shared.name.as_str()).map_err(io::Error::other)?);
    }
    Ok(response)
}
