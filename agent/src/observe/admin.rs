//! The admin server (O3): `/livez`, `/readyz`, `/metrics`, `/debug/state`.
//!
//! It answers on a port of its own, so that it does while the listeners are full, and on a runtime of its caller's
//! choice, so that a scrape never sits between two requests. Everything a client can make it hold is bounded:
//! connections, head size, time to send a head, life of a connection.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE},
};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time,
};
use tracing::{debug, warn};

use super::{
    Scene,
    exposition::{self, Format},
};

/// Where an agent's admin server is unless configured otherwise: only its own machine reaches it.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9901));

/// Connections at a time; the next one waits in the backlog.
const MAX_CONNECTIONS: usize = 64;
/// Largest request head in bytes (hyper's least read buffer is 8 KiB).
const MAX_HEAD: usize = 8 * 1024;
/// Longest time for a request head, and so the longest idle time of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// After this a connection is closed at its next pause.
const CONNECTION_LIFE: Duration = Duration::from_mins(5);
/// And after this much more, in any case.
const CONNECTION_GRACE: Duration = Duration::from_secs(10);
/// Pause after a failed accept, such as one for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const ROUTES: &str = "/livez /readyz /readyz?verbose /metrics /debug/state";

/// What the admin server answers from.
#[derive(Clone, Debug)]
pub struct Admin {
    scene: Arc<Scene>,
    registry: Arc<Registry>,
}

/// A response with its whole body at hand.
type Answer = Response<Full<Bytes>>;

/// The admin address could not be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on admin address {address}: {source}; is another revgate running here? Set `admin.address`"
)]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// Why not.
    pub source: io::Error,
}

/// Binds the admin address. Must be called on a tokio runtime.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address).await.map_err(|source| BindError { address, source })
}

impl Admin {
    /// A server for that scene and registry.
    #[must_use]
    pub fn new(scene: Arc<Scene>, registry: Arc<Registry>) -> Self {
        Self { scene, registry }
    }

    /// Serves until it is dropped, which closes every connection.
    pub async fn serve(self, listener: TcpListener) -> Infallible {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let permit = Arc::clone(&permits).acquire_owned().await;
            match listener.accept().await {
                Ok((stream, _)) => {
                    let admin = self.clone();
                    connections.spawn(async move {
                        admin.connection(stream).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection to the admin server; trying again");
                    time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn connection(self, stream: TcpStream) {
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = self.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(MAX_HEAD)
                .serve_connection(TokioIo::new(stream), service)
        );
        let ended = if let Ok(ended) = time::timeout(CONNECTION_LIFE, connection.as_mut()).await {
            ended
        } else {
            connection.as_mut().graceful_shutdown();
            time::timeout(CONNECTION_GRACE, connection).await.unwrap_or(Ok(()))
        };
        if let Err(error) = ended {
            debug!(%error, "admin connection ended");
        }
    }

    /// The answer to a request. Needs no connection, so every route can be tried without one.
    pub fn answer<B>(&self, request: &Request<B>) -> Answer {
        let path = request.uri().path();
        let route = match path {
            "/livez" | "/readyz" | "/metrics" | "/debug/state" => path,
            _ => return text(StatusCode::NOT_FOUND, format!("no such page; there are {ROUTES}\n")),
        };
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_owned());
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        match route {
            "/livez" => text(StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => self.ready(verbose(request.uri().query())),
            "/metrics" => self.metrics(request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok())),
            _ => self.state(),
        }
    }

    /// 200, or 503 with the reasons, one per line, and remarks with either. Verbose: also every gate, as Kubernetes components list their checks.
    fn ready(&self, verbose: bool) -> Answer {
        let reasons = self.scene.readiness.reasons();
        let mut body = String::new();
        if verbose {
            for (name, passed) in self.scene.readiness.gates() {
                body.push_str(if passed { "[+] " } else { "[-] " });
                body.push_str(&name);
                body.push('\n');
            }
        }
        let status = if reasons.is_empty() {
            body.push_str("ok\n");
            StatusCode::OK
        } else {
            for reason in reasons {
                body.push_str(&reason);
                body.push('\n');
            }
            StatusCode::SERVICE_UNAVAILABLE
        };
        for remark in self.scene.remarks() {
            body.push_str(&remark);
            body.push('\n');
        }
        text(status, body)
    }

    fn metrics(&self, accept: Option<&str>) -> Answer {
        let format = Format::accepted(accept);
        match exposition::encode(&self.registry, format) {
            Ok(body) => answer(StatusCode::OK, format.content_type(), body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("metrics: {error}\n")),
        }
    }

    fn state(&self) -> Answer {
        match serde_json::to_string(&self.scene.report()) {
            Ok(body) => answer(StatusCode::OK, "application/json", body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("state: {error}\n")),
        }
    }
}

fn verbose(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| pair.split('=').next() == Some("verbose")))
}

fn text(status: StatusCode, body: String) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::observe::{
        metrics::{self, StrictNoMatch},
        testing::{self, SetBuilder},
    };

