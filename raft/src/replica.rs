//! One replica: its parts put together, and the `Store` that it is to the rest of Palisade.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use openraft::{
    AsyncRuntime, ServerState,
    async_runtime::{Instant, WatchReceiver},
};
use palisade_state::{
    Command, Outcome, Published, ReplicaId, Rt, Store, StoreError, View, Watch,
    command::{Kind, Tick},
    port::{ClusterStatus, MemberStatus, timeout},
    roster,
};
use tokio::sync::oneshot;

use crate::{
    Identity, disk_watch,
    fault::Fault,
    forward::Forwarder,
    handover,
    history::{self, History},
    leadership::Leadership,
    machine::Shared,
    membership::Asking,
    metrics::Metrics,
    options::{FormError, Member, Tuning, nodes},
    peer::{PeerApi, PeerTls, TlsError, TlsState},
    progress::Progress,
    proposer::Proposer,
    reads::Reads,
    refusal::Refusal,
    standing,
    stop::Stop,
    sync_times::SyncTimes,
    types::{Raft, TokioExecutor},
    wal::{Handle, Running},
};

/// How long to wait before asking again when nothing tells of a change.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a replica that stops waits for its history.
const HISTORY_END_LIMIT: Duration = Duration::from_secs(5);

/// One replica of the control plane.
pub struct Replica<R: AsyncRuntime = TokioExecutor> {
    pub(crate) identity: Arc<Identity>,
    pub(crate) rt: Rt,
    pub(crate) tuning: Tuning,
    pub(crate) raft: Raft<R>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) published: Arc<Published>,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) proposer: Proposer,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) reads: Reads,
    pub(crate) asking: Arc<Asking<R>>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) wal: Handle,
    pub(crate) api: Arc<dyn PeerApi>,
    pub(crate) tls: Option<Arc<TlsState>>,
    pub(crate) listening: Option<SocketAddr>,
    pub(crate) end: Arc<Mutex<End>>,
    pub(crate) history: History,
    pub(crate) times: Arc<SyncTimes>,
    pub(crate) revoked: std::collections::BTreeSet<String>,
}

/// What is taken away when the replica ends.
#[derive(Default)]
pub(crate) struct End {
    pub(crate) serving: Option<oneshot::Sender<()>>,
    pub(crate) wal: Option<Running>,
    pub(crate) history: Option<history::Running>,
}

