//! An API server for tests: lists in pages, watches with bookmarks, label and field selectors, and the faults that a
//! real one has only on bad days. What is not told to fail behaves as kube-apiserver does.

use std::{
    collections::{BTreeMap, HashSet},
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, channel::Channel, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use revgate::config::Selector;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{AbortHandle, JoinSet},
};

type Body = BoxBody<Bytes, std::io::Error>;

/// What goes wrong.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    /// Lists wait for so long.
    pub(crate) list_delay: Duration,
    /// The next so many lists are answered with this status.
    pub(crate) fail_lists: (usize, u16),
    /// The next so many watches are answered with this status.
    pub(crate) fail_watches: (usize, u16),
    /// Watches send nothing and do not end, the open ones too.
    pub(crate) frozen: bool,
    /// A version that is gone is told by an `ERROR` event instead of a status.
    pub(crate) gone_as_event: bool,
    /// Every event is sent twice.
    pub(crate) duplicate: bool,
    /// Verbs on resources that are forbidden, as in `("watch", "pods")`.
    pub(crate) forbidden: HashSet<(&'static str, &'static str)>,
    /// Resources that are not installed.
    pub(crate) absent: HashSet<&'static str>,
    /// The next continue token is refused with 410.
    pub(crate) expire_pages: usize,
    /// The time between two bookmarks of a watch.
    pub(crate) bookmarks: Duration,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            list_delay: Duration::ZERO,
            fail_lists: (0, 500),
            fail_watches: (0, 500),
            frozen: false,
            gone_as_event: false,
            duplicate: false,
            forbidden: HashSet::new(),
            absent: HashSet::new(),
            expire_pages: 0,
            bookmarks: Duration::from_millis(200),
        }
    }
}

/// One change of an object: before and after.
#[derive(Clone, Debug)]
struct Entry {
    version: u64,
    collection: String,
    before: Option<Value>,
    after: Option<Value>,
}

#[derive(Debug, Default)]
struct World {
    version: u64,
    /// Versions below this one are gone.
    oldest: u64,
    /// Counts up when all watches are cut; odd: they end in an error.
    cuts: u64,
    objects: BTreeMap<(String, String), Value>,
    log: Vec<Entry>,
    faults: Faults,
    /// Method and URI of everything that was asked.
    asked: Vec<String>,
}

/// What the connections share.
struct Shared {
    world: Mutex<World>,
    /// Something happened.
    news: watch::Sender<u64>,
}

/// The server. It ends when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<AbortHandle>,
    tasks: JoinSet<()>,
}

impl Server {
    /// On a free port.
    pub(crate) async fn start() -> Self {
        let mut server = Self::away().await;
        server.come_back().await;
        server
    }

    /// With an address, but nobody there.
    pub(crate) async fn away() -> Self {
        let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let (news, _) = watch::channel(0);
        let world = Mutex::new(World { version: 100, ..World::default() });
        Self { address, shared: Arc::new(Shared { world, news }), accepting: None, tasks: JoinSet::new() }
    }

