//! Receiving snapshots from the leader, and going on where a broken stream ended.
//!
//! # Invariants
//! - `SNAP-5` What was received of a snapshot is gone on with only for the very same file: its position, length and
//!   checksum; and of what is found on the disk, only whole pieces whose checksums are right.
//! - `SNAP-6` From the first chunk until openraft has installed or refused it, a received snapshot has its file for
//!   itself, also when its sender is gone.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use openraft::{AsyncRuntime, async_runtime::WatchReceiver};
use palisade_state::{Rt, port::timeout};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use super::{PeerError, convert, wire};
use crate::{
    fault::chain,
    metrics::Metrics,
    snapshot_file::{Part, SnapshotReceiver},
    snapshots::{SnapshotData, SnapshotStore, meta_of_head},
    types::{LogId, Raft, Snapshot, Vote, term_of},
    wal::Position,
};

const FULL_DISK_PAUSE: Duration = Duration::from_millis(200);
/// How long the sender of a snapshot may say nothing.
const CHUNK_LIMIT: Duration = Duration::from_secs(20);
/// How long a snapshot waits for room before it is refused; the sender would begin again at once.
const ROOM_LIMIT: Duration = Duration::from_secs(10);

type Chunks = BoxStream<'static, Result<wire::SnapshotChunk, PeerError>>;

/// A snapshot of which some has come.
struct Partial {
    part: Part,
    receiver: Box<SnapshotReceiver>,
}

type Slot = Option<Partial>;

/// The one snapshot that is received at a time, and what a broken stream left of it.
#[derive(Clone)]
pub(crate) struct Receiving {
    slot: Arc<Mutex<Slot>>,
    pub(crate) rt: Rt,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) metrics: Arc<Metrics>,
}

fn failed(error: &dyn std::error::Error) -> PeerError {
    PeerError::Failed(chain(error))
}

fn what(text: impl Into<String>) -> PeerError {
    PeerError::Failed(text.into())
}

/// The file that `head` announces; `None` when its sender does not say which one exactly.
fn part_of(head: &wire::SnapshotHead) -> Option<Part> {
    let last = head.last.as_ref()?;
    let position = Position { term: last.term, index: last.index };
    (head.crc != 0).then_some(Part { position, bytes: head.bytes, crc: head.crc })
}

impl Receiving {
    pub(crate) fn new(rt: Rt, snapshots: Arc<SnapshotStore>, metrics: Arc<Metrics>) -> Self {
        Self { slot: Arc::default(), rt, snapshots, metrics }
    }

    fn only(&self) -> Result<OwnedMutexGuard<Slot>, PeerError> {
        self.slot.clone().try_lock_owned().map_err(|_| what("another snapshot is being received"))
    }

    /// How much of the announced snapshot is here.
    pub(crate) async fn offset(
        self,
        head: wire::SnapshotHead,
    ) -> Result<wire::SnapshotOffset, PeerError> {
        let Some(part) = part_of(&head) else { return Ok(wire::SnapshotOffset { bytes: 0 }) };
        let mut slot = self.only()?;
        self.begin(&mut slot, part).await?;
        Ok(wire::SnapshotOffset {
            bytes: slot.as_ref().map_or(0, |partial| partial.receiver.offset()),
        })
    }

    /// Puts what is here of `part` into the slot, and what was there away.
    async fn begin(&self, slot: &mut Slot, part: Part) -> Result<(), PeerError> {
        if slot.as_ref().is_some_and(|partial| partial.part == part) {
            return Ok(());
        }
        if let Some(other) = slot.take() {
            other.receiver.discard();
        }
        let receiver = self.snapshots.receive(part).await.map_err(|error| failed(&error))?;
        *slot = Some(Partial { part, receiver: Box::new(receiver) });
        Ok(())
    }

    /// Takes the rest of a snapshot, durably, and installs it. A stream that breaks leaves what it brought.
    pub(crate) async fn receive<R: AsyncRuntime>(
        self,
        raft: Raft<R>,
        chunks: Chunks,
    ) -> Result<wire::SnapshotReply, PeerError> {
        let mut slot = self.only()?;
        let vote = self.take(&mut slot, chunks).await?;
        let Some(Partial { mut receiver, .. }) = slot.take() else {
            return Err(what("a snapshot without a head"));
        };
        // Now, and not when it is installed: there it would be too late to refuse.
        let work = move || receiver.settle().map(|()| receiver);
        let settled = self.snapshots.disk.run("snapshot-receive", work).await;
        let receiver = settled.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        let (tx, rx) = oneshot::channel();
        // By itself, since the caller may go: until it is installed the next one must not clean up its file (`SNAP-6`).
        self.rt.spawn(
            "snapshot-install",
            Box::pin(async move {
                let _ = tx.send(install(&raft, vote, receiver).await);
                drop(slot);
            }),
        );
        rx.await.map_err(|_| what("the replica is stopping"))?
    }

    async fn take(&self, slot: &mut Slot, mut chunks: Chunks) -> Result<Vote, PeerError> {
        let mut announced = None;
        loop {
            let next = timeout(self.rt.as_ref(), CHUNK_LIMIT, chunks.next()).await;
            let Some(chunk) = next.ok_or_else(|| what("the sender went silent"))? else { break };
            let chunk = chunk?;
            if let Some(head) = &chunk.head {
                self.announced(slot, head, chunk.offset).await?;
                announced = chunk.head;
            }
            if announced.is_none() {
                return Err(what("a snapshot without a head"));
            }
            if crc32fast::hash(&chunk.data) != chunk.crc {
                return Err(what(format!(
                    "the chunk at byte {} was damaged on its way",
                    chunk.offset
                )));
            }
            self.push(slot, chunk).await?;
        }
        let head = announced.ok_or_else(|| what("a snapshot without a head"))?;
        let got = slot.as_ref().map_or(0, |partial| partial.receiver.offset());
        if got != head.bytes {
            return Err(what(format!("the snapshot ended after {got} of {} bytes", head.bytes)));
        }
        convert::vote_of(head.vote)
    }

