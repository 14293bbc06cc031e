//! A peer over tonic: one HTTP/2 connection for each purpose, mutual TLS, reconnecting.
#![allow(
    clippy::disallowed_methods,
    reason = "the real network is on this side of the Transport port"
)]

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use hyper_util::rt::TokioIo;
use palisade_state::{Rt, port::timeout};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::{
    Code, Request, Status,
    metadata::AsciiMetadataValue,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint, Uri},
};

use super::{
    Addresses, Answer, Answers, Boot, PeerApi, PeerError, Probe, Purpose, TlsState, Transport,
    io::{Tag, Whole},
    refused::{Holder, Refusals, Watched},
    tls::server_name,
    wire::{self, admin_client::AdminClient, peer_client::PeerClient, store_client::StoreClient},
};
use crate::exile::Exile;

/// The metadata that each call carries.
pub(super) const CLUSTER: &str = "palisade-cluster";
pub(super) const EPOCH: &str = "palisade-epoch";
pub(super) const FROM: &str = "palisade-from";
/// In a refusal: the caller was removed from the cluster.
pub(super) const REMOVED: &str = "palisade-removed";
/// The status of a refusal carries this when the caller's log has lost something.
pub(super) const LOST: &str = "palisade-lost";

/// Which process of the replica calls.
pub(super) const BOOT: &str = "palisade-boot";
/// In a refusal: the caller is a copy of another process and must stop.
pub(super) const COPY: &str = "palisade-copy";
/// In a refusal: the caller was kept waiting, and what it asked for was not looked at.
pub(super) const WAITS: &str = "palisade-waits";

/// The largest message taken from a peer. Entries are cut to about 1 MiB, one command may have 1 MiB.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const PROBE_LIMIT: Duration = Duration::from_millis(20);

/// Adds who is calling to each request.
#[derive(Clone, Debug)]
pub struct Introduction {
    cluster: AsciiMetadataValue,
    epoch: AsciiMetadataValue,
    from: AsciiMetadataValue,
    boot: Option<AsciiMetadataValue>,
}

impl Introduction {
    /// Says to be `from`, of this cluster and epoch.
    pub(super) fn new(
        cluster: &str,
        epoch: u64,
        from: &str,
    ) -> Result<Self, tonic::metadata::errors::InvalidMetadataValue> {
        Ok(Self {
            cluster: cluster.parse()?,
            epoch: epoch.to_string().parse()?,
            from: from.parse()?,
            boot: None,
        })
    }
}

impl tonic::service::Interceptor for Introduction {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let metadata = request.metadata_mut();
        metadata.insert(CLUSTER, self.cluster.clone());
        metadata.insert(EPOCH, self.epoch.clone());
        metadata.insert(FROM, self.from.clone());
        if let Some(boot) = &self.boot {
            metadata.insert(BOOT, boot.clone());
        }
        Ok(request)
    }
}

type Called = InterceptedService<Channel, Introduction>;

/// [`Transport`] over tonic.
pub(crate) struct TonicTransport {
    rt: Rt,
    tls: Arc<TlsState>,
    caller: Introduction,
    /// Told when a peer says that this process is a copy.
    exile: Option<Arc<Exile>>,
}

impl TonicTransport {
    /// For calls from a replica with this identity.
    pub(crate) fn new(
        rt: Rt,
        tls: Arc<TlsState>,
        identity: &crate::Identity,
    ) -> Result<Self, tonic::metadata::errors::InvalidMetadataValue> {
        let from = identity.replica.to_string();
        let caller = Introduction::new(&identity.cluster, identity.epoch, &from)?;
        Ok(Self { rt, tls, caller, exile: None })
    }

    /// Says with each call which process calls, and stops the replica when it is a copy.
    pub(crate) fn booted(
        mut self,
        boot: &Boot,
        exile: Arc<Exile>,
    ) -> Result<Self, tonic::metadata::errors::InvalidMetadataValue> {
        self.caller.boot = Some(boot.to_string().parse()?);
        self.exile = Some(exile);
        Ok(self)
    }

    /// The same without a replica to stop.
    #[cfg(test)]
    pub(super) fn of_process(mut self, boot: &Boot) -> Self {
        self.caller.boot = boot.to_string().parse().ok();
        self
    }
}