/// Whether proposing a command twice does no more than proposing it once.
fn is_repeatable(command: &Command) -> bool {
    match &command.kind {
        Some(Kind::Txn(txn)) => txn.idempotency.is_some(),
        Some(
            Kind::WorkerBeat(_)
            | Kind::LeaseRelease(_)
            | Kind::Tick(_)
            | Kind::Form(_)
            | Kind::Report(_)
            | Kind::RaiseFormat(_)
            | Kind::Trim(_)
            | Kind::ForgetReplica(_),
        ) => true,
        None => false,
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl<R: AsyncRuntime> Replica<R> {
    pub(crate) fn fault_of(&self) -> &Fault {
        &self.shared.fault
    }

    fn progress(&self) -> &Progress {
        &self.shared.progress
    }

    /// Why this replica serves no more.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        self.fault_of().reason()
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        self.shared.metrics.clone()
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Where it listens for peers; the port is real when 0 was asked for.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.listening
    }

    /// What peers ask; a simulation carries their calls here.
    #[must_use]
    pub fn peer_api(&self) -> Arc<dyn PeerApi> {
        self.api.clone()
    }

    /// The last entry that left the log because a snapshot covers it. Entries that are being sent to a peer stay: for
    /// a peer that is gone, until the next attempt to reach it has failed.
    #[must_use]
    pub fn purged_index(&self) -> Option<u64> {
        self.raft.metrics().borrow_watched().purged.map(|id| id.index)
    }

    /// Whether this replica leads, as far as it knows.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leadership.leader() == Some(self.identity.replica.0) && self.check_serving().is_ok()
    }

    /// New connections use this TLS material from now on.
    ///
    /// # Errors
    /// It cannot be used; the old one stays.
    pub fn replace_tls(&self, tls: PeerTls) -> Result<(), TlsError> {
        match &self.tls {
            Some(state) => state.replace(self.identity.replica.0, tls)?,
            None => return Ok(()),
        }
        self.asking.members.peers.addresses().forget_refusals();
        Ok(())
    }

    /// Its history, to be read.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What an operator should know although it serves.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.history.status().findings;
        warnings.extend(disk_watch::warning(&self.times, &self.tuning));
        let left_out = self.history.left_out();
        if left_out > 0 {
            warnings.push(format!(
                "history could not keep up {left_out} times: what records were before those changes is not known here"
            ));
        }
        warnings
    }

    /// Takes a snapshot soon, whatever the policy says.
    ///
    /// # Errors
    /// The replica has stopped.
    pub async fn take_snapshot(&self) -> Result<(), StoreError> {
        let triggered = self.raft.trigger().snapshot().await;
        triggered.map_err(|fatal| StoreError::Unavailable(fatal.to_string()))
    }

    /// Makes a cluster of `members`, of which this replica is one, and waits until it is formed. Every member may do
    /// this with the same list, as often as it likes.
    ///
    /// # Errors
    /// See [`FormError`].
    pub async fn form(&self, members: &[Member]) -> Result<(), FormError> {
        let me = self.identity.replica;
        if !members.iter().any(|member| member.id == me) {
            return Err(FormError::NotAMember(me));
        }
        for member in members {
            self.asking.members.peers.addresses().hint(member.id.0, &member.peer_addr);
        }
        self.stand_back(members).await;
        use openraft::errors::{InitializeError, RaftError};
        match self.raft.initialize(nodes(members)).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(FormError::Refused(error.to_string())),
        }
        self.join().await
    }

    /// Waits until this replica has what the cluster had when it was asked; it must be one of its members by now, or
    /// become one.
    ///
    /// # Errors
    /// See [`FormError`].
    pub async fn join(&self) -> Result<(), FormError> {
        // The leader makes the formation its first entry, before it lets the tick through.
        let ticked = self.propose_by(Kind::Tick(Tick {}).into(), self.tuning.patience * 6).await;
        // One that was formed before serves reads on a full disk.
        if matches!(ticked, Err(StoreError::NoSpace(_))) && self.read().await?.formation().is_some()
        {
            tracing::warn!(
                "the leader's disk is nearly full: writes are refused until there is room"
            );
            return Ok(());
        }
        let outcome = ticked?;
        self.caught_up(outcome.revision, self.tuning.patience).await?;
        Ok(())
    }

    /// Lets the members with lower ids begin, so that not all stand for the first election at once.
    async fn stand_back(&self, members: &[Member]) {
        let rank = members.iter().filter(|member| member.id < self.identity.replica).count();
        let until = self.rt.now() + self.tuning.election_min * u32::try_from(rank).unwrap_or(0);
        while self.rt.now() < until && !self.raft.is_initialized().await.unwrap_or(true) {
            self.rt.sleep(PAUSE).await;
        }
    }

    pub(crate) fn check_serving(&self) -> Result<(), StoreError> {
        if let Some(reason) = self.fault() {
            return Err(StoreError::Unavailable(reason));
        }
        if self.stop.is_set() {
            return Err(StoreError::Unavailable("it is stopping".to_owned()));
        }
        Ok(())
    }

    /// Tries once, here or with the leader.
    async fn try_propose(&self, command: Command) -> Result<Outcome, Refusal> {
        let seen = self.leadership.seen();
        match seen.leader {
            None => Err(Refusal::NotLeader),
            Some(leader) if leader == self.identity.replica.0 => {
                self.proposer.propose(command).await
            }
            Some(leader) => {
                let node = seen.node(leader).ok_or(Refusal::NotLeader)?;
                self.forwarder.forward(leader, node, command).await
            }
        }
    }

    /// Waits for another leader, or a little.
    async fn pause(&self) {
        let seen = self.leadership.seen();
        let changed = self.leadership.changed_from(&seen);
        let _ = timeout(self.rt.as_ref(), PAUSE, changed).await;
    }

    async fn propose_by(
        &self,
        command: Command,
        patience: Duration,
    ) -> Result<Outcome, StoreError> {
        let repeatable = is_repeatable(&command);
        let begun = self.rt.now();
        let mut unknown = false;
        loop {
            // Once one attempt may have been applied, no later refusal says that nothing was.
            let known = |error: StoreError| if unknown { StoreError::Unknown } else { error };
            self.check_serving().map_err(known)?;
            let waited = self.rt.now().saturating_sub(begun);
            if waited >= patience {
                return Err(known(StoreError::NoQuorum { waited_ms: millis(waited) }));
            }
            let attempt = self.try_propose(command.clone());
            let answer = timeout(self.rt.as_ref(), patience - waited, attempt).await;
            match answer.unwrap_or(Err(Refusal::Unknown)) {
                Ok(outcome) => {
                    // The caller finds what it wrote in this replica's view, if that is soon.
                    let _ = self.caught_up(outcome.revision, self.tuning.heartbeat * 3).await;
                    return Ok(outcome);
                }
                Err(Refusal::NotLeader | Refusal::NoQuorum(_)) => self.pause().await,
                Err(Refusal::Unknown) if repeatable => {
                    unknown = true;
                    self.pause().await;
                }
                Err(refusal) => return Err(known(refusal.into_store_error(millis(waited)))),
            }
        }
    }

    async fn read(&self) -> Result<View, StoreError> {
        let begun = self.rt.now();
        let patience = self.tuning.patience;
        loop {
            self.check_serving()?;
            let left = patience.saturating_sub(self.rt.now().saturating_sub(begun));
            if left.is_zero() {
                return Err(StoreError::NoQuorum { waited_ms: millis(patience) });
            }
            match timeout(self.rt.as_ref(), left, self.reads.index()).await {
                Some(Ok(index)) => return self.caught_up(index, left).await,
                None | Some(Err(Refusal::NotLeader | Refusal::Unknown)) => self.pause().await,
                Some(Err(refusal)) => return Err(refusal.into_store_error(millis(patience))),
            }
        }
    }

    fn members(&self) -> Vec<MemberStatus> {
        let shown = self.raft.metrics().borrow_watched().clone();
        let membership = shown.membership_config.membership();
        let voters: Vec<u64> = membership.voter_ids().collect();
        let matched = shown.replication.unwrap_or_default();
        let acked = shown.heartbeat.unwrap_or_default();
        let view = self.published.view();
        let led = self.leadership.led_since(shown.id, shown.current_term);
        let led = led.map(|since| self.rt.now().saturating_sub(since));
        let member = |(id, node): (&u64, &crate::types::Node)| {
            let leader = shown.current_leader == Some(*id);
            let is_me = *id == shown.id;
            let matched_index = matched.get(id).copied().flatten().map(|at| at.index);
            let matched_index = if leader && is_me { shown.last_log_index } else { matched_index };
            let ack = acked.get(id).copied().flatten().map(|at| at.into_inner().elapsed());
            // One that has never answered this leader has been silent since it leads, at least.
            let silent = ack.or(led).filter(|_| !is_me);
            MemberStatus {
                id: ReplicaId(*id),
                peer_addr: node.peer_addr.clone(),
                api_addr: node.api_addr.clone(),
                voter: voters.contains(id),
                leader,
                matched_index,
                lag: matched_index
                    .map(|matched| shown.last_log_index.unwrap_or(0).saturating_sub(matched)),
                last_ack_ms: silent.map(millis),
                drained: roster::is_drained(&view, ReplicaId(*id)),
                phase: self.asking.members.phase(*id),
                version: view.replica(*id).map(|row| row.version.clone()),
                format_max: view.replica(*id).map(|row| row.format_max),
            }
        };
        membership.nodes().map(member).collect::<Vec<_>>()
    }

    fn state_name(state: ServerState) -> &'static str {
        match state {
            ServerState::Leader => "leader",
            ServerState::Follower => "follower",
            ServerState::Candidate => "candidate",
            ServerState::Learner => "learner",
            ServerState::Shutdown => "stopped",
        }
    }

    /// Stops in good order: hands leadership over if it has it, ends its tasks, and makes the log durable.
    pub async fn shutdown(&self) {
        self.hand_over().await;
        self.stop.set();
        let (serving, wal, history) = {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            (end.serving.take(), end.wal.take(), end.history.take())
        };
        drop(serving);
        if self.raft.shutdown().await.is_err() {
            tracing::error!("consensus panicked while it stopped");
        }
        self.progress().close();
        self.published.close();
        self.history.close();
        if let Some(history) = history
            && timeout(self.rt.as_ref(), HISTORY_END_LIMIT, history.ended()).await.is_none()
        {
            tracing::warn!("history was not waited for: what it has not written is a gap");
        }
        self.wal.close();
        if let Some(wal) = wal
            && self.shared.snapshots.disk.run("wal-stop", move || wal.stop()).await.is_err()
        {
            tracing::warn!("the log was not waited for");
        }
        tracing::info!(replica = %self.identity.replica, "this replica has stopped");
    }

    async fn hand_over(&self) {
        let me = self.identity.replica.0;
        let view = self.published.view();
        let answered = self.tuning.election_max;
        let Some(successor) = handover::successor(&self.raft, &view, answered) else {
            return;
        };
        tracing::info!(successor, "handing leadership over");
        if self.raft.trigger().transfer_leader(successor).await.is_ok() {
            let taken = self.leadership.taken_by_other(me);
            if timeout(self.rt.as_ref(), self.tuning.handover, taken).await.is_none() {
                tracing::warn!(successor, "nobody took leadership over in time");
            }
        }
    }
}

