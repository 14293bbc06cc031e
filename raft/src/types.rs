//! The one type configuration of openraft, by hand, and the translations around it.
//!
//! # Invariants
//! - `TERM-1` Leader ids are in standard mode: at most one leader in each term. The kernel's fences are
//!   terms, and mean nothing otherwise.

use std::{
    cmp::Ordering,
    fmt,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{BufMut, Bytes, BytesMut};
use openraft::{
    AsyncRuntime, OptionalSend, RaftTypeConfig,
    batch::InlineBatch,
    impls::{BoxedErrorSource, leader_id_std},
    raft::responder::Responder,
    vote::RaftLeaderId,
};
use palisade_state::{Outcome, command::Entry as KernelEntry};
use prost::Message;

use crate::wal;

/// The runtime that production uses; a simulation brings its own.
#[allow(deprecated, reason = "the alias saves a dependency on the runtime crate alone")]
pub type TokioExecutor = openraft::impls::TokioRuntime;

pub(crate) type LeaderId = leader_id_std::LeaderId<u64, u64>;
pub(crate) type CommittedLeaderId = <LeaderId as RaftLeaderId>::Committed;
pub(crate) type LogId = openraft::LogId<CommittedLeaderId>;
pub(crate) type Vote = openraft::Vote<LeaderId>;
pub(crate) type EntryPayload = openraft::EntryPayload<Payload, u64, Node>;
pub(crate) type Entry = openraft::Entry<CommittedLeaderId, EntryPayload>;
pub(crate) type StoredMembership = openraft::StoredMembership<CommittedLeaderId, u64, Node>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId, u64, Node>;
pub(crate) type Snapshot =
    openraft::Snapshot<CommittedLeaderId, u64, Node, crate::snapshots::SnapshotData>;
pub(crate) type Raft<R> = openraft::Raft<TypeConfig<R>, crate::machine::StateMachine>;

/// The type configuration, for one runtime.
pub(crate) struct TypeConfig<R>(PhantomData<fn() -> R>);

impl<R> fmt::Debug for TypeConfig<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TypeConfig")
    }
}

impl<R> Clone for TypeConfig<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for TypeConfig<R> {}

impl<R> Default for TypeConfig<R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<R> PartialEq for TypeConfig<R> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<R> Eq for TypeConfig<R> {}

impl<R> PartialOrd for TypeConfig<R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R> Ord for TypeConfig<R> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl<R: AsyncRuntime> RaftTypeConfig for TypeConfig<R> {
    type D = Payload;
    type R = Outcomes;
    type NodeId = u64;
    type Node = Node;
    type Term = u64;
    type LeaderId = LeaderId;
    type Vote = Vote;
    type Payload = EntryPayload;
    type Entry = Entry;
    type AsyncRuntime = R;
    type Responder<T>
        = FnResponder<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = BoxedErrorSource;
}

/// Where a member is reached; part of the membership, not its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Node {
    /// `host:port` for peers.
    pub(crate) peer_addr: String,
    /// `host:port` for operators and agents.
    pub(crate) api_addr: String,
}

/// Answers whoever proposed, in the state machine's task: it must not block.
pub(crate) struct FnResponder<T>(Box<dyn FnOnce(T) + Send>);

impl<T> FnResponder<T> {
    pub(crate) fn new(answer: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(answer))
    }
}

impl<R: AsyncRuntime, T: OptionalSend + 'static> Responder<TypeConfig<R>, T> for FnResponder<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERSHIP: u8 = 2;

/// An encoded kernel entry behind its kind byte, exactly as it is on disk and on the wire.
#[derive(Clone)]
pub(crate) struct Payload {
    bytes: Bytes,
    /// The entry itself, for the first who asks: whoever proposed it need not read it again to apply it.
    entry: Option<Arc<Mutex<Option<KernelEntry>>>>,
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Payload {}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, entry: None }
    }
}

impl Payload {
    pub(crate) fn new(entry: KernelEntry) -> Self {
        let mut frame = BytesMut::with_capacity(1 + entry.encoded_len());
        frame.put_u8(NORMAL);
        // A `BytesMut` grows, so encoding into it cannot fail.
        let _ = entry.encode(&mut frame);
        Self { bytes: frame.freeze(), entry: Some(Arc::new(Mutex::new(Some(entry)))) }
    }

    /// The entry, once; later ones decode it.
    pub(crate) fn take(&self) -> Result<KernelEntry, prost::DecodeError> {
        let kept = self
            .entry
            .as_ref()
            .and_then(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner).take());
        kept.map_or_else(|| self.decode(), Ok)
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn decode(&self) -> Result<KernelEntry, prost::DecodeError> {
        KernelEntry::decode(self.bytes.slice(1..))
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

impl serde::Serialize for Payload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes)
    }
}

impl<'de> serde::Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Bytes::from(Vec::<u8>::deserialize(deserializer)?).into())
    }
}

/// What apply answered, one outcome for each command of the entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcomes(pub(crate) Vec<Outcome>);

impl serde::Serialize for Outcomes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.iter().map(Message::encode_to_vec).collect::<Vec<_>>().serialize(serializer)
    }
}

