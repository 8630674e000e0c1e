//! One HTTP/1.1 connection to an endpoint, driven by whoever uses it.
//!
//! A client of its own, for what a proxy needs and no more: no task, no channel and no second header map stands between
//! the socket and the request. The request's own future writes and reads while it waits for the head, and the
//! response's body while it waits for data. An idle connection is polled by nobody; that its endpoint closed it shows
//! when it is used again, before a byte is written.
//!
//! `head` and `body` are the codec, without I/O; `outbox` and `inbox` move the bytes.

mod body;
#[cfg(feature = "fuzz")]
pub(super) mod fuzz;
mod head;
mod inbox;
mod outbox;

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Response, request};
use http_body::SizeHint;
use tokio::net::TcpStream;

use super::{
    clock::Ticker,
    deadlines::{Deadline, Deadlines},
    upload::{Progress, RequestBody, Upload},
};
use body::{Decoder, Next};
use outbox::Outbox;

/// What ends a connection before its time.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// It broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What came is no HTTP/1.1.
    #[error("{0}")]
    NotHttp(&'static str),
    /// The request's body failed.
    #[error("the request body ended early")]
    Upload,
}

impl LinkError {
    fn closed() -> Self {
        Self::Io(io::ErrorKind::UnexpectedEof.into())
    }
}

/// A connection to an endpoint.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    outbox: Outbox,
    /// Another request may follow, once this one and its response are through.
    persists: bool,
}

/// How long a request may wait for the head of its response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience<'a> {
    /// The worker's.
    pub(super) deadlines: &'a Deadlines,
    /// The worker's.
    pub(super) ticker: &'a Ticker,
    /// From the end of the request, or from when the endpoint read of it last.
    pub(super) response: Duration,
    /// While the client sends nothing of its body.
    pub(super) stalled: Duration,
}

impl Patience<'_> {
    /// When it ends, as things stand, and with what.
    fn until(self, began: u64, upload: Option<&Upload>) -> (u64, ExchangeError) {
        match upload {
            Some(upload) if upload.progress() == Progress::Sending && upload.is_starved() => {
                (millis_after(upload.moved(), self.stalled), ExchangeError::Stalled)
            }
            Some(upload) => (millis_after(upload.moved().max(began), self.response), ExchangeError::Timeout),
            None => (millis_after(began, self.response), ExchangeError::Timeout),
        }
    }

    /// When to look again at the latest: until the request has ended, who is waited for may change.
    fn again(self, now: u64, upload: Option<&Upload>) -> u64 {
        let sending = upload.is_some_and(|upload| upload.progress() == Progress::Sending);
        millis_after(now, if sending { self.response.min(self.stalled) } else { self.response })
    }
}

/// The first millisecond after a time has passed.
fn millis_after(from: u64, time: Duration) -> u64 {
    from.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).saturating_add(1)
}

/// Why a request has no response.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The connection was closed already: nothing was sent.
    NotSent,
    /// The connection closed or broke, and nothing of a response had come.
    NoResponse(io::Error),
    /// It broke in the middle of the head.
    Broken(io::Error),
    /// What came is no response.
    NotHttp(&'static str),
    /// The request body failed; see its progress.
    Upload,
    /// The client sends nothing.
    Stalled,
    /// The head did not come in time.
    Timeout,
}

/// The head of a response, as far as it has come.
#[derive(Default)]
struct Heads {
    part: BytesMut,
    received: bool,
}

impl Heads {
    /// Adds what came. Some: the head is whole, and this is what comes after it.
    fn add(
        &mut self,
        more: Bytes,
        to_head: bool,
        spare: &mut HeaderMap,
    ) -> Result<Option<(head::Head, Bytes)>, LinkError> {
        self.received = true;
        let mut input = more;
        let before = self.part.len();
        if before > 0 {
            if before + input.len() > head::MAX_HEAD {
                return Err(LinkError::NotHttp("the head of the response is too large"));
            }
            self.part.extend_from_slice(&input);
            // Reading it all again for every byte that drips in would be dear.
            let new = self.part.get(before.saturating_sub(3)..).unwrap_or_default();
            if !new.windows(3).any(|end| end == b"\n\r\n" || end.ends_with(b"\n\n")) {
                return Ok(None);
            }
            input = self.part.split().freeze();
        }
        let head = head::read(&mut input, to_head, spare)?;
        if head.is_none() {
            self.part = BytesMut::from(input);
            return Ok(None);
        }
        Ok(head.map(|head| (head, input)))
    }
}

