//! One log line per request, by option (O4): written when its last byte went out, or when it was abandoned.

use std::{net::SocketAddr, sync::Arc};

use http::{Method, StatusCode, Uri};

use super::clock::Clock;

/// What a line says. Dropping it writes it.
#[derive(Debug)]
pub(super) struct Access {
    listener: Arc<str>,
    method: Method,
    uri: Uri,
    clock: Clock,
    began: u64,
    outcome: Option<Outcome>,
    broken: bool,
}

#[derive(Debug)]
struct Outcome {
    /// `None`: nobody told.
    status: Option<StatusCode>,
    revision: Arc<str>,
    endpoint: Option<SocketAddr>,
    prefill: Option<SocketAddr>,
    reason: &'static str,
    head_micros: u64,
}

impl Access {
    /// A request whose head came at `began`, in microseconds.
    pub(super) fn new(listener: Arc<str>, method: Method, uri: Uri, clock: Clock, began: u64) -> Self {
        Self { listener, method, uri, clock, began, outcome: None, broken: false }
    }

    /// An endpoint answers, after the prefill of another where there are two legs.
    pub(super) fn served(
        &mut self,
        status: impl Into<Option<StatusCode>>,
        revision: &Arc<str>,
        endpoint: SocketAddr,
        prefill: Option<SocketAddr>,
    ) {
        self.answered(status.into(), Arc::clone(revision), Some(endpoint), "");
        if let Some(outcome) = &mut self.outcome {
            outcome.prefill = prefill;
        }
    }

    /// No endpoint does.
    pub(super) fn refused(&mut self, status: impl Into<Option<StatusCode>>, reason: &'static str) {
        self.answered(status.into(), "".into(), None, reason);
    }

    /// The endpoint broke off in the body.
    pub(super) fn broke(&mut self) {
        self.broken = true;
    }

    fn answered(
        &mut self,
        status: Option<StatusCode>,
        revision: Arc<str>,
        endpoint: Option<SocketAddr>,
        reason: &'static str,
    ) {
        let head_micros = self.clock.micros().saturating_sub(self.began);
        self.outcome = Some(Outcome { status, revision, endpoint, prefill: None, reason, head_micros });
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        let micros = self.clock.micros().saturating_sub(self.began);
        let (listener, method, path) = (&*self.listener, &self.method, self.uri.path());
        match &self.outcome {
            Some(Outcome { status, revision, endpoint, prefill, reason, head_micros }) => tracing::info!(
                target: "revgate::access",
                listener,
                %method,
                path,
                status = status.map(|status| status.as_u16()),
                %revision,
                endpoint = endpoint.map(tracing::field::display),
                prefill = prefill.map(tracing::field::display),
                reason,
                head_micros,
                micros,
                broken = self.broken,
                "request"
            ),
            None => {
                tracing::info!(target: "revgate::access", listener, %method, path, micros, "request abandoned");
            }
        }
    }
}
