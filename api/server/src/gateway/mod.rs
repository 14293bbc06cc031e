//! The agent gateway: joining, renewing, and the sessions of agents.

mod commands;
pub mod convert;
mod drained;
mod keys;
mod relay;
mod secrets;
mod session;
mod sessions;
mod sweep;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{Stream, StreamExt, future::Either, stream::BoxStream};
use palisade_contract::{
    Code, Context, Error, NodeId, Result, SessionId, StatusHandler, pki::Leaf, ports,
};
use palisade_proto::agent::{
    Down, JoinRequest, JoinResponse, RenewRequest, RenewResponse, Up, gateway_server::Gateway,
};
use palisade_state::{Fence, Tx, View, WatchEvent, command::Idempotency, commit::CommitError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, mpsc};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    metrics::Metrics,
    pki::{self, Live, Peer, PeerRole, PkiError},
    problem,
    propose::{Once, WRITE_BUDGET, commit_once},
    stop::Stop,
};

pub use sessions::Sessions;
use sessions::{Ending, SessionHandle};

/// Messages that wait for one agent.
const DOWN_MAX: usize = 64;
/// Joins being answered at once.
pub(crate) const JOINS_MAX: usize = 64;
/// How long an agent waits for this replica's worker at most. Agents wait longer for an answer.
const WORKER_WAIT: Duration = Duration::from_secs(3);
const WORKER_POLL: Duration = Duration::from_millis(50);
/// The table of nodes, whose changes may end sessions.
const NODES_TABLE: &str = "nodes";
/// The table of keys that are refused: each change of it may end any session.
const REVOCATIONS_TABLE: &str = "pki_revocations";

/// What comes up from an agent, however it is carried.
pub type Inbound = BoxStream<'static, Result<Up, Status>>;
/// What goes down to an agent.
pub type Outbound = Pin<Box<dyn Stream<Item = Result<Down, Status>> + Send>>;

/// Options of the gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// How often agents are to be heard; three missed ones end a session.
    pub heartbeat: Duration,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self { heartbeat: Duration::from_secs(5) }
    }
}

/// What all sessions share.
pub(crate) struct Core {
    pub(crate) context: Context,
    pub(crate) handlers: Vec<StatusHandler>,
    /// The certificates of the moment.
    pub(crate) live: Arc<Live>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) metrics: Metrics,
    pub(crate) options: GatewayOptions,
    /// Where this replica is reached when its membership does not say.
    pub(crate) own_address: String,
    /// Whether the tables are up to date.
    pub(crate) open: Arc<AtomicBool>,
    pub(crate) stopping: Stop,
    /// Raised when agents are to go elsewhere.
    pub(crate) draining: Stop,
    /// Whether an operator drained this replica.
    pub(crate) drained: AtomicBool,
    /// Joins being answered.
    pub(crate) joins: Semaphore,
}

impl Core {
    /// Fills the `agents` port and begins what goes on beside the sessions.
    pub(crate) fn begin(self) -> Result<Arc<Self>> {
        let core = Arc::new(self);
        core.context.ports.agents.fill(Arc::new(relay::Relay(Arc::downgrade(&core))))?;
        let rt = &core.context.rt;
        rt.spawn("gateway-watch", Box::pin(core.clone().watch()));
        rt.spawn("gateway-sweep", Box::pin(core.clone().sweep()));
        rt.spawn("gateway-drained", Box::pin(core.clone().follow_drain()));
        Ok(core)
    }

    /// Refuses to serve before the tables are up to date and once this replica stops: a node that
    /// is not there yet must not be called unknown.
    fn check_open(&self) -> Result<(), Status> {
        if self.stopping.is_raised() {
            return Err(Status::unavailable("this replica stops"));
        }
        if !self.open.load(Ordering::Acquire) {
            return Err(Status::unavailable("this replica is starting"));
        }
        Ok(())
    }

    /// Refuses a session that this replica would not keep.
    fn check_keeps(&self) -> Result<(), Status> {
        self.check_open()?;
        if self.sends_away() {
            return Err(Status::unavailable("this replica sends its agents elsewhere"));
        }
        Ok(())
    }

    /// Whether agents are to go elsewhere: this replica stops, or is drained.
    fn sends_away(&self) -> bool {
        self.draining.is_raised() || self.drained.load(Ordering::Acquire)
    }

