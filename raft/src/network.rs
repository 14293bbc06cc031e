//! openraft's network over [`PeerApi`](crate::peer::PeerApi).

mod chunks;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

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
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError,
        StreamAppendResult, TransferLeaderRequest, TransferLeaderResponse, VoteRequest,
        VoteResponse,
    },
};
use palisade_state::{Rt, port::timeout};

use crate::{
    fault::chain,
    known::{self, Known},
    link::{Link, Links, Pace, Way},
    metrics::Metrics,
    peer::{Answer, Answers, PeerApi, PeerError, Purpose, convert, wire},
    peers::Peers,
    snapshots::{SnapshotData, SnapshotStore},
    types::{Node, Snapshot, TypeConfig, Vote},
};

/// How long the follower has to open an append stream.
const STREAM_SETUP_LIMIT: Duration = Duration::from_secs(2);
/// How long a follower may owe replies before its stream is given up.
const STREAM_SILENCE_LIMIT: Duration = Duration::from_secs(1);
/// How long a follower may take to say how much of a snapshot it has: it reads and checks that again.
const SNAPSHOT_HAVE_LIMIT: Duration = Duration::from_secs(60);

type C<R> = TypeConfig<R>;
type Rpc<R> = RPCError<C<R>>;

/// Makes a [`Network`] for each peer.
#[derive(Clone)]
pub(crate) struct Factory {
    pub(crate) rt: Rt,
    pub(crate) links: Arc<Links>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) snapshots: Arc<SnapshotStore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) known: Arc<Known>,
}

impl Factory {
    fn network(&self, target: u64, node: &Node, heartbeats: bool) -> Network {
        let get = |purpose| self.peers.get(target, node, purpose);
        Network {
            target,
            heartbeats,
            link: self.links.get(target),
            pace: Arc::default(),
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
    link: Arc<Link>,
    pace: Arc<Pace>,
    append: Arc<dyn PeerApi>,
    heartbeat: Arc<dyn PeerApi>,
    election: Arc<dyn PeerApi>,
    bulk: Arc<dyn PeerApi>,
    factory: Factory,
}

fn rpc_error<R: AsyncRuntime>(error: &PeerError) -> Rpc<R> {
    match error {
        PeerError::Unreachable(_)
        | PeerError::Refused(_)
        | PeerError::Removed(_)
        | PeerError::Lost { .. } => Unreachable::new(error).into(),
        PeerError::Failed(_) | PeerError::Waits(_) => NetworkError::new(error).into(),
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
            Some(answer) => answer.map_err(|error| {
                self.factory.peers.exile().note(&error);
                rpc_error(&error)
            }),
        }
    }
}

impl Network {
    /// `LOST-1`
    fn counted<R: AsyncRuntime>(
        &self,
        answer: Result<VoteResponse<C<R>>, PeerError>,
    ) -> Result<VoteResponse<C<R>>, PeerError> {
        let answer = answer?;
        if answer.vote_granted
            && let Err(lost) = self.factory.known.check(self.target, answer.last_log_id)
        {
            let why = lost.to_string();
            tracing::warn!(peer = self.target, why, "a vote was not counted");
            return Err(PeerError::Refused(why));
        }
        Ok(answer)
    }

