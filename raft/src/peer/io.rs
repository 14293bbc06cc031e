//! A connection that is written in whole buffers.
//!
//! h2 hands a frame over by itself when a connection takes several buffers at once, and TLS then makes a record and a
//! system call of each. Of a connection that takes one buffer at a time it gathers all small frames first.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is known of a connection.
pub(super) trait Tag: Unpin {
    /// Something was received on it.
    fn received(&self) {}

    /// The other end has ended it, or it broke.
    fn ended(&self, _why: &dyn std::fmt::Display) {}

    /// Whether it has to end.
    fn is_refused(&self) -> bool {
        false
    }
}

fn refused() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the certificate at the other end was revoked")
}

impl Tag for () {}

/// A connection with something to know of it.
pub(super) struct Whole<S, T = ()> {
    stream: S,
    pub(super) tag: T,
}

impl<S, T> Whole<S, T> {
    pub(super) fn new(stream: S, tag: T) -> Self {
        Self { stream, tag }
    }
}

impl<S: AsyncRead + Unpin, T: Tag> AsyncRead for Whole<S, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.tag.is_refused() {
            self.tag.ended(&refused());
            return Poll::Ready(Err(refused()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        match &read {
            Poll::Ready(Err(error)) => self.tag.ended(error),
            Poll::Ready(Ok(())) if buf.filled().len() > before => self.tag.received(),
            Poll::Ready(Ok(())) if buf.remaining() > 0 => self.tag.ended(&"it hung up"),
            _ => {}
        }
        read
    }
}

impl<S: AsyncWrite + Unpin, T: Tag> AsyncWrite for Whole<S, T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.tag.is_refused() {
            return Poll::Ready(Err(refused()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Err(error)) = &written {
            self.tag.ended(error);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Err(error)) = &flushed {
            self.tag.ended(error);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        false
    }
}
