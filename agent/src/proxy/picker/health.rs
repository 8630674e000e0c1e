//! The gRPC health protocol (E6): whether the agent lives, and whether it can pick.

use std::{pin::Pin, rc::Rc, sync::atomic::Ordering::Relaxed};

use futures_util::{Stream, stream};
use hyper::body::Incoming;
use tonic::{Status, Streaming};

use super::{Other, SERVICE, SMALL, encoded, messages};
use crate::{
    extproc::proto::grpc::health::v1::{
        HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
        health_check_response::ServingStatus,
    },
    proxy::{
        client::{Client, Turn},
        listener::Listener,
    },
};

/// The process answers; this does.
const LIVENESS: &str = "liveness";
/// Everything that is known of, the whole first.
const SERVICES: [&str; 4] = ["", LIVENESS, "readiness", SERVICE];

type Messages<M> = Pin<Box<dyn Stream<Item = Result<M, Status>>>>;

/// Answers a call; `None`: there is no such method.
pub(super) fn answer(
    method: &str,
    listener: &Rc<Listener>,
    client: Rc<Client>,
    body: Incoming,
) -> Option<Other> {
    let (http, listener) = (listener.worker.http(), Rc::clone(listener));
    Some(match method {
        "Check" => {
            let mut requests = messages(body, &http);
            let check = async move {
                let service = first(&mut requests).await?;
                let status =
                    status(&listener, &service).ok_or_else(|| Status::not_found("no such service"))?;
                Ok(response(status))
            };
            let answer: Messages<HealthCheckResponse> = Box::pin(stream::once(check));
            Box::pin(encoded(answer, SMALL))
        }
        "List" => {
            let mut requests: Streaming<HealthListRequest> = messages(body, &http);
            let list = async move {
                requests.message().await?;
                let all = SERVICES.iter().filter_map(|service| {
                    Some(((*service).to_owned(), response(status(&listener, service)?)))
                });
                Ok(HealthListResponse { statuses: all.collect() })
            };
            let answer: Messages<HealthListResponse> = Box::pin(stream::once(list));
            Box::pin(encoded(answer, SMALL))
        }
        "Watch" => {
            let watch =
                Watch::Begin(Box::new(messages(body, &http)), Held::new(Rc::clone(&listener), client));
            let answer: Messages<HealthCheckResponse> = Box::pin(stream::unfold(watch, Watch::next));
            Box::pin(encoded(answer, SMALL))
        }
        _ => return None,
    })
}

async fn first(requests: &mut Streaming<HealthCheckRequest>) -> Result<String, Status> {
    let request = requests.message().await?;
    Ok(request.ok_or_else(|| Status::invalid_argument("no request"))?.service)
}

/// `None`: there is no such service.
fn status(listener: &Listener, service: &str) -> Option<ServingStatus> {
    let shared = &listener.worker.shared;
    let ready = || shared.published.load().synced && !shared.draining.load(Relaxed);
    let known = SERVICES.contains(&service);
    known.then(|| {
        if service == LIVENESS || ready() { ServingStatus::Serving } else { ServingStatus::NotServing }
    })
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// A call that keeps its connection from counting as idle.
struct Held {
    listener: Rc<Listener>,
    client: Rc<Client>,
    turn: Turn,
}

impl Held {
    fn new(listener: Rc<Listener>, client: Rc<Client>) -> Self {
        let turn = client.began();
        Self { listener, client, turn }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.client.ended(&self.turn, self.listener.worker.ticker.now());
    }
}

/// A status that is told whenever it changes; each sweep of the worker looks.
enum Watch {
    Begin(Box<Streaming<HealthCheckRequest>>, Held),
    Told { service: String, last: ServingStatus, held: Held },
    End,
}

impl Watch {
    async fn next(self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        let look = |held: &Held, service: &str| {
            status(&held.listener, service).unwrap_or(ServingStatus::ServiceUnknown)
        };
        match self {
            Self::Begin(mut requests, held) => match first(&mut requests).await {
                Ok(service) => {
                    let last = look(&held, &service);
                    Some((Ok(response(last)), Self::Told { service, last, held }))
                }
                Err(status) => Some((Err(status), Self::End)),
            },
            Self::Told { service, last, held } => loop {
                held.listener.worker.deadlines.swept().await;
                let now = look(&held, &service);
                if now != last {
                    return Some((Ok(response(now)), Self::Told { service, last: now, held }));
                }
                if held.client.is_told() {
                    return Some((Err(Status::unavailable("the agent ends")), Self::End));
                }
            },
            Self::End => None,
        }
    }
}
