//! Follows one target: list, watch from the list's version, and again from the last version seen, until a new list is
//! needed (C1).
//!
//! kube's own watcher hides bookmarks, whose age is wanted here (C9), and after a 410 that comes as an HTTP status it
//! asks for the same version again for ever. So this is built on the requests below it. A new list is taken when the
//! server says that the version is gone (410, as a status or as an event), after any other error event, and after
//! watches that bring nothing twice in a row: a version from a server that was restored from a backup never comes
//! again, and no error tells so. Until a list is whole nothing of it is told.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, pin_mut};
use http_body_util::BodyExt as _;
use kube::{
    Client,
    api::{ListParams, WatchEvent, WatchParams},
    client::Body,
    core::Request,
};
use rand::RngExt as _;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{sync::mpsc, time};

use super::{
    backoff::{self, Backoff},
    object::{Object, Unusable},
    problem::{Cause, Problem},
    target::Target,
    union::Said,
};
use crate::{cluster::intern::Interner, fatal::Indispensable};

/// Objects in a page of a list.
const PAGE: u32 = 100;

/// Longest time for a page, and for the head of a watch.
pub(super) const ANSWER: Duration = Duration::from_secs(30);

/// The server ends a watch after that many seconds, and up to twice as many, drawn anew for each: so that a fleet's
/// watches spread over the servers there are.
const WATCH_SECONDS: u32 = 300;

/// How often a custom resource that the server does not know is asked for.
const ABSENT: Duration = Duration::from_secs(30);

/// Watches in a row that bring nothing, after which a list is taken.
const FRUITLESS: u32 = 2;

/// Answers in a row that refuse a watch, after which a list is taken.
const REFUSED: u32 = 8;

/// What a follower tells.
#[derive(Debug)]
pub(super) enum Message {
    /// News of objects.
    Said(Said),
    /// An object that cannot be used.
    Unusable(Unusable),
    /// The server has spoken, and there is no news.
    Alive,
    /// The server does not know the resource.
    Absent,
    /// A try failed.
    Failed(Problem),
}

/// A follower's end of the queue.
#[derive(Clone, Debug)]
pub(super) struct Outlet {
    pub(super) id: u64,
    pub(super) queue: mpsc::Sender<(u64, Message)>,
}

/// Nobody listens any more.
pub(super) struct Closed;

impl Outlet {
    async fn tell(&self, message: Message) -> Result<(), Closed> {
        self.queue.send((self.id, message)).await.map_err(|_| Closed)
    }
}

/// Follows one target.
pub(super) struct Follower {
    pub(super) client: Client,
    pub(super) target: Target,
    /// A watch on which nothing comes for so long is given up.
    pub(super) silence: Duration,
    pub(super) outlet: Outlet,
    pub(super) interner: Interner,
}

/// One page of a list.
#[derive(Deserialize)]
pub(super) struct Page<O> {
    metadata: PageMetadata,
    pub(super) items: Option<Vec<O>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

/// How a watch ended.
enum End {
    /// It brought something, and can go on from its last version.
    Fruitful,
    /// It brought nothing.
    Fruitless(Option<Cause>),
    /// It did not begin, and may from the same version later.
    Refused(Cause),
    /// A new list is needed; the cause is worth telling unless it is the usual one.
    Relist(Option<Cause>),
}

impl Follower {
    /// Runs until nobody listens.
    pub(super) async fn run<O: Object>(mut self) {
        let Err(Closed) = self.try_run::<O>().await;
    }

    async fn try_run<O: Object>(&mut self) -> Result<std::convert::Infallible, Closed> {
        let _indispensable = Indispensable("API watch");
        // Each of its own: a server that lists and refuses each watch is not asked for lists without a pause.
        let (mut lists, mut watches) = (Backoff::default(), Backoff::default());
        let mut absent = false;
        loop {
            let version = match self.list::<O>().await? {
                Ok(version) => version,
                Err(cause) if self.may_be_absent(&cause) => {
                    if std::mem::replace(&mut absent, true) {
                        self.outlet.tell(Message::Alive).await?;
                    } else {
                        self.outlet.tell(Message::Absent).await?;
                        self.outlet.tell(Message::Said(Said::Listed(Vec::new()))).await?;
                    }
                    time::sleep(ABSENT).await;
                    continue;
                }
                Err(cause) => {
                    self.fail("list", &mut lists, cause).await?;
                    continue;
                }
            };
            absent = false;
            lists.reset();
            self.watch::<O>(version, &mut watches).await?;
        }
    }

