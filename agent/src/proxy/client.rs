//! One client connection: which protocol it speaks, its limits in time, and its end (H12, H14).
//!
//! Timers per request are dear and seldom fire. A connection only notes what it does (waiting for a head, idle,
//! busy, blocked in a write) with the worker's coarse time, and the worker's sweep looks at all of them twice a second.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use http::Request;
use hyper::{
    body::Incoming,
    rt::Executor,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{clock::Ticker, forward::respond, listener::Listener};
use crate::config::HttpConfig;

/// How every HTTP/2 connection begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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
    waker: RefCell<Option<Waker>>,
    ticker: Ticker,
}

impl Client {
    /// Just accepted: its first head is waited for.
    pub(super) fn new(listener: u64, ticker: Ticker) -> Self {
        let now = ticker.now();
        Self {
            listener,
            phase: Cell::new(Phase::Head(now)),
            in_flight: Cell::new(0),
            blocked: Cell::new(0),
            wrote: Cell::new(now),
            multiplexed: Cell::new(false),
            end_delimits: Cell::new(false),
            broken: Cell::new(false),
            order: Cell::new(Order::Serve),
            waker: RefCell::new(None),
            ticker,
        }
    }

    /// A request's head is there.
    pub(super) fn began(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
        self.phase.set(Phase::Busy);
    }

    /// A request is over, its response's last byte handed on.
    pub(super) fn ended(&self, now: u64) {
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

    /// Tells it to finish what is in flight and close.
    pub(super) fn finish(&self) {
        if self.order.get() == Order::Serve {
            self.give(Order::Finish);
        }
    }

    /// Closes it if it has outstayed a limit.
    pub(super) fn check(&self, now: u64, http: &HttpConfig) {
        let over = |since: u64, limit: std::time::Duration| {
            u128::from(now.saturating_sub(since)) >= limit.as_millis()
        };
        let blocked = self.blocked.get();
        let stuck = blocked != 0 && over(blocked, http.idle_timeout);
        let late = match self.phase.get() {
            Phase::Head(since) => over(since, http.head_timeout),
            Phase::Idle(since) => blocked == 0 && over(since.max(self.wrote.get()), http.idle_timeout),
            Phase::Busy => false,
        };
        if stuck {
            self.give(Order::Abort);
        } else if late {
            // HTTP/2 says goodbye first; HTTP/1.1 has nothing to say in the middle of a head.
            let order = if self.multiplexed.get() { Order::Finish } else { Order::Abort };
            self.give(order);
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
    let mut stream = Stream { inner: stream, first: Vec::new(), at: 0, client: Rc::clone(&client) };
    let protocol = match protocol {
        Some(protocol) => protocol,
        None => match until_ordered(&client, detect(&mut stream)).await {
            Some(Ok(protocol)) => protocol,
            _ => return,
        },
    };
    let http = listener.worker.http();
    let service = {
        let client = Rc::clone(&client);
        service_fn(move |request: Request<Incoming>| {
            let response = respond(Rc::clone(&listener), Rc::clone(&client), request);
            async move { Ok::<_, Infallible>(response.await) }
        })
    };
    match protocol {
        Protocol::Http1 => {
            // One that waited in the backlog of a listener that closes is served once.
            let last = client.order.get() == Order::Finish;
            let connection = http1::Builder::new()
                .keep_alive(!last)
                .max_header_size(http.max_head)
                .max_buf_size(http.max_head.max(MIN_BUFFER))
                .serve_connection(TokioIo::new(stream), service);
            drive(&client, connection, last, http1::Connection::graceful_shutdown).await;
        }
        Protocol::Http2 => {
            client.multiplexed.set(true);
            let connection = http2::Builder::new(Local)
                .timer(TokioTimer::new())
                .max_header_list_size(u32::try_from(http.max_head).unwrap_or(u32::MAX))
                .serve_connection(TokioIo::new(stream), service);
            drive(&client, connection, false, http2::Connection::graceful_shutdown).await;
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
async fn drive<C, E>(client: &Client, connection: C, mut told: bool, finish: impl Fn(Pin<&mut C>))
where
    C: Future<Output = Result<(), E>>,
    E: std::error::Error,
{
    let mut connection = pin!(connection);
    let result = poll_fn(|cx| {
        client.listen(cx);
        match client.order.get() {
            Order::Abort => return Poll::Ready(Ok(())),
            Order::Finish if !told => {
                told = true;
                finish(connection.as_mut());
            }
            Order::Finish | Order::Serve => {}
        }
        connection.as_mut().poll(cx)
    })
    .await;
    if let Err(error) = result {
        tracing::debug!(%error, "client connection ended");
    }
}

/// Waits for a future; a connection that is told to end gets no more time for it.
async fn until_ordered<F: Future>(client: &Client, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        client.listen(cx);
        match (client.order.get(), future.as_mut().poll(cx)) {
            (Order::Serve, Poll::Pending) => Poll::Pending,
            (Order::Serve | Order::Finish, Poll::Ready(done)) => Poll::Ready(Some(done)),
            _ => Poll::Ready(None),
        }
    })
    .await
}

/// What a client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    /// HTTP/1.1, or 1.0.
    Http1,
    /// HTTP/2, by ALPN or by prior knowledge.
    Http2,
}

/// Looks at the first bytes: HTTP/2 by prior knowledge begins with a preface that no HTTP/1 method does.
async fn detect<S: AsyncRead + Unpin + Reset>(stream: &mut Stream<S>) -> io::Result<Protocol> {
    let mut first = Vec::with_capacity(4096);
    loop {
        if stream.inner.read_buf(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let protocol = if first.starts_with(PREFACE) {
            Protocol::Http2
        } else if PREFACE.starts_with(&first) {
            continue;
        } else {
            Protocol::Http1
        };
        stream.first = first;
        return Ok(protocol);
    }
}

/// A stream whose first bytes were looked at, and whose traffic is noted.
struct Stream<S: Reset> {
    inner: S,
    first: Vec<u8>,
    at: usize,
    client: Rc<Client>,
}

impl<S: AsyncRead + Unpin + Reset> AsyncRead for Stream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(rest) = this.first.get(this.at..)
            && !rest.is_empty()
        {
            let (now, _) = rest.split_at(rest.len().min(buffer.remaining()));
            buffer.put_slice(now);
            this.at += now.len();
            if this.at == this.first.len() {
                this.first = Vec::new();
                this.at = 0;
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.client.read_something();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin + Reset> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, data);
        self.client.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, data);
        self.client.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// A stream that can be broken so that its peer sees an error, not an end.
pub(super) trait Reset {
    /// Makes the close that follows a reset.
    fn reset(&self);
}

impl Reset for TcpStream {
    fn reset(&self) {
        if let Err(error) = self.set_zero_linger() {
            tracing::debug!(%error, "a broken stream could not be reset");
        }
    }
}

impl Reset for TlsStream<TcpStream> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }
}

impl<S: Reset> Drop for Stream<S> {
    /// Everywhere else the framing tells a broken body from a whole one.
    fn drop(&mut self) {
        if self.client.broken.get() && self.client.end_delimits.get() {
            self.inner.reset();
        }
    }
}

/// Runs HTTP/2 streams on the worker that owns their connection; they end with the worker's runtime.
#[derive(Clone, Copy, Debug)]
struct Local;

impl<F: Future<Output = ()> + 'static> Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
