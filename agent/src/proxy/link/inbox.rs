//! Reads from endpoints' sockets through one buffer per worker: it stays in the processor's cache, and connections that
//! wait hold none.

use std::{
    cell::RefCell,
    future::Future,
    io,
    pin::pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use tokio::{io::AsyncReadExt, net::TcpStream};

/// How much is read at once, bytes.
const SIZE: usize = 64 * 1024;

/// What is shorter is copied, so that a client that takes its bytes slowly holds no more than twice their memory.
const SMALL: usize = SIZE / 2;

thread_local! {
    static BUFFER: RefCell<BytesMut> = RefCell::default();
}

/// Reads what is there. Empty at the end of the stream.
pub(super) fn poll(cx: &mut Context<'_>, stream: &mut TcpStream) -> Poll<io::Result<Bytes>> {
    BUFFER.with_borrow_mut(|buffer| {
        // Takes the same memory again where nobody holds what was read before.
        buffer.reserve(SIZE);
        let length = ready!(pin!(stream.read_buf(buffer)).poll(cx))?;
        Poll::Ready(Ok(if length < SMALL {
            let copied = Bytes::copy_from_slice(buffer);
            buffer.clear();
            copied
        } else {
            buffer.split().freeze()
        }))
    })
}