    /// A custom resource may not be installed, and an older one need not be readable.
    fn may_be_absent(&self, cause: &Cause) -> bool {
        let old = self.target.kind == super::target::Kind::OldPools;
        self.target.kind.is_custom() && (cause.code() == Some(404) || (old && cause.code() == Some(403)))
    }

    /// Tells of a failure, and waits.
    async fn fail(&self, verb: &'static str, backoff: &mut Backoff, cause: Cause) -> Result<(), Closed> {
        let wait = backoff.next(draw(), cause.retry_after());
        let problem = Problem { verb, target: self.target.clone(), cause };
        self.outlet.tell(Message::Failed(problem)).await?;
        time::sleep(wait).await;
        Ok(())
    }

    /// Tells the whole list and gives its version.
    async fn list<O: Object>(&mut self) -> Result<Result<String, Cause>, Closed> {
        let mut items = Vec::new();
        let mut continue_token = None;
        loop {
            let params = ListParams {
                label_selector: self.target.label_selector(),
                field_selector: self.target.field_selector(),
                limit: Some(PAGE),
                continue_token,
                ..ListParams::default()
            };
            let request = match Request::new(self.target.path()).list(&params) {
                Ok(request) => request,
                Err(error) => return Ok(Err(Cause::Unreadable(error.to_string()))),
            };
            let page: Page<O> = match fetch(&self.client, request).await {
                Ok(page) => page,
                Err(cause) => return Ok(Err(cause)),
            };
            for object in page.items.into_iter().flatten() {
                match object.into_item() {
                    Ok(mut item) => {
                        item.share(&mut self.interner);
                        items.push(item);
                    }
                    Err(unusable) => self.outlet.tell(Message::Unusable(unusable)).await?,
                }
            }
            continue_token = page.metadata.r#continue.filter(|token| !token.is_empty());
            if continue_token.is_some() {
                continue;
            }
            let version = page.metadata.resource_version.filter(|version| !version.is_empty());
            let Some(version) = version else {
                return Ok(Err(Cause::Unreadable("the list has no resourceVersion".to_owned())));
            };
            self.outlet.tell(Message::Said(Said::Listed(items))).await?;
            return Ok(Ok(version));
        }
    }

    /// Watches from a version on, again and again, until a new list is needed.
    async fn watch<O: Object>(&mut self, mut version: String, backoff: &mut Backoff) -> Result<(), Closed> {
        let (mut fruitless, mut refused) = (0, 0);
        loop {
            let began = time::Instant::now();
            let end = self.watch_once::<O>(&mut version, backoff).await?;
            // One that was quiet for so long worked, though something cuts it before the bookmark.
            if began.elapsed() >= backoff::LONGEST {
                backoff.reset();
            }
            match end {
                End::Fruitful => (fruitless, refused) = (0, 0),
                End::Fruitless(cause) => {
                    fruitless += 1;
                    match cause {
                        Some(cause) => self.fail("watch", backoff, cause).await?,
                        None => time::sleep(backoff.next(draw(), None)).await,
                    }
                    if fruitless >= FRUITLESS {
                        return Ok(());
                    }
                }
                End::Refused(cause) => {
                    // The list tells whether the resource is there, and what has happened since.
                    refused += u32::from(cause.code().is_some());
                    let relist = refused >= REFUSED || self.may_be_absent(&cause);
                    self.fail("watch", backoff, cause).await?;
                    if relist {
                        return Ok(());
                    }
                }
                End::Relist(Some(cause)) => return self.fail("watch", backoff, cause).await,
                End::Relist(None) => {
                    tracing::debug!(target = %self.target, %version, "the version is gone: a new list");
                    time::sleep(backoff.next(draw(), None)).await;
                    return Ok(());
                }
            }
        }
    }

