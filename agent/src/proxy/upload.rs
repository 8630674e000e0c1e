//! The request body on its way to an endpoint: bounded (H10), and kept for a second try while it is small (H6).
//!
//! A connection that lay idle may be closed by the endpoint at the very moment that it is used again. Such a request
//! goes to another endpoint, body included, so what was read of the body is kept (a clone of `Bytes` is a reference
//! count) until it grows over [`KEPT`]. A longer body is known by its length to go on a fresh connection; one of
//! unknown length that outgrows the bound cannot be tried again.

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::{clock::Ticker, pair::Rope, wakes};

/// How much of a body is kept for another try, bytes.
pub(super) const KEPT: u64 = 64 * 1024;

/// Where a body stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// More is to come.
    Sending,
    /// All was read.
    Ended,
    /// It is longer than allowed.
    TooLarge,
    /// The client broke it off.
    Broken,
}

/// A request body, shared by the tries to send it.
#[derive(Debug)]
pub(super) struct Upload {
    source: RefCell<Incoming>,
    /// Its length, where the client declared one.
    pub(super) length: Option<u64>,
    limit: u64,
    read: Cell<u64>,
    progress: Cell<Progress>,
    kept: RefCell<Vec<Bytes>>,
    /// Keep what is read from now on.
    pub(super) keep: Cell<bool>,
    /// Something that was read was not kept.
    lost: Cell<bool>,
    /// When the client sent something last, or the end.
    moved: Cell<u64>,
    /// The connection asked for more and the client had nothing.
    starved: Cell<bool>,
    ticker: Ticker,
}

impl Upload {
    /// Over what the client sends.
    pub(super) fn new(source: Incoming, limit: u64, ticker: Ticker) -> Self {
        Self {
            length: source.size_hint().exact(),
            source: RefCell::new(source),
            limit,
            read: Cell::new(0),
            progress: Cell::new(Progress::Sending),
            kept: RefCell::new(Vec::new()),
            keep: Cell::new(false),
            lost: Cell::new(false),
            moved: Cell::new(ticker.now()),
            starved: Cell::new(false),
            ticker,
        }
    }

    /// Where it stands.
    pub(super) fn progress(&self) -> Progress {
        self.progress.get()
    }

    /// When the client sent something last, or the end, in milliseconds.
    pub(super) fn moved(&self) -> u64 {
        self.moved.get()
    }

    /// Whether the client is waited for. Otherwise nobody has asked for more: the endpoint does not read.
    pub(super) fn is_starved(&self) -> bool {
        self.starved.get()
    }

    /// Whether it cannot be sent to its end, through no fault of an endpoint.
    pub(super) fn failed(&self) -> bool {
        matches!(self.progress(), Progress::Broken | Progress::TooLarge)
    }

    /// Whether it can be sent from its beginning.
    pub(super) fn can_restart(&self) -> bool {
        !self.lost.get()
    }

    fn poll_source(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let mut source = self.source.borrow_mut();
        // That the wake-up of a piece taken asks for the next piece and for nothing else is how hyper 1.12 dispatches
        // (`poll_read` in proto/h1/dispatch.rs). Another version is to be looked at before it is taken.
        let (polled, woken) = wakes::hold(|| Pin::new(&mut *source).poll_frame(cx));
        if woken && !source.is_end_stream() {
            cx.waker().wake_by_ref();
        }
        self.starved.set(polled.is_pending());
        let frame = match polled {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => {
                self.progress.set(Progress::Ended);
                self.moved.set(self.ticker.now());
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Err(_))) => {
                self.progress.set(Progress::Broken);
                return Poll::Ready(Some(Err(UploadError)));
            }
            Poll::Ready(Some(Ok(frame))) => frame,
        };
        self.moved.set(self.ticker.now());
        if let Some(data) = frame.data_ref() {
            let read = self.read.get().saturating_add(data.len() as u64);
            self.read.set(read);
            if read > self.limit {
                self.progress.set(Progress::TooLarge);
                return Poll::Ready(Some(Err(UploadError)));
            }
            if self.keep.get() && read <= KEPT && !self.lost.get() {
                self.kept.borrow_mut().push(data.clone());
            } else {
                self.lost.set(true);
            }
        } else {
            self.lost.set(true);
        }
        if source.is_end_stream() {
            self.progress.set(Progress::Ended);
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

/// The body broke off or grew too long; [`Upload::progress`] says which.
#[derive(Debug, thiserror::Error)]
#[error("the request body ended early")]
pub(super) struct UploadError;

/// One try to send a body.
#[derive(Debug)]
pub(super) enum RequestBody {
    /// Nothing to send.
    Empty,
    /// From its beginning: first what was kept of it, then what the client still sends.
    Upload {
        /// The body.
        upload: Rc<Upload>,
        /// How many kept pieces were sent.
        sent: usize,
    },
    /// Made of a body that is here whole.
    Rope {
        /// Its pieces.
        rope: Rope,
        /// How many were sent.
        sent: usize,
    },
}

impl RequestBody {
    /// Whether the next piece is here, and nobody is waited for.
    pub(super) fn is_here(&self) -> bool {
        match self {
            Self::Empty => false,
            Self::Upload { upload, sent } => *sent < upload.kept.borrow().len(),
            Self::Rope { rope, sent } => rope.piece(*sent).is_some(),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let (upload, sent) = match self.get_mut() {
            Self::Empty => return Poll::Ready(None),
            Self::Upload { upload, sent } => (upload, sent),
            Self::Rope { rope, sent } => {
                let piece = rope.piece(*sent).cloned();
                *sent += 1;
                return Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))));
            }
        };
        let piece = upload.kept.borrow().get(*sent).cloned();
        if let Some(piece) = piece {
            *sent += 1;
            upload.starved.set(false);
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if upload.progress() == Progress::Ended {
            return Poll::Ready(None);
        }
        let frame = upload.poll_source(cx);
        *sent = upload.kept.borrow().len();
        frame
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Upload { upload, sent } => {
                upload.progress() == Progress::Ended && *sent == upload.kept.borrow().len()
            }
            Self::Rope { rope, sent } => rope.piece(*sent).is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Rope { rope, .. } => SizeHint::with_exact(rope.length()),
            Self::Upload { upload, .. } => upload.length.map_or_else(SizeHint::new, SizeHint::with_exact),
        }
    }
}
