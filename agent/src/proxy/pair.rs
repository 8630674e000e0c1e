//! A request with two legs: a prefill and a decode on endpoints of one revision (H2, H8, H9).
//!
//! ```text
//! trust (whose headers count) ─> body (read whole) ─> json, connector (what each leg sends)
//!   ─> choose a revision, then a prefill and a decode endpoint of it ─┬─ prefill first ─> collect ─> decode ─> answer
//!                                                                      └─ together ─> both heads ─> answer
//! ```
//!
//! Both legs are parts of the request's own future, or of its response's body: whatever ends one of them (a failure,
//! the other leg's failure, the client's leave) drops it, which closes its connection. Nothing needs to be told.
//!
//! The body is in memory once. Each leg sends a [`Rope`]: slices of it with the edits between. While a body in several
//! reads is joined there are two buffers at most: the one that grows, and the one that it grows out of.

mod cached;
mod collect;
mod connector;
mod extras;
#[cfg(feature = "fuzz")]
pub(super) mod fuzz;
mod json;
pub(super) mod pick;
mod prefill_first;
mod rope;
mod together;
pub(super) mod trust;

use std::{cell::RefCell, rc::Rc, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderValue, Method,
    header::{ACCEPT_ENCODING, CONTENT_LENGTH},
    request,
};
use hyper::body::Incoming;

use super::{
    attempts::Attempts,
    choose::{Rules, Want},
    error::ProxyError,
    forward::{self, Answer},
    headers,
    listener::{Listener, Plan},
    metrics::{ListenerMetrics, PairMetrics},
    reply::Lease,
    steering,
    table::{Chosen, Place, RoleTable},
    worker::Worker,
};
use crate::{
    config::{HttpConfig, PairConfig, Serves},
    gating::Ask,
};
use connector::{Api, Connector, Meeting, Order};
pub(super) use extras::Extras;
use json::{Edits, Object};
pub(super) use rope::Rope;

/// What a pair listener has besides its decode endpoints.
pub(super) struct Pair {
    /// Its prefill endpoints.
    pub(super) table: RefCell<RoleTable>,
    pub(super) config: PairConfig,
    connector: Box<dyn Connector>,
    metrics: PairMetrics,
}

impl Pair {
    /// Of a listener that is one.
    pub(super) fn of(plan: &Plan, metrics: &Rc<ListenerMetrics>, worker: &Worker) -> Option<Self> {
        let (Serves::Pair(config), Some(prefill)) = (&plan.config.serves, &plan.prefill) else { return None };
        let table = RoleTable::new(Arc::clone(&plan.set), Arc::clone(prefill), Rc::clone(metrics));
        Some(Self {
            table: RefCell::new(table),
            config: config.clone(),
            connector: connector::of(config),
            metrics: worker.shared.metrics.pair(&plan.config.name),
        })
    }
}

/// Answers a request, by two legs or by one.
pub(super) async fn forward(
    listener: &Rc<Listener>,
    pair: &Pair,
    http: &HttpConfig,
    trusted: bool,
    head: &mut request::Parts,
    body: Incoming,
) -> Result<Answer, ProxyError> {
    if !trusted {
        let mut table = listener.table.borrow_mut();
        table.refresh(&listener.worker.shared.published);
        let Some((revision, selectors)) = table.headers() else { return Err(ProxyError::NotSynced) };
        trust::distrust(&mut head.headers, revision, selectors);
    }
    let Some(api) = Api::of(&head.method, head.uri.path()) else {
        steering::remove_all(&mut head.headers);
        return forward::forward(listener, http, head, body).await;
    };
    let text = collect::body(body, http, &listener.worker).await?;
    let names: Vec<_> = pair.connector.fields().iter().copied().chain(["model"]).collect();
    let object = scan(&text, &names)?;
    let legs = Legs::choose(listener, pair, http, api, head)?;
    let body = Body { text, object };
    match pair.connector.order() {
        Order::PrefillFirst => prefill_first::run(legs, body).await,
        Order::Together => together::run(legs, body).await,
    }
}

/// Reads a body that names a model, and where these members of it are.
fn scan(text: &[u8], names: &[&'static str]) -> Result<Object, ProxyError> {
    let object = Object::scan(text, names).map_err(|error| ProxyError::BadJson(error.to_string()))?;
    let model = object.value("model").and_then(|place| text.get(place)).unwrap_or_default();
    if !model.starts_with(b"\"") || model == b"\"\"" {
        return Err(ProxyError::NoModel);
    }
    Ok(object)
}

/// Sees that the body of a request with two legs is one that both can work on.
pub(super) fn check(text: &[u8]) -> Result<(), ProxyError> {
    scan(text, &["model"]).map(drop)
}

/// Whether such a request has two legs.
pub(super) fn has_legs(method: &Method, path: &str) -> bool {
    Api::of(method, path).is_some()
}

/// The client's body.
struct Body {
    text: Bytes,
    object: Object,
}

impl Body {
    fn edited(&self, edits: &Edits) -> Rope {
        self.object.edit(&self.text, edits)
    }
}

/// A request whose endpoints are chosen.
struct Legs<'a> {
    listener: &'a Rc<Listener>,
    pair: &'a Pair,
    http: &'a HttpConfig,
    api: Api,
    /// The head that both send, but for the length of the body.
    head: &'a request::Parts,
    hostless: bool,
    /// The labels that the request asks for.
    wants: Vec<Want>,
    prefill: Option<Chosen>,
    decode: Option<Chosen>,
    revision: Arc<str>,
    /// Where the endpoints of each role are in the kernel's tables: prefill, decode.
    places: [Place; 2],
}