    async fn watch_once<O: Object>(
        &mut self,
        version: &mut String,
        backoff: &mut Backoff,
    ) -> Result<End, Closed> {
        let params = WatchParams {
            label_selector: self.target.label_selector(),
            field_selector: self.target.field_selector(),
            timeout: Some(rand::rng().random_range(WATCH_SECONDS..=2 * WATCH_SECONDS)),
            bookmarks: true,
            send_initial_events: false,
        };
        let request = match Request::new(self.target.path()).watch(&params, version) {
            Ok(request) => request,
            Err(error) => return Ok(End::Relist(Some(Cause::Unreadable(error.to_string())))),
        };
        let opened = time::timeout(ANSWER, self.client.request_events::<O>(request)).await;
        let events =
            match opened.map_err(|_| Cause::Silent(ANSWER)).and_then(|opened| opened.map_err(Cause::from)) {
                Ok(events) => events,
                Err(cause) if cause.code() == Some(410) => return Ok(End::Relist(None)),
                Err(cause) if cause.may_pass() => return Ok(End::Refused(cause)),
                Err(cause) => return Ok(End::Relist(Some(cause))),
            };
        pin_mut!(events);
        let mut fruitful = false;
        loop {
            let event = match time::timeout(self.silence, events.next()).await {
                Ok(Some(Ok(event))) => event,
                // The server ended it, or the connection broke.
                Ok(None) if fruitful => return Ok(End::Fruitful),
                Ok(None) => return Ok(End::Fruitless(None)),
                Ok(Some(Err(error))) => {
                    tracing::debug!(target = %self.target, %error, "the watch broke");
                    return Ok(match Cause::from(error) {
                        Cause::Unreachable(_) if fruitful => End::Fruitful,
                        Cause::Unreachable(why) => End::Fruitless(Some(Cause::Unreachable(why))),
                        cause => End::Relist(Some(cause)),
                    });
                }
                Err(_) => return Ok(End::Fruitless(Some(Cause::Silent(self.silence)))),
            };
            match self.take(event, version).await? {
                None => {
                    fruitful = true;
                    backoff.reset();
                }
                Some(end) => return Ok(end),
            }
        }
    }

    /// Tells of one event; gives the end of the watch where the event is it.
    async fn take<O: Object>(
        &mut self,
        event: WatchEvent<O>,
        version: &mut String,
    ) -> Result<Option<End>, Closed> {
        let (object, gone) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
            WatchEvent::Deleted(object) => (object, true),
            WatchEvent::Bookmark(bookmark) => {
                if !bookmark.metadata.resource_version.is_empty() {
                    *version = bookmark.metadata.resource_version;
                }
                self.outlet.tell(Message::Alive).await?;
                return Ok(None);
            }
            WatchEvent::Error(status) => {
                let cause = Cause::of_status(&status, 0);
                let usual = cause.code() == Some(410);
                return Ok(Some(End::Relist((!usual).then_some(cause))));
            }
        };
        if let Some(new) = object.version() {
            new.clone_into(version);
        }
        match object.into_item() {
            Ok(mut item) => {
                item.share(&mut self.interner);
                let said = if gone { Said::Gone(item) } else { Said::Set(item) };
                self.outlet.tell(Message::Said(said)).await?;
            }
            Err(unusable) => {
                let lost = unusable.name.clone().map(|name| Message::Said(Said::Lost(name)));
                self.outlet.tell(Message::Unusable(unusable)).await?;
                self.outlet.tell(lost.unwrap_or(Message::Alive)).await?;
            }
        }
        Ok(None)
    }
}

/// One answer, whole.
pub(super) async fn fetch<T: DeserializeOwned + Send + 'static>(
    client: &Client,
    request: http::Request<Vec<u8>>,
) -> Result<T, Cause> {
    let answer = async {
        let response = client.send(request.map(Body::from)).await.map_err(Cause::from)?;
        let (head, body) = response.into_parts();
        let mut bytes = Vec::new();
        let mut frames = body.into_data_stream();
        while let Some(frame) = frames.try_next().await.map_err(Cause::from)? {
            bytes.extend_from_slice(&frame);
        }
        Ok::<_, Cause>((head.status, bytes))
    };
    let (status, bytes) = time::timeout(ANSWER, answer).await.map_err(|_| Cause::Silent(ANSWER))??;
    if !status.is_success() {
        let code = status.as_u16();
        return Err(match serde_json::from_slice::<kube::core::Status>(&bytes) {
            Ok(status) => Cause::of_status(&status, code),
            Err(_) => Cause::Status { code, message: String::new(), retry_after: None },
        });
    }
    // A page of large Pods takes a while; other tasks of this thread go on.
    let parsed = tokio::task::spawn_blocking(move || serde_json::from_slice(&bytes)).await;
    match parsed {
        Ok(Ok(parsed)) => Ok(parsed),
        Ok(Err(error)) => Err(Cause::Unreadable(error.to_string())),
        Err(stopped) => Err(Cause::Unreadable(stopped.to_string())),
    }
}

fn draw() -> f64 {
    rand::rng().random()
}
