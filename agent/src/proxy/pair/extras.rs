//! What the answer to a request with two legs needs until its end: an edit on its way, and the other leg.

use std::{
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::Frame;

use super::cached::CachedTokens;
use crate::proxy::{error::ProxyError, link::LinkError, reply::ReplyError};

/// How long a prefill's reply may outlast the answer. It comes with the KV cache, so it is there already, or nearly.
const LINGER: Duration = Duration::from_secs(1);

/// A prefill leg that is still under way.
pub(super) type Companion = Pin<Box<dyn Future<Output = Result<(), ProxyError>>>>;

/// What the answer to a request with two legs needs until its end.
pub(in crate::proxy) struct Extras {
    /// Who prefilled.
    pub(in crate::proxy) prefill: SocketAddr,
    edit: Option<CachedTokens>,
    companion: Option<Companion>,
    over: bool,
}

impl Extras {
    /// Of an answer that goes on as it comes.
    pub(super) fn of(prefill: SocketAddr) -> Self {
        Self { prefill, edit: None, companion: None, over: true }
    }

    /// Edits it on its way.
    pub(super) fn edit(&mut self, edit: CachedTokens) {
        self.edit = Some(edit);
        self.over = false;
    }

    /// Ends it when the other leg fails.
    pub(super) fn accompany(&mut self, companion: Companion) {
        self.companion = Some(companion);
    }

    /// Whether its length may be another than the endpoint's.
    pub(in crate::proxy) fn edits(&self) -> bool {
        self.edit.is_some()
    }

    /// Whether nothing is left to say after the endpoint's last byte.
    pub(in crate::proxy) fn is_over(&self) -> bool {
        self.over
    }

    /// The next part of the answer that `source` gives.
    pub(in crate::proxy) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut source: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, LinkError>>>,
    ) -> Poll<Option<Result<Frame<Bytes>, ReplyError>>> {
        if let Some(companion) = &mut self.companion
            && let Poll::Ready(ended) = companion.as_mut().poll(cx)
        {
            self.companion = None;
            if let Err(error) = ended {
                return Poll::Ready(Some(Err(ReplyError::Prefill(error))));
            }
        }
        loop {
            let frame = match source(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(None) => return Poll::Ready(self.end().map(Ok)),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error.into()))),
                Poll::Pending => return Poll::Pending,
            };
            let Some(edit) = &mut self.edit else { return Poll::Ready(Some(Ok(frame))) };
            // Engines send no trailers; behind an edited body they would come too early.
            let Ok(data) = frame.into_data() else { continue };
            let data = edit.push(data);
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }

    /// The endpoint's answer is whole.
    fn end(&mut self) -> Option<Frame<Bytes>> {
        if let Some(companion) = self.companion.take() {
            tokio::task::spawn_local(async move {
                if let Ok(Err(error)) = tokio::time::timeout(LINGER, companion).await {
                    tracing::debug!(%error, "a prefill failed after the end of its decode");
                }
            });
        }
        self.over = true;
        let rest = self.edit.take().map(|mut edit| edit.finish());
        rest.filter(|rest| !rest.is_empty()).map(Frame::data)
    }
}