    /// Listens, where it did before.
    pub(crate) async fn come_back(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        let shared = Arc::clone(&self.shared);
        self.accepting = Some(self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(Arc::clone(&shared), request));
                    let mut connection = http1::Builder::new();
                    let connection = connection.timer(TokioTimer::new());
                    // A client that leaves is no concern of a server.
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        }));
    }

    /// Stops listening and drops every connection.
    pub(crate) fn go_away(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
        }
    }

    /// A kubeconfig for it.
    pub(crate) fn kubeconfig(&self) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{}", self.address)}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {"token": "secret"}}],
        })
        .to_string()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.shared.world.lock().unwrap()
    }

    /// Changes what goes wrong.
    pub(crate) fn fault(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.world().faults);
        self.shared.news.send_modify(|news| *news += 1);
    }

    /// Creates or changes an object of a resource (`pods`); its namespace and name are in its metadata.
    pub(crate) fn put(&self, resource: &str, object: Value) {
        self.change(resource, object, true);
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, resource: &str, namespace: &str, name: &str) {
        self.change(resource, json!({"metadata": {"namespace": namespace, "name": name}}), false);
    }

    fn change(&self, resource: &str, mut object: Value, there: bool) {
        let namespace = object["metadata"]["namespace"].as_str().unwrap().to_owned();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let collection = format!("{namespace}/{resource}");
        let mut world = self.world();
        world.version += 1;
        let version = world.version;
        let before = world.objects.remove(&(collection.clone(), name.clone()));
        let after = there.then(|| {
            object["metadata"]["resourceVersion"] = version.to_string().into();
            world.objects.insert((collection.clone(), name), object.clone());
            object
        });
        world.log.push(Entry { version, collection, before, after });
        drop(world);
        self.shared.news.send_modify(|news| *news += 1);
    }

    /// Sends an event that is none: an earlier state of an object comes again, as from a late server.
    pub(crate) fn replay(&self, resource: &str, before: Option<Value>, after: Option<Value>) {
        let known = after.as_ref().or(before.as_ref()).unwrap();
        let collection = format!("{}/{resource}", known["metadata"]["namespace"].as_str().unwrap());
        let mut world = self.world();
        world.version += 1;
        let version = world.version;
        world.log.push(Entry { version, collection, before, after });
        drop(world);
        self.shared.news.send_modify(|news| *news += 1);
    }

    /// Breaks every watch, in the middle of a chunk or at its end.
    pub(crate) fn cut(&self, cleanly: bool) {
        let mut world = self.world();
        world.cuts += if world.cuts.is_multiple_of(2) == cleanly { 2 } else { 1 };
        drop(world);
        self.shared.news.send_modify(|news| *news += 1);
    }

    /// Forgets what came before now: who asks for an earlier version gets 410.
    pub(crate) fn compact(&self) {
        let mut world = self.world();
        world.oldest = world.version;
        world.log.clear();
    }

    /// How many requests there were whose text has all of these parts.
    pub(crate) fn asked(&self, parts: &[&str]) -> usize {
        self.world().asked.iter().filter(|asked| parts.iter().all(|part| asked.contains(part))).count()
    }

    /// Everything that was asked.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.world().asked.clone()
    }
}

fn full(status: StatusCode, body: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

fn status_object(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code})
}

fn failure(code: u16, message: &str) -> Response<Body> {
    full(StatusCode::from_u16(code).unwrap(), &status_object(code, message))
}

/// What a request asks for.
struct Query {
    resource: String,
    namespace: Option<String>,
    labels: Selector,
    name: Option<String>,
    parameters: BTreeMap<String, String>,
}

impl Query {
    fn of(request: &Request<Incoming>) -> Self {
        let parameters: BTreeMap<String, String> =
            request.uri().query().unwrap_or_default().split('&').filter_map(parameter).collect();
        let parts: Vec<&str> = request.uri().path().split('/').collect();
        let at = parts.iter().position(|part| *part == "namespaces");
        Self {
            resource: (*parts.last().unwrap()).to_owned(),
            namespace: at.map(|at| parts[at + 1].to_owned()),
            labels: parameters
                .get("labelSelector")
                .map_or_else(Selector::default, |text| text.parse().unwrap()),
            name: parameters
                .get("fieldSelector")
                .map(|text| text.strip_prefix("metadata.name=").unwrap().to_owned()),
            parameters,
        }
    }

    fn takes(&self, collection: &str, object: &Value) -> bool {
        let (namespace, resource) = collection.split_once('/').unwrap();
        let labels = object["metadata"]["labels"].as_object().into_iter().flatten();
        let labels =
            labels.map(|(key, value)| (key.as_str().into(), value.as_str().unwrap().into())).collect();
        resource == self.resource
            && self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.name.as_ref().is_none_or(|name| object["metadata"]["name"] == name.as_str())
            && self.labels.matches(&labels)
    }
}

fn parameter(pair: &str) -> Option<(String, String)> {
    let (key, value) = pair.split_once('=')?;
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let hex = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    Some((key.to_owned(), String::from_utf8(bytes).ok()?))
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let query = Query::of(&request);
    let watching = query.parameters.get("watch").is_some_and(|watch| watch == "true");
    let verb = if watching { "watch" } else { "list" };
    let (delay, refusal) = {
        let mut world = shared.world.lock().unwrap();
        world.asked.push(format!("{} {}", request.method(), request.uri()));
        let faults = &mut world.faults;
        let failing = if watching { &mut faults.fail_watches } else { &mut faults.fail_lists };
        let refusal = if faults.forbidden.iter().any(|(v, r)| *v == verb && *r == query.resource) {
            Some((403, format!("{} is forbidden: User \"test\" cannot {verb} it", query.resource)))
        } else if faults.absent.iter().any(|group| request.uri().path().contains(group)) {
            Some((404, "the server could not find the requested resource".to_owned()))
        } else if failing.0 > 0 {
            failing.0 -= 1;
            Some((failing.1, "told to fail".to_owned()))
        } else {
            None
        };
        (if watching { Duration::ZERO } else { faults.list_delay }, refusal)
    };
    tokio::time::sleep(delay).await;
    Ok(match refusal {
        Some((code, message)) => failure(code, &message),
        None if watching => watch(&shared, query),
        None => list(&shared, &query),
    })
}