impl Transport for TonicTransport {
    fn peer(&self, peer: u64, addr: &str, purpose: Purpose) -> Arc<dyn PeerApi> {
        let addresses = Arc::<Addresses>::default();
        addresses.record(peer, addr);
        self.peer_at(peer, &addresses, purpose)
    }

    fn peer_at(&self, peer: u64, addresses: &Arc<Addresses>, purpose: Purpose) -> Arc<dyn PeerApi> {
        Arc::new(TonicPeer(Arc::new(Inner {
            peer,
            addresses: addresses.clone(),
            purpose,
            rt: self.rt.clone(),
            tls: self.tls.clone(),
            caller: self.caller.clone(),
            exile: self.exile.clone(),
            channel: Mutex::new(None),
            is_refused: AtomicBool::new(false),
        })))
    }

    fn probe(&self, addr: &str) -> BoxFuture<'static, Probe> {
        let (rt, addr) = (self.rt.clone(), addr.to_owned());
        async move {
            match timeout(rt.as_ref(), PROBE_LIMIT, TcpStream::connect(addr)).await {
                Some(Ok(_)) => Probe::Open,
                Some(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    Probe::Refused
                }
                _ => Probe::Unclear,
            }
        }
        .boxed()
    }
}

struct Inner {
    peer: u64,
    addresses: Arc<Addresses>,
    purpose: Purpose,
    rt: Rt,
    tls: Arc<TlsState>,
    caller: Introduction,
    exile: Option<Arc<Exile>>,
    channel: Mutex<Option<Channel>>,
    /// The peer's last word was that this replica is to stay away: logged once.
    is_refused: AtomicBool,
}

impl Inner {
    fn held(&self) -> std::sync::MutexGuard<'_, Option<Channel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn channel(&self) -> Result<Called, PeerError> {
        let held = self.held().clone();
        let channel = match held {
            Some(channel) => channel,
            None => {
                let channel = self.connect().await?;
                *self.held() = Some(channel.clone());
                channel
            }
        };
        Ok(InterceptedService::new(channel, self.caller.clone()))
    }

    /// Connects at the first of the peer's addresses where the peer itself answers.
    async fn connect(&self) -> Result<Channel, PeerError> {
        let order = self.addresses.attempt(self.peer);
        let mut first = None;
        let share = u32::try_from(order.len()).unwrap_or(u32::MAX).max(1);
        for addr in &order {
            let tls = self.tls.clone();
            let refusals = tls.refusals().clone();
            let tls = Arc::new(move || tls.client());
            if let Err(why) = self.addresses.may_try(&self.rt, self.peer, addr) {
                let what = format!("{addr}: {why}; it is tried again in a while");
                first.get_or_insert(PeerError::Unreachable(what));
                continue;
            }
            let (rt, addresses) = (self.rt.clone(), self.addresses.clone());
            let attempt = Attempt { rt, addresses, peer: self.peer, addr: addr.clone() };
            let connecting = connect(self.peer, addr, tls, refusals, Some(attempt));
            match timeout(self.rt.as_ref(), CONNECT_LIMIT / share, connecting).await {
                Some(Ok(channel)) => {
                    self.addresses.worked(self.peer, addr);
                    return Ok(channel);
                }
                Some(Err(error)) => drop(first.get_or_insert(error)),
                None => {
                    let what = format!("{addr} did not answer in time");
                    first.get_or_insert(PeerError::Unreachable(what));
                }
            }
        }
        Err(first.unwrap_or_else(|| {
            PeerError::Unreachable(format!("no address of replica {} is known", self.peer))
        }))
    }

    fn peer_client(self: &Arc<Self>) -> Answer<PeerClient<Called>> {
        let this = self.clone();
        async move {
            let client = PeerClient::new(this.channel().await?);
            Ok(client
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX))
        }
        .boxed()
    }

    fn store_client(self: &Arc<Self>) -> Answer<StoreClient<Called>> {
        let this = self.clone();
        async move {
            let client = StoreClient::new(this.channel().await?);
            Ok(client
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX))
        }
        .boxed()
    }

    fn admin_client(self: &Arc<Self>) -> Answer<AdminClient<Called>> {
        let this = self.clone();
        async move { Ok(AdminClient::new(this.channel().await?)) }.boxed()
    }

    /// What an answer means.
    fn answered<T>(&self, answer: Result<tonic::Response<T>, Status>) -> Result<T, PeerError> {
        let answer = answer.map_err(|status| self.failed(&status))?;
        self.is_refused.store(false, Ordering::Relaxed);
        Ok(answer.into_inner())
    }

    /// What a status means; the next call connects anew, unless the peer answered by itself.
    fn failed(&self, status: &Status) -> PeerError {
        match status.code() {
            Code::PermissionDenied => {
                if !self.is_refused.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        peer = self.peer,
                        addr = self.addresses.last_good(self.peer),
                        purpose = ?self.purpose,
                        why = status.message(),
                        "a peer refused this replica"
                    );
                }
                let why = status.message().to_owned();
                if status.metadata().contains_key(COPY)
                    && let Some(exile) = &self.exile
                {
                    exile.copied(&format!("replica {} says: {why}", self.peer));
                }
                let floor = status.metadata().get(LOST).and_then(|floor| floor.to_str().ok());
                if let Some(floor) = floor.and_then(|floor| floor.parse().ok()) {
                    PeerError::Lost { floor, why }
                } else if status.metadata().contains_key(REMOVED) {
                    PeerError::Removed(why)
                } else {
                    PeerError::Refused(why)
                }
            }
            _ => {
                *self.held() = None;
                let addr = self.addresses.last_good(self.peer);
                let why = format!("{addr}: {}", crate::fault::chain(status));
                if status.metadata().contains_key(WAITS) {
                    PeerError::Waits(why)
                } else {
                    PeerError::Failed(why)
                }
            }
        }
    }
}