    async fn start() -> (Arc<Scene>, SocketAddr, JoinSet<Infallible>) {
        let scene = testing::scene(testing::snapshot(7, vec![SetBuilder::rollout().build()]));
        let registry = Arc::new(metrics::registry(&scene, &StrictNoMatch::default()));
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(Admin::new(Arc::clone(&scene), registry).serve(listener));
        (scene, address, tasks)
    }

    /// Sends bytes on a connection of its own and returns everything that comes back.
    async fn exchange(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        // A server that closes with unread bytes may reset; what came before is the reply.
        let _ = stream.read_to_end(&mut reply).await;
        String::from_utf8(reply).unwrap()
    }

    async fn get(address: SocketAddr, path: &str) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
        let reply = exchange(address, &request).await;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    #[tokio::test]
    async fn readiness_follows_the_gates_and_names_the_reasons() {
        let (scene, address, _tasks) = start().await;
        let (pods, tables) = (scene.readiness.gate("first Pod list"), scene.readiness.gate("kernel tables"));
        let waiting = "waiting for: first Pod list\nwaiting for: kernel tables\n";
        assert_eq!(get(address, "/readyz").await, (503, waiting.to_owned()));
        assert_eq!(get(address, "/livez").await, (200, "ok\n".to_owned()), "alive is not ready");
        drop(pods);
        let verbose = "[+] first Pod list\n[-] kernel tables\nwaiting for: kernel tables\n";
        assert_eq!(get(address, "/readyz?verbose").await, (503, verbose.to_owned()));
        drop(tables);
        assert_eq!(get(address, "/readyz").await, (200, "ok\n".to_owned()));
        scene.readiness.drain("SIGTERM");
        assert_eq!(get(address, "/readyz").await, (503, "draining: SIGTERM\n".to_owned()));
    }

    #[tokio::test]
    async fn serves_metrics_and_state() {
        let (_scene, address, _tasks) = start().await;
        let (status, body) = get(address, "/metrics").await;
        assert_eq!(status, 200);
        assert!(body.contains("\nrevgate_snapshot_generation 7\n"), "{body}");
        let (status, body) = get(address, "/debug/state").await;
        assert_eq!(status, 200);
        let report: crate::observe::Report = serde_json::from_str(&body).unwrap();
        assert_eq!((report.generation, report.sets[0].revisions.len()), (7, 3));
        let request = "GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\
                       accept: application/openmetrics-text;version=1.0.0\r\n\r\n";
        let reply = exchange(address, request).await;
        assert!(reply.contains("application/openmetrics-text") && reply.ends_with("# EOF\n"), "{reply}");
    }

    #[tokio::test]
    async fn refuses_what_it_does_not_serve() {
        let (_scene, address, _tasks) = start().await;
        let (status, body) = get(address, "/").await;
        assert_eq!(status, 404);
        assert!(body.contains("/debug/state"), "says what there is: {body}");
        let reply = exchange(address, "POST /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(reply.starts_with("HTTP/1.1 405 ") && reply.contains("allow: GET, HEAD"), "{reply}");
        let reply = exchange(address, "HEAD /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("\r\n\r\n"), "{reply}");
    }

    #[tokio::test]
    async fn a_head_beyond_the_bound_is_refused() {
        let (_scene, address, _tasks) = start().await;
        let request = format!("GET /livez HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(4 * MAX_HEAD));
        let reply = exchange(address, &request).await;
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 431 "), "{reply}");
        assert_eq!(get(address, "/livez").await.0, 200, "and the next client is served");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_nothing_is_dropped() {
        let (_scene, address, _tasks) = start().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /live").await.unwrap();
        let mut reply = Vec::new();
        // The paused clock moves on by itself while everything waits.
        let _ = stream.read_to_end(&mut reply).await;
        assert!(!reply.starts_with(b"HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn an_address_in_use_is_an_error_that_says_what_to_do() {
        let (_scene, address, _tasks) = start().await;
        let error = bind(address).await.unwrap_err().to_string();
        assert!(error.contains(&address.to_string()) && error.contains("Set `admin.address`"), "{error}");
    }
}