fn list(shared: &Shared, query: &Query) -> Response<Body> {
    let mut world = shared.world.lock().unwrap();
    let limit: usize = query.parameters.get("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
    let skip: usize = match query.parameters.get("continue") {
        Some(_) if world.faults.expire_pages > 0 => {
            world.faults.expire_pages -= 1;
            return failure(410, "The provided continue parameter is too old");
        }
        Some(token) => token.parse().unwrap(),
        None => 0,
    };
    let all: Vec<&Value> = world
        .objects
        .iter()
        .filter(|((collection, _), object)| query.takes(collection, object))
        .map(|(_, object)| object)
        .collect();
    let page: Vec<&Value> = all.iter().skip(skip).take(limit).copied().collect();
    let more = skip + page.len() < all.len();
    let token = if more { (skip + page.len()).to_string() } else { String::new() };
    let metadata = json!({"resourceVersion": world.version.to_string(), "continue": token});
    full(StatusCode::OK, &json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": page}))
}

fn watch(shared: &Arc<Shared>, query: Query) -> Response<Body> {
    let from: u64 = query.parameters["resourceVersion"].parse().unwrap();
    let world = shared.world.lock().unwrap();
    let gone = from < world.oldest;
    if gone && !world.faults.gone_as_event {
        return failure(410, "too old resource version");
    }
    let cuts = world.cuts;
    drop(world);
    let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(64);
    let shared = Arc::clone(shared);
    #[expect(clippy::disallowed_methods, reason = "it ends with its client")]
    tokio::spawn(async move {
        let line = |kind: &str, object: &Value| {
            Bytes::from(json!({"type": kind, "object": object}).to_string() + "\n")
        };
        if gone {
            let _ = sender.send_data(line("ERROR", &status_object(410, "too old resource version"))).await;
            return;
        }
        let mut cursor = from;
        let mut news = shared.news.subscribe();
        loop {
            let (lines, bookmarks, frozen, cut) = {
                let world = shared.world.lock().unwrap();
                let mut lines = Vec::new();
                for entry in world.log.iter().filter(|entry| entry.version > cursor && !world.faults.frozen) {
                    let Some((kind, mut object)) = event(&query, entry) else { continue };
                    object["metadata"]["resourceVersion"] = entry.version.to_string().into();
                    lines.extend(std::iter::repeat_n(
                        line(kind, &object),
                        1 + usize::from(world.faults.duplicate),
                    ));
                }
                if !world.faults.frozen {
                    cursor = world.version;
                }
                (lines, world.faults.bookmarks, world.faults.frozen, world.cuts != cuts)
            };
            for line in lines {
                if sender.send_data(line).await.is_err() {
                    return;
                }
            }
            if cut {
                let cleanly = shared.world.lock().unwrap().cuts.is_multiple_of(2);
                if !cleanly {
                    sender.abort(std::io::Error::other("cut"));
                }
                return;
            }
            let quiet = tokio::time::timeout(bookmarks, news.changed()).await.is_err();
            if quiet && !frozen {
                let metadata = json!({"resourceVersion": cursor.to_string()});
                let bookmark = json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata});
                if sender.send_data(line("BOOKMARK", &bookmark)).await.is_err() {
                    return;
                }
            }
        }
    });
    Response::new(body.boxed())
}

/// What an entry is to a watch with selectors: an object whose labels cease to match is deleted, as it was.
fn event(query: &Query, entry: &Entry) -> Option<(&'static str, Value)> {
    let taken =
        |object: &Option<Value>| object.clone().filter(|object| query.takes(&entry.collection, object));
    match (taken(&entry.before), taken(&entry.after)) {
        (_, Some(after)) if entry.before.as_ref().is_some_and(|b| query.takes(&entry.collection, b)) => {
            Some(("MODIFIED", after))
        }
        (None, Some(after)) => Some(("ADDED", after)),
        (Some(before), None) => Some(("DELETED", before)),
        _ => None,
    }
}
