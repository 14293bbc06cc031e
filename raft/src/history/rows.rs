//! What history keeps: messages (append-only, like everything on disk) behind their CRC-32.

use std::sync::Arc;

use palisade_state::outbox::Event;
use prost::Message;

use super::shelf::{ShelfError, Shelved};

/// What a gap is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Part {
    /// Audit records, by sequence number.
    Audit = 0,
    /// Events, by sequence number.
    Events = 1,
    /// Versions that records had, by the log index that ended them.
    Versions = 2,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Audit => "audit records",
            Self::Events => "events",
            Self::Versions => "versions",
        })
    }
}

/// A range that this replica knows it does not have: it was away, or too slow.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Gap {
    /// In what.
    #[prost(enumeration = "Part", tag = "1")]
    pub part: i32,
    /// The first one that is missing.
    #[prost(uint64, tag = "2")]
    pub from: u64,
    /// The last one.
    #[prost(uint64, tag = "3")]
    pub to: u64,
}

/// How far history reaches. Written in the same batch as what it speaks of.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Progress {
    /// The first audit record that is kept; 0: none was ever.
    #[prost(uint64, tag = "1")]
    pub(crate) audit_first: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) audit_last: u64,
    /// The hash of the last one.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) audit_hash: Vec<u8>,
    #[prost(uint64, tag = "4")]
    pub(crate) event_first: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) event_last: u64,
    /// Revisions from here on can be read; below, versions were removed or never known.
    #[prost(uint64, tag = "6")]
    pub(crate) versions_from: u64,
    /// The last log entry whose replaced versions are kept.
    #[prost(uint64, tag = "7")]
    pub(crate) through: u64,
    /// The first sheet that is kept and the last one; they are numbered from 1.
    #[prost(uint64, tag = "8")]
    pub(crate) sheet_first: u64,
    #[prost(uint64, tag = "9")]
    pub(crate) sheet_last: u64,
    #[prost(message, repeated, tag = "10")]
    pub(crate) gaps: Vec<Gap>,
}

/// How far history reached when it was last written. Its numbers only grow, and so does its length: it is written over
/// the one before.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Reached {
    #[prost(fixed64, tag = "1")]
    pub(crate) audit: u64,
    #[prost(fixed64, tag = "2")]
    pub(crate) event: u64,
    #[prost(fixed64, tag = "3")]
    pub(crate) through: u64,
}

impl From<&Progress> for Reached {
    fn from(progress: &Progress) -> Self {
        let Progress { audit_last, event_last, through, .. } = *progress;
        Self { audit: audit_last, event: event_last, through }
    }
}

impl Reached {
    pub(crate) fn is_within(&self, progress: &Progress) -> bool {
        progress.audit_last >= self.audit
            && progress.event_last >= self.event
            && progress.through >= self.through
    }
}

/// An event.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StoredEvent {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(uint32, tag = "2")]
    n: u32,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(string, tag = "4")]
    tenant: String,
    #[prost(string, tag = "5")]
    subject: String,
    #[prost(uint64, tag = "6")]
    pub(crate) at_ms: u64,
    #[prost(bytes = "vec", tag = "7")]
    data: Vec<u8>,
}

impl From<&Event> for StoredEvent {
    fn from(event: &Event) -> Self {
        Self {
            revision: event.revision,
            n: event.n,
            kind: event.kind.to_string(),
            tenant: event.tenant.to_string(),
            subject: event.subject.to_string(),
            at_ms: event.at_ms,
            data: event.data.clone(),
        }
    }
}

impl From<StoredEvent> for Event {
    fn from(stored: StoredEvent) -> Self {
        Self {
            revision: stored.revision,
            n: stored.n,
            kind: Arc::from(stored.kind),
            tenant: Arc::from(stored.tenant),
            subject: Arc::from(stored.subject),
            at_ms: stored.at_ms,
            data: stored.data,
        }
    }
}

/// A version that a record had.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StoredVersion {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) value: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub(crate) created_rev: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) version: u64,
    /// The revision that replaced or deleted it.
    #[prost(uint64, tag = "4")]
    pub(crate) ended_rev: u64,
    /// The leader's wall clock then, Unix milliseconds.
    #[prost(uint64, tag = "5")]
    pub(crate) ended_ms: u64,
}

/// The versions that ended in one range of the log. Sheets are numbered densely, so one that is lost is missed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sheet {
    /// The last log entry of the range.
    #[prost(uint64, tag = "1")]
    pub(crate) through: u64,
    /// When the last of them ended.
    #[prost(uint64, tag = "2")]
    pub(crate) ended_ms: u64,
    /// Their keys.
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(crate) versions: Vec<Vec<u8>>,
}

/// Encodes a row for the shelf.
pub(super) fn seal(row: &impl Message) -> Vec<u8> {
    let mut bytes = row.encode_to_vec();
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Reads a row from the shelf; `what` names it if it is not whole.
pub(super) fn open<T: Message + Default>(sealed: &[u8], what: &str) -> Shelved<T> {
    let damaged = || ShelfError::Broken(format!("{what} is damaged"));
    let (body, crc) = sealed.split_last_chunk::<4>().ok_or_else(damaged)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err(damaged());
    }
    T::decode(body).map_err(|_| damaged())
}
