//! Watches of the Store service, around the generated code: their messages are encoded once for all watchers, and here
//! are only copied.

use std::{convert::Infallible, marker::PhantomData, pin::Pin};

use bytes::{BufMut, Bytes};
use futures::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, Ready, ready},
};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint},
};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{Grpc, ServerStreamingService, StreamingService},
};

use super::{client::MESSAGE_BYTES_MAX, server::whole, wire};
use crate::{
    refusal::Refusal,
    store::{ManyWatches, Service, Told},
};

/// The calls that are of watches.
pub(super) enum Call {
    One,
    Many,
}

impl Call {
    /// The one with this path.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            "/palisade.raft.v1.Store/Watch" => Some(Self::One),
            "/palisade.raft.v1.Store/WatchMany" => Some(Self::Many),
            _ => None,
        }
    }
}

type Answer = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

/// Serves such a call.
pub(super) fn serve(store: Service, call: &Call, request: http::Request<Body>) -> Answer {
    let limit = Some(MESSAGE_BYTES_MAX);
    match call {
        Call::One => async move {
            let grpc = Grpc::new(Encoded::<Bytes, _>::new());
            let mut grpc = grpc.apply_max_message_size_config(limit, limit);
            Ok(grpc.server_streaming(Watching(store), request).await)
        }
        .boxed(),
        Call::Many => async move {
            let grpc = Grpc::new(Encoded::<Told, _>::new());
            let mut grpc = grpc.apply_max_message_size_config(limit, limit);
            Ok(grpc.streaming(Watching(store), request).await)
        }
        .boxed(),
    }
}

/// Something that is written as it is, or nearly.
trait Written: Send + 'static {
    fn write(self, buf: &mut impl BufMut);
}

impl Written for Bytes {
    fn write(self, buf: &mut impl BufMut) {
        buf.put(self);
    }
}

impl Written for Told {
    /// As a `WatchManyReply`.
    fn write(self, buf: &mut impl BufMut) {
        match self.what {
            Ok(message) => {
                encode_key(1, WireType::Varint, buf);
                encode_varint(self.id, buf);
                encode_key(2, WireType::LengthDelimited, buf);
                encode_varint(message.len() as u64, buf);
                buf.put(message);
            }
            Err(refusal) => {
                let result = Some(wire::watch_many_reply::Result::Refusal(refusal.into()));
                let reply = wire::WatchManyReply { id: self.id, result };
                // A buffer that grows takes everything.
                let _ = reply.encode(buf);
            }
        }
    }
}

/// Writes `T` and decodes `U`.
struct Encoded<T, U>(PhantomData<fn() -> (T, U)>);

impl<T, U> Encoded<T, U> {
    fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Written, U: Message + Default + 'static> Codec for Encoded<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<T: Written, U> Encoder for Encoded<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.write(buf);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        // There may be many watches, and most are quiet most of the time.
        BufferSettings::new(512, 32 * 1024)
    }
}

impl<T, U: Message + Default> Decoder for Encoded<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(buf).map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Invalid(what) | Refusal::TooLarge(what) => Status::invalid_argument(what),
        Refusal::Unavailable(what) => Status::unavailable(what),
        Refusal::NotLeader | Refusal::NoQuorum(_) | Refusal::Unknown | Refusal::NoSpace(_) => {
            Status::unavailable("the watch cannot be served now")
        }
    }
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Watching(Service);

impl ServerStreamingService<wire::WatchRequest> for Watching {
    type Response = Bytes;
    type ResponseStream = Messages<Bytes>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<wire::WatchRequest>) -> Self::Future {
        let watcher = self.0.watch(request.into_inner()).map_err(status);
        ready(watcher.map(|watcher| Response::new(watcher.map(Ok).boxed() as Messages<Bytes>)))
    }
}

impl StreamingService<wire::WatchManyRequest> for Watching {
    type Response = Told;
    type ResponseStream = Messages<Told>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<wire::WatchManyRequest>>) -> Self::Future {
        let many = ManyWatches::new(self.0.clone(), whole(request.into_inner()));
        ready(Ok(Response::new(many.map(Ok).boxed() as Messages<Told>)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_pieces_is_what_is_read() {
        let event = wire::watch_reply::Event::Reset(wire::Reset { revision: 7 });
        let reply = wire::WatchReply { event: Some(event) };
        let message: Bytes = reply.encode_to_vec().into();
        let mut written = bytes::BytesMut::new();
        Told { id: 300, what: Ok(message) }.write(&mut written);
        let read = wire::WatchManyReply::decode(written.freeze()).unwrap();
        assert_eq!(
            (read.id, read.result),
            (300, Some(wire::watch_many_reply::Result::Reply(reply)))
        );
    }
}
