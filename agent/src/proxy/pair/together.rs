//! Two legs at once, waiting for each other.
//!
//! The answer begins when both have a good head. The prefill's comes no later than the decode's first token, so that
//! costs nothing, and a prefill that fails still has a status to give. The place where they meet is in both bodies, so
//! when the prefill must go elsewhere, both begin anew, in a fresh room.

use std::{pin::pin, rc::Rc};

use futures_util::future::{Either, select};

use super::{
    Body, Legs, collect,
    connector::Handover,
    extras::{Companion, Extras},
};
use crate::proxy::{
    attempts::{Attempts, Patient, Payload},
    error::ProxyError,
    forward::Answer,
};

/// Runs both.
pub(super) async fn run(mut legs: Legs<'_>, body: Body) -> Result<Answer, ProxyError> {
    let config = &legs.pair.config;
    let mut prefill = legs.prefill();
    prefill.patient = Patient { left: config.prefill_retries, wait: config.prefill_backoff };
    loop {
        if let Some(answer) = round(&mut legs, &body, &mut prefill).await? {
            return Ok(answer);
        }
    }
}

/// Runs both once. `None`: the prefill goes elsewhere. Whichever leg is still under way on a return is dropped.
async fn round(
    legs: &mut Legs<'_>,
    body: &Body,
    prefill: &mut Attempts<'_>,
) -> Result<Option<Answer>, ProxyError> {
    let connector = &legs.pair.connector;
    // Only now is it known who prefills: the kernel may have led the connection to another endpoint.
    let connected = prefill.connect().await?;
    let target = Rc::clone(&connected.lease.target);
    let meeting = legs.meeting(&target);
    let rope = body.edited(&connector.prefill(legs.api, meeting));
    let mut head = legs.head(&rope);
    prefill.payload = Payload::Rope(rope);
    let rope = body.edited(&connector.decode(meeting, &Handover::default()));
    let mut decode = legs.decode();
    let mut decode_head = legs.head(&rope);
    decode.payload = Payload::Rope(rope);

    let mut prefilling = pin!(prefill.send(connected, &mut head));
    let mut decoding = pin!(decode.run(&mut decode_head));
    let first = match select(prefilling.as_mut(), decoding.as_mut()).await {
        Either::Left((tried, _)) => Either::Left(tried?),
        Either::Right((answer, _)) => Either::Right(answer?),
    };
    let (tried, decoded) = match first {
        Either::Left(tried) => (tried, None),
        Either::Right(answer) if !answer.response.status().is_success() => return Ok(Some(answer)),
        Either::Right(answer) => (prefilling.await?, Some(answer)),
    };
    let Some(prefilled) = tried else { return Ok(None) };
    if !prefilled.response.status().is_success() {
        return Ok(Some(prefilled));
    }
    let mut extras = Extras::of(target.endpoint.address);
    let companion = companion(legs, prefilled);
    let mut answer = match decoded {
        Some(answer) => {
            extras.accompany(companion);
            answer
        }
        None => match select(companion, decoding.as_mut()).await {
            Either::Left((read, _)) => {
                read?;
                decoding.await?
            }
            Either::Right((answer, companion)) => {
                extras.accompany(companion);
                answer?
            }
        },
    };
    answer.extras = Some(Box::new(extras));
    Ok(Some(answer))
}

/// The rest of a prefill leg, beside the decode's answer.
fn companion(legs: &Legs<'_>, prefilled: Answer) -> Companion {
    let listener = Rc::clone(legs.listener);
    Box::pin(async move {
        let Some(pair) = &listener.pair else { return Ok(()) };
        let http = listener.worker.http();
        collect::reply(prefilled, &listener, &http, pair.config.max_prefill_reply, false).await.map(drop)
    })
}
