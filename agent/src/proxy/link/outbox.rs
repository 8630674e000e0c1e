//! A request on its way into the socket: its head together with what is there of its body, then the rest as it comes.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, Write},
    iter,
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

/// How much memory for heads a connection keeps, bytes.
const KEPT: usize = 4096;

/// How many pieces of a body go out together, at most. A connector cuts one in some ten; each write by itself would be a
/// packet, and a wake of the endpoint.
const TOGETHER: usize = 16;

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The head, or what stands before a chunk, and how much of it is written.
    lead: Vec<u8>,
    at: usize,
    /// Pieces of the body, none of them empty.
    pieces: VecDeque<Bytes>,
    /// What stands after them.
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
        self.clear_lead();
        self.pieces.clear();
        (self.tail, self.body) = (b"", None);
    }

    fn clear_lead(&mut self) {
        self.at = 0;
        if self.lead.capacity() > KEPT {
            self.lead = Vec::new();
        } else {
            self.lead.clear();
        }
    }

    /// Whether all is written.
    pub(super) fn is_done(&self) -> bool {
        self.body.is_none() && self.is_written()
    }

    fn is_written(&self) -> bool {
        self.at == self.lead.len() && self.pieces.is_empty() && self.tail.is_empty()
    }

    /// Writes what can be written. Ready when all is.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut TcpStream,
    ) -> Poll<Result<(), LinkError>> {
        loop {
            let mut starved = false;
            if self.pieces.is_empty() && self.tail.is_empty() && self.body.is_some() {
                match self.stage(cx) {
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
            let mut parts = [IoSlice::new(b""); TOGETHER + 2];
            let parts = self.fill(&mut parts);
            let written = match ready!(Pin::new(&mut *stream).poll_write_vectored(cx, parts)) {
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
            self.clear_lead();
        }
        while written > 0
            && let Some(piece) = self.pieces.front_mut()
        {
            let part = written.min(piece.len());
            piece.advance(part);
            written -= part;
            if piece.is_empty() {
                // Its bytes may be the last that hold a client's buffer.
                self.pieces.pop_front();
            }
        }
        self.tail = self.tail.get(written..).unwrap_or_default();
    }

    /// What one write is given: the first of these parts, which it points at what is waiting.
    fn fill<'a, 'b>(&'b self, parts: &'a mut [IoSlice<'b>; TOGETHER + 2]) -> &'a [IoSlice<'b>] {
        let waiting = iter::once(self.lead.get(self.at..).unwrap_or_default())
            .chain(self.pieces.iter().map(|piece| &**piece))
            .chain([self.tail])
            .filter(|text| !text.is_empty());
        let mut filled = 0;
        for (part, text) in parts.iter_mut().zip(waiting) {
            *part = IoSlice::new(text);
            filled += 1;
        }
        parts.get(..filled).unwrap_or_default()
    }

    /// Has the body's next piece go out with what is waiting, and with it those that need not be waited for.
    fn stage(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        loop {
            ready!(self.poll_body(cx))?;
            let more = self.tail.is_empty() && self.pieces.len() < TOGETHER;
            if !more || !self.body.as_ref().is_some_and(|(body, _)| body.is_here()) {
                return Poll::Ready(Ok(()));
            }
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
        if !data.is_empty() {
            self.pieces.push_back(data);
        }
        if ended {
            self.body = None;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, ops::Range, task::Waker, time::Duration};

    use tokio::{
        io::AsyncReadExt,
        net::{TcpListener, TcpSocket},
    };

    use super::*;
    use crate::proxy::pair::Rope;

    fn outbox(lead: Vec<u8>, pieces: impl IntoIterator<Item = Vec<u8>>) -> Outbox {
        let pieces = pieces.into_iter().map(Bytes::from).collect();
        Outbox { lead, at: 0, pieces, tail: b"\r\n0\r\n\r\n", body: None }
    }

    /// What one write would be given.
    fn waiting(outbox: &Outbox) -> Vec<u8> {
        let mut parts = [IoSlice::new(b""); TOGETHER + 2];
        outbox.fill(&mut parts).iter().flat_map(|part| part.to_vec()).collect()
    }

    #[test]
    fn what_is_written_in_part_goes_on_where_it_stopped() {
        for step in 1..20 {
            let pieces = ["pie", "c", "e"].map(|piece| piece.as_bytes().to_vec());
            let (mut outbox, mut written) = (outbox(b"lead".to_vec(), pieces), Vec::new());
            while !outbox.is_written() {
                let left = waiting(&outbox);
                let part = &left[..step.min(left.len())];
                written.extend_from_slice(part);
                outbox.advance(part.len());
            }
            assert_eq!(written, b"leadpiece\r\n0\r\n\r\n");
        }
    }

    #[test]
    fn pieces_that_are_here_go_out_together_and_no_more_than_a_write_takes() {
        let text = (0..100).collect::<Bytes>();
        let spliced = |cuts: Range<usize>| {
            Rope::spliced(&text, cuts.map(|at| (2 * at..2 * at + 1, Bytes::from_static(b"x"))))
        };
        for cuts in [0, 1, 8, 9, 30] {
            let rope = spliced(0..cuts);
            let expected = rope.whole();
            let mut outbox = Outbox::default();
            let body = RequestBody::Rope { rope, sent: 0 };
            outbox.body = Some((body, Framing::Length(expected.len() as u64)));
            let (mut written, mut writes) = (Vec::new(), 0);
            while !outbox.is_done() {
                assert!(outbox.stage(&mut Context::from_waker(Waker::noop())).is_ready());
                let part = waiting(&outbox);
                outbox.advance(part.len());
                assert!(outbox.is_written(), "a write was given less than all that waited");
                written.extend(part);
                writes += 1;
            }
            assert_eq!(written, expected);
            // The first cut is where the text begins.
            assert_eq!(writes, (2 * cuts).max(1).div_ceil(TOGETHER), "{cuts}");
        }
    }

    #[tokio::test]
    async fn a_slow_socket_gets_all_of_it_in_order_and_its_memory_is_given_back() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(4096).unwrap();
        let mut stream = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let numbers = |from: u32| (from..from + 500_000).flat_map(u32::to_be_bytes).collect::<Vec<u8>>();
        let mut outbox = outbox(numbers(0), [1, 2, 3].map(|from| numbers(from << 24)));
        let expected = waiting(&outbox);
        let sending = async {
            poll_fn(|cx| outbox.poll(cx, &mut stream)).await.unwrap();
            assert!(outbox.is_done() && outbox.lead.capacity() <= KEPT);
            drop(stream);
        };
        let mut read = Vec::new();
        let both = async { tokio::join!(sending, peer.read_to_end(&mut read)).1 };
        tokio::time::timeout(Duration::from_secs(30), both).await.unwrap().unwrap();
        assert!(read == expected);
    }
}
