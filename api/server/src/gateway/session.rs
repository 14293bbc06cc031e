//! One session of an agent: a task that owns the stream and everything that is sent on it.
//!
//! # Invariants
//! - `GATE-1` A node whose key is no longer accepted has no session for longer than it takes this
//!   replica to apply that.
//! - `GATE-2` A heartbeat costs no log entry, and neither does a report that says nothing new.
//! - `GATE-3` What one agent sends or does not read delays that agent only.
//! - `GATE-5` An agent whose session goes on is told when the replicas are others: the one that it has may be the
//!   last that it knows.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture};
use palisade_contract::{
    Code, Error, NodeId, Result,
    node::{HostFacts, NodeSession, NodeStatus},
    node_spec::{NODE_SPECS, NodeSpecRecord},
    pki::Leaf,
};
use palisade_proto::agent::{
    Down, Goodbye, HeartbeatAck, Hello, Up, Welcome, down::Msg, up::Msg as UpMsg,
};
use palisade_state::{
    Fence, Tx, View, commit,
    port::{jittered, timeout},
};
use tonic::Status;

use super::{
    Core, Inbound,
    commands::Handover,
    convert,
    secrets::{self, Wanted},
    sessions::{Ending, SessionHandle},
};
use crate::problem::chain;

const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the newest status is looked at again, although nothing was heard or changed.
const RECHECK: Duration = Duration::from_secs(30);
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an agent that was sent away may take to be seen elsewhere.
const DRAIN_WAIT: Duration = Duration::from_secs(2);
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
const CLOSE_TRIES: u32 = 12;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The stream ended.
    Gone,
    /// Nothing was heard for too long.
    Silent,
    /// The node has another session.
    Replaced,
    /// The node or its key is no longer accepted.
    Revoked,
    /// This replica stops.
    Draining,
    /// It could not be opened.
    NotOpened,
    /// The agent broke the protocol.
    Malformed,
}

pub(super) struct Session {
    pub(super) core: Arc<Core>,
    pub(super) handle: Arc<SessionHandle>,
    pub(super) node: NodeId,
    /// The key of the certificate that opened it.
    pub(super) key: String,
    /// What is noted of that certificate; absent: it was not shown over TLS.
    pub(super) leaf: Option<Leaf>,
    pub(super) inbound: Exclusive,
    /// The servers and CAs that the agent was told of; `None`: it was not welcomed yet.
    pub(super) told: Option<(Vec<String>, Vec<Vec<u8>>)>,
    /// Under which its commands are sent: a session that was opened later has a higher one.
    pub(super) fence: Fence,
}

/// What comes up, shared by reference without being read.
pub(super) struct Exclusive(Mutex<Inbound>);

impl Exclusive {
    pub(super) fn new(inbound: Inbound) -> Self {
        Self(Mutex::new(inbound))
    }

    async fn next(&mut self) -> Option<Result<Up, Status>> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).next().await
    }
}

/// What is waiting to be written, and what is being written.
struct Reports {
    commands: Handover,
    secrets: Wanted,
    facts: Option<HostFacts>,
    status: Option<NodeStatus>,
    newest: Option<NodeStatus>,
    writing: Option<BoxFuture<'static, Written>>,
    backoff: Option<Duration>,
}

/// The end of one write, with what is to be tried again.
struct Written {
    ended: Result<bool>,
    facts: Option<HostFacts>,
    status: Option<NodeStatus>,
}

/// What the agent has.
struct Has {
    generation: u64,
    fence: Fence,
    hash: Vec<u8>,
}

impl Has {
    fn lacks(&self, record: &NodeSpecRecord) -> bool {
        let newer = record.generation > self.generation || record.fence > self.fence;
        let other = record.generation == self.generation
            && hex::encode(&self.hash) != record.hash
            && record.generation > 0;
        newer || other
    }
}

impl Session {
    pub(super) async fn run(mut self) {
        let _alive = self.core.sessions.alive(&self.handle.id);
        let end = match self.open().await {
            Ok((hello, has)) => self.serve(hello, has).await,
            Err(end) => end,
        };
        tracing::info!(node = %self.node, session = %self.handle.id, ?end, "agent session ended");
        self.core.sessions.remove(&self.handle);
        self.say_goodbye(end).await;
        self.handle.finish();
        if end == End::Draining {
            self.core.context.rt.sleep(DRAIN_WAIT).await;
        }
        self.close().await;
    }

