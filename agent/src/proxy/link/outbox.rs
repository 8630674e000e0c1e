//! A request on its way into the socket: its head together with what is there of its body, then the rest as it comes.

use std::{
    io::{self, IoSlice, Write},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http::request;
use http_body::Body;
use tokio::{io::AsyncWrite, net::TcpStream};

use super::{LinkError, head};
use crate::proxy::upload::RequestBody;

/// How the end of a request's body is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Framing {
    /// By its length; when counted down, what is left of it.
    Length(u64),
    /// By an empty chunk.
    Chunked,
}

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The head, or what stands before a chunk, and how much of it is written.
    lead: Vec<u8>,
    at: usize,
    /// A piece of the body.
    piece: Bytes,
    /// What stands after it.
    tail: &'static [u8],
    /// Where more comes from.
    body: Option<(RequestBody, Framing)>,
}

impl Outbox {
    /// Begins a request.
    pub(super) fn begin(&mut self, head: &request::Parts, body: RequestBody) {
        let framing = if body.is_end_stream() {
            None
        } else {
            Some(body.size_hint().exact().map_or(Framing::Chunked, Framing::Length))
        };
        self.clear();
        head::write(&mut self.lead, head, framing);
        self.body = framing.map(|framing| (body, framing));
    }

    /// Forgets what is not written.
    pub(super) fn clear(&mut self) {
        self.lead.clear();
        (self.at, self.piece, self.tail, self.body) = (0, Bytes::new(), b"", None);
    }

    /// Whether all is written.
    pub(super) fn is_done(&self) -> bool {
        self.body.is_none() && self.is_written()
    }

    fn is_written(&self) -> bool {
        self.at == self.lead.len() && self.piece.is_empty() && self.tail.is_empty()
    }

    /// Writes what can be written. Ready when all is.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut TcpStream,
    ) -> Poll<Result<(), LinkError>> {
        loop {
            // The next piece goes out with what is waiting.
            let mut starved = false;
            if self.piece.is_empty() && self.tail.is_empty() && self.body.is_some() {
                match self.poll_body(cx) {
                    Poll::Ready(staged) => staged?,
                    Poll::Pending => starved = true,
                }
            }
            if self.is_written() {
                if self.body.is_none() {
                    return Poll::Ready(Ok(()));
                }
                if starved {
                    return Poll::Pending;
                }
                continue;
            }
            let parts = [
                IoSlice::new(self.lead.get(self.at..).unwrap_or_default()),
                IoSlice::new(&self.piece),
                IoSlice::new(self.tail),
            ];
            let written = match ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &parts)) {
                Ok(0) => return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into())),
                Ok(written) => written,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            self.advance(written);
        }
    }

    fn advance(&mut self, mut written: usize) {
        let lead = written.min(self.lead.len() - self.at);
        self.at += lead;
        written -= lead;
        if self.at == self.lead.len() {
            self.lead.clear();
            self.at = 0;
        }
        let piece = written.min(self.piece.len());
        self.piece.advance(piece);
        self.tail = self.tail.get(written - piece..).unwrap_or_default();
        if self.piece.is_empty() {
            // Its bytes may be the last that hold a client's buffer.
            self.piece = Bytes::new();
        }
    }

    /// Takes the next piece of the body, or its end.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let Some((body, framing)) = &mut self.body else { return Poll::Ready(Ok(())) };
        let frame = match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(frame)) => Some(frame),
            Some(Err(_)) => return Poll::Ready(Err(LinkError::Upload)),
            None => None,
        };
        // Trailers of a request are for nobody: an engine reads none, and no rule for headers looks at them.
        let data = frame.map(|frame| frame.into_data().unwrap_or_default());
        let ended = data.is_none() || body.is_end_stream();
        let data = data.unwrap_or_default();
        match framing {
            Framing::Length(left) => {
                // The client's connection sees to this; a request must never be longer or shorter than it says.
                let Some(rest) = left.checked_sub(data.len() as u64).filter(|rest| !ended || *rest == 0)
                else {
                    return Poll::Ready(Err(LinkError::Upload));
                };
                *left = rest;
            }
            Framing::Chunked => {
                if !data.is_empty() {
                    // Into memory: it cannot fail.
                    let _ = write!(self.lead, "{:x}\r\n", data.len());
                }
                self.tail = match (data.is_empty(), ended) {
                    (true, true) => b"0\r\n\r\n",
                    (true, false) => b"",
                    (false, true) => b"\r\n0\r\n\r\n",
                    (false, false) => b"\r\n",
                };
            }
        }
        self.piece = data;
        if ended {
            self.body = None;
        }
        Poll::Ready(Ok(()))
    }
}
