//! Serving the peer port: accepts, checks who it is, and hands each call to the local replica.
//!
//! # Invariants
//! - `PEER-4` A vote that a message of consensus carries is its caller's own.
#![allow(
    clippy::disallowed_methods,
    reason = "the real network is on this side of the Transport port"
)]

use std::{io, pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use palisade_state::{Rt, port::timeout};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, oneshot},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::Connected},
};

use super::{
    Door, PeerApi, PeerError, TlsState,
    boots::{Boots, Seat},
    caller::Caller,
    client::{LOST, MESSAGE_BYTES_MAX, REMOVED},
    gate::{Arrival, Gate},
    io::{Tag, Whole},
    refused::{Holder, Watched},
    store_server::StoreService,
    wire::{
        self,
        admin_server::{Admin, AdminServer},
        peer_server::{Peer, PeerServer},
    },
};
use crate::{
    Identity,
    metrics::{Metrics, Refused, RefusedLabel},
    store::Service,
};

const PING_EVERY: Duration = Duration::from_secs(3);
const PING_LIMIT: Duration = Duration::from_secs(8);
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Callers that are not yet known who they are, at a time; others wait to be accepted.
pub(crate) const HANDSHAKES_MAX: usize = 256;

impl Connected for Whole<TlsStream<TcpStream>, Arrival> {
    type ConnectInfo = Arrival;

    fn connect_info(&self) -> Arrival {
        self.tag.clone()
    }
}

impl Tag for Arrival {
    fn received(&self) {
        self.seat.heard();
    }

    fn is_refused(&self) -> bool {
        self.watched.is_refused()
    }
}

/// A connection whose certificate was checked.
type PeerIo = Whole<TlsStream<TcpStream>, Arrival>;

/// What serving needs.
pub(crate) struct ServeOptions {
    pub(crate) rt: Rt,
    pub(crate) tls: Arc<TlsState>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) api: Arc<dyn PeerApi>,
    pub(crate) store: Service,
    pub(crate) door: Arc<dyn Door>,
    /// Within this time a process that has ended is noticed.
    pub(crate) hold: Duration,
    /// Handshakes at a time.
    pub(crate) handshakes: usize,
}

/// Serves peers on `listener` until `stop` fires or is dropped.
pub(crate) fn serve(listener: TcpListener, options: ServeOptions, stop: oneshot::Receiver<()>) {
    let ServeOptions { rt, tls, identity, metrics, api, store, door, hold, handshakes } = options;
    let boots = Boots::new(rt.clone(), hold);
    let (tx, rx) = mpsc::channel(16);
    let (stop_accepting, accepting) = oneshot::channel::<()>();
    let handshakes = Arc::new(Semaphore::new(handshakes));
    let accept = accept(listener, rt.clone(), tls, metrics.clone(), (boots, handshakes), tx);
    rt.spawn(
        "peer-accept",
        Box::pin(async move {
            futures::future::select(Box::pin(accept), accepting).await;
        }),
    );
    let gate = Gate::of_peers(identity, metrics, door);
    let admin = AdminServer::new(Served(api.clone()));
    let admin = tonic::service::interceptor::InterceptedService::new(admin, gate.clone());
    let peer = PeerServer::new(Served(api))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let peer = tonic::service::interceptor::InterceptedService::new(peer, gate.clone());
    let server = Server::builder()
        .initial_stream_window_size(4 * 1024 * 1024)
        .initial_connection_window_size(16 * 1024 * 1024)
        // So is it noticed that a process is gone whose machine went with it.
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_LIMIT))
        .add_service(peer)
        .add_service(admin)
        .add_service(StoreService::new(store, gate.of_store()))
        .serve_with_incoming(
            tokio_stream::wrappers::ReceiverStream::new(rx).map(Ok::<_, io::Error>),
        );
    rt.spawn(
        "peer-serve",
        Box::pin(async move {
            match futures::future::select(Box::pin(server), stop).await {
                futures::future::Either::Left((Err(error), _)) => {
                    tracing::error!(error = crate::fault::chain(&error), "serving peers ended");
                }
                _ => tracing::debug!("serving peers ended"),
            }
            drop(stop_accepting);
        }),
    );
}

