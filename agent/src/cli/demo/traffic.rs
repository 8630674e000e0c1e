//! The clients: those whose requests have a Prefill and a Decode leg, and plain clients of a VIP.
//!
//! The legs are run by a coordinator here, through a listener for each role, or by the agent, through one for both.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use revgate_engine::{KV_MISMATCH, NAME_HEADER};
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use super::{
    board::{Board, Lane, Outcome},
    peer::Peer,
    stage::{REVISION_HEADER, REVISIONS, revision_of},
};
use crate::config::REASON_HEADER;

const CHAT: &str = "/v1/chat/completions";

/// Times that a pair is begun, where its revision ends between its legs.
const TRIES: u32 = 3;

/// Where the agent listens for pairs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// For each leg.
    PerRole { prefill: SocketAddr, decode: SocketAddr },
    /// For both.
    Shared(SocketAddr),
}

/// After a request that is not judged: those that are have the machine for themselves, almost.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits for the next turn of a client that has a pace, or that has nothing judged to do.
async fn turn(pace: &mut Option<Interval>, judged: bool) {
    match pace {
        Some(pace) => drop(pace.tick().await),
        None if judged => {}
        None => sleep(PAUSE).await,
    }
}

fn pacer(pace: Option<Duration>) -> Option<Interval> {
    pace.map(|pace| {
        let mut interval = interval(pace);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    })
}

/// Pairs of legs until the board has no more tickets.
pub(super) async fn coordinate(board: Arc<Board>, way: Way, pace: Option<Duration>, seed: u64) {
    let mut generator = StdRng::seed_from_u64(seed);
    let (mut prefill, mut decode) = match way {
        Way::PerRole { prefill, decode } => (Some(Peer::new(prefill)), Peer::new(decode)),
        Way::Shared(listener) => (None, Peer::new(listener)),
    };
    let mut pace = pacer(pace);
    let mut judged = true;
    loop {
        turn(&mut pace, judged).await;
        let Some(ticket) = board.ticket(Lane::Pairs).await else { return };
        judged = ticket.judged;
        // No two are the same: what is found in a storage is of this request.
        let work = "all work and no play ".repeat(generator.random_range(1..20));
        let prompt = format!("{work}{}", generator.random::<u64>());
        let body = json!({
            "model": "sim", "stream": generator.random::<bool>(), "max_tokens": 4,
            "messages": [{"role": "user", "content": prompt}],
        });
        let mut outcome = Outcome::Failed("a pair was begun anew again and again".to_owned());
        for _ in 0..TRIES {
            let end = match &mut prefill {
                Some(prefill) => pair(prefill, &mut decode, &body).await,
                None => whole(&mut decode, &body).await,
            };
            if let Some(end) = end {
                outcome = end;
                break;
            }
            board.restarted();
        }
        board.record(ticket, outcome);
    }
}

/// Both legs of one request; `None` where the revision of the first was no longer eligible for the second.
async fn pair(prefill: &mut Peer, decode: &mut Peer, body: &Value) -> Option<Outcome> {
    let mut first = body.clone();
    if let Some(fields) = first.as_object_mut() {
        fields.insert("stream".to_owned(), json!(false));
        fields.insert("max_tokens".to_owned(), json!(1));
        fields.insert("max_completion_tokens".to_owned(), json!(1));
        fields.insert(
            "kv_transfer_params".to_owned(),
            json!({
                "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
                "remote_block_ids": null, "remote_host": null, "remote_port": null,
            }),
        );
    }
    let answer = match prefill.send(post(&first, None)).await {
        Ok(answer) => answer,
        Err(error) => return Some(Outcome::Failed(format!("prefill: {error}"))),
    };
    if answer.status() != StatusCode::OK {
        return Some(Outcome::Failed(format!("prefill: {}", refusal(&answer))));
    }
    let first_leg = match Leg::of(&answer) {
        Ok(leg) => leg,
        Err(why) => return Some(Outcome::Failed(format!("prefill: {why}"))),
    };
    let reply: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let Some(kv) = reply.get("kv_transfer_params") else {
        return Some(Outcome::Failed("prefill: no kv_transfer_params in the reply".to_owned()));
    };

    let mut second = body.clone();
    if let Some(fields) = second.as_object_mut() {
        fields.insert("kv_transfer_params".to_owned(), kv.clone());
    }
    let answer = match decode.send(post(&second, Some(&first_leg.stamp))).await {
        Ok(answer) => answer,
        Err(error) => return Some(Outcome::Failed(format!("decode: {error}"))),
    };
    Some(match answer.status() {
        StatusCode::OK => match Leg::of(&answer) {
            Ok(second_leg) => first_leg.with(&second_leg),
            Err(why) => Outcome::Failed(format!("decode: {why}")),
        },
        StatusCode::SERVICE_UNAVAILABLE if reason(&answer) == Some("revision-not-eligible") => return None,
        _ if contains(answer.body(), KV_MISMATCH) => Outcome::Mixed(format!("decode: {}", refusal(&answer))),
        _ => Outcome::Failed(format!("decode: {}", refusal(&answer))),
    })
}

