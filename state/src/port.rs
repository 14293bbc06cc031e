//! The ports: the only doors between Palisade's rooms and the world outside them.
//!
//! `Store` is the only way to state; `Runtime` is time, randomness and tasks. Production
//! implements them over Raft and tokio, tests and the simulator in memory. Nothing in this file
//! does anything by itself.

use std::{fmt, sync::Arc, time::Duration};

use futures::future::BoxFuture;

use crate::{
    change::Watch,
    command::{Command, Outcome},
    view::View,
};

/// A shared handle to the runtime port.
pub type Rt = Arc<dyn Runtime>;

/// A shared handle to the state port.
pub type SharedStore = Arc<dyn Store>;

/// Time, randomness and tasks.
pub trait Runtime: Send + Sync + 'static {
    /// Monotonic time since some fixed moment of this process; never goes back.
    fn now(&self) -> Duration;

    /// Wall-clock milliseconds since the Unix epoch; for people, never for decisions.
    fn wall_ms(&self) -> u64;

    /// Ends after `duration` of monotonic time.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Runs a task until it ends. The task's owner keeps a way to stop it.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);

    /// A random number, from the seed in simulation and from the system elsewhere.
    fn random(&self) -> u64;

    /// A named place at which the simulator may end this process; does nothing elsewhere.
    fn crash_point(&self, _name: &'static str) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The same for code that does not wait: the simulator ends the process as soon as the running task pauses, and
    /// what it did after this place is lost.
    fn reach(&self, _point: &'static str) {}

    /// Adds an event to the simulator's trace hash; does nothing elsewhere.
    fn trace(&self, _event: &[u64]) {}
}

/// Runs `work` for at most `limit`; `None` when the time ran out first.
pub async fn timeout<T: Send>(
    rt: &dyn Runtime,
    limit: Duration,
    work: impl Future<Output = T> + Send,
) -> Option<T> {
    let work = std::pin::pin!(work);
    match futures::future::select(work, rt.sleep(limit)).await {
        futures::future::Either::Left((value, _)) => Some(value),
        futures::future::Either::Right(((), _)) => None,
    }
}

/// A share of `base` between one half and three halves of it, for back-off that does not herd.
#[must_use]
pub fn jittered(rt: &dyn Runtime, base: Duration) -> Duration {
    let permille = u32::try_from(500 + rt.random() % 1001).unwrap_or(1000);
    base.saturating_mul(permille) / 1000
}

/// Why the store could not do what was asked. The transaction's own refusals are in
/// [`Outcome`]; these are about reaching a quorum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No leader with a quorum within the deadline; nothing was proposed, or it is certain that
    /// nothing was applied.
    #[error("no quorum of replicas answered within {waited_ms} ms")]
    NoQuorum {
        /// How long the caller waited.
        waited_ms: u64,
    },
    /// The proposal was made and its fate is unknown: it may or may not be applied later. Only
    /// safe to repeat with an idempotency key or a version guard.
    #[error("the outcome is unknown: leadership was lost while the write was in flight")]
    Unknown,
    /// The disk of the leader is nearly full; reads go on.
    #[error("the leader's disk is nearly full: {0}")]
    NoSpace(String),
    /// What was proposed is over a limit.
    #[error("too large: {0}")]
    TooLarge(String),
    /// What was proposed breaks a rule and would be refused everywhere: a defect of its builder.
    #[error("the command breaks a rule: {0}")]
    Invalid(String),
    /// There is no such revision yet.
    #[error("revision {revision} is not reached yet; the cluster is at {current}")]
    NotReached {
        /// What was asked for.
        revision: u64,
        /// What is committed.
        current: u64,
    },
    /// The cluster has it, and this replica has not caught up with it.
    #[error(
        "this replica is behind: it has applied up to {applied} and did not reach {revision} within {waited_ms} ms"
    )]
    Behind {
        /// What was asked for.
        revision: u64,
        /// Where the replica is.
        applied: u64,
        /// How long it was waited for.
        waited_ms: u64,
    },
    /// This replica is stopping or was removed from the cluster.
    #[error("this replica is not serving: {0}")]
    Unavailable(String),
}

/// The way to state.
pub trait Store: Send + Sync + 'static {
    /// This replica's newest view, at once; may be behind the leader.
    fn view(&self) -> View;

    /// A view that contains every write acknowledged before the call (ReadIndex).
    fn linearizable(&self) -> BoxFuture<'_, Result<View, StoreError>>;

    /// Waits until this replica has applied `revision`.
    fn at_revision(&self, revision: u64) -> BoxFuture<'_, Result<View, StoreError>>;

    /// Proposes a command, here or through the leader, and answers what apply answered.
    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Outcome, StoreError>>;

    /// The same with less patience than the store's own: once `limit` has passed, it is answered that there is no quorum, if
    /// it is certain that nothing was applied. A store that has no patience of its own answers as [`Store::propose`] does.
    fn propose_within(
        &self,
        command: Command,
        limit: Duration,
    ) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        let _ = limit;
        self.propose(command)
    }

    /// A stream of change sets, one for each published batch, from now on.
    fn watch(&self) -> Watch;

    /// A stream of change sets with everything after `revision`; it begins with
    /// [`WatchEvent::Reset`](crate::change::WatchEvent::Reset) when that is no longer remembered.
    fn watch_from(&self, revision: u64) -> Watch;

    /// This replica's id.
    fn replica(&self) -> ReplicaId;

    /// What this replica knows of its cluster, for people.
    fn status(&self) -> ClusterStatus;
}