async fn accept(
    listener: TcpListener,
    rt: Rt,
    tls: Arc<TlsState>,
    metrics: Arc<Metrics>,
    (boots, handshakes): (Arc<Boots>, Arc<Semaphore>),
    tx: mpsc::Sender<PeerIo>,
) {
    // It is never closed.
    while let Ok(permit) = handshakes.clone().acquire_owned().await {
        let (tcp, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(error = %error, "accepting a peer failed");
                rt.sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (limit_rt, tls, metrics, tx) = (rt.clone(), tls.clone(), metrics.clone(), tx.clone());
        let seat = boots.seat();
        rt.spawn(
            "peer-handshake",
            Box::pin(async move {
                let shaken = timeout(limit_rt.as_ref(), HANDSHAKE_LIMIT, handshake(tcp, &tls, seat)).await;
                drop(permit);
                match shaken.unwrap_or_else(|| Err("it did not finish its handshake".into())) {
                    Ok(io) => {
                        let _ = tx.send(io).await;
                    }
                    // A look at the port says nothing at all.
                    Err(why) if why.is_empty() => {}
                    Err(why) => {
                        let label = RefusedLabel { why: Refused::Certificate };
                        metrics.peers_refused.get_or_create(&label).inc();
                        tracing::warn!(from = %from, why, "a connection was refused: neither a replica nor a gateway of this cluster");
                    }
                }
            }),
        );
    }
}

async fn handshake(tcp: TcpStream, tls: &TlsState, seat: Arc<Seat>) -> Result<PeerIo, String> {
    let _ = tcp.set_nodelay(true);
    let stream = TlsAcceptor::from(tls.server()).accept(tcp).await.map_err(|error| {
        let gone = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
        );
        if gone { String::new() } else { error.to_string() }
    })?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let leaf = certificates.first().ok_or("it has no certificate")?;
    let caller = tls.caller_of(leaf)?;
    let watched = Watched { holder: Holder::of(leaf), refusals: tls.refusals().clone() };
    if watched.is_refused() {
        return Err(format!("the key of {caller} was revoked, or its CA is trusted no more"));
    }
    Ok(Whole::new(stream, Arrival { caller, seat, watched: Arc::new(watched) }))
}

/// Hands calls to the local replica.
struct Served(Arc<dyn PeerApi>);

impl From<PeerError> for Status {
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::Refused(why) => Self::permission_denied(why),
            PeerError::Removed(why) => {
                let mut status = Self::permission_denied(why);
                let mark = tonic::metadata::MetadataValue::from_static("1");
                status.metadata_mut().insert(REMOVED, mark);
                status
            }
            PeerError::Lost { floor, why } => {
                let mut status = Self::permission_denied(why);
                status.metadata_mut().insert(LOST, floor.into());
                status
            }
            PeerError::Unreachable(why) | PeerError::Waits(why) => Self::unavailable(why),
            PeerError::Failed(why) => Self::internal(why),
        }
    }
}

/// The items of a request stream until it ends or breaks.
pub(super) fn whole<T: Send + 'static>(stream: Streaming<T>) -> BoxStream<'static, T> {
    stream
        .map(Result::ok)
        .take_while(|item| std::future::ready(item.is_some()))
        .filter_map(std::future::ready)
        .boxed()
}

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Served1<'a, T> = BoxFuture<'a, Result<Response<T>, Status>>;

fn replies<T: 'static>(answers: BoxStream<'static, Result<T, PeerError>>) -> Replies<T> {
    Box::pin(answers.map(|answer| answer.map_err(Status::from)))
}