    async fn say_goodbye(&self, end: End) {
        let (reason, reconnect_after_ms) = match end {
            End::Gone => return,
            End::Silent => ("no heartbeat arrived in time", 0),
            End::Replaced => ("the node has opened another session", 5_000),
            End::Revoked => ("the node or its certificate is no longer accepted", 0),
            End::Draining => ("this replica stops", 0),
            End::NotOpened => ("this replica cannot open a session now", 1_000),
            End::Malformed => ("the first message of a session is a hello", 30_000),
        };
        let goodbye =
            Goodbye { reason: reason.to_owned(), reconnect_after_ms, revoked: end == End::Revoked };
        let down = Down { msg: Some(Msg::Goodbye(goodbye)) };
        timeout(&*self.core.context.rt, GOODBYE_TIMEOUT, self.handle.down().send(down)).await;
    }

    /// Reads the hello, takes the session down in state, and welcomes the agent.
    async fn open(&mut self) -> Result<(Hello, Has), End> {
        let rt = self.core.context.rt.clone();
        let first = timeout(&*rt, HELLO_TIMEOUT, self.inbound.next()).await;
        let mut hello = match first {
            None => return Err(End::Silent),
            Some(Some(Ok(Up { msg: Some(UpMsg::Hello(hello)) }))) => hello,
            Some(Some(Ok(_))) => return Err(End::Malformed),
            Some(None | Some(Err(_))) => return Err(End::Gone),
        };
        let facts = convert::facts_from_wire(hello.inventory.take().unwrap_or_default());
        self.fence = self.write_opened(&hello, &facts).await.map_err(|error| {
            let error = chain(&error);
            tracing::warn!(node = %self.node, %error, "an agent session could not be opened");
            End::NotOpened
        })?;
        self.core.sessions.insert(self.handle.clone());
        if self.core.sends_away() {
            // The drain may have asked all sessions before this one was there.
            self.handle.end(Ending::Draining);
        }
        self.welcome();
        tracing::info!(node = %self.node, session = %self.handle.id, "agent session opened");
        let has = Has {
            generation: hello.generation,
            fence: convert::fence_from_wire(hello.fence.as_ref()),
            hash: std::mem::take(&mut hello.hash),
        };
        Ok((hello, has))
    }

    /// Welcomes the agent, and tells it later when the replicas are others.
    fn welcome(&mut self) {
        let (servers, ca_der) = (self.core.servers(), self.core.ca_der());
        if self.told.as_ref() == Some(&(servers.clone(), ca_der.clone())) {
            return;
        }
        let welcome = Welcome {
            node_id: self.node.to_string(),
            session_id: self.handle.id.to_string(),
            heartbeat_interval_ms: self.core.heartbeat_ms(),
            servers: servers.clone(),
            ca_der: ca_der.clone(),
        };
        if self.handle.try_send(Msg::Welcome(welcome)) {
            self.told = Some((servers, ca_der));
        }
    }

    async fn write_opened(&self, hello: &Hello, facts: &HostFacts) -> Result<Fence> {
        let core = &self.core;
        let nodes = core.context.ports.nodes.get()?.clone();
        let session = NodeSession {
            id: self.handle.id.clone(),
            replica: core.context.store.replica().0,
            agent_incarnation: hello.agent_incarnation.clone(),
        };
        let committed = core
            .context
            .commit(|tx| {
                if let (Some(certificates), Some(leaf)) =
                    (core.context.ports.certificates.filled(), &self.leaf)
                {
                    certificates.node_seen(tx, &self.node, leaf)?;
                }
                nodes.session_opened(tx, &self.node, &session, facts, &hello.agent_version)
            })
            .await?;
        let view = core.context.store.at_revision(committed.revision).await?;
        let epoch = view.formation().map_or(0, |formation| formation.epoch);
        // Within one life of the cluster revisions alone have the order.
        Ok(Fence { epoch, term: 0, index: committed.revision })
    }

