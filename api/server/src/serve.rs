//! The API port: its connections, from the handshake to the last byte.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{Request, Response, header};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use palisade_contract::{Context, Error, Registry};
use palisade_proto::agent::gateway_server::GatewayServer;
use palisade_state::{Rt, port::timeout};
use prometheus_client::registry::Registry as MetricsRegistry;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tower::Service as _;

use crate::{
    Limits,
    envelope::Envelope,
    gateway::{self, Core, GatewayOptions, Sessions},
    metrics::Metrics,
    module::ServerModule,
    pki::{self, Authority, Identity, Live, Material, Peer, PeerRole, PkiError},
    problem, refused,
    rest::{Body, BoxError, Origin, Rest, holding},
    stop::Stop,
};

/// Pause after the system refused to accept a connection, so that it can recover.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CHECK: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What the API of one replica is made of.
pub struct ApiOptions {
    /// `host:port`; port 0 takes a free one.
    pub listen: String,
    /// The cluster's CA, with its key: this replica issues certificates.
    pub authority: Arc<Authority>,
    /// This replica's certificate and key.
    pub identity: Identity,
    /// All modules.
    pub registry: Registry,
    /// The server's own module, as it is registered, for it to look at the others.
    pub server_module: Arc<ServerModule>,
    /// The ports. `agents` is filled here.
    pub context: Context,
    /// What `/metrics` shows; the API's own counters are added.
    pub metrics: MetricsRegistry,
    /// Limits.
    pub limits: Limits,
    /// The agent gateway's options.
    pub gateway: GatewayOptions,
    /// Whether the tables are up to date. Until then only health is answered, and everything else
    /// is `UNAVAILABLE`: a token that is not there yet must not be called wrong.
    pub open: Arc<AtomicBool>,
}