/// Answers a unary call.
fn one<'a, T: Send + 'a>(answer: BoxFuture<'static, Result<T, PeerError>>) -> Served1<'a, T> {
    Box::pin(async move { Ok(Response::new(answer.await?)) })
}

/// `PEER-4`
fn is_own(vote: Option<&wire::Vote>, caller: u64) -> Result<(), PeerError> {
    match vote {
        Some(vote) if vote.node != caller => {
            tracing::warn!(
                caller,
                speaks_for = vote.node,
                "a message under another's vote was refused"
            );
            let why = format!("replica {caller} speaks for replica {}", vote.node);
            Err(PeerError::Refused(why))
        }
        _ => Ok(()),
    }
}

/// A request that carries a vote; refused when the vote is not the caller's.
fn own<T>(request: Request<T>, vote: fn(&T) -> Option<&wire::Vote>) -> Result<T, Status> {
    let caller = caller(&request)?;
    let request = request.into_inner();
    is_own(vote(&request), caller)?;
    Ok(request)
}

#[tonic::async_trait]
impl Peer for Served {
    type AppendStream = Replies<wire::AppendReply>;

    async fn append(
        &self,
        request: Request<Streaming<wire::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let from = caller(&request)?;
        let requests = whole(request.into_inner()).take_while(move |request| {
            std::future::ready(is_own(request.vote.as_ref(), from).is_ok())
        });
        let answers = self.0.append(requests.boxed()).await?;
        Ok(Response::new(replies(answers)))
    }

    async fn heartbeat(
        &self,
        request: Request<wire::AppendRequest>,
    ) -> Result<Response<wire::AppendReply>, Status> {
        one(self.0.heartbeat(own(request, |request| request.vote.as_ref())?)).await
    }

    async fn vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteReply>, Status> {
        one(self.0.vote(own(request, |request| request.vote.as_ref())?)).await
    }

    async fn pre_vote(
        &self,
        request: Request<wire::VoteRequest>,
    ) -> Result<Response<wire::VoteReply>, Status> {
        one(self.0.pre_vote(own(request, |request| request.vote.as_ref())?)).await
    }

    async fn transfer(
        &self,
        request: Request<wire::TransferRequest>,
    ) -> Result<Response<wire::TransferReply>, Status> {
        one(self.0.transfer(own(request, |request| request.from.as_ref())?)).await
    }

    async fn snapshot(
        &self,
        request: Request<Streaming<wire::SnapshotChunk>>,
    ) -> Result<Response<wire::SnapshotReply>, Status> {
        let from = caller(&request)?;
        let chunks = request.into_inner().map(move |chunk| {
            let chunk = chunk.map_err(|status| PeerError::Failed(status.message().to_owned()))?;
            let vote = chunk.head.as_ref().and_then(|head| head.vote.as_ref());
            is_own(vote, from).map(|()| chunk)
        });
        one(self.0.snapshot(chunks.boxed())).await
    }

    async fn snapshot_have(
        &self,
        request: Request<wire::SnapshotHead>,
    ) -> Result<Response<wire::SnapshotOffset>, Status> {
        one(self.0.snapshot_have(own(request, |head| head.vote.as_ref())?)).await
    }
}

/// The replica that the connection's certificate names.
fn caller<T>(request: &Request<T>) -> Result<u64, Status> {
    match request.extensions().get::<Arrival>() {
        Some(Arrival { caller: Caller::Replica(id), .. }) => Ok(*id),
        _ => Err(Status::permission_denied("the caller is no replica")),
    }
}

#[tonic::async_trait]
impl Admin for Served {
    async fn manage(
        &self,
        request: Request<wire::ManageRequest>,
    ) -> Result<Response<wire::ManageReply>, Status> {
        let from = caller(&request)?;
        one(self.0.manage(wire::ManageRequest { from, ..request.into_inner() })).await
    }

    async fn trust(
        &self,
        request: Request<wire::TrustRequest>,
    ) -> Result<Response<wire::TrustReply>, Status> {
        one(self.0.trust(caller(&request)?)).await
    }
}