    async fn serve(&mut self, hello: Hello, mut has: Has) -> End {
        let rt = self.core.context.rt.clone();
        let silence_max = self.core.options.heartbeat.saturating_mul(3);
        let mut reports = Reports::new(Handover::new(hello.takes_commands, self.fence));
        if let Some(status) = hello.status {
            reports.take_status(convert::status_from_wire(status));
        }
        let mut spec: Option<Box<NodeSpecRecord>> = None;
        let (mut heard, mut checked, mut asked) = (rt.now(), rt.now(), rt.now());
        // The first look at the node and its spec.
        self.handle.changed.notify_one();
        loop {
            if rt.now().saturating_sub(heard) >= silence_max {
                return End::Silent;
            }
            if rt.now().saturating_sub(checked) >= RECHECK {
                checked = rt.now();
                reports.again();
            }
            if rt.now().saturating_sub(asked) >= silence_max {
                asked = rt.now();
                self.welcome();
            }
            self.start_writing(&mut reports);
            let wake = silence_max.saturating_sub(rt.now().saturating_sub(heard)).min(RECHECK);
            tokio::select! {
                biased;
                () = self.handle.end.raised() => return self.asked(),
                () = self.handle.changed.notified() => match self.look(&has) {
                    Err(end) => return end,
                    Ok(found) => {
                        reports.again();
                        spec = found.map(Box::new);
                    }
                },
                Ok(permit) = self.handle.down().reserve(), if spec.is_some() || !reports.secrets.is_empty() => {
                    if let Some(secret) = self.secret(&mut reports.secrets) {
                        permit.send(secret);
                    } else if let Some(record) = spec.take() {
                        permit.send(Down { msg: Some(Msg::NodeSpec(convert::spec_to_wire(&record))) });
                        self.core.metrics.specs_sent.inc();
                        tracing::debug!(node = %self.node, generation = record.generation, fence = %record.fence, "node spec sent");
                        has = Has::of(&record);
                    }
                },
                written = reports.commands.written() => reports.commands.after(&self.handle, written),
                written = maybe(&mut reports.writing) => self.written(&mut reports, written),
                up = self.inbound.next() => match up {
                    Some(Ok(up)) => {
                        heard = rt.now();
                        self.received(up, &mut reports);
                    }
                    None | Some(Err(_)) => return End::Gone,
                },
                () = rt.sleep(wake) => {}
            }
        }
    }

    fn asked(&self) -> End {
        match self.handle.ending() {
            Some(Ending::Draining) => End::Draining,
            Some(Ending::Replaced) | None => End::Replaced,
        }
    }

    /// Looks at the node in this replica's view: whether it still has this session, and whether
    /// its spec is newer than what the agent has.
    fn look(&self, has: &Has) -> Result<Option<NodeSpecRecord>, End> {
        let view = self.core.context.store.view();
        match self.authenticate(&view) {
            Ok(()) => {}
            Err(error) if error.code == Code::Internal || error.code == Code::InvalidConfig => {
                tracing::error!(node = %self.node, error = %chain(&error), "a node cannot be read");
                return Ok(None);
            }
            Err(_) => return Err(End::Revoked),
        }
        if !self.core.holds(&view, &self.node, &self.handle.id) {
            return Err(End::Replaced);
        }
        match NODE_SPECS.get(&view, &self.node.key()) {
            Ok(record) => Ok(record.map(|r| r.value).filter(|record| has.lacks(record))),
            Err(error) => {
                tracing::error!(node = %self.node, error = %chain(&error), "a node spec cannot be read");
                Ok(None)
            }
        }
    }

    /// The next secret that the agent waits for; none for a node whose session this is no longer.
    fn secret(&self, wanted: &mut Wanted) -> Option<Down> {
        let view = self.core.context.store.view();
        let asked = wanted.next()?;
        let is_ours = self.core.holds(&view, &self.node, &self.handle.id);
        if !is_ours || self.authenticate(&view).is_err() {
            return None;
        }
        let secret = secrets::answer(&self.core.context.ports, &view, &self.node, asked);
        Some(Down { msg: Some(Msg::Secret(secret)) })
    }

    fn authenticate(&self, view: &View) -> Result<()> {
        self.core.authenticate(view, &self.node, &self.key)
    }

    fn received(&self, up: Up, reports: &mut Reports) {
        match up.msg {
            Some(UpMsg::Heartbeat(beat)) => {
                self.handle.try_send(Msg::HeartbeatAck(HeartbeatAck { seq: beat.seq }));
            }
            Some(UpMsg::Inventory(facts)) => {
                reports.facts = Some(convert::facts_from_wire(facts));
            }
            Some(UpMsg::Status(status)) => reports.take_status(convert::status_from_wire(status)),
            Some(UpMsg::CommandUpdate(update)) => reports.commands.received(&self.handle, update),
            Some(UpMsg::SecretsWanted(wanted)) => reports.secrets.ask(wanted),
            Some(UpMsg::LogChunk(chunk)) => self.handle.log_chunk(chunk),
            Some(UpMsg::SpecRefused(refused)) => {
                tracing::warn!(
                    node = %self.node,
                    code = refused.code,
                    generation = refused.generation,
                    highest_generation = refused.highest_generation,
                    fence = %convert::fence_from_wire(refused.fence.as_ref()),
                    highest_fence = %convert::fence_from_wire(refused.highest_fence.as_ref()),
                    message = refused.message,
                    "an agent refused its node spec"
                );
            }
            // A second hello says nothing new; a message without a case is of a newer agent.
            Some(UpMsg::Hello(_)) | None => {}
        }
    }