    /// Waits until this replica's worker lives: until then another replica takes its sessions away
    /// as a dead replica's.
    async fn worker_lives(&self) -> Result<(), Status> {
        let rt = &self.context.rt;
        let worker = self.context.store.replica().to_string();
        let deadline = rt.now() + WORKER_WAIT;
        loop {
            self.check_keeps()?;
            if self.context.store.view().worker_lives(&worker) {
                return Ok(());
            }
            if rt.now() >= deadline {
                return Err(Status::unavailable("this replica's worker does not live yet"));
            }
            rt.sleep(WORKER_POLL).await;
        }
    }

    fn heartbeat_ms(&self) -> u32 {
        u32::try_from(self.options.heartbeat.as_millis()).unwrap_or(u32::MAX)
    }

    fn ca_der(&self) -> Vec<Vec<u8>> {
        self.live.roots().iter().map(|ca| ca.to_vec()).collect()
    }

    /// Gateways of all members, this one's first.
    fn servers(&self) -> Vec<String> {
        let own = self.context.store.replica();
        let mut members = self.context.store.status().members;
        members.sort_by_key(|member| (member.id != own, member.id));
        let mut servers: Vec<String> = vec![];
        for member in members {
            let known = if member.id == own && member.api_addr.is_empty() {
                self.own_address.clone()
            } else {
                member.api_addr
            };
            if !known.is_empty() && !servers.contains(&known) {
                servers.push(known);
            }
        }
        servers
    }

    /// Whether the node's session is this one.
    fn holds(&self, view: &View, node: &NodeId, session: &SessionId) -> bool {
        let found = self.context.ports.nodes.get().and_then(|n| n.find(view, node.as_str()));
        found.is_ok_and(|node| {
            node.and_then(|node| node.session).is_some_and(|present| present.id == *session)
        })
    }

    /// Wakes the sessions that a change concerns, until this replica stops.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut watch = self.context.store.watch();
        loop {
            let stopped = std::pin::pin!(self.stopping.raised());
            let event = match futures::future::select(watch.next(), stopped).await {
                Either::Left((Some(event), _)) => event,
                Either::Left((None, _)) | Either::Right(_) => return,
            };
            match event {
                WatchEvent::Changed(changes)
                    if !changes.everything
                        && changes.keys_of(REVOCATIONS_TABLE).next().is_none() =>
                {
                    let specs = palisade_contract::node_spec::NODE_SPECS.name();
                    let commands = changes.keys_of(commands::COMMANDS_TABLE);
                    let nodes = changes.keys_of(specs).chain(changes.keys_of(NODES_TABLE));
                    for key in nodes.chain(commands) {
                        let id = std::str::from_utf8(key).ok().and_then(|key| {
                            NodeId::parse(key.split_once('/').map_or(key, |(node, _)| node))
                        });
                        if let Some(session) = id.and_then(|id| self.sessions.get(&id)) {
                            session.changed.notify_one();
                        }
                    }
                }
                WatchEvent::Changed(_) | WatchEvent::Reset => {
                    for session in self.sessions.all() {
                        session.changed.notify_one();
                    }
                }
            }
        }
    }

    /// Sends all agents to other replicas, spread over `grace`, and takes no new ones.
    pub(crate) async fn drain(&self, grace: Duration) {
        self.draining.raise();
        self.send_away(grace).await;
    }

    async fn send_away(&self, grace: Duration) {
        let sessions = self.sessions.all();
        let count = u32::try_from(sessions.len()).unwrap_or(u32::MAX).max(1);
        let step = grace / count;
        for session in sessions {
            session.end(Ending::Draining);
            self.context.rt.sleep(step).await;
        }
    }
}

/// The service.
pub(crate) struct Service(pub(crate) Arc<Core>);

/// What a join leaves in its idempotency record.
#[derive(Serialize, Deserialize)]
pub(crate) struct Joined {
    pub(crate) id: NodeId,
    pub(crate) name: String,
}

fn pki_status(error: &PkiError) -> Status {
    match error {
        PkiError::Request(_) => Status::invalid_argument(error.to_string()),
        _ => {
            tracing::error!(error = %problem::chain(error), "a certificate could not be issued");
            Status::internal("the certificate could not be issued; the replica's log says why")
        }
    }
}