/// An attempt to connect, and what becomes of it. `ADDR-2`
#[derive(Clone)]
pub(super) struct Attempt {
    rt: Rt,
    addresses: Arc<Addresses>,
    peer: u64,
    addr: String,
}

impl Attempt {
    fn turned_away(&self, why: &str) {
        self.addresses.turned_away(&self.rt, self.peer, &self.addr, why);
    }
}

/// Why a handshake ended that one of the two did not want; `None`: it broke.
fn unwanted(error: &std::io::Error) -> Option<String> {
    let cause = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    match cause {
        rustls::Error::InvalidCertificate(_) => Some(format!("who is there is not it: {cause}")),
        rustls::Error::AlertReceived(_) => Some(format!("it refused this replica: {cause}")),
        _ => None,
    }
}

/// A connection to a peer. What ends before anything came was turned away: a server begins by saying what it can do.
struct Dialled {
    watched: Watched,
    attempt: Option<Attempt>,
    is_in: AtomicBool,
}

impl Tag for Dialled {
    fn received(&self) {
        if let Some(attempt) = &self.attempt
            && !self.is_in.swap(true, Ordering::Relaxed)
        {
            attempt.addresses.let_in(attempt.peer, &attempt.addr);
        }
    }

    fn ended(&self, why: &dyn std::fmt::Display) {
        let is_refused = self.watched.is_refused();
        if let Some(attempt) = &self.attempt
            && (is_refused || !self.is_in.load(Ordering::Relaxed))
        {
            let who = if is_refused { "it is refused" } else { "it lets this replica not in" };
            attempt.turned_away(&format!("{who}: {why}"));
        }
    }

    fn is_refused(&self) -> bool {
        self.watched.is_refused()
    }
}

/// Connects to a replica; `tls` is asked for the configuration of each connection.
pub(super) async fn connect(
    peer: u64,
    addr: &str,
    tls: Arc<dyn Fn() -> Arc<rustls::ClientConfig> + Send + Sync>,
    refusals: Arc<Refusals>,
    attempt: Option<Attempt>,
) -> Result<Channel, PeerError> {
    let unreachable = |error: &dyn std::error::Error| {
        PeerError::Unreachable(format!("{addr}: {}", crate::fault::chain(error)))
    };
    let name = server_name(peer);
    let endpoint = Endpoint::from_shared(format!("http://{name}"))
        .map_err(|error| unreachable(&error))?
        .initial_stream_window_size(4 * 1024 * 1024)
        .initial_connection_window_size(16 * 1024 * 1024)
        // Ends calls to a peer that is frozen with its connections open.
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let to = addr.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let (addr, tls, name) = (to.clone(), tls.clone(), name.clone());
        let (refusals, attempt) = (refusals.clone(), attempt.clone());
        async move {
            let tcp = TcpStream::connect(&addr).await?;
            tcp.set_nodelay(true)?;
            let name = ServerName::try_from(name).map_err(std::io::Error::other)?;
            let shaken = TlsConnector::from(tls()).connect(name, tcp).await;
            let stream = shaken.inspect_err(|error| {
                if let (Some(attempt), Some(why)) = (&attempt, unwanted(error)) {
                    attempt.turned_away(&why);
                }
            })?;
            let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
            let holder = shown.map(Holder::of).unwrap_or_default();
            let watched = Watched { holder, refusals };
            let dialled = Dialled { watched, attempt, is_in: AtomicBool::new(false) };
            Ok::<_, std::io::Error>(TokioIo::new(Whole::new(stream, dialled)))
        }
    });
    endpoint.connect_with_connector(connector).await.map_err(|error| unreachable(&error))
}

