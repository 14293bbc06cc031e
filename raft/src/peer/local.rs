//! The local replica as its peers see it.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use openraft::{AsyncRuntime, async_runtime::WatchReceiver};
use palisade_state::{Rt, port::timeout};
use tokio::sync::Mutex;

use super::{Answer, Answers, Door, PeerApi, PeerError, convert, wire};
use crate::{
    detector::Detector,
    fault::chain,
    membership::Members,
    metrics::Metrics,
    snapshot_file::SnapshotReceiver,
    snapshots::{SnapshotData, SnapshotStore, meta_of_head},
    store::Service,
    types::{LogId, Raft, Snapshot, Vote, term_of},
    wal::Handle,
};

const FULL_DISK_PAUSE: Duration = Duration::from_millis(200);
/// How long the sender of a snapshot may say nothing.
const CHUNK_LIMIT: Duration = Duration::from_secs(20);

/// How long a snapshot waits for room before it is refused; the sender would begin again at once.
const ROOM_LIMIT: Duration = Duration::from_secs(10);

/// The local replica.
pub(crate) struct Local<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) rt: Rt,
    pub(crate) wal: Handle,
    pub(crate) detector: Arc<Detector>,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) store: Service,
    pub(crate) members: Arc<Members<R>>,
    pub(crate) door: Arc<dyn Door>,
    /// One snapshot is received at a time.
    pub(crate) receiving: Arc<Mutex<()>>,
}

fn failed(error: &dyn std::error::Error) -> PeerError {
    PeerError::Failed(chain(error))
}

impl<R: AsyncRuntime> PeerApi for Local<R> {
    fn append(
        &self,
        requests: BoxStream<'static, wire::AppendRequest>,
    ) -> Answer<Answers<wire::AppendReply>> {
        let mut word = self.detector.stream();
        let (wal, rt) = (self.wal.clone(), self.rt.clone());
        let requests = requests
            .map(move |request| {
                let request = convert::append_in::<R>(request);
                match &request {
                    Ok(request) => word.heard(&request.vote),
                    Err(error) => tracing::error!(error = chain(error), "an append was refused"),
                }
                request.ok()
            })
            .take_while(|request| std::future::ready(request.is_some()))
            .filter_map(std::future::ready)
            .then(move |request| {
                let (wal, rt) = (wal.clone(), rt.clone());
                async move {
                    // A full disk holds entries back instead of stopping the replica; votes go on.
                    while !request.entries.is_empty() && wal.is_low() {
                        rt.sleep(FULL_DISK_PAUSE).await;
                    }
                    wal.room().await;
                    request
                }
            });
        let replies = self.raft.stream_append(requests).map(|reply| {
            Ok(match reply {
                Ok(result) => convert::appended_out::<R>(result),
                Err(fatal) => convert::stopped(fatal.to_string()),
            })
        });
        std::future::ready(Ok(replies.boxed())).boxed()
    }

    fn heartbeat(&self, request: wire::AppendRequest) -> Answer<wire::AppendReply> {
        let (raft, detector) = (self.raft.clone(), self.detector.clone());
        async move {
            let request = convert::append_in::<R>(request)?;
            detector.heard(&request.vote);
            let prev = request.prev_log_id;
            let last = request.entries.last().map(|entry| entry.log_id).or(prev);
            let response = raft.append_entries(request).await.map_err(|error| failed(&error))?;
            Ok(convert::heartbeat_out::<R>(response, prev, last))
        }
        .boxed()
    }

    fn vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply> {
        let (raft, door) = (self.raft.clone(), self.door.clone());
        async move {
            let request = convert::vote_in::<R>(request)?;
            door.admit(request.vote.leader_id.voted_for)?;
            let response = raft.vote(request).await.map_err(|error| failed(&error))?;
            Ok(convert::voted_out::<R>(&response))
        }
        .boxed()
    }

    fn pre_vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply> {
        let (raft, door) = (self.raft.clone(), self.door.clone());
        async move {
            let request = convert::vote_in::<R>(request)?;
            door.admit(request.vote.leader_id.voted_for)?;
            let response = raft.pre_vote(request).await.map_err(|error| failed(&error))?;
            Ok(convert::voted_out::<R>(&response))
        }
        .boxed()
    }

    fn transfer(&self, request: wire::TransferRequest) -> Answer<wire::TransferReply> {
        let raft = self.raft.clone();
        async move {
            let request = convert::transfer_in::<R>(request)?;
            let handled = raft.handle_transfer_leader(request).await;
            let refused = handled.map_err(|error| failed(&error))?.err();
            let refused = refused.map_or_else(String::new, |refusal| refusal.to_string());
            Ok(wire::TransferReply { refused })
        }
        .boxed()
    }

