//! Linearizable reads: many readers share one ReadIndex round.
//!
//! # Invariants
//! - `READ-1` A reader joins only a round that begins after it asked. No lease is ever trusted.

use std::{sync::Arc, time::Duration};

use futures::future::{Either, select};
use openraft::{AsyncRuntime, ReadPolicy, async_runtime::WatchReceiver};
use palisade_state::{
    Rt,
    planted::{self, Defect},
    port::timeout,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    leadership::Leadership,
    metrics::Metrics,
    peer::{Purpose, wire},
    peers::Peers,
    refusal::Refusal,
    types::Raft,
};

const QUEUE: usize = 16 * 1024;
const ROUND_MAX: usize = 8 * 1024;
const ROUND_LIMIT: Duration = Duration::from_secs(1);

type Answer = oneshot::Sender<Result<u64, Refusal>>;

/// The way to the rounds.
#[derive(Clone)]
pub(crate) struct Reads(mpsc::Sender<Answer>);

/// Those who wait for a round.
pub(crate) struct Readers(mpsc::Receiver<Answer>);

impl Reads {
    pub(crate) fn new() -> (Self, Readers) {
        let (tx, rx) = mpsc::channel(QUEUE);
        (Self(tx), Readers(rx))
    }

    /// The index up to which a view must be applied to contain everything acknowledged before now.
    pub(crate) async fn index(&self) -> Result<u64, Refusal> {
        let (answer, answered) = oneshot::channel();
        let stopping = || Refusal::Unavailable("it is stopping".to_owned());
        self.0.send(answer).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())?
    }
}

/// The rounds' own.
pub(crate) struct Rounds<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) rt: Rt,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) me: u64,
}

impl<R: AsyncRuntime> Rounds<R> {
    /// Runs rounds until nobody can ask any more.
    pub(crate) async fn run(self, mut queue: Readers) {
        let mut readers = Vec::new();
        while queue.0.recv_many(&mut readers, ROUND_MAX).await > 0 {
            readers.retain(|reader| !reader.is_closed());
            if readers.is_empty() {
                continue;
            }
            self.metrics.read_rounds.inc();
            self.metrics.reads.inc_by(readers.len() as u64);
            let index = self.round().await;
            for reader in readers.drain(..) {
                let _ = reader.send(index.clone());
            }
        }
    }

    async fn round(&self) -> Result<u64, Refusal> {
        let seen = self.leadership.seen();
        let round = async {
            let leader = seen.leader.ok_or(Refusal::NotLeader)?;
            if leader == self.me { self.as_leader().await } else { self.from(leader, &seen).await }
        };
        let round = timeout(self.rt.as_ref(), ROUND_LIMIT, round);
        let (round, changed) =
            (std::pin::pin!(round), std::pin::pin!(self.leadership.changed_from(&seen)));
        match select(round, changed).await {
            Either::Left((answer, _)) => answer.unwrap_or(Err(Refusal::NotLeader)),
            Either::Right(_) => Err(Refusal::NotLeader),
        }
    }

    /// One round as leader.
    async fn as_leader(&self) -> Result<u64, Refusal> {
        if planted::is(Defect::StaleRead) {
            let shown = self.raft.metrics().borrow_watched().last_applied;
            return Ok(shown.map_or(0, |at| at.index));
        }
        match self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(linearizer) => Ok(linearizer.read_log_id().index()),
            Err(error) => {
                tracing::debug!(error = %error, "a read round failed");
                Err(Refusal::NotLeader)
            }
        }
    }

    async fn from(&self, leader: u64, seen: &crate::leadership::Seen) -> Result<u64, Refusal> {
        use wire::read_index_reply::Result as Reply;
        let node = seen.node(leader).ok_or(Refusal::NotLeader)?;
        let peer = self.peers.get(leader, node, Purpose::Store);
        match peer.read_index().await {
            Ok(wire::ReadIndexReply { result: Some(Reply::Index(index)) }) => Ok(index),
            Ok(wire::ReadIndexReply { result: Some(Reply::Refusal(refusal)) }) => {
                Err(refusal.into())
            }
            Ok(_) => Err(Refusal::NotLeader),
            Err(error) => {
                tracing::debug!(error = %error, "the leader did not answer a read round");
                self.peers.exile().note(&error);
                Err(Refusal::NotLeader)
            }
        }
    }
}
