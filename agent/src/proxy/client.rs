//! One client connection: which protocol it speaks, its limits in time, and its end (H12, H14).
//!
//! Timers per request are dear and seldom fire. A connection only notes what it does (waiting for a head, idle,
//! busy, blocked in a write) with the worker's coarse time, and the worker's sweep looks at all of them twice a second.

mod stream;
mod turns;

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::{
    body::Incoming,
    rt::Executor,
    server::conn::{http1, http2},
    service::{Service, service_fn},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsAcceptor;

use super::{clock::Ticker, error::Reason, forward::respond, idle, listener::Listener, picker, wakes};
use crate::config::HttpConfig;
use stream::{Protocol, Reset, Stream, detect};
pub(super) use turns::Turn;
use turns::Turns;

/// What a connection is told from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    /// Nothing.
    Serve,
    /// Finish what is in flight, then close.
    Finish,
    /// Close now.
    Abort,
}

/// What a connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It waits for the rest of a request's head since that time.
    Head(u64),
    /// It has nothing to do since that time.
    Idle(u64),
    /// Requests are in flight.
    Busy,
}

/// What a connection's task, its requests and the worker's sweep know of it.
#[derive(Debug)]
pub(super) struct Client {
    /// Whose it is.
    pub(super) listener: u64,
    /// Its routing headers are believed.
    pub(super) trusted: bool,
    phase: Cell<Phase>,
    in_flight: Cell<u32>,
    /// When a write that waits now began to; 0: none waits.
    blocked: Cell<u64>,
    /// When bytes went out last.
    wrote: Cell<u64>,
    /// Many requests at once: bytes that come while idle are no request's head.
    multiplexed: Cell<bool>,
    /// It speaks HTTP/1.0, where the end of the connection may be the end of a response.
    pub(super) end_delimits: Cell<bool>,
    /// An endpoint broke off in the middle of a response.
    broken: Cell<bool>,
    order: Cell<Order>,
    /// When it was told to finish; 0: it was not.
    told: Cell<u64>,
    /// Of the responses on their way.
    turns: Turns,
    waker: RefCell<Option<Waker>>,
    ticker: Ticker,
}

impl Client {
    /// Just accepted: its first head is waited for.
    pub(super) fn new(listener: u64, trusted: bool, ticker: Ticker) -> Self {
        let now = ticker.now();
        Self {
            listener,
            trusted,
            phase: Cell::new(Phase::Head(now)),
            in_flight: Cell::new(0),
            blocked: Cell::new(0),
            wrote: Cell::new(now),
            multiplexed: Cell::new(false),
            end_delimits: Cell::new(false),
            broken: Cell::new(false),
            order: Cell::new(Order::Serve),
            told: Cell::new(0),
            turns: Turns::default(),
            waker: RefCell::new(None),
            ticker,
        }
    }

    /// A request's head is there. The turn is its response's.
    pub(super) fn began(&self) -> Turn {
        idle::request();
        self.in_flight.set(self.in_flight.get() + 1);
        self.phase.set(Phase::Busy);
        // With one response at a time, a write that waits says as much.
        if self.multiplexed.get() { self.turns.take() } else { Turn::default() }
    }

    /// The response of that turn is handed on, or its next part is waited for: the connection must ask for more
    /// until `by`.
    pub(super) fn must_ask(&self, turn: &Turn, by: u64) {
        self.turns.set(turn, by);
    }

    /// A request is over, its response's last byte handed on.
    pub(super) fn ended(&self, turn: &Turn, now: u64) {
        self.turns.give_back(turn);
        let left = self.in_flight.get().saturating_sub(1);
        self.in_flight.set(left);
        if left == 0 {
            self.phase.set(Phase::Idle(now));
        }
    }

    /// An endpoint broke off in the middle of a response.
    pub(super) fn broke(&self) {
        self.broken.set(true);
    }

    /// Whether it is told to end.
    pub(super) fn is_told(&self) -> bool {
        self.order.get() != Order::Serve
    }

    /// Tells it to finish what is in flight and close.
    pub(super) fn finish(&self) {
        if self.order.get() == Order::Serve {
            self.told.set(self.ticker.now());
            self.give(Order::Finish);
        }
    }

    /// Closes it if it has outstayed a limit.
    pub(super) fn check(&self, now: u64, http: &HttpConfig) {
        let over = |since: u64, limit: std::time::Duration| {
            u128::from(now.saturating_sub(since)) >= limit.as_millis()
        };
        let (blocked, wrote, told) = (self.blocked.get(), self.wrote.get(), self.told.get());
        let stuck = blocked != 0 && over(blocked, http.idle_timeout) || self.turns.missed(now);
        let (late, since) = match self.phase.get() {
            Phase::Head(since) => (over(since, http.head_timeout), since),
            Phase::Idle(since) => (blocked == 0 && over(since.max(wrote), http.idle_timeout), since),
            Phase::Busy => (false, now),
        };
        // A goodbye that nobody answers: the last bytes of a response may still go out, but not for ever.
        let since = since.max(told);
        let quiet = blocked == 0 && over(since.max(wrote), http.head_timeout);
        let deaf = told != 0 && (quiet || over(since, http.idle_timeout));
        // HTTP/2 says goodbye first; HTTP/1.1 has nothing to say in the middle of a head.
        let multiplexed = self.multiplexed.get();
        if stuck || multiplexed && deaf || !multiplexed && late {
            self.give(Order::Abort);
        } else if late {
            self.finish();
        }
    }

