//! A client connection's bytes: the first ones tell the protocol, and all of them are noted.

use std::{
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::server::TlsStream;

use super::Client;

/// How every HTTP/2 connection begins (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Protocol {
    /// HTTP/1.1, or 1.0.
    Http1,
    /// HTTP/2, by ALPN or by prior knowledge.
    Http2,
}

/// Looks at the first bytes: HTTP/2 by prior knowledge begins with a preface that no HTTP/1 method does.
pub(super) async fn detect<S: AsyncRead + Unpin + Reset>(stream: &mut Stream<S>) -> io::Result<Protocol> {
    let mut first = Vec::with_capacity(4096);
    loop {
        if stream.inner.read_buf(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let protocol = if first.starts_with(PREFACE) {
            Protocol::Http2
        } else if PREFACE.starts_with(&first) {
            continue;
        } else {
            Protocol::Http1
        };
        stream.first = first;
        return Ok(protocol);
    }
}

/// A stream whose first bytes were looked at, and whose traffic is noted.
pub(super) struct Stream<S: Reset> {
    inner: S,
    first: Vec<u8>,
    at: usize,
    client: Rc<Client>,
}

impl<S: Reset> Stream<S> {
    /// Over a connection of which nothing was read yet.
    pub(super) fn new(inner: S, client: Rc<Client>) -> Self {
        Self { inner, first: Vec::new(), at: 0, client }
    }
}

impl<S: AsyncRead + Unpin + Reset> AsyncRead for Stream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(rest) = this.first.get(this.at..)
            && !rest.is_empty()
        {
            let (now, _) = rest.split_at(rest.len().min(buffer.remaining()));
            buffer.put_slice(now);
            this.at += now.len();
            if this.at == this.first.len() {
                this.first = Vec::new();
                this.at = 0;
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.client.read_something();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin + Reset> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, data);
        self.client.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, data);
        self.client.wrote(&polled);
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// A stream that can be broken so that its peer sees an error, not an end.
pub(in super::super) trait Reset {
    /// Makes the close that follows a reset.
    fn reset(&self);
}

impl Reset for TcpStream {
    fn reset(&self) {
        if let Err(error) = self.set_zero_linger() {
            tracing::debug!(%error, "a broken stream could not be reset");
        }
    }
}

impl Reset for TlsStream<TcpStream> {
    fn reset(&self) {
        self.get_ref().0.reset();
    }
}

impl<S: Reset> Drop for Stream<S> {
    /// Everywhere else the framing tells a broken body from a whole one.
    fn drop(&mut self) {
        if self.client.broken.get() && self.client.end_delimits.get() {
            self.inner.reset();
        }
    }
}