    /// Makes room, and gets what is here of the announced snapshot.
    async fn announced(
        &self,
        slot: &mut Slot,
        head: &wire::SnapshotHead,
        from: u64,
    ) -> Result<(), PeerError> {
        let known = part_of(head);
        let part = known.unwrap_or(Part {
            position: Position { term: 0, index: 0 },
            bytes: head.bytes,
            crc: 0,
        });
        self.begin(slot, part).await?;
        // One that is sent from its beginning is begun anew, whoever sends it.
        if from == 0 && slot.as_ref().is_some_and(|partial| partial.receiver.offset() > 0) {
            self.discard(slot);
            self.begin(slot, part).await?;
        }
        let here = slot.as_ref().map_or(0, |partial| partial.receiver.offset());
        self.wait_for_room(slot, head.bytes.saturating_sub(here)).await
    }

    /// Waits until an announced snapshot fits; refuses it when that takes too long.
    async fn wait_for_room(&self, slot: &mut Slot, bytes: u64) -> Result<(), PeerError> {
        let mut waited = Duration::ZERO;
        while let Err(error) = self.snapshots.room_for(bytes) {
            if waited.is_zero() {
                tracing::warn!(error = chain(&error), bytes, "the leader's snapshot must wait");
                self.metrics.snapshots_put_off.inc();
            }
            if waited >= ROOM_LIMIT {
                self.discard(slot);
                return Err(failed(&error));
            }
            self.rt.sleep(FULL_DISK_PAUSE).await;
            waited += FULL_DISK_PAUSE;
        }
        Ok(())
    }

    async fn push(&self, slot: &mut Slot, chunk: wire::SnapshotChunk) -> Result<(), PeerError> {
        // The disk may have been filled since.
        if let Err(error) = self.snapshots.room_for(chunk.data.len() as u64) {
            self.discard(slot);
            return Err(failed(&error));
        }
        let Some(Partial { part, mut receiver }) = slot.take() else {
            return Err(what("a snapshot without a head"));
        };
        if chunk.offset != receiver.offset() {
            let (want, got) = (receiver.offset(), chunk.offset);
            *slot = Some(Partial { part, receiver });
            return Err(what(format!("a chunk at byte {got} where {want} was due")));
        }
        let work = move || {
            let pushed = receiver.push(&chunk.data);
            (receiver, pushed)
        };
        let ran = self.snapshots.disk.run("snapshot-receive", work).await;
        let (receiver, pushed) = ran.map_err(|error| failed(&error))?;
        *slot = Some(Partial { part, receiver });
        pushed.map_err(|error| {
            // What is wrong now would be wrong again.
            self.discard(slot);
            failed(&error)
        })
    }

    fn discard(&self, slot: &mut Slot) {
        if let Some(partial) = slot.take() {
            partial.receiver.discard();
        }
    }
}

/// Whether openraft may be given this snapshot; it panics on one that no sound leader sends.
fn check(last: LogId, vote: &Vote, committed: Option<LogId>) -> Result<(), PeerError> {
    let leads = vote.leader_id.term;
    if term_of(&last) > leads {
        let what = format!("a snapshot of term {} from a leader of term {leads}", term_of(&last));
        return Err(PeerError::Failed(what));
    }
    if let Some(committed) = committed
        && last > committed
        && last.index <= committed.index
    {
        let what = format!("a snapshot up to {last} contradicts what is committed, {committed}");
        return Err(PeerError::Failed(what));
    }
    Ok(())
}

async fn install<R: AsyncRuntime>(
    raft: &Raft<R>,
    vote: Vote,
    receiver: Box<SnapshotReceiver>,
) -> Result<wire::SnapshotReply, PeerError> {
    let head = receiver.head().ok_or_else(|| PeerError::Failed("no header came".to_owned()))?;
    let meta = meta_of_head(head).map_err(|error| failed(&error))?;
    let last: LogId = head.position.into();
    let shown = raft.metrics().borrow_watched().clone();
    check(last, &vote, shown.local_committed.max(shown.last_applied))?;
    let snapshot = Snapshot { meta, snapshot: SnapshotData::Received(receiver) };
    let installed = raft.install_full_snapshot(vote, snapshot).await;
    let response = installed.map_err(|error| failed(&error))?;
    Ok(wire::SnapshotReply { vote: Some((&response.vote).into()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{log_id, make_vote};

    #[test]
    fn a_snapshot_from_the_future_of_its_leader_is_refused() {
        let vote = make_vote(3, 1, true);
        assert!(check(log_id(4, 10), &vote, None).is_err());
        assert!(check(log_id(3, 10), &vote, None).is_ok());
    }

    #[test]
    fn a_snapshot_that_contradicts_committed_entries_is_refused() {
        let vote = make_vote(3, 1, true);
        assert!(check(log_id(3, 9), &vote, Some(log_id(2, 9))).is_err());
        assert!(check(log_id(3, 10), &vote, Some(log_id(2, 9))).is_ok());
        assert!(
            check(log_id(2, 5), &vote, Some(log_id(2, 9))).is_ok(),
            "an older one is only useless"
        );
    }
}