    /// How much of a snapshot the peer has; one that does not know the question gets all of it.
    fn have(&self, head: wire::SnapshotHead) -> Answer<u64> {
        let (rt, asked) = (self.factory.rt.clone(), self.bulk.snapshot_have(head));
        async move {
            match timeout(rt.as_ref(), SNAPSHOT_HAVE_LIMIT, asked).await {
                Some(Ok(have)) => Ok(have.bytes),
                Some(Err(PeerError::Failed(_))) => Ok(0),
                Some(Err(error)) => Err(error),
                None => Err(PeerError::Failed("the peer did not answer in time".to_owned())),
            }
        }
        .boxed()
    }
}

/// What a session of the append stream needs.
struct Opening {
    append: Arc<dyn PeerApi>,
    link: Arc<Link>,
    pace: Arc<Pace>,
    metrics: Arc<Metrics>,
    rt: Rt,
    target: u64,
    known: Arc<Known>,
}

/// What went out on a stream.
#[derive(Default)]
struct Sent {
    requests: AtomicU64,
    /// The leader's term.
    term: AtomicU64,
    /// What was committed when the last one went out.
    commit: AtomicU64,
}

impl Opening {
    /// Waits if the last session failed, and opens the stream.
    ///
    /// openraft's own back-off sits in `input`, which nobody reads before there is a connection: it does not slow
    /// down the attempts to get one.
    async fn open<R: AsyncRuntime, S>(self, input: S) -> Result<Session, PeerError>
    where
        S: Stream<Item = AppendEntriesRequest<C<R>>> + Send + Unpin + 'static,
    {
        if let Some(pause) = self.pace.pause(&self.rt) {
            self.rt.sleep(pause).await;
        }
        self.metrics.append_streams.inc();
        let sent = Arc::<Sent>::default();
        let confirmed = self.known.floor(self.target);
        let call = self.append.append(requests::<R, _>(input, sent.clone(), confirmed));
        let opened = timeout(self.rt.as_ref(), STREAM_SETUP_LIMIT, call).await;
        let opened = opened.unwrap_or_else(|| {
            let what = format!("replica {} did not answer in time", self.target);
            Err(PeerError::Failed(what))
        });
        let replies = opened.inspect_err(|error| self.failed(error))?;
        self.link.opened(Way::Append);
        Ok(Session { opening: self, replies, sent, received: 0 })
    }

    fn failed(&self, error: &PeerError) {
        self.pace.failed();
        self.link.failed(Way::Append, error);
    }
}

/// A session of the append stream.
struct Session {
    opening: Opening,
    replies: Answers<wire::AppendReply>,
    sent: Arc<Sent>,
    received: u64,
}

impl Session {
    fn owes(&self) -> bool {
        self.sent.requests.load(Ordering::Relaxed) > self.received
    }

    /// The next reply; `None` once the stream has ended.
    async fn next<R: AsyncRuntime>(
        &mut self,
    ) -> Option<Result<StreamAppendResult<C<R>>, PeerError>> {
        let Some(reply) = self.reply().await else {
            // A peer that hangs up at once would be asked again at once.
            if self.received == 0 {
                self.opening.pace.failed();
            }
            return None;
        };
        let next = reply.and_then(convert::appended_in);
        let next = next.and_then(|appended| self.keeps_what_it_had::<R>(appended));
        match &next {
            Ok(_) => {
                self.opening.pace.replied();
                self.opening.link.took_entries();
            }
            Err(error) => self.opening.failed(error),
        }
        Some(next)
    }

    /// Notes what the follower confirms. A conflict at something that it had confirmed to this leader is no conflict:
    /// openraft would take it for a fault of its own.
    fn keeps_what_it_had<R: AsyncRuntime>(
        &self,
        appended: StreamAppendResult<C<R>>,
    ) -> Result<StreamAppendResult<C<R>>, PeerError> {
        let Opening { target, link, known, .. } = &self.opening;
        let term = self.sent.term.load(Ordering::Relaxed);
        match &appended {
            Ok(Some(last)) => {
                link.confirmed(term, last.index);
                known.had(*target, last.index.min(self.sent.commit.load(Ordering::Relaxed)));
            }
            Err(StreamAppendError::Conflict(at)) => {
                if let Some(had) = link.had(term).filter(|had| at.index <= *had) {
                    let last = at.index.saturating_sub(1);
                    return Err(PeerError::Refused(known::lost(*target, last, had)));
                }
            }
            Ok(None) | Err(StreamAppendError::HigherVote(_)) => {}
        }
        Ok(appended)
    }

