//! A TCP stream that counts its bytes, knows whether it is idle, and can end in a reset.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::Instant,
};

use crate::counters::{Tallies, Tick};

/// What the requests of a connection tell its socket, and the other way round.
#[derive(Debug)]
pub(crate) struct Link {
    reset: AtomicBool,
    busy: AtomicU32,
    opened: Instant,
    /// Of the last byte either way, milliseconds since `opened`.
    last_activity: AtomicU64,
}

impl Link {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            reset: AtomicBool::new(false),
            busy: AtomicU32::new(0),
            opened: Instant::now(),
            last_activity: AtomicU64::new(0),
        })
    }

    /// The connection ends in a TCP reset when it is dropped, which the caller brings about.
    pub(crate) fn reset(&self) {
        self.reset.store(true, Relaxed);
    }

    pub(crate) fn begin(&self) {
        self.busy.fetch_add(1, Relaxed);
    }

    pub(crate) fn end(&self) {
        self.touch();
        self.busy.fetch_sub(1, Relaxed);
    }

    /// Completes once nothing has happened for `limit`, with no request in flight.
    pub(crate) async fn idle_for(&self, limit: Duration) {
        loop {
            let last = self.opened + Duration::from_millis(self.last_activity.load(Relaxed));
            let quiet = if self.busy.load(Relaxed) == 0 { last.elapsed() } else { Duration::ZERO };
            match limit.checked_sub(quiet) {
                None | Some(Duration::ZERO) => return,
                // A millisecond at least: activity is kept in milliseconds.
                Some(rest) => tokio::time::sleep(rest.max(Duration::from_millis(1))).await,
            }
        }
    }

    fn touch(&self) {
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_activity.store(now, Relaxed);
    }
}

/// The stream of one connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    link: Arc<Link>,
    tallies: Arc<Tallies>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, link: Arc<Link>, tallies: Arc<Tallies>) -> Self {
        Self { stream, link, tallies }
    }

    fn count(&self, tick: Tick, bytes: usize) {
        self.link.touch();
        self.tallies.add(tick, u64::try_from(bytes).unwrap_or(0));
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.link.reset.load(Relaxed) {
            // A socket that refuses this is closed in order instead; its peer sees a broken answer all the same.
            drop(self.stream.set_zero_linger());
        }
        self.tallies.add(Tick::ClosedConnections, 1);
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        let read = buf.filled().len().saturating_sub(before);
        if read > 0 {
            self.count(Tick::BytesIn, read);
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(written)) = polled {
            self.count(Tick::BytesOut, written);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(written)) = polled {
            self.count(Tick::BytesOut, written);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