fn commit_status(error: CommitError<Error>) -> Status {
    match error {
        // Only busy: another try may find it quiet.
        CommitError::Conflict(_) => Status::aborted("the state kept changing; try again"),
        other => {
            let error = Error::from(other);
            problem::log(&error, "gateway", "");
            problem::to_status(&error)
        }
    }
}

fn refused(error: &Error) -> Status {
    problem::log(error, "gateway", "");
    problem::to_status(error)
}

fn node_peer<T>(request: &Request<T>) -> Result<(NodeId, Leaf), Status> {
    match request.extensions().get::<Peer>() {
        Some(peer @ Peer { role: PeerRole::Node(node), .. }) => Ok((node.clone(), peer.leaf())),
        _ => Err(Status::unauthenticated("a node's client certificate is needed")),
    }
}

impl Service {
    async fn note_replay(&self, request: &ports::JoinRequest) -> Result<()> {
        let context = &self.0.context;
        let nodes = context.ports.nodes.get()?.clone();
        let view = context.store.linearizable().await?;
        let mut trial = Tx::new(view);
        nodes.note_replay(&mut trial, request)?;
        if !trial.is_empty() {
            context.commit(|tx| nodes.note_replay(tx, request)).await?;
        }
        Ok(())
    }

    pub(crate) async fn redeem(&self, request: &ports::JoinRequest) -> Result<Joined, Status> {
        let context = &self.0.context;
        let nodes = context.ports.nodes.get().map_err(|e| refused(&e))?.clone();
        let deadline = context.rt.now() + WRITE_BUDGET;
        let view = context.store.linearizable().await.map_err(|e| refused(&e.into()))?;
        let token_hash = Sha256::digest(request.token.as_bytes()).to_vec();
        let once = Once {
            // The join itself finds the node that the key made before.
            may_be_known: false,
            key: Idempotency {
                scope: "gateway.join".to_owned(),
                key: format!("{}/{}", request.key, hex::encode(&token_hash)),
                request_hash: token_hash,
            },
        };
        let ended = commit_once(context, view, once, deadline, |tx| {
            let node = nodes.join(context, tx, request)?;
            let joined = Joined { id: node.id, name: node.name };
            tx.respond(serde_json::to_vec(&joined).map_err(Error::internal)?);
            Ok(())
        })
        .await;
        let committed = match ended {
            Ok(committed) => committed,
            Err(error) => {
                if matches!(error, CommitError::Refused(_))
                    && let Err(error) = self.note_replay(request).await
                {
                    tracing::warn!(error = %problem::chain(&error), "a refused join could not be noted");
                }
                return Err(commit_status(error));
            }
        };
        let joined: Joined = serde_json::from_slice(&committed.response)
            .map_err(|e| refused(&Error::internal(e)))?;
        // A replayed answer may be about a node that is gone by now.
        let view = context.store.at_revision(committed.revision).await;
        let view = view.map_err(|e| refused(&e.into()))?;
        nodes.authenticate(&view, &joined.id, &request.key).map_err(|e| refused(&e))?;
        Ok(joined)
    }

    fn certify(&self, csr_der: &[u8], node: &NodeId) -> Result<Vec<Vec<u8>>, Status> {
        let core = &self.0;
        let leaf = core
            .live
            .authority()
            .issue_node(csr_der, node, core.context.rt.wall_ms())
            .map_err(|error| pki_status(&error))?;
        let issuers = core.live.issuers();
        Ok(std::iter::once(leaf).chain(issuers.iter().map(|ca| ca.to_vec())).collect())
    }
}

