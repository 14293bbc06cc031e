//! The Store service over tonic. Watches go around the generated code: their messages are encoded once for all
//! watchers, and here are only copied.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use prost::Message;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{Grpc, NamedService, ServerStreamingService},
};

use super::{
    caller::Caller,
    client::MESSAGE_BYTES_MAX,
    gate::{Arrival, Gate},
    server::whole,
    wire::{
        self,
        store_server::{Store, StoreServer},
    },
};
use crate::{refusal::Refusal, store::Service};

const WATCH: &str = "/palisade.raft.v1.Store/Watch";

/// Answers calls from the local replica.
struct Served(Service);

/// The Store service behind its gate.
#[derive(Clone)]
pub(super) struct StoreService {
    store: Service,
    gate: Gate,
    inner: StoreServer<Served>,
}

impl StoreService {
    pub(super) fn new(store: Service, gate: Gate) -> Self {
        let inner = StoreServer::new(Served(store.clone()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Self { store, gate, inner }
    }
}

impl NamedService for StoreService {
    const NAME: &'static str = <StoreServer<Served> as NamedService>::NAME;
}

impl tower::Service<http::Request<Body>> for StoreService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let arrival = request.extensions().get::<Arrival>();
        if let Err(status) = self.gate.check(request.headers(), arrival) {
            return std::future::ready(Ok(status.into_http())).boxed();
        }
        if request.uri().path() != WATCH {
            return tower::Service::call(&mut self.inner, request);
        }
        let store = self.store.clone();
        let watch = async move {
            let mut grpc = Grpc::new(Encoded)
                .apply_max_message_size_config(Some(MESSAGE_BYTES_MAX), Some(MESSAGE_BYTES_MAX));
            Ok(grpc.server_streaming(Watching(store), request).await)
        };
        watch.boxed()
    }
}

/// Messages that are encoded already.
struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = wire::WatchRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put(item);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        // There may be many watches, and most are quiet most of the time.
        BufferSettings::new(512, 32 * 1024)
    }
}

impl Decoder for Encoded {
    type Item = wire::WatchRequest;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<wire::WatchRequest>, Status> {
        let request = wire::WatchRequest::decode(buf);
        request.map(Some).map_err(|error| Status::invalid_argument(error.to_string()))
    }
}

fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::Invalid(what) | Refusal::TooLarge(what) => Status::invalid_argument(what),
        Refusal::Unavailable(what) => Status::unavailable(what),
        Refusal::NotLeader | Refusal::Unknown | Refusal::NoSpace => {
            Status::unavailable("the watch cannot be served now")
        }
    }
}

struct Watching(Service);

impl ServerStreamingService<wire::WatchRequest> for Watching {
    type Response = Bytes;
    type ResponseStream = Pin<Box<dyn futures::Stream<Item = Result<Bytes, Status>> + Send>>;
    type Future = futures::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<wire::WatchRequest>) -> Self::Future {
        let watcher = self.0.watch(request.into_inner()).map_err(status);
        futures::future::ready(watcher.map(|watcher| {
            let messages: Self::ResponseStream = Box::pin(watcher.map(Ok));
            Response::new(messages)
        }))
    }
}

fn is_gateway<T>(request: &Request<T>) -> bool {
    let arrival = request.extensions().get::<Arrival>();
    !matches!(arrival, Some(Arrival { caller: Caller::Replica(_), .. }))
}

type Replies<T> = BoxStream<'static, Result<T, Status>>;

#[tonic::async_trait]
impl Store for Served {
    async fn propose(
        &self,
        request: Request<wire::ProposeRequest>,
    ) -> Result<Response<wire::ProposeReply>, Status> {
        let is_gateway = is_gateway(&request);
        Ok(Response::new(self.0.clone().propose(request.into_inner(), is_gateway).await))
    }

    type ProposeStreamStream = Replies<wire::ProposeReply>;

    async fn propose_stream(
        &self,
        request: Request<Streaming<wire::ProposeRequest>>,
    ) -> Result<Response<Self::ProposeStreamStream>, Status> {
        let is_gateway = is_gateway(&request);
        let requests = whole(request.into_inner());
        let replies = self.0.clone().propose_stream(requests, is_gateway);
        Ok(Response::new(replies.map(Ok).boxed()))
    }

    async fn read_index(
        &self,
        _request: Request<wire::ReadIndexRequest>,
    ) -> Result<Response<wire::ReadIndexReply>, Status> {
        Ok(Response::new(self.0.clone().read_index().await))
    }

    async fn read(
        &self,
        request: Request<wire::ReadRequest>,
    ) -> Result<Response<wire::ReadReply>, Status> {
        Ok(Response::new(self.0.clone().read(request.into_inner()).await))
    }

    type ReadStreamStream = Replies<wire::ReadReply>;

    async fn read_stream(
        &self,
        request: Request<Streaming<wire::ReadRequest>>,
    ) -> Result<Response<Self::ReadStreamStream>, Status> {
        let replies = self.0.clone().read_stream(whole(request.into_inner()));
        Ok(Response::new(replies.map(Ok).boxed()))
    }

    type WatchStream = Replies<wire::WatchReply>;

    async fn watch(
        &self,
        _request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::internal("watches are served before they come here"))
    }
}
