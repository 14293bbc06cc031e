//! Between openraft's messages and the wire's.

use openraft::{
    AsyncRuntime,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult,
        TransferLeaderRequest, VoteRequest, VoteResponse,
    },
};

use super::{PeerError, wire};
use crate::types::{
    Entry, LogId, PayloadError, TypeConfig, Vote, decode_payload, encode_payload, log_id,
    make_vote, term_of,
};

impl From<&Vote> for wire::Vote {
    fn from(vote: &Vote) -> Self {
        let id = vote.leader_id;
        Self { term: id.term, node: id.voted_for, committed: vote.committed }
    }
}

impl From<wire::Vote> for Vote {
    fn from(vote: wire::Vote) -> Self {
        make_vote(vote.term, vote.node, vote.committed)
    }
}

impl From<LogId> for wire::LogId {
    fn from(id: LogId) -> Self {
        Self { term: term_of(&id), index: id.index }
    }
}

impl From<wire::LogId> for LogId {
    fn from(id: wire::LogId) -> Self {
        log_id(id.term, id.index)
    }
}

fn missing(what: &str) -> PeerError {
    PeerError::Failed(format!("a message without {what}"))
}

pub(crate) fn vote_of(vote: Option<wire::Vote>) -> Result<Vote, PeerError> {
    vote.map(Vote::from).ok_or_else(|| missing("a vote"))
}

fn entry_out(entry: &Entry) -> Result<wire::LogEntry, PayloadError> {
    let payload = encode_payload(&entry.payload)?;
    Ok(wire::LogEntry { term: term_of(&entry.log_id), index: entry.log_id.index, payload })
}

fn entry_in(entry: wire::LogEntry) -> Result<Entry, PeerError> {
    let payload =
        decode_payload(entry.payload).map_err(|error| PeerError::Failed(error.to_string()))?;
    Ok(Entry { log_id: log_id(entry.term, entry.index), payload })
}

pub(crate) fn append_out<R: AsyncRuntime>(
    request: &AppendEntriesRequest<TypeConfig<R>>,
) -> Result<wire::AppendRequest, PayloadError> {
    Ok(wire::AppendRequest {
        vote: Some((&request.vote).into()),
        prev: request.prev_log_id.map(Into::into),
        entries: request.entries.iter().map(entry_out).collect::<Result<_, _>>()?,
        commit: request.leader_commit.map(Into::into),
        confirmed: 0,
    })
}

pub(crate) fn append_in<R: AsyncRuntime>(
    request: wire::AppendRequest,
) -> Result<AppendEntriesRequest<TypeConfig<R>>, PeerError> {
    Ok(AppendEntriesRequest {
        vote: vote_of(request.vote)?,
        prev_log_id: request.prev.map(Into::into),
        entries: request.entries.into_iter().map(entry_in).collect::<Result<_, _>>()?,
        leader_commit: request.commit.map(Into::into),
    })
}

type Reply = wire::append_reply::Result;

fn reply(result: Reply) -> wire::AppendReply {
    wire::AppendReply { result: Some(result) }
}

/// The reply that says that this replica has stopped.
pub(crate) fn stopped(why: String) -> wire::AppendReply {
    reply(Reply::Stopped(why))
}

/// A stream's reply on its way out.
pub(crate) fn appended_out<R: AsyncRuntime>(
    result: StreamAppendResult<TypeConfig<R>>,
) -> wire::AppendReply {
    reply(match result {
        Ok(last) => Reply::Matched(wire::Matched { last: last.map(Into::into) }),
        Err(StreamAppendError::Conflict(at)) => Reply::Conflict(at.into()),
        Err(StreamAppendError::HigherVote(vote)) => Reply::Higher((&vote).into()),
    })
}