    fn snapshot(
        &self,
        chunks: BoxStream<'static, Result<wire::SnapshotChunk, PeerError>>,
    ) -> Answer<wire::SnapshotReply> {
        let (raft, snapshots, rt) = (self.raft.clone(), self.snapshots.clone(), self.rt.clone());
        let (receiving, metrics) = (self.receiving.clone(), self.metrics.clone());
        async move {
            let _only = receiving
                .try_lock()
                .map_err(|_| PeerError::Failed("another snapshot is being received".to_owned()))?;
            let (vote, receiver) = receive(&rt, &snapshots, &metrics, chunks).await?;
            install(&raft, vote, receiver).await
        }
        .boxed()
    }

    fn propose(&self, request: wire::ProposeRequest) -> Answer<wire::ProposeReply> {
        self.store.clone().propose(request, false).map(Ok).boxed()
    }

    fn propose_stream(
        &self,
        requests: BoxStream<'static, wire::ProposeRequest>,
    ) -> Answer<Answers<wire::ProposeReply>> {
        let replies = self.store.clone().propose_stream(requests, false).map(Ok);
        std::future::ready(Ok(replies.boxed())).boxed()
    }

    fn read_index(&self) -> Answer<wire::ReadIndexReply> {
        self.store.clone().read_index().map(Ok).boxed()
    }

    fn manage(&self, request: wire::ManageRequest) -> Answer<wire::ManageReply> {
        self.members.clone().answer(request).map(Ok).boxed()
    }

    fn trust(&self, from: u64) -> Answer<wire::TrustReply> {
        self.members.trust(from)
    }
}

/// Waits until an announced snapshot fits; refuses it when that takes too long.
async fn wait_for_room(
    rt: &Rt,
    snapshots: &SnapshotStore,
    metrics: &Metrics,
    bytes: u64,
) -> Result<(), PeerError> {
    let mut waited = Duration::ZERO;
    while let Err(error) = snapshots.room_for(bytes) {
        if waited.is_zero() {
            tracing::warn!(error = chain(&error), bytes, "the leader's snapshot must wait");
            metrics.snapshots_put_off.inc();
        }
        if waited >= ROOM_LIMIT {
            return Err(failed(&error));
        }
        rt.sleep(FULL_DISK_PAUSE).await;
        waited += FULL_DISK_PAUSE;
    }
    Ok(())
}

/// Takes a whole snapshot from its chunks, durably; what goes wrong is only the sender's to know.
async fn receive(
    rt: &Rt,
    snapshots: &SnapshotStore,
    metrics: &Metrics,
    mut chunks: BoxStream<'static, Result<wire::SnapshotChunk, PeerError>>,
) -> Result<(Vote, Box<SnapshotReceiver>), PeerError> {
    let mut receiver = Box::new(snapshots.receive().await.map_err(|error| failed(&error))?);
    let mut head = None;
    loop {
        let next = timeout(rt.as_ref(), CHUNK_LIMIT, chunks.next()).await;
        let next = next.ok_or_else(|| PeerError::Failed("the sender went silent".to_owned()))?;
        let Some(chunk) = next else { break };
        let chunk = chunk?;
        if let Some(announced) = chunk.head {
            wait_for_room(rt, snapshots, metrics, announced.bytes).await?;
            head = Some(announced);
        }
        // The disk may have been filled since.
        snapshots.room_for(chunk.data.len() as u64).map_err(|error| failed(&error))?;
        if crc32fast::hash(&chunk.data) != chunk.crc {
            let what = format!("the chunk at byte {} was damaged on its way", chunk.offset);
            return Err(PeerError::Failed(what));
        }
        if chunk.offset != receiver.offset() {
            let (want, got) = (receiver.offset(), chunk.offset);
            return Err(PeerError::Failed(format!("a chunk at byte {got} where {want} was due")));
        }
        let work = move || receiver.push(&chunk.data).map(|()| receiver);
        let pushed = snapshots.disk.run("snapshot-receive", work).await;
        receiver = pushed.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
    }
    let head = head.ok_or_else(|| PeerError::Failed("a snapshot without a head".to_owned()))?;
    if receiver.offset() != head.bytes {
        let (got, want) = (receiver.offset(), head.bytes);
        return Err(PeerError::Failed(format!("the snapshot ended after {got} of {want} bytes")));
    }
    let vote = convert::vote_of(head.vote)?;
    // Now, and not when it is installed: there it would be too late to refuse.
    let work = move || receiver.settle().map(|()| receiver);
    let settled = snapshots.disk.run("snapshot-receive", work).await;
    let receiver = settled.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
    Ok((vote, receiver))
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
