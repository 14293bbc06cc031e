//! openraft's network over [`PeerApi`](crate::peer::PeerApi).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{
    FutureExt, Stream, StreamExt,
    future::{Either, select},
    stream::{self, BoxStream},
};
use openraft::{
    AsyncRuntime, OptionalSend, RaftNetworkFactory, RaftNetworkV2,
    base::{BoxFuture, BoxStream as OpenStream},
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, stream_append_sequential},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use palisade_state::{Rt, port::timeout};

use crate::{
    fault::chain,
    metrics::Metrics,
    peer::{Answer, Answers, PeerApi, PeerError, Purpose, convert, wire},
    peers::Peers,
    snapshot_file::SnapshotReader,
    snapshots::{SnapshotData, SnapshotStore},
    types::{LogId, Node, Snapshot, TypeConfig, Vote},
};

/// How long the follower has to open an append stream.
const STREAM_SETUP_LIMIT: Duration = Duration::from_secs(2);
/// How long a follower may owe replies before its stream is given up.
const STREAM_SILENCE_LIMIT: Duration = Duration::from_secs(1);
const SNAPSHOT_CHUNK_BYTES: usize = 1024 * 1024;

type C<R> = TypeConfig<R>;
type Rpc<R> = RPCError<C<R>>;

/// Makes a [`Network`] for each peer.
#[derive(Clone)]
pub(crate) struct Factory {
    pub(crate) rt: Rt,
    pub(crate) peers: Arc<Peers>,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Factory {
    fn network(&self, target: u64, node: &Node, heartbeats: bool) -> Network {
        let get = |purpose| self.peers.get(target, node, purpose);
        Network {
            target,
            heartbeats,
            append: get(Purpose::Append),
            heartbeat: get(Purpose::Heartbeat),
            election: get(Purpose::Election),
            bulk: get(Purpose::Bulk),
            factory: self.clone(),
        }
    }
}

impl<R: AsyncRuntime> RaftNetworkFactory<C<R>> for Factory {
    type Network = Network;

    async fn new_client(&mut self, target: u64, node: &Node) -> Network {
        self.network(target, node, false)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &Node) -> Network {
        self.network(target, node, true)
    }
}

/// The way to one peer.
pub(crate) struct Network {
    target: u64,
    /// Only heartbeats go this way: one by one, on a connection of their own.
    heartbeats: bool,
    append: Arc<dyn PeerApi>,
    heartbeat: Arc<dyn PeerApi>,
    election: Arc<dyn PeerApi>,
    bulk: Arc<dyn PeerApi>,
    factory: Factory,
}

fn rpc_error<R: AsyncRuntime>(error: &PeerError) -> Rpc<R> {
    match error {
        PeerError::Unreachable(_) | PeerError::Refused(_) => Unreachable::new(error).into(),
        PeerError::Failed(_) => NetworkError::new(error).into(),
    }
}

fn network_error<R: AsyncRuntime>(what: impl Into<String>) -> Rpc<R> {
    NetworkError::from_string(what.into()).into()
}

impl Network {
    async fn limited<T: Send, R: AsyncRuntime>(
        &self,
        limit: Duration,
        call: Answer<T>,
    ) -> Result<T, Rpc<R>> {
        match timeout(self.factory.rt.as_ref(), limit, call).await {
            None => Err(network_error(format!("replica {} did not answer in time", self.target))),
            Some(answer) => answer.map_err(|error| rpc_error(&error)),
        }
    }
}

/// A session of the append stream.
struct Session<R: AsyncRuntime> {
    replies: Answers<wire::AppendReply>,
    sent: Arc<AtomicU64>,
    received: u64,
    rt: Rt,
    target: u64,
    _runtime: std::marker::PhantomData<fn() -> R>,
}

impl<R: AsyncRuntime> Session<R> {
    fn owes(&self) -> bool {
        self.sent.load(Ordering::Relaxed) > self.received
    }

