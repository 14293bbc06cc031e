//! What a replica answers by itself.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use openraft::AsyncRuntime;
use palisade_state::{Published, Rt, View, port::timeout};

use super::{At, Here, Hub};
use crate::{
    leadership::Leadership, progress::Progress, proposer::Proposer, reads::Reads, refusal::Refusal,
    types::Raft,
};

/// How long to wait before asking again when nothing tells of a change.
const PAUSE: Duration = Duration::from_millis(10);

/// See the module.
pub(crate) struct Answering<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) me: u64,
    pub(crate) rt: Rt,
    pub(crate) patience: Duration,
    pub(crate) proposer: Proposer,
    pub(crate) reads: Reads,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) published: Arc<Published>,
    pub(crate) hub: Arc<Hub>,
}

impl<R: AsyncRuntime> Here for Answering<R> {
    fn proposer(&self) -> &Proposer {
        &self.proposer
    }

    fn read_index(&self) -> BoxFuture<'static, Result<u64, Refusal>> {
        let leads = self.raft.as_leader().is_ok();
        let reads = self.reads.clone();
        Box::pin(async move { if leads { reads.index().await } else { Err(Refusal::NotLeader) } })
    }

    fn view(&self, at: At) -> BoxFuture<'static, Result<View, Refusal>> {
        let reader = Reader {
            rt: self.rt.clone(),
            patience: self.patience,
            reads: self.reads.clone(),
            leadership: self.leadership.clone(),
            progress: self.progress.clone(),
        };
        let published = self.published.clone();
        Box::pin(async move {
            match at {
                At::Now => {}
                At::Revision(revision) => reader.reached(revision).await?,
                At::Linearizable => reader.linearizable().await?,
            }
            Ok(published.view())
        })
    }

    fn leader_addr(&self) -> Option<String> {
        let seen = self.leadership.seen();
        let leader = seen.leader.filter(|leader| *leader != self.me)?;
        Some(seen.node(leader)?.peer_addr.clone())
    }

    fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }
}

/// What a read needs.
struct Reader {
    rt: Rt,
    patience: Duration,
    reads: Reads,
    leadership: Arc<Leadership>,
    progress: Arc<Progress>,
}

impl Reader {
    async fn reached(&self, index: u64) -> Result<(), Refusal> {
        match timeout(self.rt.as_ref(), self.patience, self.progress.wait(index)).await {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(Refusal::Unavailable("it is stopping".to_owned())),
            None => {
                let applied = self.progress.applied();
                let what = format!("revision {index} is not here yet: it is at {applied}");
                Err(Refusal::Unavailable(what))
            }
        }
    }

    async fn linearizable(&self) -> Result<(), Refusal> {
        let until = self.rt.now() + self.patience;
        loop {
            let seen = self.leadership.seen();
            match self.reads.index().await {
                Ok(index) => return self.reached(index).await,
                Err(Refusal::NotLeader | Refusal::Unknown) if self.rt.now() < until => {
                    let changed = self.leadership.changed_from(&seen);
                    let _ = timeout(self.rt.as_ref(), PAUSE, changed).await;
                }
                Err(Refusal::NotLeader | Refusal::Unknown) => {
                    let what = "no leader with a quorum answered in time".to_owned();
                    return Err(Refusal::Unavailable(what));
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }
}