/// [`PeerApi`] over tonic.
struct TonicPeer(Arc<Inner>);

/// A stream under a name of its own: the compiler does not see through a boxed one in a generated client.
struct Outgoing<T>(BoxStream<'static, T>);

impl<T> Stream for Outgoing<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.as_mut().poll_next(cx)
    }
}

/// A unary call of the peer service.
macro_rules! unary {
    ($inner:expr, $client:ident, $method:ident, $request:expr) => {{
        let (inner, request) = ($inner.clone(), $request);
        async move {
            let answer = inner.$client().await?.$method(Request::new(request)).await;
            inner.answered(answer)
        }
        .boxed()
    }};
}

impl TonicPeer {
    fn answers<T: Send + 'static>(&self, stream: tonic::Streaming<T>) -> Answers<T> {
        let inner = self.0.clone();
        stream.map(move |item| item.map_err(|status| inner.failed(&status))).boxed()
    }

    fn again(&self) -> Self {
        Self(self.0.clone())
    }
}

impl PeerApi for TonicPeer {
    fn append(
        &self,
        requests: BoxStream<'static, wire::AppendRequest>,
    ) -> Answer<Answers<wire::AppendReply>> {
        let this = self.again();
        async move {
            let answer = this.0.peer_client().await?.append(Outgoing(requests)).await;
            Ok(this.answers(this.0.answered(answer)?))
        }
        .boxed()
    }

    fn heartbeat(&self, request: wire::AppendRequest) -> Answer<wire::AppendReply> {
        unary!(self.0, peer_client, heartbeat, request)
    }

    fn vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply> {
        unary!(self.0, peer_client, vote, request)
    }

    fn pre_vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply> {
        unary!(self.0, peer_client, pre_vote, request)
    }

    fn transfer(&self, request: wire::TransferRequest) -> Answer<wire::TransferReply> {
        unary!(self.0, peer_client, transfer, request)
    }

    fn snapshot(
        &self,
        chunks: BoxStream<'static, Result<wire::SnapshotChunk, PeerError>>,
    ) -> Answer<wire::SnapshotReply> {
        let inner = self.0.clone();
        async move {
            let mut client = inner.peer_client().await?;
            // A chunk that cannot be read ends the stream early, and the receiver refuses what it has.
            let chunks = chunks.take_while(|chunk| std::future::ready(chunk.is_ok()));
            let chunks = chunks.filter_map(|chunk| std::future::ready(chunk.ok()));
            let answer = client.snapshot(Outgoing(chunks.boxed())).await;
            inner.answered(answer)
        }
        .boxed()
    }

    fn snapshot_have(&self, head: wire::SnapshotHead) -> Answer<wire::SnapshotOffset> {
        unary!(self.0, peer_client, snapshot_have, head)
    }

    fn propose(&self, request: wire::ProposeRequest) -> Answer<wire::ProposeReply> {
        unary!(self.0, store_client, propose, request)
    }

    fn propose_stream(
        &self,
        requests: BoxStream<'static, wire::ProposeRequest>,
    ) -> Answer<Answers<wire::ProposeReply>> {
        let this = self.again();
        async move {
            let answer = this.0.store_client().await?.propose_stream(Outgoing(requests)).await;
            Ok(this.answers(this.0.answered(answer)?))
        }
        .boxed()
    }

    fn read_index(&self) -> Answer<wire::ReadIndexReply> {
        unary!(self.0, store_client, read_index, wire::ReadIndexRequest {})
    }

    fn manage(&self, request: wire::ManageRequest) -> Answer<wire::ManageReply> {
        unary!(self.0, admin_client, manage, request)
    }

    fn trust(&self, _from: u64) -> Answer<wire::TrustReply> {
        unary!(self.0, admin_client, trust, wire::TrustRequest {})
    }
}