impl<'de> serde::Deserialize<'de> for Outcomes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let encoded = Vec::<Vec<u8>>::deserialize(deserializer)?;
        let decoded = encoded.iter().map(|bytes| Outcome::decode(bytes.as_slice()));
        decoded.collect::<Result<_, _>>().map(Self).map_err(serde::de::Error::custom)
    }
}

/// Why the bytes of a log entry do not make one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PayloadError {
    #[error("a log entry's payload is empty")]
    Empty,
    #[error("a log entry is of kind {0}, which this build does not know: run a newer binary")]
    UnknownKind(u8),
    #[error("a membership entry cannot be read")]
    Membership(#[source] serde_json::Error),
}

impl From<PayloadError> for std::io::Error {
    fn from(error: PayloadError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}

pub(crate) fn encode_payload(payload: &EntryPayload) -> Result<Bytes, PayloadError> {
    match payload {
        EntryPayload::Blank => Ok(Bytes::from_static(&[BLANK])),
        EntryPayload::Normal(payload) => Ok(payload.bytes.clone()),
        EntryPayload::Membership(membership) => {
            let mut frame = vec![MEMBERSHIP];
            serde_json::to_writer(&mut frame, membership).map_err(PayloadError::Membership)?;
            Ok(frame.into())
        }
    }
}

pub(crate) fn decode_payload(frame: Bytes) -> Result<EntryPayload, PayloadError> {
    match frame.first() {
        None => Err(PayloadError::Empty),
        Some(&BLANK) => Ok(EntryPayload::Blank),
        Some(&NORMAL) => Ok(EntryPayload::Normal(frame.into())),
        Some(&MEMBERSHIP) => {
            let membership =
                serde_json::from_slice(&frame[1..]).map_err(PayloadError::Membership)?;
            Ok(EntryPayload::Membership(membership))
        }
        Some(&kind) => Err(PayloadError::UnknownKind(kind)),
    }
}

pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}

pub(crate) fn term_of(id: &LogId) -> u64 {
    *id.leader_id
}

impl From<&LogId> for wal::Position {
    fn from(id: &LogId) -> Self {
        Self { term: term_of(id), index: id.index }
    }
}

impl From<wal::Position> for LogId {
    fn from(at: wal::Position) -> Self {
        log_id(at.term, at.index)
    }
}

pub(crate) fn entry_to_record(entry: &Entry) -> Result<wal::EntryRecord, PayloadError> {
    let payload = encode_payload(&entry.payload)?;
    Ok(wal::EntryRecord { term: term_of(&entry.log_id), index: entry.log_id.index, payload })
}

pub(crate) fn record_to_entry(record: wal::EntryRecord) -> Result<Entry, PayloadError> {
    let payload = decode_payload(record.payload)?;
    Ok(Entry { log_id: log_id(record.term, record.index), payload })
}

pub(crate) fn vote_to_wal(vote: &Vote) -> wal::Vote {
    let id = vote.leader_id;
    wal::Vote { term: id.term, node: id.voted_for, committed: vote.committed }
}

pub(crate) fn vote_from_wal(vote: wal::Vote) -> Vote {
    make_vote(vote.term, vote.node, vote.committed)
}

pub(crate) fn make_vote(term: u64, node: u64, committed: bool) -> Vote {
    if committed { Vote::new_committed(term, node) } else { Vote::new(term, node) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_leaders_of_one_term_are_not_comparable() {
        let (a, b) = (make_vote(5, 1, true), make_vote(5, 2, true));
        assert_eq!(a.partial_cmp(&b), None, "TERM-1: neither outranks the other");
        assert_ne!(a, b);
        assert!(make_vote(6, 1, false) > b, "only a higher term outranks");
        assert!(make_vote(5, 2, false).partial_cmp(&make_vote(5, 1, false)).is_none());
    }

    #[test]
    fn the_entry_of_a_proposer_is_what_everybody_else_decodes() {
        let entry = KernelEntry { format: 1, delta_ms: 7, ..KernelEntry::default() };
        let payload = Payload::new(entry.clone());
        assert_eq!(payload.clone().take().unwrap(), entry);
        assert_eq!(payload.take().unwrap(), entry, "it was taken, and is decoded");
    }

    #[test]
    fn a_committed_leader_id_is_its_term_alone() {
        assert_eq!(CommittedLeaderId::from(7), log_id(7, 1).leader_id);
    }

    #[test]
    fn payloads_survive_the_log() {
        let entry = KernelEntry { format: 1, proposer_term: 3, ..KernelEntry::default() };
        for payload in [
            EntryPayload::Blank,
            EntryPayload::Normal(Payload::new(entry.clone())),
            EntryPayload::Membership(
                openraft::Membership::new(
                    [[1].into()].to_vec(),
                    std::collections::BTreeMap::from([(1, Node::default())]),
                )
                .unwrap(),
            ),
        ] {
            let frame = encode_payload(&payload).unwrap();
            assert_eq!(decode_payload(frame).unwrap(), payload);
        }
        assert!(matches!(
            decode_payload(Bytes::from_static(&[9])),
            Err(PayloadError::UnknownKind(9))
        ));
    }
}