    async fn reply(&mut self) -> Option<Result<wire::AppendReply, PeerError>> {
        let (rt, target) = (self.opening.rt.clone(), self.opening.target);
        let failed = |what| Some(Err(PeerError::Failed(format!("replica {target} {what}"))));
        let mut owed = self.owes();
        loop {
            match timeout(rt.as_ref(), STREAM_SILENCE_LIMIT, self.replies.next()).await {
                Some(Some(Ok(reply))) => {
                    self.received += 1;
                    return Some(Ok(reply));
                }
                Some(Some(Err(error))) => return Some(Err(error)),
                Some(None) if self.owes() => return failed("ended the append stream"),
                Some(None) => return None,
                None if owed => return failed("owes replies on the append stream"),
                None => owed = self.owes(),
            }
        }
    }
}

/// Where an append stream stands.
enum Stage<S> {
    Unopened(Opening, S),
    Open(Session),
    Over,
}

/// The answers of an append stream; it is opened by whoever asks for the first one, who can also give up.
fn answers<R: AsyncRuntime, S>(
    opening: Opening,
    input: S,
) -> BoxStream<'static, Result<StreamAppendResult<C<R>>, Rpc<R>>>
where
    S: Stream<Item = AppendEntriesRequest<C<R>>> + Send + Unpin + 'static,
{
    stream::unfold(Stage::Unopened(opening, input), |stage| async move {
        let opened = match stage {
            Stage::Unopened(opening, input) => opening.open::<R, S>(input).await,
            Stage::Open(session) => Ok(session),
            Stage::Over => return None,
        };
        let mut session = match opened {
            Ok(session) => session,
            Err(error) => return Some((Err(rpc_error(&error)), Stage::Over)),
        };
        let next = session.next::<R>().await?;
        let stage = if matches!(next, Ok(Ok(_))) { Stage::Open(session) } else { Stage::Over };
        Some((next.map_err(|error| rpc_error(&error)), stage))
    })
    .boxed()
}

/// Requests as they go out; an entry that cannot be encoded ends them.
fn requests<R: AsyncRuntime, S>(
    input: S,
    sent: Arc<Sent>,
    confirmed: u64,
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
                Ok(mut out) => {
                    sent.term.store(request.vote.leader_id.term, Ordering::Relaxed);
                    if let Some(commit) = request.leader_commit {
                        sent.commit.store(commit.index, Ordering::Relaxed);
                    }
                    // Once is enough: what a process has confirmed it has until it ends, and its connections with it.
                    if sent.requests.fetch_add(1, Ordering::Relaxed) == 0 {
                        out.confirmed = confirmed;
                    }
                    Some((out, input))
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
        let mut request = convert::append_out::<R>(&rpc).map_err(|e| NetworkError::new(&e))?;
        request.confirmed = self.factory.known.floor(self.target);
        let beat = self.link.heartbeat();
        let answer = self.heartbeat.heartbeat(request);
        let call = answer.inspect(move |result| beat.ended(result));
        let reply = self.limited::<_, R>(option.hard_ttl(), call.boxed()).await?;
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
        let opening = Opening {
            append: self.append.clone(),
            link: self.link.clone(),
            pace: self.pace.clone(),
            metrics: self.factory.metrics.clone(),
            rt: self.factory.rt.clone(),
            target: self.target,
            known: self.factory.known.clone(),
        };
        std::future::ready(Ok(answers::<R, S>(opening, input))).boxed()
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<C<R>>,
        option: RPCOption,
    ) -> Result<VoteResponse<C<R>>, Rpc<R>> {
        let call = self.election.vote(convert::vote_out::<R>(&rpc));
        let reply = self.limited::<_, R>(option.hard_ttl(), call).await?;
        self.counted(convert::voted_in::<R>(reply)).map_err(|error| rpc_error(&error))
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<C<R>>,
        option: RPCOption,
    ) -> Result<VoteResponse<C<R>>, Rpc<R>> {
        let call = self.election.pre_vote(convert::vote_out::<R>(&rpc));
        let reply = self.limited::<_, R>(option.hard_ttl(), call).await?;
        self.counted(convert::voted_in::<R>(reply)).map_err(|error| rpc_error(&error))
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
        let head = wire::SnapshotHead {
            vote: Some((&vote).into()),
            last: snapshot.meta.last_log_id.map(Into::into),
            bytes: reader.info().file_bytes,
            crc: reader.info().crc,
        };
        let (target, store) = (self.target, self.factory.snapshots.clone());
        let (bulk, have) = (self.bulk.clone(), self.have(head));
        let sending = async move {
            let from = have.await?;
            tracing::info!(target_replica = target, bytes = head.bytes, from, "sending a snapshot");
            bulk.snapshot(chunks::chunks(store, reader, head, from)).await
        };
        let reply = match select(sending.boxed(), Box::pin(cancel)).await {
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
