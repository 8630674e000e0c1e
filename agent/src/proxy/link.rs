//! One HTTP/1.1 connection to an endpoint, driven by whoever uses it.
//!
//! hyper splits a connection into a handle and a future that moves the bytes; the usual place for the future is a
//! task of its own, which costs two hops through the scheduler per request. Here the two stay together: the request's
//! own future polls the connection while it waits for the head, and the response's body while it waits for data. An
//! idle connection is polled by nobody; that its endpoint closed it shows when it is used again, before a byte is
//! written.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::http1::{Connection, SendRequest},
};
use hyper_util::rt::TokioIo;

use super::{
    clock::Ticker,
    deadlines::{Deadline, Deadlines},
    dial::Tap,
    upload::{Progress, RequestBody, Upload},
};

/// A connection to an endpoint.
pub(super) struct Link {
    sender: SendRequest<RequestBody>,
    connection: Option<Connection<TokioIo<Tap>, RequestBody>>,
    /// Something came back since the last request began.
    received: Rc<Cell<bool>>,
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
pub(super) enum ExchangeError {
    /// The connection was closed already: the request comes back untouched.
    NotSent(Box<Request<RequestBody>>),
    /// The connection closed or broke, and nothing of a response had come.
    NoResponse(hyper::Error),
    /// It broke in the middle of the head, or that was no HTTP.
    Broken(hyper::Error),
    /// The request body failed; see its progress.
    Upload,
    /// The client sends nothing.
    Stalled,
    /// The head did not come in time.
    Timeout,
}

impl Link {
    /// Over both halves of a fresh connection.
    pub(super) fn new(
        sender: SendRequest<RequestBody>,
        connection: Connection<TokioIo<Tap>, RequestBody>,
        received: Rc<Cell<bool>>,
    ) -> Self {
        Self { sender, connection: Some(connection), received }
    }

    /// Moves bytes. Ready when the connection is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(()) };
        match Pin::new(connection).poll(cx) {
            Poll::Pending => Poll::Pending,
            // Its error, if any, has gone to the request or body that waits.
            Poll::Ready(_) => {
                self.connection = None;
                Poll::Ready(())
            }
        }
    }

    /// The last response has come to its end and another request may be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.connection.is_some() && self.sender.is_ready()
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn exchange(
        &mut self,
        request: Request<RequestBody>,
        upload: Option<&Upload>,
        patience: Patience<'_>,
    ) -> Result<Response<Incoming>, ExchangeError> {
        self.received.set(false);
        let mut response = pin!(self.sender.try_send_request(request));
        let began = patience.ticker.now();
        let mut deadline = None;
        poll_fn(|cx| {
            let over = self.poll(cx).is_ready();
            if let Poll::Ready(result) = response.as_mut().poll(cx) {
                return Poll::Ready(result.map_err(|error| self.failure(error, upload)));
            }
            if over {
                // hyper has answered the request by now; without an answer nobody would wake this future.
                return Poll::Ready(Err(ExchangeError::Timeout));
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

    fn failure(
        &self,
        mut error: hyper::client::conn::TrySendError<Request<RequestBody>>,
        upload: Option<&Upload>,
    ) -> ExchangeError {
        if let Some(request) = error.take_message() {
            return ExchangeError::NotSent(Box::new(request));
        }
        if upload.is_some_and(Upload::failed) {
            return ExchangeError::Upload;
        }
        let error = error.into_error();
        if self.received.get() { ExchangeError::Broken(error) } else { ExchangeError::NoResponse(error) }
    }
}