/// One request whose legs the agent runs. The decode engine checks whose KV it is offered, so that one answer tells of
/// both. `None` where the revision ended between the legs.
async fn whole(listener: &mut Peer, body: &Value) -> Option<Outcome> {
    let answer = match listener.send(post(body, None)).await {
        Ok(answer) => answer,
        Err(error) => return Some(Outcome::Failed(format!("pair: {error}"))),
    };
    Some(match answer.status() {
        StatusCode::OK => match Leg::of(&answer) {
            Ok(leg) => leg.with(&leg),
            Err(why) => Outcome::Failed(format!("pair: {why}")),
        },
        StatusCode::SERVICE_UNAVAILABLE if reason(&answer) == Some("no-endpoint") => return None,
        _ if contains(answer.body(), KV_MISMATCH) => Outcome::Mixed(format!("pair: {}", refusal(&answer))),
        _ => Outcome::Failed(format!("pair: {}", refusal(&answer))),
    })
}

/// Who answered one leg, and what the agent stamped.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Leg {
    engine: String,
    /// The revision of that engine, by index.
    revision: usize,
    stamp: HeaderValue,
}

impl Leg {
    fn of(answer: &Response<Bytes>) -> Result<Self, String> {
        let mut stamps = answer.headers().get_all(REVISION_HEADER).into_iter();
        let (Some(stamp), None) = (stamps.next(), stamps.next()) else {
            return Err(format!("not exactly one {REVISION_HEADER} header"));
        };
        let (engine, revision) = server(answer)?;
        Ok(Self { engine, revision, stamp: stamp.clone() })
    }

    fn stamp_is_true(&self) -> bool {
        REVISIONS.get(self.revision).is_some_and(|name| self.stamp.as_bytes() == name.as_bytes())
    }

    /// The outcome of a pair of legs.
    fn with(&self, other: &Self) -> Outcome {
        if self.revision == other.revision && self.stamp_is_true() && other.stamp_is_true() {
            Outcome::Served(self.revision)
        } else {
            let said = |leg: &Self| format!("{} stamped {:?}", leg.engine, leg.stamp);
            Outcome::Mixed(format!("prefill by {}, decode by {}", said(self), said(other)))
        }
    }
}

/// The engine that answered, and its revision: from the engine's own mouth, not the agent's.
fn server(answer: &Response<Bytes>) -> Result<(String, usize), String> {
    let name = answer.headers().get(NAME_HEADER).and_then(|name| name.to_str().ok()).unwrap_or_default();
    revision_of(name)
        .map(|revision| (name.to_owned(), revision))
        .ok_or_else(|| format!("no engine named `{name}`"))
}

/// A plain client: each request on a connection of its own to a VIP that only the kernel knows.
pub(super) async fn dial(board: Arc<Board>, vip: SocketAddr, pace: Option<Duration>) {
    let mut pace = pacer(pace);
    let mut judged = true;
    loop {
        turn(&mut pace, judged).await;
        let Some(ticket) = board.ticket(Lane::Vip).await else { return };
        judged = ticket.judged;
        let outcome = match once(vip).await {
            Ok((_, revision)) => Outcome::Served(revision),
            Err(why) => Outcome::Failed(format!("VIP {vip}: {why}")),
        };
        board.record(ticket, outcome);
    }
}

/// One request on a fresh connection: who answered.
pub(super) async fn once(address: SocketAddr) -> Result<(String, usize), String> {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = http::Uri::from_static("/health");
    let answer = Peer::new(address).send(request).await?;
    if answer.status() == StatusCode::OK { server(&answer) } else { Err(refusal(&answer)) }
}

fn post(body: &Value, revision: Option<&HeaderValue>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::from(body.to_string()));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = http::Uri::from_static(CHAT);
    let headers = request.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(revision) = revision {
        headers.insert(REVISION_HEADER, revision.clone());
    }
    request
}