/// A stream's reply on its way in.
pub(crate) fn appended_in<R: AsyncRuntime>(
    reply: wire::AppendReply,
) -> Result<StreamAppendResult<TypeConfig<R>>, PeerError> {
    match reply.result {
        Some(Reply::Matched(matched)) => Ok(Ok(matched.last.map(Into::into))),
        Some(Reply::Conflict(at)) => Ok(Err(StreamAppendError::Conflict(at.into()))),
        Some(Reply::Higher(vote)) => Ok(Err(StreamAppendError::HigherVote(vote.into()))),
        Some(Reply::Stopped(why)) => Err(PeerError::Failed(why)),
        None => Err(missing("a result")),
    }
}

/// A unary reply on its way out; `prev` and `last` are the request's.
pub(crate) fn heartbeat_out<R: AsyncRuntime>(
    response: AppendEntriesResponse<TypeConfig<R>>,
    prev: Option<LogId>,
    last: Option<LogId>,
) -> wire::AppendReply {
    match response {
        AppendEntriesResponse::Success => appended_out::<R>(Ok(last)),
        AppendEntriesResponse::PartialSuccess(upto) => appended_out::<R>(Ok(upto)),
        AppendEntriesResponse::Conflict => appended_out::<R>(Err(StreamAppendError::Conflict(
            prev.unwrap_or_else(|| log_id(0, 0)),
        ))),
        AppendEntriesResponse::HigherVote(vote) => {
            appended_out::<R>(Err(StreamAppendError::HigherVote(vote)))
        }
    }
}

/// A unary reply on its way in; `last` is the request's.
pub(crate) fn heartbeat_in<R: AsyncRuntime>(
    reply: wire::AppendReply,
    last: Option<LogId>,
) -> Result<AppendEntriesResponse<TypeConfig<R>>, PeerError> {
    Ok(match appended_in::<R>(reply)? {
        Ok(upto) if upto == last => AppendEntriesResponse::Success,
        Ok(upto) => AppendEntriesResponse::PartialSuccess(upto),
        Err(StreamAppendError::Conflict(_)) => AppendEntriesResponse::Conflict,
        Err(StreamAppendError::HigherVote(vote)) => AppendEntriesResponse::HigherVote(vote),
    })
}

pub(crate) fn vote_out<R: AsyncRuntime>(request: &VoteRequest<TypeConfig<R>>) -> wire::VoteRequest {
    wire::VoteRequest {
        vote: Some((&request.vote).into()),
        last: request.last_log_id.map(Into::into),
        leadership_transfer: request.leadership_transfer,
    }
}

pub(crate) fn vote_in<R: AsyncRuntime>(
    request: wire::VoteRequest,
) -> Result<VoteRequest<TypeConfig<R>>, PeerError> {
    Ok(VoteRequest {
        vote: vote_of(request.vote)?,
        last_log_id: request.last.map(Into::into),
        leadership_transfer: request.leadership_transfer,
    })
}

pub(crate) fn voted_out<R: AsyncRuntime>(
    response: &VoteResponse<TypeConfig<R>>,
) -> wire::VoteReply {
    wire::VoteReply {
        vote: Some((&response.vote).into()),
        granted: response.vote_granted,
        last: response.last_log_id.map(Into::into),
    }
}

pub(crate) fn voted_in<R: AsyncRuntime>(
    reply: wire::VoteReply,
) -> Result<VoteResponse<TypeConfig<R>>, PeerError> {
    Ok(VoteResponse {
        vote: vote_of(reply.vote)?,
        vote_granted: reply.granted,
        last_log_id: reply.last.map(Into::into),
    })
}

pub(crate) fn transfer_out<R: AsyncRuntime>(
    request: &TransferLeaderRequest<TypeConfig<R>>,
) -> wire::TransferRequest {
    wire::TransferRequest {
        from: Some(request.from_leader().into()),
        to: *request.to_node_id(),
        last: request.last_log_id().copied().map(Into::into),
    }
}

pub(crate) fn transfer_in<R: AsyncRuntime>(
    request: wire::TransferRequest,
) -> Result<TransferLeaderRequest<TypeConfig<R>>, PeerError> {
    let last = request.last.map(Into::into);
    Ok(TransferLeaderRequest::new(vote_of(request.from)?, request.to, last))
}
