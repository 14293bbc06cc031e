//! Response bodies, and reading request bodies within limits.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures::StreamExt;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use palisade_contract::{Code, Error, Result, method::ByteStream};
use palisade_state::{Runtime, port::timeout};

/// Any error of a body.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A response body, whatever it is made of.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A whole body.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that comes as it is made. An error ends the connection, so that the reader sees a body
/// that is cut short.
pub(crate) fn stream(bytes: ByteStream) -> Body {
    let frames = bytes.map(|chunk| match chunk {
        Ok(chunk) => Ok(Frame::data(Bytes::from(chunk))),
        Err(error) => Err(BoxError::from(error)),
    });
    StreamBody::new(frames).boxed_unsync()
}

/// A body that holds something until it is dropped: a permit, a count.
pub(crate) struct Held<T> {
    body: Body,
    _held: T,
}

/// Ties `held` to the life of a body.
pub(crate) fn holding<T: Unpin + Send + 'static>(body: Body, held: T) -> Body {
    Held { body, _held: held }.boxed_unsync()
}

impl<T: Unpin> HttpBody for Held<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What is read of a body that is too large anyway, so that the client gets to see the answer.
const DRAIN_BYTES_MAX: usize = 64 * 1024 * 1024;

fn too_large(limit: usize) -> Error {
    Error::new(Code::TooLarge, format!("the body is larger than {limit} bytes"))
        .hint(format!("this replica takes bodies of up to {limit} bytes: split the request"))
}

/// Reads a request body.
///
/// # Errors
/// `TOO_LARGE` naming the limit; `INVALID_INPUT` when it stops or does not come in time.
pub(crate) async fn read<B>(
    rt: &dyn Runtime,
    body: B,
    limit: usize,
    time: Duration,
) -> Result<Bytes>
where
    B: HttpBody<Data = Bytes> + Send,
    B::Error: std::fmt::Display,
{
    match timeout(rt, time, collect(body, limit)).await {
        Some(read) => read,
        None => Err(Error::new(
            Code::InvalidInput,
            format!("the body did not arrive within {} ms", time.as_millis()),
        )
        .hint("send it at once; the connection is closed")),
    }
}

async fn collect<B>(body: B, limit: usize) -> Result<Bytes>
where
    B: HttpBody<Data = Bytes> + Send,
    B::Error: std::fmt::Display,
{
    if usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX) > DRAIN_BYTES_MAX {
        return Err(too_large(limit));
    }
    let mut body = std::pin::pin!(body);
    let mut read = Vec::new();
    let mut size: usize = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            Error::new(Code::InvalidInput, format!("the body broke off: {error}"))
        })?;
        if let Ok(data) = frame.into_data() {
            size = size.saturating_add(data.remaining());
            if size > DRAIN_BYTES_MAX {
                break;
            }
            if size <= limit {
                read.extend_from_slice(&data);
            }
        }
    }
    if size > limit { Err(too_large(limit)) } else { Ok(read.into()) }
}