fn reason(answer: &Response<Bytes>) -> Option<&str> {
    answer.headers().get(REASON_HEADER)?.to_str().ok()
}

fn refusal(answer: &Response<Bytes>) -> String {
    let body: String = String::from_utf8_lossy(answer.body()).chars().take(160).collect();
    format!("{} {} {body}", answer.status(), reason(answer).unwrap_or("-"))
}

fn contains(text: &[u8], word: &str) -> bool {
    text.windows(word.len()).any(|window| window == word.as_bytes())
}

#[cfg(test)]
mod tests {
    use revgate_engine::{Engine, EngineConfig};

    use super::*;

    /// An engine that answers as the agent in front of it would: named, and stamped.
    async fn engine(name: &str, revision: &str, stamp: &str) -> Engine {
        let mut config = EngineConfig::new(([127, 79, 0, 1], 0).into(), revision, "");
        config.name = name.to_owned();
        config.behaviour.reveal = true;
        config.behaviour.headers.push((REVISION_HEADER, stamp.parse().unwrap()));
        Engine::start(config).await.unwrap()
    }

    async fn outcome(prefill: &Engine, decode: &Engine) -> Option<Outcome> {
        let (mut prefill, mut decode) = (Peer::new(prefill.address()), Peer::new(decode.address()));
        pair(&mut prefill, &mut decode, &json!({"messages": [], "stream": true})).await
    }

    #[tokio::test]
    async fn a_pair_on_one_revision_is_served_by_it() {
        let prefill = engine("B-prefill-0", "B", "B").await;
        let decode = engine("B-decode-0", "B", "B").await;
        assert_eq!(outcome(&prefill, &decode).await, Some(Outcome::Served(1)));
        assert_eq!((prefill.counters().prefill, decode.counters().decode), (1, 1));
    }

    #[tokio::test]
    async fn a_pair_across_revisions_is_mixed_even_if_the_engine_does_not_notice() {
        let prefill = engine("A-prefill-0", "A", "A").await;
        let other = engine("B-decode-0", "B", "A").await;
        assert!(matches!(outcome(&prefill, &other).await, Some(Outcome::Mixed(_))));
        assert_eq!(other.counters().mixed, 1);
        let blind = engine("B-decode-0", "A", "A").await;
        assert!(matches!(outcome(&prefill, &blind).await, Some(Outcome::Mixed(_))));
    }

    #[tokio::test]
    async fn a_stamp_that_is_not_the_engines_revision_is_mixed() {
        let prefill = engine("A-prefill-0", "A", "B").await;
        let decode = engine("A-decode-0", "A", "A").await;
        assert!(matches!(outcome(&prefill, &decode).await, Some(Outcome::Mixed(_))));
    }

    #[tokio::test]
    async fn a_revision_that_ended_between_the_legs_is_no_failure_and_any_other_refusal_is() {
        let prefill = engine("A-prefill-0", "A", "A").await;
        let decode = engine("A-decode-0", "A", "A").await;
        decode.fail_next(2, revgate_engine::Fault::Status(503));
        assert!(matches!(outcome(&prefill, &decode).await, Some(Outcome::Failed(_))));
        decode.update(|b| b.headers.push((REASON_HEADER, HeaderValue::from_static("revision-not-eligible"))));
        assert_eq!(outcome(&prefill, &decode).await, None);
        decode.down().await.unwrap();
        assert!(matches!(outcome(&prefill, &decode).await, Some(Outcome::Failed(_))));
    }

    #[tokio::test]
    async fn coordinators_and_plain_clients_fill_the_board_and_end_with_it() {
        let prefill = engine("A-prefill-0", "A", "A").await;
        let decode = engine("A-decode-0", "A", "A").await;
        let board = Arc::new(Board::new(2));
        let way = Way::PerRole { prefill: prefill.address(), decode: decode.address() };
        let mut clients = tokio::task::JoinSet::new();
        clients.spawn(coordinate(Arc::clone(&board), way, None, 1));
        clients.spawn(dial(Arc::clone(&board), decode.address(), Some(Duration::from_millis(1))));
        board.open(20, 10, Vec::new());
        board.judged().await;
        board.end();
        assert!(clients.join_all().await.len() == 2);
        let score = board.take();
        assert_eq!(
            (score.pairs, score.vip, score.failed),
            (vec![20, 0], vec![10, 0], 0),
            "{:?}",
            board.complaints()
        );
    }
}