/// A control-plane member. Taken from a committed log index (or the formation of the cluster);
/// never reused.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct ReplicaId(pub u64);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One member as [`ClusterStatus`] shows it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Its id.
    pub id: ReplicaId,
    /// Where its peers reach it, `host:port`.
    pub peer_addr: String,
    /// Where operators and agents reach it, `host:port`.
    pub api_addr: String,
    /// Whether it votes, or only follows.
    pub voter: bool,
    /// Whether it leads, as far as the answering replica knows.
    pub leader: bool,
    /// The last index it acknowledged; known to the leader only.
    pub matched_index: Option<u64>,
    /// How many entries it is behind the leader's last; known to the leader only.
    pub lag: Option<u64>,
    /// Milliseconds since it last answered the leader; known to the leader only.
    pub last_ack_ms: Option<u64>,
    /// Whether it takes no leadership, no leases and no agents.
    #[serde(default)]
    pub drained: bool,
    /// For a replica that does not vote yet: how far it is with joining; known to the leader only.
    #[serde(default)]
    pub phase: Option<String>,
    /// The release that it runs, as it last reported.
    #[serde(default)]
    pub version: Option<String>,
    /// The newest format that it reads, as it last reported.
    #[serde(default)]
    pub format_max: Option<u32>,
}

/// A disk on which less is free than must be: its replica takes no writes while it leads.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shortage {
    /// Whose disk it is.
    pub replica: ReplicaId,
    /// What is on it.
    pub path: String,
    /// What is free.
    pub free_bytes: u64,
    /// What must be free.
    pub needed_bytes: u64,
}

impl Shortage {
    /// The same without where: for whoever need not know how the machine is laid out.
    #[must_use]
    pub fn in_brief(&self) -> String {
        let Self { replica, free_bytes, needed_bytes, .. } = self;
        format!("replica {replica} has {free_bytes} bytes free, and {needed_bytes} must be")
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { replica, path, free_bytes, needed_bytes } = self;
        write!(
            f,
            "replica {replica} has {free_bytes} bytes ({} MiB) free under {path}, and {needed_bytes} ({} MiB) must be",
            free_bytes >> 20,
            needed_bytes >> 20
        )
    }
}

/// A replica that may join and has not come yet.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingJoin {
    /// The id that it was given.
    pub id: ReplicaId,
    /// Where its peers will reach it, `host:port`.
    pub peer_addr: String,
    /// Where operators and agents will reach it, `host:port`.
    pub api_addr: String,
    /// The member whose place it takes.
    pub replaces: Option<ReplicaId>,
    /// Milliseconds since it was enrolled, on the cluster's clock.
    pub for_ms: u64,
}

/// A change of the members that was begun and is not over: it waits for those of them that do not answer.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingChange {
    /// Who votes until it is over; empty when that is decided.
    pub from: Vec<ReplicaId>,
    /// Who votes then.
    pub to: Vec<ReplicaId>,
}

/// What a replica knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The cluster's id: one life of the replica set.
    pub cluster: String,
    /// The lineage, which survives recovery and restore.
    pub lineage: String,
    /// Raised by each restore or recovery.
    pub epoch: u64,
    /// The answering replica.
    pub replica: ReplicaId,
    /// The leader, if one is known.
    pub leader: Option<ReplicaId>,
    /// The Raft term.
    pub term: u64,
    /// The last index in the answering replica's log.
    pub last_index: u64,
    /// The last index known committed.
    pub committed_index: u64,
    /// The last index applied.
    pub applied_index: u64,
    /// The index of the newest snapshot, if one was taken.
    pub snapshot_index: Option<u64>,
    /// `leader`, `follower`, `candidate`, `learner` or `stopped`.
    pub state: String,
    /// All members by id.
    pub members: Vec<MemberStatus>,
    /// Why this replica does not serve, if it does not.
    pub fault: Option<String>,
    /// The format in which entries are written: every member reads it.
    #[serde(default)]
    pub format: u32,
    /// What an operator should know of the answering replica although it serves.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// What the answering replica's disk lacks, if it is nearly full.
    #[serde(default)]
    pub no_space: Option<Shortage>,
    /// Who may join and has not come yet, by id.
    #[serde(default)]
    pub pending: Vec<PendingJoin>,
    /// A change of the members that is not over.
    #[serde(default)]
    pub change: Option<PendingChange>,
}
