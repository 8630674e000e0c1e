//! Reading whole what must be: a client's body, which both legs send, and a prefill's reply.

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;

use crate::{
    config::HttpConfig,
    gathered::Gathered,
    proxy::{
        clock::millis, deadlines::Silence, error::ProxyError, forward::Answer, link::LinkError,
        listener::Listener, worker::Worker,
    },
};

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
    let mut text = Gathered::new(incoming.size_hint().exact());
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
    let mut text = Gathered::new(download.size_hint().exact());
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

/// How long nothing may come that is waited for.
struct Quiet<'a> {
    worker: &'a Worker,
    longest: u64,
    silence: Silence,
}

impl<'a> Quiet<'a> {
    fn new(worker: &'a Worker, longest: Duration) -> Self {
        Self { worker, longest: millis(longest), silence: Silence::default() }
    }

    /// What was polled for; the error when it has been waited for too long.
    fn judge<T>(
        &mut self,
        polled: Poll<T>,
        cx: &Context<'_>,
        error: impl FnOnce() -> ProxyError,
    ) -> Poll<Result<T, ProxyError>> {
        if let Poll::Ready(came) = polled {
            self.silence.end();
            return Poll::Ready(Ok(came));
        }
        let Worker { ticker, deadlines, .. } = self.worker;
        if self.silence.lasts(self.longest, ticker.now(), deadlines, cx) {
            return Poll::Ready(Err(error()));
        }
        Poll::Pending
    }
}
