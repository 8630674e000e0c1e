//! Reading whole what must be: a client's body, which both legs send, and a prefill's reply.
//!
//! One piece stays where it was read. Several are joined in one buffer, which grows twofold, and never beyond a length
//! that was told: what is merely promised takes no memory.

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, SizeHint};
use hyper::body::Incoming;

use crate::{
    config::HttpConfig,
    proxy::{
        deadlines::Deadline, error::ProxyError, forward::Answer, link::LinkError, listener::Listener,
        worker::Worker,
    },
};

/// The first buffer for what comes in pieces, bytes.
const FIRST: usize = 64 * 1024;

/// Reads a client's body.
pub(super) async fn body(
    mut incoming: Incoming,
    http: &HttpConfig,
    worker: &Worker,
) -> Result<Bytes, ProxyError> {
    let limit = http.max_body;
    if incoming.size_hint().lower() > limit {
        return Err(ProxyError::BodyTooLarge { limit });
    }
    let mut text = Gathered::new(&incoming.size_hint());
    let mut quiet = Quiet::new(worker, http.idle_timeout);
    while let Some(frame) = poll_fn(|cx| {
        let polled = Pin::new(&mut incoming).poll_frame(cx);
        quiet.judge(polled, cx, || ProxyError::ClientStalled)
    })
    .await?
    {
        // Trailers say nothing to an engine.
        let Ok(data) = frame.map_err(|_| ProxyError::ClientBody)?.into_data() else { continue };
        if (text.length() + data.len()) as u64 > limit {
            return Err(ProxyError::BodyTooLarge { limit });
        }
        text.add(data);
    }
    Ok(text.finish())
}

/// Reads a prefill's reply to its end, and gives its connection back. It is kept on demand only.
pub(super) async fn reply(
    answer: Answer,
    listener: &Listener,
    http: &HttpConfig,
    limit: u64,
    keep: bool,
) -> Result<Bytes, ProxyError> {
    let Answer { response, link, lease, .. } = answer;
    let worker = &listener.worker;
    let address = lease.target.endpoint.address;
    lease.target.endpoint.vitals.answered();
    let mut download = response.into_body();
    let mut text = Gathered::new(&download.size_hint());
    let mut link = Some(link);
    let mut quiet = Quiet::new(worker, http.stream_idle_timeout);
    let mut length = 0_u64;
    let read = async {
        while let Some(data) = poll_fn(|cx| {
            let polled = download.poll_data(link.as_deref_mut(), cx);
            quiet.judge(polled, cx, || ProxyError::ResponseTimeout { address })
        })
        .await?
        {
            let data = data.map_err(|error| broken(address, error))?;
            length = length.saturating_add(data.len() as u64);
            if length > limit {
                return Err(ProxyError::ReplyTooLarge { address, limit });
            }
            if keep {
                text.add(data);
            }
        }
        Ok(())
    };
    if let Err(error) = read.await {
        if !matches!(error, ProxyError::ReplyTooLarge { .. }) {
            listener.failed(&lease.target);
        }
        return Err(error);
    }
    lease.target.endpoint.vitals.completed();
    if let Some(idle) = link.filter(|link| download.leaves_idle(link)) {
        lease.target.put(idle, worker.ticker.now(), worker.pool_limits());
    }
    Ok(text.finish())
}

/// The reply ended before its end.
fn broken(address: SocketAddr, error: LinkError) -> ProxyError {
    match error {
        LinkError::Io(source) => ProxyError::Broken { address, source },
        LinkError::NotHttp(what) => ProxyError::not_http(address, what),
        LinkError::Upload => ProxyError::ClientBody,
    }
}

/// A text that comes in pieces.
struct Gathered {
    /// While there is one piece.
    first: Bytes,
    /// All, once there are several.
    joined: Vec<u8>,
    /// How long it will be, where that was told.
    told: usize,
}

impl Gathered {
    /// Of which nothing came yet.
    fn new(told: &SizeHint) -> Self {
        let told = told.exact().and_then(|length| usize::try_from(length).ok());
        Self { first: Bytes::new(), joined: Vec::new(), told: told.unwrap_or(usize::MAX) }
    }

    fn length(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    fn add(&mut self, piece: Bytes) {
        let length = self.length() + piece.len();
        if length == piece.len() {
            self.first = piece;
            return;
        }
        if length > self.joined.capacity() {
            let grown = self.joined.capacity().saturating_mul(2).max(FIRST).min(self.told).max(length);
            self.joined.reserve_exact(grown - self.joined.len());
        }
        self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        self.joined.extend_from_slice(&piece);
    }

    fn finish(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.into() }
    }
}

/// How long nothing has come that was waited for.
struct Quiet<'a> {
    worker: &'a Worker,
    longest: u64,
    /// 0: something came.
    since: u64,
    /// Wakes the reader to look again.
    deadline: Option<Deadline>,
}

impl<'a> Quiet<'a> {
    fn new(worker: &'a Worker, longest: Duration) -> Self {
        let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        Self { worker, longest, since: 0, deadline: None }
    }

    /// What was polled for; the error when it has been waited for too long.
    fn judge<T>(
        &mut self,
        polled: Poll<T>,
        cx: &Context<'_>,
        error: impl FnOnce() -> ProxyError,
    ) -> Poll<Result<T, ProxyError>> {
        if let Poll::Ready(came) = polled {
            self.since = 0;
            return Poll::Ready(Ok(came));
        }
        let now = self.worker.ticker.now();
        if self.since == 0 {
            self.since = now;
        }
        let at = self.since.saturating_add(self.longest);
        if at <= now {
            return Poll::Ready(Err(error()));
        }
        if self.deadline.as_ref().is_none_or(|deadline| deadline.at <= now) {
            self.deadline = Some(self.worker.deadlines.set(at, cx.waker().clone()));
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_piece_is_not_copied_and_several_take_no_more_than_was_told() {
        let piece = Bytes::from(vec![7; 1000]);
        let mut one = Gathered::new(&SizeHint::with_exact(1000));
        one.add(piece.clone());
        assert_eq!(one.finish().as_ptr(), piece.as_ptr());

        let mut several = Gathered { first: Bytes::new(), joined: Vec::new(), told: 200_000 };
        let mut most = 0;
        for _ in 0..200 {
            several.add(piece.clone());
            most = most.max(several.joined.capacity());
            assert!(
                several.joined.capacity() <= several.length().max(FIRST / 2) * 2,
                "no promise is believed"
            );
        }
        assert_eq!((most, several.finish().len()), (200_000, 200_000));
    }
}