    /// Starts to write what waits. While it is written, newer reports take the place of older ones.
    fn start_writing(&self, reports: &mut Reports) {
        reports.commands.go_on(&self.core, &self.handle);
        if reports.writing.is_some() || (reports.facts.is_none() && reports.status.is_none()) {
            return;
        }
        let (facts, status) = (reports.facts.take(), reports.status.take());
        let (core, handle) = (self.core.clone(), self.handle.clone());
        let wait = reports.backoff;
        reports.writing = Some(Box::pin(async move {
            if let Some(wait) = wait {
                core.context.rt.sleep(jittered(&*core.context.rt, wait)).await;
            }
            let ended = take_in(&core, &handle, facts.as_ref(), status.as_ref()).await;
            Written { ended, facts, status }
        }));
    }

    fn written(&self, reports: &mut Reports, written: Written) {
        reports.writing = None;
        match written.ended {
            Ok(changed) => {
                reports.backoff = None;
                if changed {
                    self.core.metrics.statuses_committed.inc();
                }
            }
            Err(error) => {
                let error_chain = chain(&error);
                tracing::warn!(node = %self.node, error = %error_chain, "a report could not be written");
                if !error.retryable {
                    return;
                }
                let longer = reports.backoff.map_or(BACKOFF_FIRST, |b| b.saturating_mul(2));
                reports.backoff = Some(longer.min(BACKOFF_MAX));
                reports.facts = reports.facts.take().or(written.facts);
                reports.status = reports.status.take().or(written.status);
            }
        }
    }

    /// Takes the session out of state if it is there. What it cannot do for lack of a quorum is
    /// left to [`Core::sweep`], and so is an opening whose fate was unknown and is decided later.
    async fn close(&self) {
        let mut wait = BACKOFF_FIRST;
        for _ in 0..CLOSE_TRIES {
            match self.try_close().await {
                Ok(()) => return,
                Err(error) if error.retryable => {
                    let rt = &self.core.context.rt;
                    rt.sleep(jittered(&**rt, wait)).await;
                    wait = wait.saturating_mul(2).min(BACKOFF_MAX);
                }
                Err(error) => {
                    tracing::error!(node = %self.node, error = %chain(&error), "a session could not be closed");
                    return;
                }
            }
        }
        tracing::warn!(node = %self.node, "a session could not be closed yet: no quorum for too long");
    }

    /// This replica's view may not have the opening yet when it was given up, so another is taken.
    async fn try_close(&self) -> Result<()> {
        let view = self.core.context.store.linearizable().await?;
        let session = (self.node.clone(), self.handle.id.clone());
        self.core.close_sessions(view, &[session]).await
    }
}

impl Has {
    fn of(record: &NodeSpecRecord) -> Self {
        Self {
            generation: record.generation,
            fence: record.fence,
            hash: hex::decode(&record.hash).unwrap_or_default(),
        }
    }
}

impl Reports {
    fn new(commands: Handover) -> Self {
        let secrets = Wanted::default();
        Self {
            commands,
            secrets,
            facts: None,
            status: None,
            newest: None,
            writing: None,
            backoff: None,
        }
    }

    fn take_status(&mut self, status: NodeStatus) {
        self.newest = Some(status.clone());
        self.status = Some(status);
    }

    /// Looks at the newest status again: what it is about may have changed.
    fn again(&mut self) {
        self.commands.again();
        if self.status.is_none() {
            self.status.clone_from(&self.newest);
        }
    }
}

async fn maybe<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Takes reports into state, in one transaction; says whether they changed anything. `GATE-2`.
async fn take_in(
    core: &Core,
    session: &SessionHandle,
    facts: Option<&HostFacts>,
    status: Option<&NodeStatus>,
) -> Result<bool> {
    let context = &core.context;
    let nodes = context.ports.nodes.get()?.clone();
    let build = |tx: &mut Tx| -> Result<()> {
        // A report of a session that the node no longer has is old news.
        if !nodes.holds_session(tx, &session.node, &session.id)? {
            return Ok(());
        }
        if let Some(facts) = facts {
            nodes.facts_changed(tx, &session.node, facts)?;
        }
        if let Some(status) = status {
            for handler in &core.handlers {
                (handler.handle)(context, tx, &session.node, status)?;
            }
        }
        context.check_tables(tx)
    };
    let view = context.store.view();
    let mut trial = Tx::new(view.clone());
    build(&mut trial)?;
    if trial.is_empty() {
        return Ok(false);
    }
    commit::run(&*context.store, &*context.rt, view, build).await.map_err(Error::from)?;
    Ok(true)
}