#[tonic::async_trait]
impl Gateway for Service {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        self.0.check_open()?;
        let _permit = self.0.joins.try_acquire().map_err(|_| {
            self.0.metrics.refused_busy.inc();
            Status::resource_exhausted(
                "this replica answers as many joins as it can: try again in a second",
            )
        })?;
        let request = request.into_inner();
        let key = pki::request_key(&request.csr_der).map_err(|error| pki_status(&error))?;
        self.0.check_key(&self.0.context.store.view(), &key).map_err(|e| refused(&e))?;
        let wanted = ports::JoinRequest {
            token: request.token,
            key,
            name: request.name,
            facts: convert::facts_from_wire(request.inventory.unwrap_or_default()),
            agent_version: request.agent_version,
        };
        let Joined { id, name } = self.redeem(&wanted).await?;
        let chain_der = self.certify(&request.csr_der, &id)?;
        tracing::info!(node = %id, name, "node joined");
        self.0.metrics.count("gateway.join", "OK");
        Ok(Response::new(JoinResponse {
            node_id: id.to_string(),
            node_name: name,
            chain_der,
            ca_der: self.0.ca_der(),
            lineage: self.0.live.authority().lineage().to_owned(),
            servers: self.0.servers(),
        }))
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        self.0.check_open()?;
        let (node, Leaf { key: old_key, .. }) = node_peer(&request)?;
        let csr_der = request.into_inner().csr_der;
        let new_key = pki::request_key(&csr_der).map_err(|error| pki_status(&error))?;
        let context = &self.0.context;
        let nodes = context.ports.nodes.get().map_err(|e| refused(&e))?.clone();
        let deadline = context.rt.now() + WRITE_BUDGET;
        let view = context.store.linearizable().await.map_err(|e| refused(&e.into()))?;
        self.0.authenticate(&view, &node, &old_key).map_err(|e| refused(&e))?;
        self.0.check_key(&view, &new_key).map_err(|e| refused(&e))?;
        let once = Once {
            may_be_known: true,
            key: Idempotency {
                scope: format!("gateway.renew {node}"),
                key: new_key.clone(),
                request_hash: Sha256::digest(old_key.as_bytes()).to_vec(),
            },
        };
        let renew = |tx: &mut Tx| {
            // PKI-3: of a node that is revoked meanwhile no other key is bound.
            self.0.check_keys_in(tx, [&old_key, &new_key])?;
            nodes.renew(tx, &node, &old_key, &new_key)
        };
        commit_once(context, view, once, deadline, renew).await.map_err(commit_status)?;
        self.0.metrics.count("gateway.renew", "OK");
        Ok(Response::new(RenewResponse {
            chain_der: self.certify(&csr_der, &node)?,
            ca_der: self.0.ca_der(),
        }))
    }

    type SessionStream = Outbound;

    async fn session(
        &self,
        request: Request<Streaming<Up>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (node, leaf) = node_peer(&request)?;
        let (key, inbound) = (leaf.key.clone(), Box::pin(request.into_inner()));
        let opened = self.open(node, key, Some(leaf), inbound).await?;
        Ok(Response::new(opened))
    }
}

impl Service {
    /// Opens the session of a node that has proven to hold `key`.
    pub(crate) async fn open(
        &self,
        node: NodeId,
        key: String,
        leaf: Option<Leaf>,
        inbound: Inbound,
    ) -> Result<Outbound, Status> {
        let core = &self.0;
        core.check_keeps()?;
        self.admit(&node, &key).await?;
        core.worker_lives().await?;
        let (sender, receiver) = mpsc::channel(DOWN_MAX);
        let id = SessionId::mint(&*core.context.rt);
        let handle = Arc::new(SessionHandle::new(id, node.clone(), sender));
        let over = handle.over.clone();
        let inbound = session::Exclusive::new(inbound);
        let core = core.clone();
        let fence = Fence::NONE;
        let task = session::Session { core, handle, node, key, leaf, inbound, told: None, fence };
        self.0.context.rt.spawn("agent-session", Box::pin(task.run()));
        Ok(Box::pin(outgoing(receiver, over)))
    }

    /// Accepts a node by its key; a node that joined a moment ago may not be in this replica's
    /// view yet.
    async fn admit(&self, node: &NodeId, key: &str) -> Result<(), Status> {
        let store = &self.0.context.store;
        let known = self.0.authenticate(&store.view(), node, key);
        if known.as_ref().is_err_and(|error| error.code == Code::Unauthenticated) {
            let view = store.linearizable().await.map_err(|e| refused(&e.into()))?;
            return self.0.authenticate(&view, node, key).map_err(|e| refused(&e));
        }
        known.map_err(|e| refused(&e))
    }
}

/// What goes down to an agent: what waits, until the session is over and nothing waits.
fn outgoing(
    receiver: mpsc::Receiver<Down>,
    over: Stop,
) -> impl Stream<Item = Result<Down, Status>> + Send {
    futures::stream::unfold((receiver, over), |(mut receiver, over)| async move {
        let next = {
            let received = std::pin::pin!(receiver.recv());
            let ended = std::pin::pin!(over.raised());
            match futures::future::select(received, ended).await {
                Either::Left((next, _)) => next,
                Either::Right(_) => None,
            }
        };
        next.map(|down| (Ok(down), (receiver, over)))
    })
}
