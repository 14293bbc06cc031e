//! The Store service: how followers and gateways reach state. See `proto/peer.proto` for what it promises.

pub(crate) mod admit;
mod answering;
mod batch;
mod hub;
mod interest;
mod many;
mod message;
pub(crate) mod rows;
mod watcher;

use std::sync::Arc;

use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use palisade_state::{Command, Outcome, View};
use prost::Message;
use tokio::sync::mpsc;

pub(crate) use self::{
    answering::Answering,
    hub::{Hub, Topic},
    many::{ManyWatches, Told},
    rows::At,
    watcher::Watcher,
};
use crate::{
    peer::wire,
    proposer::{Answer, Proposer},
    refusal::Refusal,
};

/// Requests of one stream that are worked on at the same time.
const STREAM_IN_FLIGHT_MAX: usize = 1024;

/// What this replica answers by itself, never forwarding a command.
pub(crate) trait Here: Send + Sync + 'static {
    /// Where commands go; refused there unless this replica leads.
    fn proposer(&self) -> &Proposer;
    /// The index that a reader must wait for, if this replica leads.
    fn read_index(&self) -> BoxFuture<'static, Result<u64, Refusal>>;
    /// A view that is fresh enough.
    fn view(&self, at: At) -> BoxFuture<'static, Result<View, Refusal>>;
    /// The peer address of the leader, when it is another replica.
    fn leader_addr(&self) -> Option<String>;
    /// The watches of this replica.
    fn hub(&self) -> &Arc<Hub>;
}

/// The store as it is served.
#[derive(Clone)]
pub(crate) struct Service(pub(crate) Arc<dyn Here>);

/// A refusal as the caller gets it, with the way to the leader.
fn told(here: &dyn Here, refusal: Refusal) -> wire::Refusal {
    let is_elsewhere = refusal == Refusal::NotLeader;
    let mut told: wire::Refusal = refusal.into();
    if is_elsewhere {
        told.detail = here.leader_addr().unwrap_or_default();
    }
    told
}

fn propose_reply(here: &dyn Here, id: u64, result: Result<Outcome, Refusal>) -> wire::ProposeReply {
    use wire::propose_reply::Result as Reply;
    let result = match result {
        Ok(outcome) => Reply::Outcome(outcome.encode_to_vec().into()),
        Err(refusal) => Reply::Refusal(told(here, refusal)),
    };
    wire::ProposeReply { id, result: Some(result) }
}

fn command(request: wire::ProposeRequest, is_gateway: bool) -> Result<Command, Refusal> {
    let command = Command::decode(request.command)
        .map_err(|error| Refusal::Invalid(format!("the command cannot be read: {error}")))?;
    if is_gateway {
        admit::check_from_gateway(&command)?;
    }
    Ok(command)
}

impl Service {
    /// Proposes one command.
    pub(crate) async fn propose(
        self,
        request: wire::ProposeRequest,
        is_gateway: bool,
    ) -> wire::ProposeReply {
        let here = self.0;
        let id = request.id;
        let result = match command(request, is_gateway) {
            Ok(command) => here.proposer().propose(command).await,
            Err(refusal) => Err(refusal),
        };
        propose_reply(here.as_ref(), id, result)
    }

    /// Proposes many commands.
    pub(crate) fn propose_stream(
        self,
        requests: BoxStream<'static, wire::ProposeRequest>,
        is_gateway: bool,
    ) -> BoxStream<'static, wire::ProposeReply> {
        let here = self.0;
        let (answers, answered) = mpsc::channel(STREAM_IN_FLIGHT_MAX);
        let proposing = here.clone();
        let intake = async move {
            let mut requests = requests;
            while let Some(request) = requests.next().await {
                // A place for the reply, before anything is proposed: whoever does not read gets no more done.
                let Ok(place) = answers.clone().reserve_owned().await else { return };
                let id = request.id;
                let answer = Answer::Many(id, place);
                match command(request, is_gateway) {
                    Ok(command) => proposing.proposer().submit(command, answer).await,
                    Err(refusal) => answer.send(Err(refusal)),
                }
            }
        };
        let intake = stream::once(intake).filter_map(|()| std::future::ready(None));
        let replies = tokio_stream::wrappers::ReceiverStream::new(answered)
            .map(move |(id, result)| propose_reply(here.as_ref(), id, result));
        stream::select(replies, intake).boxed()
    }

    /// The index that a reader must wait for.
    pub(crate) async fn read_index(self) -> wire::ReadIndexReply {
        use wire::read_index_reply::Result as Reply;
        let result = match self.0.read_index().await {
            Ok(index) => Reply::Index(index),
            Err(refusal) => Reply::Refusal(told(self.0.as_ref(), refusal)),
        };
        wire::ReadIndexReply { result: Some(result) }
    }

    async fn rows(&self, request: wire::ReadRequest) -> Result<wire::Rows, Refusal> {
        let at = rows::freshness(&request);
        let range = rows::Range::checked(&request.table, request.start, request.end)?;
        let view = self.0.view(at).await?;
        Ok(rows::read(&view, &range, request.limit))
    }

    /// Reads rows.
    pub(crate) async fn read(self, request: wire::ReadRequest) -> wire::ReadReply {
        use wire::read_reply::Result as Reply;
        let id = request.id;
        let result = match self.rows(request).await {
            Ok(rows) => Reply::Rows(rows),
            Err(refusal) => Reply::Refusal(told(self.0.as_ref(), refusal)),
        };
        wire::ReadReply { id, result: Some(result) }
    }

    /// Reads rows many times.
    pub(crate) fn read_stream(
        self,
        requests: BoxStream<'static, wire::ReadRequest>,
    ) -> BoxStream<'static, wire::ReadReply> {
        requests
            .map(move |request| self.clone().read(request).boxed())
            .buffer_unordered(STREAM_IN_FLIGHT_MAX)
            .boxed()
    }

    /// Watches rows, or work.
    pub(crate) fn watch(&self, request: wire::WatchRequest) -> Result<Watcher, Refusal> {
        let wire::WatchRequest { table, start, end, from_revision, work_kind } = request;
        let topic = if work_kind.is_empty() {
            rows::Range::checked(&table, start, end)?.into()
        } else {
            let kind = std::str::from_utf8(&work_kind)
                .ok()
                .filter(|kind| table.is_empty() && palisade_state::queue::is_kind(kind))
                .ok_or_else(|| Refusal::Invalid("no kind of work has this name".to_owned()))?;
            Topic::Work { kind: kind.to_owned() }
        };
        self.0.hub().watch(topic, from_revision)
    }
}
