//! One call: what the proxy says goes into the exchange, what the exchange asks is answered by the conversation.
//!
//! The next message is read when everything that the last one led to has gone out: a proxy that does not read is not
//! read from either. One that says nothing for too long is not waited for: what its call holds is wanted by others.

use std::{
    ops::ControlFlow,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::Stream;
use tonic::{Status, Streaming};

use super::conversation::Conversation;
use crate::{
    extproc::{
        Due, Exchange, Question, Sent, Violation,
        proto::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse},
    },
    proxy::{deadlines::Silence, error::ProxyError},
};

/// The answer to a call.
pub(in crate::proxy) struct Call {
    requests: Streaming<ProcessingRequest>,
    exchange: Exchange,
    conversation: Conversation,
    silence: Silence,
}

impl Call {
    pub(super) fn new(requests: Streaming<ProcessingRequest>, conversation: Conversation) -> Self {
        Self { requests, exchange: conversation.exchange(), conversation, silence: Silence::default() }
    }

    fn receive(&mut self, message: ProcessingRequest) -> Result<(), Violation> {
        let Self { exchange, conversation, .. } = self;
        let mut question = exchange.receive(message)?;
        while let Some(asked) = question.take() {
            match asked {
                Question::Begins { head, subset } => match conversation.begin(&head, subset) {
                    Ok(()) => question = exchange.begun(),
                    Err(error) => conversation.refuse(&error, exchange),
                },
                Question::Where { body } => match conversation.pick(body.as_deref()) {
                    Ok(destination) => exchange.picked(destination),
                    Err(error) => conversation.refuse(&error, exchange),
                },
                Question::Who { status, served } => {
                    question = exchange.stamped(conversation.answered(status, served));
                }
                Question::Whole => conversation.whole(),
                Question::TooLong => {
                    let error = conversation.too_long();
                    conversation.refuse(&error, exchange);
                }
            }
        }
        Ok(())
    }

    /// Nothing comes any more: how the call ends, unless the client is told.
    fn stalled(&mut self) -> ControlFlow<Option<Status>> {
        let error = match self.exchange.due() {
            Due::End | Due::Nothing => return ControlFlow::Break(None),
            Due::Request if self.exchange.is_owing() => Some(ProxyError::ClientStalled),
            Due::Request => None,
            Due::Response => match self.exchange.sent() {
                Sent::Part => Some(ProxyError::ClientStalled),
                // Perhaps its client is slow, and no endpoint.
                sent => self.conversation.unanswered(sent == Sent::Whole),
            },
            Due::Body => {
                self.conversation.broke();
                None
            }
        };
        let Some(error) = error else {
            return ControlFlow::Break(Some(Status::deadline_exceeded("nothing came for too long")));
        };
        self.conversation.refuse(&error, &mut self.exchange);
        ControlFlow::Continue(())
    }
}

impl Stream for Call {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(reply) = this.exchange.next_reply() {
                return Poll::Ready(Some(Ok(reply)));
            }
            if this.exchange.is_over() {
                return Poll::Ready(None);
            }
            let Poll::Ready(came) = Pin::new(&mut this.requests).poll_next(cx) else {
                if !this.conversation.is_stalled(this.exchange.due(), &mut this.silence, cx) {
                    return Poll::Pending;
                }
                match this.stalled() {
                    ControlFlow::Break(end) => return Poll::Ready(end.map(Err)),
                    ControlFlow::Continue(()) => continue,
                }
            };
            this.silence.end();
            let Some(message) = came else {
                // After a call that ends well, a proxy lets the request go on as it is: past the gate.
                let owing = this.exchange.is_owing().then(|| Status::aborted("the request is not answered"));
                return Poll::Ready(owing.map(Err));
            };
            if let Err(violation) = this.receive(message?) {
                tracing::debug!(%violation, "the proxy's messages make no sense");
                return Poll::Ready(Some(Err(Status::invalid_argument(violation.to_string()))));
            }
        }
    }
}