    /// The next reply; `None` once the stream has ended.
    async fn next(&mut self) -> Option<Result<StreamAppendResult<C<R>>, Rpc<R>>> {
        let mut owed = self.owes();
        loop {
            match timeout(self.rt.as_ref(), STREAM_SILENCE_LIMIT, self.replies.next()).await {
                Some(Some(Ok(reply))) => {
                    self.received += 1;
                    return Some(convert::appended_in(reply).map_err(|error| rpc_error(&error)));
                }
                Some(Some(Err(error))) => return Some(Err(rpc_error(&error))),
                Some(None) if self.owes() => {
                    let what = format!("replica {} ended the append stream", self.target);
                    return Some(Err(network_error(what)));
                }
                Some(None) => return None,
                None if owed => {
                    let what = format!("replica {} owes replies on the append stream", self.target);
                    return Some(Err(network_error(what)));
                }
                None => owed = self.owes(),
            }
        }
    }
}

/// Requests as they go out; an entry that cannot be encoded ends them.
fn requests<R: AsyncRuntime, S>(
    input: S,
    sent: Arc<AtomicU64>,
) -> BoxStream<'static, wire::AppendRequest>
where
    S: Stream<Item = AppendEntriesRequest<C<R>>> + Send + Unpin + 'static,
{
    // `unfold` and not `map`: the input goes as soon as it has ended.
    stream::unfold(input, move |mut input| {
        let sent = sent.clone();
        async move {
            let request = input.next().await?;
            match convert::append_out::<R>(&request) {
                Ok(request) => {
                    sent.fetch_add(1, Ordering::Relaxed);
                    Some((request, input))
                }
                Err(error) => {
                    tracing::error!(error = chain(&error), "a log entry cannot be sent");
                    None
                }
            }
        }
    })
    .boxed()
}

impl<R: AsyncRuntime> RaftNetworkV2<C<R>> for Network {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<C<R>>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<C<R>>, Rpc<R>> {
        let last = rpc.entries.last().map(|entry| entry.log_id).or(rpc.prev_log_id);
        let request = convert::append_out::<R>(&rpc).map_err(|e| NetworkError::new(&e))?;
        let reply =
            self.limited::<_, R>(option.hard_ttl(), self.heartbeat.heartbeat(request)).await?;
        convert::heartbeat_in::<R>(reply, last).map_err(|error| rpc_error(&error))
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<OpenStream<'s, Result<StreamAppendResult<C<R>>, Rpc<R>>>, Rpc<R>>>
    where
        S: Stream<Item = AppendEntriesRequest<C<R>>> + OptionalSend + Unpin + 'static,
    {
        if self.heartbeats {
            return stream_append_sequential(self, input, option);
        }
        Box::pin(async move {
            let sent = Arc::new(AtomicU64::new(0));
            let call = self.append.append(requests::<R, _>(input, sent.clone()));
            let replies = self.limited::<_, R>(STREAM_SETUP_LIMIT, call).await?;
            let session = Session::<R> {
                replies,
                sent,
                received: 0,
                rt: self.factory.rt.clone(),
                target: self.target,
                _runtime: std::marker::PhantomData,
            };
            let answers = stream::unfold(Some(session), |session| async move {
                let mut session = session?;
                let next = session.next().await?;
                let goes_on = matches!(next, Ok(Ok(_)));
                Some((next, goes_on.then_some(session)))
            });
            Ok(answers.boxed())
        })
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<C<R>>,
        option: RPCOption,
    ) -> Result<VoteResponse<C<R>>, Rpc<R>> {
        let call = self.election.vote(convert::vote_out::<R>(&rpc));
        let reply = self.limited::<_, R>(option.hard_ttl(), call).await?;
        convert::voted_in::<R>(reply).map_err(|error| rpc_error(&error))
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<C<R>>,
        option: RPCOption,
    ) -> Result<VoteResponse<C<R>>, Rpc<R>> {
        let call = self.election.pre_vote(convert::vote_out::<R>(&rpc));
        let reply = self.limited::<_, R>(option.hard_ttl(), call).await?;
        convert::voted_in::<R>(reply).map_err(|error| rpc_error(&error))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<C<R>>, StreamingError<C<R>>> {
        let reader =
            self.factory.snapshots.reader(&snapshot.snapshot).await.map_err(|error| {
                StreamingError::Network(NetworkError::from_string(chain(&error)))
            })?;
        let bytes = reader.info().file_bytes;
        tracing::info!(target_replica = self.target, bytes, "sending a snapshot");
        let last = snapshot.meta.last_log_id;
        let chunks = chunks(self.factory.snapshots.clone(), reader, vote, last);
        let sending = self.bulk.snapshot(chunks);
        let reply = match select(sending, Box::pin(cancel)).await {
            Either::Left((reply, _)) => {
                reply.map_err(|error| StreamingError::from(rpc_error::<R>(&error)))?
            }
            Either::Right((closed, _)) => return Err(closed.into()),
        };
        self.factory.metrics.snapshots_sent.inc();
        let vote = convert::vote_of(reply.vote);
        vote.map(SnapshotResponse::new).map_err(|error| rpc_error::<R>(&error).into())
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<C<R>>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<C<R>>, Rpc<R>> {
        let call = self.election.transfer(convert::transfer_out::<R>(&req));
        let reply = self.limited::<_, R>(option.hard_ttl(), call).await?;
        if reply.refused.is_empty() { Ok(Ok(())) } else { Err(network_error(reply.refused)) }
    }
}

/// A snapshot file in chunks, read off the runtime.
fn chunks(
    store: Arc<SnapshotStore>,
    reader: SnapshotReader,
    vote: Vote,
    last: Option<LogId>,
) -> BoxStream<'static, Result<wire::SnapshotChunk, PeerError>> {
    let head = wire::SnapshotHead {
        vote: Some((&vote).into()),
        last: last.map(Into::into),
        bytes: reader.info().file_bytes,
    };
    let start = (store, Arc::new(reader), 0_u64, Some(head));
    stream::unfold(Some(start), |state| {
        async move {
            let (store, reader, offset, head) = state?;
            let from = reader.clone();
            let work = move || from.raw(offset, SNAPSHOT_CHUNK_BYTES);
            let read = store.disk.run("snapshot-send", work).await;
            let data: Bytes = match read {
                Ok(Ok(data)) => data,
                Ok(Err(error)) => return Some((Err(PeerError::Failed(chain(&error))), None)),
                Err(error) => return Some((Err(PeerError::Failed(chain(&error))), None)),
            };
            if data.is_empty() {
                return None;
            }
            let next = offset + data.len() as u64;
            let crc = crc32fast::hash(&data);
            let chunk = wire::SnapshotChunk { head, offset, data, crc };
            Some((Ok(chunk), Some((store, reader, next, None))))
        }
        .boxed()
    })
    .boxed()
}