impl<'a> Legs<'a> {
    /// Chooses a revision and both endpoints, before anything is sent anywhere.
    fn choose(
        listener: &'a Rc<Listener>,
        pair: &'a Pair,
        http: &'a HttpConfig,
        api: Api,
        head: &'a mut request::Parts,
    ) -> Result<Self, ProxyError> {
        let worker = &listener.worker;
        let (mut prefills, mut decodes) = (pair.table.borrow_mut(), listener.table.borrow_mut());
        prefills.refresh(&worker.shared.published);
        decodes.refresh(&worker.shared.published);
        let (Some(places), Some((header, selectors))) =
            (prefills.place().zip(decodes.place()), decodes.headers())
        else {
            return Err(ProxyError::NotSynced);
        };
        let selectors = Arc::clone(selectors);
        let ask = headers::ask(&head.headers, header)?;
        let named = trust::prefillers(&head.headers);
        // A router that names an endpoint and no revision has chosen the endpoint's.
        let unnamed = matches!(ask, Ask::Any).then(|| prefills.named(None, named.as_deref()?)).flatten();
        let revision = match &unnamed {
            Some(chosen) => Some(Arc::clone(&chosen.target.endpoint.revision)),
            None => decodes.revision(ask, worker.draw())?,
        };
        let wants = headers::wants(&head.headers, &selectors)?;
        let hostless = !headers::to_endpoint(head, header, &selectors)?;
        steering::remove_all(&mut head.headers);
        trust::name_request(&mut head.headers, || {
            worker.draws().map(u128::from).iter().fold(0, |id, n| id << 32 | n)
        })?;
        // Both replies are read here.
        head.headers.remove(ACCEPT_ENCODING);

        let rules = || Rules::of(worker, http);
        let both =
            |prefills: &mut RoleTable, decodes: &mut RoleTable, revision: Option<&str>, wants: Vec<Want>| {
                let prefill = match &named {
                    Some(named) => prefills.named(revision, named).ok_or(ProxyError::TargetNotAllowed)?,
                    None => pick::first(prefills, revision, &wants, rules())?,
                };
                let (decode, wants) = pick::beside(&prefill, decodes, wants, &selectors, rules())?;
                Ok::<_, ProxyError>((prefill, decode, wants))
            };
        let (prefill, decode, wants) =
            match both(&mut prefills, &mut decodes, revision.as_deref(), wants.clone()) {
                // Where nothing gates, the prefill drawn may be of a revision that has no decode, or none that works.
                Err(refused) if revision.is_none() && named.is_none() => {
                    let now = worker.ticker.now();
                    let working = |revision: &str| {
                        pick::of_both(&prefills, &decodes, |table| table.working(revision, &wants, now))
                    };
                    let other = decodes.revision_among(Ask::Any, worker.draw(), working)?.ok_or(refused)?;
                    both(&mut prefills, &mut decodes, Some(&other), wants)?
                }
                chosen => chosen?,
            };
        drop((prefills, decodes));
        let revision = Arc::clone(&prefill.target.endpoint.revision);
        Ok(Self {
            listener,
            pair,
            http,
            api,
            head,
            hostless,
            wants,
            prefill: Some(prefill),
            decode: Some(decode),
            revision,
            places: places.into(),
        })
    }

    /// Tries of the prefill leg; those after the first are for any endpoint of the revision.
    fn prefill(&mut self) -> Attempts<'a> {
        let mut attempts = self.attempts(&self.pair.table, 0);
        attempts.first = self.prefill.take();
        attempts
    }

    /// Tries of the decode leg, likewise.
    fn decode(&mut self) -> Attempts<'a> {
        let mut attempts = self.attempts(&self.listener.table, 1);
        attempts.first = self.decode.take();
        attempts
    }

    fn attempts(&self, table: &'a RefCell<RoleTable>, place: usize) -> Attempts<'a> {
        let [prefill, decode] = self.places;
        let place = if place == 0 { prefill } else { decode };
        let (revision, wants) = (Arc::clone(&self.revision), self.wants.clone());
        let mut attempts = Attempts::new(self.listener, self.http, table, place, Some(revision), wants);
        attempts.hostless = self.hostless;
        attempts
    }

    /// The head of a leg that sends that body.
    fn head(&self, body: &Rope) -> request::Parts {
        let mut head = self.head.clone();
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.length()));
        head
    }

    /// Holds the decode endpoint's place among the requests in flight, while it waits for the prefill.
    fn reserve(&self) -> Option<Lease> {
        self.decode.as_ref().map(|chosen| Lease::new(Rc::clone(&chosen.target)))
    }

    /// Where the legs meet when the prefill is there.
    fn meeting(&self, prefill: &super::target::Target) -> Meeting {
        let [high, low, ..] = self.listener.worker.draws().map(u64::from);
        Meeting { prefill: prefill.endpoint.address.ip(), room: (high << 32 | low) >> 1 }
    }
}
