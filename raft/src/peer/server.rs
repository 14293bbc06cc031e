//! Serving the peer port: accepts, checks who it is, and hands each call to the local replica.
//!
//! # Invariants
//! - `PEER-4` A vote that a message of consensus carries is its caller's own.
#![allow(
    clippy::disallowed_methods,
    reason = "the real network is on this side of the Transport port"
)]

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

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

/// Why a connection came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turned {
    /// A look at the port says nothing at all.
    Silent,
    /// The caller hung up once it saw who is here.
    ByCaller,
    /// The caller's key was revoked, or its CA is trusted no more.
    Revoked,
    /// The caller is nobody of this cluster.
    Stranger,
}

impl Turned {
    pub(super) fn by(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => return Self::Silent,
            _ => {}
        }
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match cause {
            Some(rustls::Error::AlertReceived(_)) => Self::ByCaller,
            _ => Self::Stranger,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Silent => "a connection ended before it began",
            Self::ByCaller => {
                "a caller hung up when it saw this replica's certificate: it looks for another replica at this address, \
                 or does not trust this cluster's CA"
            }
            Self::Revoked => {
                "a connection was refused: the caller's certificate is accepted no more"
            }
            Self::Stranger => {
                "a connection was refused: neither a replica nor a gateway of this cluster"
            }
        }
    }
}

/// How often the same is said of the same caller.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// Callers that are remembered.
const SAID_MAX: usize = 256;

/// What was said of whom, since when, and how often it has happened since.
#[derive(Default)]
struct Lines(Mutex<BTreeMap<(IpAddr, Turned), (Duration, u64)>>);

impl Lines {
    /// Notes one more at `now`; how many there were since the last line, if there is to be another one: the first is told at
    /// once, and after that there is one a minute.
    fn again(&self, now: Duration, from: IpAddr, what: Turned) -> Option<u64> {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= SAID_MAX {
            said.retain(|_, (since, _)| now.saturating_sub(*since) < SAID_EVERY);
        }
        if said.len() >= SAID_MAX {
            said.clear();
        }
        match said.get_mut(&(from, what)) {
            Some((since, count)) if now.saturating_sub(*since) < SAID_EVERY => {
                *count = count.saturating_add(1);
                None
            }
            Some((since, count)) => {
                *since = now;
                Some(std::mem::replace(count, 0).saturating_add(1))
            }
            None => {
                said.insert((from, what), (now, 0));
                Some(1)
            }
        }
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
    let lines = Arc::<Lines>::default();
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
        let (seat, lines) = (boots.seat(), lines.clone());
        rt.spawn(
            "peer-handshake",
            Box::pin(async move {
                let shaken =
                    timeout(limit_rt.as_ref(), HANDSHAKE_LIMIT, handshake(tcp, &tls, seat)).await;
                drop(permit);
                let late = || Err((Turned::Stranger, "it did not finish its handshake".into()));
                let (what, why) = match shaken.unwrap_or_else(late) {
                    Ok(io) => return drop(tx.send(io).await),
                    Err(turned) => turned,
                };
                if matches!(what, Turned::Revoked | Turned::Stranger) {
                    let label = RefusedLabel { why: Refused::Certificate };
                    metrics.peers_refused.get_or_create(&label).inc();
                }
                if what != Turned::Silent
                    && let Some(times) = lines.again(limit_rt.now(), from.ip(), what)
                {
                    tracing::warn!(from = %from, why, times, "{}", what.words());
                }
            }),
        );
    }
}

async fn handshake(
    tcp: TcpStream,
    tls: &TlsState,
    seat: Arc<Seat>,
) -> Result<PeerIo, (Turned, String)> {
    let _ = tcp.set_nodelay(true);
    let stream = TlsAcceptor::from(tls.server())
        .accept(tcp)
        .await
        .map_err(|error| (Turned::by(&error), error.to_string()))?;
    let stranger = |why: String| (Turned::Stranger, why);
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let leaf = certificates.first().ok_or_else(|| stranger("it has no certificate".to_owned()))?;
    let caller = tls.caller_of(leaf).map_err(stranger)?;
    let watched = Watched { holder: Holder::of(leaf), refusals: tls.refusals().clone() };
    if watched.is_refused() {
        let why = format!("the key of {caller} was revoked, or its CA is trusted no more");
        return Err((Turned::Revoked, why));
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

#[cfg(test)]
mod line_tests {
    use super::*;

    #[test]
    fn the_same_of_the_same_caller_is_one_line_a_minute_that_counts() {
        let lines = Lines::default();
        let [one, other] = [1, 2].map(|n| IpAddr::from([10, 0, 0, n]));
        let at = Duration::from_secs;
        assert_eq!(lines.again(at(5), one, Turned::Revoked), Some(1));
        let more: Vec<u64> =
            (0..500).filter_map(|_| lines.again(at(64), one, Turned::Revoked)).collect();
        assert!(more.is_empty(), "{more:?}");
        assert_eq!(lines.again(at(64), other, Turned::Revoked), Some(1), "another caller");
        assert_eq!(lines.again(at(64), one, Turned::ByCaller), Some(1), "something else");
        assert_eq!(lines.again(at(65), one, Turned::Revoked), Some(501));
        assert_eq!(lines.again(at(66), one, Turned::Revoked), None);
        assert_eq!(lines.again(at(200), one, Turned::Revoked), Some(2));
    }

    #[test]
    fn it_is_said_who_hung_up() {
        let of = |error| Turned::by(&io::Error::new(io::ErrorKind::InvalidData, error));
        let alert = rustls::AlertDescription::BadCertificate;
        assert_eq!(of(rustls::Error::AlertReceived(alert)), Turned::ByCaller);
        assert_eq!(of(rustls::Error::NoCertificatesPresented), Turned::Stranger);
        let gone = io::Error::new(io::ErrorKind::UnexpectedEof, "eof");
        assert_eq!(Turned::by(&gone), Turned::Silent);
    }
}