impl Link {
    /// Over a fresh connection.
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, outbox: Outbox::default(), persists: false }
    }

    /// Writes what is left of the request. Ready when all is written.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.outbox.is_done() {
            return Poll::Ready(Ok(()));
        }
        let polled = self.outbox.poll(cx, &mut self.stream);
        if matches!(polled, Poll::Ready(Err(_))) {
            // What the endpoint answered all the same may still be read, and nothing comes after it.
            self.outbox.clear();
            self.persists = false;
        }
        polled
    }

    /// Sends a request and waits for the head of its response. With a response, the request's headers are gone: their
    /// map is the response's.
    pub(super) async fn exchange(
        &mut self,
        head: &mut request::Parts,
        body: RequestBody,
        upload: Option<&Upload>,
        patience: Patience<'_>,
    ) -> Result<Response<Download>, ExchangeError> {
        let to_head = head.method == Method::HEAD;
        let began = patience.ticker.now();
        let mut deadline = None;
        let mut heads = Heads::default();
        // A failure to write, until it is known that no response came before it: that is still to be read then, and
        // the connection, being over, wakes whoever reads.
        let mut failed = None;
        let mut unsent = Some(body);
        poll_fn(|cx| {
            let begins = unsent.is_some();
            if let Some(body) = unsent.take() {
                // Also whom to wake for the response is said by this look.
                if inbox::poll(cx, &mut self.stream).is_ready() {
                    return Poll::Ready(Err(ExchangeError::NotSent));
                }
                self.outbox.begin(head, body);
                self.persists = true;
            }
            if let Poll::Ready(Err(error)) = self.poll_send(cx) {
                failed = Some(error);
            }
            if (!begins || failed.is_some())
                && let Poll::Ready(outcome) = self.poll_head(cx, &mut heads, to_head, &mut head.headers)
            {
                return Poll::Ready(outcome.map_err(|error| {
                    let first = if matches!(error, LinkError::Io(_)) { failed.take() } else { None };
                    failure(first.unwrap_or(error), heads.received, upload)
                }));
            }
            if let Some(error) = failed.take_if(|error| matches!(error, LinkError::Upload)) {
                return Poll::Ready(Err(failure(error, heads.received, upload)));
            }
            let now = patience.ticker.now();
            if deadline.as_ref().is_none_or(|deadline: &Deadline| deadline.at <= now) {
                let (at, error) = patience.until(began, upload);
                if at <= now {
                    return Poll::Ready(Err(error));
                }
                let at = at.min(patience.again(now, upload));
                deadline = Some(patience.deadlines.set(at, cx.waker().clone()));
            }
            Poll::Pending
        })
        .await
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        heads: &mut Heads,
        to_head: bool,
        spare: &mut HeaderMap,
    ) -> Poll<Result<Response<Download>, LinkError>> {
        loop {
            let more = match inbox::poll(cx, &mut self.stream) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(more)) if more.is_empty() => return Poll::Ready(Err(LinkError::closed())),
                Poll::Ready(more) => more?,
            };
            if let Some((head::Head { response, persists }, input)) = heads.add(more, to_head, spare)? {
                self.persists &= persists;
                return Poll::Ready(Ok(response.map(|decoder| Download { decoder, input })));
            }
        }
    }
}

fn failure(error: LinkError, received: bool, upload: Option<&Upload>) -> ExchangeError {
    match error {
        _ if upload.is_some_and(Upload::failed) => ExchangeError::Upload,
        LinkError::Upload => ExchangeError::Upload,
        LinkError::NotHttp(what) => ExchangeError::NotHttp(what),
        LinkError::Io(error) if received => ExchangeError::Broken(error),
        LinkError::Io(error) => ExchangeError::NoResponse(error),
    }
}

/// The body of a response: what has come of it, and how the rest is framed.
#[derive(Debug)]
pub(super) struct Download {
    decoder: Decoder,
    /// Read, and not looked at.
    input: Bytes,
}

impl Download {
    /// Whether all of it was handed on.
    pub(super) fn is_end(&self) -> bool {
        self.decoder.is_end()
    }

    /// Its length, where that is known.
    pub(super) fn size_hint(&self) -> SizeHint {
        match &self.decoder {
            Decoder::Length(left) => SizeHint::with_exact(*left),
            _ if self.is_end() => SizeHint::with_exact(0),
            _ => SizeHint::new(),
        }
    }

    /// Whether its connection is free for another request: all has come, nothing else has, and all was sent.
    pub(super) fn leaves_idle(&self, link: &Link) -> bool {
        let received = match &self.decoder {
            Decoder::Length(left) => *left == self.input.len() as u64,
            decoder => decoder.is_end() && self.input.is_empty(),
        };
        received && link.persists && link.outbox.is_done()
    }

    /// The next piece. The connection is not needed once it is free.
    pub(super) fn poll_data(
        &mut self,
        link: Option<&mut Link>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, LinkError>>> {
        let Some(link) = link else {
            return Poll::Ready(match self.decoder.decode(&mut self.input) {
                Ok(Next::Data(data)) => Some(Ok(data)),
                Ok(Next::End) => None,
                Ok(Next::More) => Some(Err(LinkError::closed())),
                Err(error) => Some(Err(error)),
            });
        };
        if let Poll::Ready(Err(LinkError::Upload)) = link.poll_send(cx) {
            return Poll::Ready(Some(Err(LinkError::Upload)));
        }
        loop {
            match self.decoder.decode(&mut self.input)? {
                Next::Data(data) => return Poll::Ready(Some(Ok(data))),
                Next::End => return Poll::Ready(None),
                // Even empty it would hold the memory of what came last for as long as nothing more does.
                Next::More => self.input = Bytes::new(),
            }
            match inbox::poll(cx, &mut link.stream) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(more)) if !more.is_empty() => self.input = more,
                Poll::Ready(Ok(_)) if self.decoder.close() => {}
                Poll::Ready(Ok(_)) => return Poll::Ready(Some(Err(LinkError::closed()))),
                Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }
}

#[cfg(test)]
mod exchanges;
#[cfg(test)]
mod tests;