impl<R: AsyncRuntime> Drop for Replica<R> {
    fn drop(&mut self) {
        if self.stop.is_set() {
            return;
        }
        self.stop.set();
        self.progress().close();
        self.published.close();
        let raft = self.raft.clone();
        self.rt.spawn(
            "shutdown",
            Box::pin(async move {
                let _ = raft.shutdown().await;
            }),
        );
    }
}

impl<R: AsyncRuntime> Store for Replica<R> {
    fn view(&self) -> View {
        self.published.view()
    }

    fn linearizable(&self) -> BoxFuture<'_, Result<View, StoreError>> {
        Box::pin(self.read())
    }

    fn at_revision(&self, revision: u64) -> BoxFuture<'_, Result<View, StoreError>> {
        Box::pin(self.view_at(revision))
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        Box::pin(self.propose_by(command, self.tuning.patience))
    }

    fn propose_within(
        &self,
        command: Command,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        Box::pin(self.propose_by(command, limit.min(self.tuning.patience)))
    }

    fn watch(&self) -> Watch {
        self.published.watch()
    }

    fn watch_from(&self, revision: u64) -> Watch {
        self.published.watch_from(revision)
    }

    fn replica(&self) -> ReplicaId {
        self.identity.replica
    }

    fn status(&self) -> ClusterStatus {
        let shown = self.raft.metrics().borrow_watched().clone();
        let pending = standing::pending(&self.published.view(), &shown);
        let change = standing::change(&shown);
        ClusterStatus {
            cluster: self.identity.cluster.clone(),
            lineage: self.identity.lineage.clone(),
            epoch: self.identity.epoch,
            replica: self.identity.replica,
            leader: shown.current_leader.map(ReplicaId),
            term: shown.current_term,
            last_index: shown.last_log_index.unwrap_or(0),
            committed_index: shown.local_committed.map_or(0, |id| id.index),
            applied_index: self.progress().applied(),
            snapshot_index: shown.snapshot.map(|id| id.index),
            state: match self.check_serving() {
                Ok(()) => Self::state_name(shown.state).to_owned(),
                Err(_) => "stopped".to_owned(),
            },
            members: self.members(),
            fault: self.fault(),
            format: self.published.view().format(),
            warnings: self.warnings(),
            no_space: self.wal.shortage(self.identity.replica.0),
            pending,
            change,
        }
    }
}
