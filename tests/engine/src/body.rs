//! The body of a response: one piece or a stream of tokens, and the faults that strike in the middle of it.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use crate::{
    answer::Script,
    counters::{Tallies, Tick},
    wire::Link,
};

/// A request in flight: counted as cancelled unless it was answered to the end.
#[derive(Debug)]
pub(crate) struct Flight {
    tallies: Arc<Tallies>,
    pub(crate) link: Arc<Link>,
    done: bool,
}

impl Flight {
    pub(crate) fn begin(tallies: &Arc<Tallies>, link: &Arc<Link>) -> Self {
        tallies.add(Tick::Requests, 1);
        link.begin();
        Self { tallies: Arc::clone(tallies), link: Arc::clone(link), done: false }
    }

    fn complete(&mut self) {
        if !self.done {
            self.done = true;
            self.tallies.add(Tick::Completed, 1);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.link.end();
        if !self.done {
            self.tallies.add(Tick::Cancelled, 1);
        }
    }
}

/// What happens after the first piece of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mishap {
    Reset,
    Stall,
}

#[derive(Debug)]
enum Content {
    Whole(Bytes),
    Stream { script: Box<Script>, next: u64, delay: Duration, pause: Option<Pin<Box<Sleep>>> },
}

/// A response body.
#[derive(Debug)]
pub(crate) struct EngineBody {
    content: Content,
    flight: Flight,
    mishap: Option<Mishap>,
    /// The first piece is out.
    started: bool,
    /// The server had a chance to flush the first piece.
    flushed: bool,
}

impl EngineBody {
    pub(crate) fn whole(content: Bytes, mut flight: Flight) -> Self {
        if content.is_empty() {
            // The server does not ask for pieces of a body that has none.
            flight.complete();
        }
        Self { content: Content::Whole(content), flight, mishap: None, started: false, flushed: false }
    }

    pub(crate) fn stream(script: Script, delay: Duration, flight: Flight) -> Self {
        let content = Content::Stream { script: Box::new(script), next: 0, delay, pause: None };
        Self { content, flight, mishap: None, started: false, flushed: false }
    }

    pub(crate) fn with_mishap(mut self, mishap: Option<Mishap>) -> Self {
        self.mishap = mishap;
        self
    }

    fn strike(&mut self, mishap: Mishap, cx: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match mishap {
            Mishap::Stall => Poll::Pending,
            Mishap::Reset if !self.flushed => {
                self.flushed = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Mishap::Reset => {
                self.flight.link.reset();
                Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::ConnectionReset))))
            }
        }
    }
}

impl Body for EngineBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        if let (Some(mishap), true) = (this.mishap, this.started) {
            return this.strike(mishap, cx);
        }
        let piece = match &mut this.content {
            Content::Whole(content) if content.is_empty() => None,
            Content::Whole(content) => {
                let part = if this.mishap.is_some() { content.len() / 2 } else { content.len() };
                let piece = content.split_to(part);
                if this.mishap.is_none() {
                    this.flight.complete();
                }
                Some(piece)
            }
            Content::Stream { script, next, delay, pause } => {
                if !delay.is_zero() && script.is_token(*next) {
                    let pause = pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(*delay)));
                    ready!(pause.as_mut().poll(cx));
                }
                *pause = None;
                let piece = script.event(*next);
                *next = next.saturating_add(1);
                if piece.is_none() {
                    this.flight.complete();
                }
                piece
            }
        };
        this.started = true;
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(content) if content.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(content) => SizeHint::with_exact(u64::try_from(content.len()).unwrap_or(u64::MAX)),
            Content::Stream { .. } => SizeHint::default(),
        }
    }
}