/// Why the API does not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address is in use.
    #[error(
        "{address} is in use by another process: stop it (`ss -ltnp` names it) or choose another listen address"
    )]
    InUse {
        /// The address.
        address: String,
    },
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: check that it is an address of this machine and that the port needs no privilege"
    )]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The certificates cannot be used.
    #[error("the API's certificates cannot be used")]
    Pki(#[from] PkiError),
    /// The modules do not fit together.
    #[error("the API cannot be put together: {0}")]
    Setup(#[source] Error),
}

/// A serving API.
pub struct ApiServer {
    local_addr: SocketAddr,
    rt: Rt,
    core: Arc<Core>,
    live: Arc<Live>,
    envelope: Arc<Envelope>,
    stop: Stop,
    hard_stop: Stop,
    open: Arc<AtomicUsize>,
}

/// What connections share.
struct Shared {
    rt: Rt,
    rest: Rest,
    gateway: GatewayServer<gateway::Service>,
    live: Arc<Live>,
    context: Context,
    limits: Limits,
    lineage: String,
    metrics: Metrics,
    stop: Stop,
    hard_stop: Stop,
    open: Arc<AtomicUsize>,
}

impl ApiServer {
    /// Listens and serves until [`ApiServer::shutdown`].
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn start(options: ApiOptions) -> Result<Self, ServeError> {
        let ApiOptions { listen, authority, identity, registry, server_module, .. } = options;
        let ApiOptions { context, metrics: mut metrics_registry, limits, .. } = options;
        let live = Live::new(Material::new(authority, identity))?;
        let metrics = Metrics::default();
        metrics.register(&mut metrics_registry);
        server_module.attach(&registry, &live);
        let rt = context.rt.clone();
        let sessions = Arc::new(Sessions::new(rt.clone(), metrics.clone()));
        let envelope = Envelope::new(&registry, context.clone(), metrics.clone(), &limits);
        let envelope = Arc::new(envelope.map_err(ServeError::Setup)?);
        let (stop, hard_stop) = (Stop::default(), Stop::default());
        let rest = Rest::new(
            envelope.clone(),
            limits.clone(),
            metrics_registry,
            sessions.clone(),
            stop.clone(),
            options.open.clone(),
        )
        .map_err(ServeError::Setup)?;
        let (listener, local_addr) = bind(&listen).await?;
        let lineage = live.authority().lineage().to_owned();
        let core = Core {
            handlers: registry.status_handlers(),
            live: live.clone(),
            sessions,
            metrics: metrics.clone(),
            options: options.gateway,
            own_address: local_addr.to_string(),
            open: options.open,
            stopping: stop.clone(),
            draining: Stop::default(),
            drained: AtomicBool::new(false),
            joins: Semaphore::new(gateway::JOINS_MAX),
            context: context.clone(),
        };
        let core = core.begin().map_err(ServeError::Setup)?;
        let open = Arc::new(AtomicUsize::new(0));
        let shared = Arc::new(Shared {
            rt: rt.clone(),
            rest,
            gateway: GatewayServer::new(gateway::Service(core.clone())),
            live: live.clone(),
            context,
            limits,
            lineage,
            metrics,
            stop: stop.clone(),
            hard_stop: hard_stop.clone(),
            open: open.clone(),
        });
        rt.spawn("api-accept", Box::pin(accept(shared, listener)));
        tracing::info!(address = %local_addr, "the API serves");
        Ok(Self { local_addr, rt, core, live, envelope, stop, hard_stop, open })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// For calls from within the process.
    #[must_use]
    pub fn envelope(&self) -> &Arc<Envelope> {
        &self.envelope
    }

    /// The certificates of the moment, to be replaced.
    #[must_use]
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Agents that have a session here.
    #[must_use]
    pub fn agent_sessions(&self) -> usize {
        self.core.sessions.count()
    }

    /// Sends agents elsewhere, spread over `grace`, and takes no new ones; everything else goes on.
    /// Call it before this replica's workers leave: a replica without a worker keeps no session.
    pub async fn drain_agents(&self, grace: Duration) {
        self.core.drain(grace).await;
    }

    /// Stops: no new connection, agents are sent elsewhere over half of `grace`, requests may end
    /// until all of it has passed.
    pub async fn shutdown(self, grace: Duration) {
        let deadline = self.rt.now() + grace;
        self.stop.raise();
        self.drain_agents(grace / 2).await;
        while self.open.load(Ordering::Acquire) > 0 && self.rt.now() < deadline {
            self.rt.sleep(Duration::from_millis(10)).await;
        }
        self.hard_stop.raise();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop.raise();
        self.hard_stop.raise();
    }
}

async fn bind(address: &str) -> Result<(TcpListener, SocketAddr), ServeError> {
    let failed = |source: io::Error| {
        let address = address.to_owned();
        match source.kind() {
            io::ErrorKind::AddrInUse => ServeError::InUse { address },
            _ => ServeError::Listen { address, source },
        }
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    Ok((listener, local))
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    loop {
        let accepted = {
            let stopped = std::pin::pin!(shared.stop.raised());
            let next = std::pin::pin!(listener.accept());
            match futures::future::select(stopped, next).await {
                futures::future::Either::Left(_) => return,
                futures::future::Either::Right((accepted, _)) => accepted,
            }
        };
        match accepted {
            Ok((tcp, from)) => {
                let open = Open::new(&shared);
                if shared.open.load(Ordering::Acquire) > shared.limits.connections_max {
                    tracing::warn!(%from, "a connection was refused: too many are open");
                    continue;
                }
                let task = connection(shared.clone(), tcp, Origin(from.ip()), open);
                shared.rt.spawn("api-connection", Box::pin(task));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                shared.rt.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Counts a connection for as long as it is open.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::AcqRel);
        shared.metrics.connections.inc();
        Self(shared.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.metrics.connections.dec();
    }
}

/// What a connection does: requests being served, and when the last one ended.
#[derive(Clone)]
struct Activity {
    rt: Rt,
    serving: Arc<AtomicUsize>,
    seen: Arc<AtomicUsize>,
    last_ms: Arc<AtomicU64>,
}

impl Activity {
    fn new(rt: Rt) -> Self {
        let now = millis(rt.now());
        Self {
            rt,
            serving: Arc::default(),
            seen: Arc::default(),
            last_ms: Arc::new(AtomicU64::new(now)),
        }
    }

    fn begin(&self) -> Serving {
        self.serving.fetch_add(1, Ordering::AcqRel);
        self.seen.fetch_add(1, Ordering::AcqRel);
        Serving(self.clone())
    }

    /// How long nothing has been served; `None` while something is.
    fn idle(&self) -> Option<Duration> {
        let last = self.last_ms.load(Ordering::Acquire);
        let idle = millis(self.rt.now()).saturating_sub(last);
        (self.serving.load(Ordering::Acquire) == 0).then(|| Duration::from_millis(idle))
    }
}

/// One request, until the last byte of its answer.
struct Serving(Activity);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.last_ms.store(millis(self.0.rt.now()), Ordering::Release);
        self.0.serving.fetch_sub(1, Ordering::AcqRel);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Runs what HTTP/2 streams need as tasks of the runtime port.
#[derive(Clone)]
struct Executor(Rt);

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn("api-stream", Box::pin(async move { drop(future.await) }));
    }
}

async fn connection(shared: Arc<Shared>, tcp: TcpStream, from: Origin, open: Open) {
    let _open = open;
    let _ = tcp.set_nodelay(true);
    // PKI-4
    let handshake = TlsAcceptor::from(shared.live.server()).accept(tcp);
    let stream = match timeout(&*shared.rt, shared.limits.handshake_timeout, handshake).await {
        Some(Ok(stream)) => stream,
        Some(Err(error)) => {
            shared.metrics.handshakes_failed.inc();
            tracing::debug!(%error, "a TLS handshake failed");
            return;
        }
        None => {
            shared.metrics.handshakes_failed.inc();
            return;
        }
    };
    match peer(&shared, &stream) {
        Ok(peer) => serve(shared, stream, from, peer).await,
        Err(error) => tracing::warn!(%error, "a client certificate names nobody"),
    }
}

/// Whom the client's certificate names; rustls has verified its chain.
fn peer(shared: &Shared, stream: &TlsStream<TcpStream>) -> Result<Option<Peer>, PkiError> {
    let Some(leaf) = stream.get_ref().1.peer_certificates().and_then(<[_]>::first) else {
        return Ok(None);
    };
    let peer = pki::peer_of(leaf)?;
    if peer.lineage == shared.lineage {
        Ok(Some(peer.at(shared.rt.wall_ms())))
    } else {
        Err(PkiError::Certificate(format!("it is of lineage {:?}", peer.lineage)))
    }
}

/// Bytes of a request's head that are read: more than are taken, so that what is over the limit is answered in words.
fn head_bytes_read(limits: &Limits) -> usize {
    limits.header_bytes_max.saturating_mul(4)
}

fn builder(shared: &Shared, http2: bool) -> Builder<Executor> {
    let limits = &shared.limits;
    let builder = Builder::new(Executor(shared.rt.clone()));
    let mut builder = if http2 { builder.http2_only() } else { builder.http1_only() };
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.headers_max)
        .max_buf_size(head_bytes_read(limits).max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .max_header_list_size(u32::try_from(head_bytes_read(limits)).unwrap_or(u32::MAX))
        .max_concurrent_streams(limits.requests_per_connection_max);
    builder
}

async fn serve(
    shared: Arc<Shared>,
    stream: TlsStream<TcpStream>,
    from: Origin,
    peer: Option<Peer>,
) {
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let activity = Activity::new(shared.rt.clone());
    let holder = peer.clone().filter(|peer| peer.out_of_time.is_none());
    let service = {
        let (shared, activity) = (shared.clone(), activity.clone());
        service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(from);
            let (shared, peer) = (shared.clone(), peer.clone());
            let serving = activity.begin();
            async move {
                let response = answer(&shared, request, peer).await;
                Ok::<_, std::convert::Infallible>(response.map(|body| holding(body, serving)))
            }
        })
    };
    let builder = builder(&shared, http2);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut refused =
        std::pin::pin!(refused::comes(&shared.context, &shared.live, holder.as_ref()));
    let mut ending = false;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = shared.hard_stop.raised() => return,
            () = shared.stop.raised(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = shared.rt.sleep(CHECK) => {
                if overdue(&shared.limits, &activity) {
                    return;
                }
            }
            () = refused.as_mut() => return,
        }
    }
}

/// Whether a connection has been without a request for too long; the first one must come soon.
fn overdue(limits: &Limits, activity: &Activity) -> bool {
    let first = activity.seen.load(Ordering::Acquire) == 0;
    let longest = if first { limits.header_timeout } else { limits.idle_timeout };
    activity.idle().is_some_and(|idle| idle > longest)
}

async fn answer(
    shared: &Shared,
    mut request: Request<Incoming>,
    peer: Option<Peer>,
) -> Response<Body> {
    // What another replica may read is read without more ado; of anybody else it is found out who it is.
    let peer = peer.filter(|peer| {
        !matches!(peer.role, PeerRole::Replica(_))
            || !refused::is(&shared.context, &shared.live, peer)
    });
    let kind = request.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        if let Some(error) = peer.as_ref().and_then(refused::out_of_time) {
            return problem::to_status(&error).into_http();
        }
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        return match shared.gateway.clone().call(request).await {
            Ok(response) => response.map(|body| {
                use http_body_util::BodyExt as _;
                body.map_err(BoxError::from).boxed_unsync()
            }),
            Err(never) => match never {},
        };
    }
    shared.rest.handle(request, peer.as_ref()).await
}
