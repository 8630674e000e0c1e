//! Two legs one after the other: the decode begins with what the prefill's reply hands on.

use http::{
    StatusCode,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE},
};

use super::{
    Body, Legs,
    cached::{CachedTokens, Form},
    collect,
    connector::{Handover, Meeting},
    extras::Extras,
};
use crate::proxy::{
    attempts::{Patient, Payload},
    error::ProxyError,
    forward::Answer,
};

/// What came of a prefill leg.
enum Prefilled {
    /// It is done.
    Done(Handover),
    /// The endpoint refused: its words are the client's.
    Refused(Answer),
}

/// Runs both.
pub(super) async fn run(mut legs: Legs<'_>, body: Body) -> Result<Answer, ProxyError> {
    let reserved = legs.reserve();
    let Some(prefill) = legs.prefill.as_ref().map(|chosen| chosen.target.clone()) else {
        return Err(ProxyError::NotSynced);
    };
    let meeting = legs.meeting(&prefill);
    let fallback = legs.pair.config.decode_only_fallback;
    let edits = match prefill_leg(&mut legs, &body, meeting).await {
        Ok(Prefilled::Done(handover)) => {
            let edits = legs.pair.connector.decode(meeting, &handover);
            (edits, handover.cached)
        }
        Ok(Prefilled::Refused(answer)) => {
            if !fallback || !answer.response.status().is_server_error() {
                return Ok(answer);
            }
            legs.listener.failed(&answer.lease.target);
            (fall_back(&legs, &answer.response.status()), None)
        }
        Err(error) if fallback => (fall_back(&legs, &error), None),
        Err(error) => return Err(error),
    };
    let (edits, cached) = edits;
    let rope = body.edited(&edits);
    drop(body);
    let mut decode = legs.decode();
    drop(reserved);
    let mut head = legs.head(&rope);
    decode.payload = Payload::Rope(rope);
    let mut answer = decode.run(&mut head).await?;
    let mut extras = Extras::of(prefill.endpoint.address);
    if let Some(cached) = cached
        && let Some(form) = form(&answer)
    {
        let limit = usize::try_from(legs.pair.config.max_prefill_reply).unwrap_or(usize::MAX);
        answer.response.headers_mut().remove(CONTENT_LENGTH);
        extras.edit(CachedTokens::new(cached, form, limit));
    }
    answer.extras = Some(Box::new(extras));
    Ok(answer)
}

async fn prefill_leg(legs: &mut Legs<'_>, body: &Body, meeting: Meeting) -> Result<Prefilled, ProxyError> {
    let (pair, clock) = (legs.pair, legs.listener.worker.shared.clock);
    let began = clock.micros();
    let rope = body.edited(&pair.connector.prefill(legs.api, meeting));
    let mut prefill = legs.prefill();
    prefill.patient = Patient { left: pair.config.prefill_retries, wait: pair.config.prefill_backoff };
    let mut head = legs.head(&rope);
    prefill.payload = Payload::Rope(rope);
    let answer = prefill.run(&mut head).await?;
    if !answer.response.status().is_success() {
        return Ok(Prefilled::Refused(answer));
    }
    let address = answer.lease.target.endpoint.address;
    let read = pair.connector.hand_over();
    let limit = pair.config.max_prefill_reply;
    let reply = collect::reply(answer, legs.listener, legs.http, limit, read.is_some()).await?;
    pair.metrics.prefill.observe(clock.micros().saturating_sub(began));
    let Some(read) = read else { return Ok(Prefilled::Done(Handover::default())) };
    let handover = read(&reply);
    if handover.kv.is_none() {
        pair.metrics.no_kv.inc();
        tracing::warn!(endpoint = %address, "a prefill told no place of its KV cache (kv_transfer_params)");
    }
    Ok(Prefilled::Done(handover))
}

/// The decode endpoint does all the work, and it is said.
fn fall_back(legs: &Legs<'_>, why: &dyn std::fmt::Display) -> super::Edits {
    legs.pair.metrics.decode_only.inc();
    tracing::warn!(revision = %legs.revision, %why, "a prefill failed; the decode goes without it");
    legs.pair.connector.decode_only()
}

/// How an answer is written, where it can be edited.
fn form(answer: &Answer) -> Option<Form> {
    let headers = answer.response.headers();
    if answer.response.status() != StatusCode::OK || headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let content = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    match content.split(';').next()?.trim() {
        "text/event-stream" => Some(Form::Events),
        "application/json" => Some(Form::Object),
        _ => None,
    }
}
