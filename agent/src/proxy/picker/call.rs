//! One call: what the proxy says goes into the exchange, what the exchange asks is answered by the conversation.
//!
//! The next message is read when everything that the last one led to has gone out: a proxy that does not read is not
//! read from either.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::Stream;
use tonic::{Status, Streaming};

use super::conversation::Conversation;
use crate::extproc::{
    Exchange, Question, Violation,
    proto::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse},
};

/// The answer to a call.
pub(in crate::proxy) struct Call {
    requests: Streaming<ProcessingRequest>,
    exchange: Exchange,
    conversation: Conversation,
}

impl Call {
    pub(super) fn new(requests: Streaming<ProcessingRequest>, conversation: Conversation) -> Self {
        Self { requests, exchange: conversation.exchange(), conversation }
    }

    fn receive(&mut self, message: ProcessingRequest) -> Result<(), Violation> {
        let mut question = self.exchange.receive(message)?;
        // Before the first byte of a body is kept.
        if question.is_none()
            && self.exchange.is_owing()
            && let Err(error) = self.conversation.may_begin()
        {
            self.conversation.refuse(&error, &mut self.exchange);
        }
        while let Some(asked) = question.take() {
            match asked {
                Question::Where { head, subset, body } => {
                    match self.conversation.pick(&head, subset, body.as_deref()) {
                        Ok(destination) => self.exchange.picked(destination),
                        Err(error) => self.conversation.refuse(&error, &mut self.exchange),
                    }
                }
                Question::Who { status, served } => {
                    question = self.exchange.stamped(self.conversation.answered(status, served));
                }
                Question::Whole => self.conversation.whole(),
                Question::TooLong => {
                    let error = self.conversation.too_long();
                    self.conversation.refuse(&error, &mut self.exchange);
                }
            }
        }
        Ok(())
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
            let Some(message) = ready!(Pin::new(&mut this.requests).poll_next(cx)) else {
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
