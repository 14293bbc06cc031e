//! The local replica as its peers see it.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt, stream::BoxStream};
use openraft::AsyncRuntime;
use palisade_state::Rt;

use super::{Answer, Answers, Door, PeerApi, PeerError, convert, receive::Receiving, wire};
use crate::{
    detector::Detector, exile::Exile, fault::chain, known::Known, membership::Members,
    store::Service, types::Raft, wal::Handle,
};

const FULL_DISK_PAUSE: Duration = Duration::from_millis(200);

/// The local replica.
pub(crate) struct Local<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) rt: Rt,
    pub(crate) wal: Handle,
    pub(crate) detector: Arc<Detector>,
    pub(crate) store: Service,
    pub(crate) receiving: Receiving,
    pub(crate) members: Arc<Members<R>>,
    pub(crate) door: Arc<dyn Door>,
    pub(crate) known: Arc<Known>,
    pub(crate) exile: Arc<Exile>,
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
        let (wal, rt, exile) = (self.wal.clone(), self.rt.clone(), self.exile.clone());
        let requests = requests
            .map(move |request| {
                exile.check(request.confirmed).ok()?;
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
        let (raft, detector, exile) =
            (self.raft.clone(), self.detector.clone(), self.exile.clone());
        async move {
            exile.check(request.confirmed)?;
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
        let (raft, door, known) = (self.raft.clone(), self.door.clone(), self.known.clone());
        async move {
            let request = convert::vote_in::<R>(request)?;
            let candidate = request.vote.leader_id.voted_for;
            door.admit(candidate)?;
            known.check(candidate, request.last_log_id)?;
            let response = raft.vote(request).await.map_err(|error| failed(&error))?;
            Ok(convert::voted_out::<R>(&response))
        }
        .boxed()
    }

    fn pre_vote(&self, request: wire::VoteRequest) -> Answer<wire::VoteReply> {
        let (raft, door, known) = (self.raft.clone(), self.door.clone(), self.known.clone());
        async move {
            let request = convert::vote_in::<R>(request)?;
            let candidate = request.vote.leader_id.voted_for;
            door.admit(candidate)?;
            known.check(candidate, request.last_log_id)?;
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
        self.receiving.clone().receive(self.raft.clone(), chunks).boxed()
    }

    fn snapshot_have(&self, head: wire::SnapshotHead) -> Answer<wire::SnapshotOffset> {
        self.receiving.clone().offset(head).boxed()
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
        self.members.clone().answer(request)
    }

    fn trust(&self, from: u64) -> Answer<wire::TrustReply> {
        self.members.trust(from)
    }
}
