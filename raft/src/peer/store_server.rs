//! The Store service over tonic.

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use tonic::{Request, Response, Status, Streaming, body::Body, server::NamedService};

use super::{
    caller::Caller,
    client::MESSAGE_BYTES_MAX,
    gate::{Arrival, Gate},
    server::whole,
    watches::{self, Call},
    wire::{
        self,
        store_server::{Store, StoreServer},
    },
};
use crate::store::Service;

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
        match Call::of(request.uri().path()) {
            Some(call) => watches::serve(self.store.clone(), &call, request),
            None => tower::Service::call(&mut self.inner, request),
        }
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

    type WatchManyStream = Replies<wire::WatchManyReply>;

    async fn watch_many(
        &self,
        _request: Request<Streaming<wire::WatchManyRequest>>,
    ) -> Result<Response<Self::WatchManyStream>, Status> {
        Err(Status::internal("watches are served before they come here"))
    }
}