    fn give(&self, order: Order) {
        self.order.set(order);
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn read_something(&self) {
        if matches!(self.phase.get(), Phase::Idle(_)) && !self.multiplexed.get() {
            self.phase.set(Phase::Head(self.ticker.now()));
        }
    }

    fn wrote(&self, polled: &Poll<io::Result<usize>>) {
        if polled.is_ready() {
            self.blocked.set(0);
            self.wrote.set(self.ticker.now());
        } else if self.blocked.get() == 0 {
            self.blocked.set(self.ticker.now());
        }
    }

    /// Remembers whom to wake for an order; the same task polls a connection all its life.
    fn listen(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }
}

/// Serves a connection to its end.
pub(super) async fn serve<S>(
    stream: S,
    protocol: Option<Protocol>,
    listener: Rc<Listener>,
    client: Rc<Client>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Reset + 'static,
{
    let mut stream = Stream::new(stream, Rc::clone(&client));
    let protocol = match protocol {
        Some(protocol) => protocol,
        None => match until_ordered(&client, detect(&mut stream)).await {
            Some(Ok(protocol)) => protocol,
            _ => return,
        },
    };
    let (owner, own) = (Rc::clone(&listener), Rc::clone(&client));
    if listener.picker.is_some() {
        let service = service_fn(move |request: Request<Incoming>| {
            let response = picker::respond(Rc::clone(&owner), Rc::clone(&own), request);
            async move { Ok::<_, Infallible>(response) }
        });
        speak(stream, protocol, service, &listener, &client).await;
    } else {
        let service = service_fn(move |request: Request<Incoming>| {
            let (head, body) = request.into_parts();
            respond(Rc::clone(&owner), Rc::clone(&own), head, body)
        });
        speak(stream, protocol, service, &listener, &client).await;
    }
}

/// Speaks a protocol with a client, and has its requests answered.
async fn speak<S, A, B>(
    stream: Stream<S>,
    protocol: Protocol,
    service: A,
    listener: &Rc<Listener>,
    client: &Rc<Client>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Reset + 'static,
    A: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    A::Future: 'static,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let http = listener.worker.http();
    match protocol {
        Protocol::Http1 => {
            // One that waited in the backlog of a listener that closes is served once.
            let last = client.order.get() == Order::Finish;
            let connection = http1::Builder::new()
                .keep_alive(!last)
                .max_header_size(http.max_head)
                .max_buf_size(http.max_head.max(MIN_BUFFER))
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = drive(client, connection, last, http1::Connection::graceful_shutdown).await
                && error.is_parse()
            {
                // hyper has refused it; no request came of it.
                let reason = if error.is_parse_too_large() { Reason::HeadTooLarge } else { Reason::BadHead };
                listener.metrics.refused(reason);
            }
        }
        Protocol::Http2 => {
            client.multiplexed.set(true);
            let mut builder = http2::Builder::new(Local);
            builder
                .timer(listener.worker.alarms.clone())
                .max_header_list_size(u32::try_from(http.max_head).unwrap_or(u32::MAX));
            if listener.picker.is_some() {
                picker::configure(&mut builder, &http);
            }
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            // What is wrong with a stream is answered on that stream, and nobody is told.
            let _ = drive(client, connection, false, http2::Connection::graceful_shutdown).await;
        }
    }
}

/// Serves a connection that begins with a TLS handshake; ALPN says what it speaks.
pub(super) async fn serve_tls(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    listener: Rc<Listener>,
    client: Rc<Client>,
) {
    match until_ordered(&client, acceptor.accept(stream)).await {
        Some(Ok(stream)) => {
            let protocol = match stream.get_ref().1.alpn_protocol() {
                Some(b"h2") => Some(Protocol::Http2),
                Some(_) => Some(Protocol::Http1),
                None => None,
            };
            serve(stream, protocol, listener, client).await;
        }
        Some(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        None => {}
    }
}

/// hyper reads into a buffer of at least this size.
const MIN_BUFFER: usize = 64 * 1024;

/// Polls a connection until it is over or told to end.
async fn drive<C>(
    client: &Client,
    connection: C,
    mut told: bool,
    finish: impl Fn(Pin<&mut C>),
) -> hyper::Result<()>
where
    C: Future<Output = hyper::Result<()>>,
{
    let mut connection = pin!(connection);
    // The same task polls it all its life.
    let mut waker = None;
    let result = poll_fn(|cx| {
        idle::event();
        client.listen(cx);
        match client.order.get() {
            Order::Abort => return Poll::Ready(Ok(())),
            Order::Finish if !told => {
                told = true;
                finish(connection.as_mut());
            }
            Order::Finish | Order::Serve => {}
        }
        if client.multiplexed.get() {
            return connection.as_mut().poll(cx);
        }
        let waker = waker.get_or_insert_with(|| wakes::holdable(cx.waker()));
        connection.as_mut().poll(&mut Context::from_waker(waker))
    })
    .await;
    if let Err(error) = &result {
        tracing::debug!(%error, "client connection ended");
    }
    result
}

/// Waits for a future; a connection that is told to end gets no more time for it.
async fn until_ordered<F: Future>(client: &Client, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        idle::event();
        client.listen(cx);
        match (client.order.get(), future.as_mut().poll(cx)) {
            (Order::Serve, Poll::Pending) => Poll::Pending,
            (Order::Serve | Order::Finish, Poll::Ready(done)) => Poll::Ready(Some(done)),
            _ => Poll::Ready(None),
        }
    })
    .await
}

/// Runs HTTP/2 streams on the worker that owns their connection; they end with the worker's runtime.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local;

impl<F: Future<Output = ()> + 'static> Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}

#[cfg(test)]
mod tests;
