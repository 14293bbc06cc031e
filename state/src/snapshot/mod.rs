//! The state as a sequence of chunks, and back. The file around them is consensus's business.
//!
//! # Invariants
//! - `SNAP-1` Loading what was encoded gives the same state, all primitives included.
//! - `S1` Two states are equal if and only if their chunks are, so the hash of the chunks compares
//!   replicas at one applied index.

mod rows;

use bytes::Bytes;
use prost::{Message, Oneof};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use crate::{
    audit::AuditRecord,
    clock::Clock,
    command::{FORMAT, Role},
    deletions::Deletions,
    idempotency::{IdempotencyId, IdempotencyRow},
    key::KeyBytes,
    lease::{Lease, Session},
    outbox::Event,
    planted::{self, Defect},
    queue::{WorkKey, WorkRow},
    replicas::ReplicaRow,
    snapshot::rows::RowsOf,
    state::{Formation, Name, Position, State},
    view::View,
};

/// Chunks are closed once they reach this size.
const CHUNK_BYTES: usize = 256 * 1024;

/// One chunk.
#[derive(Clone, PartialEq, Message)]
struct Chunk {
    #[prost(oneof = "Section", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    section: Option<Section>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Section {
    /// The scalars, as JSON.
    #[prost(bytes = "vec", tag = "1")]
    Head(Vec<u8>),
    #[prost(message, tag = "2")]
    Rows(RowsOf),
    #[prost(message, tag = "3")]
    Deletions(Items),
    #[prost(message, tag = "4")]
    Leases(Items),
    #[prost(message, tag = "5")]
    Sessions(Items),
    #[prost(message, tag = "6")]
    Work(Items),
    #[prost(message, tag = "7")]
    Events(Items),
    #[prost(message, tag = "8")]
    Audit(Items),
    #[prost(message, tag = "9")]
    Idempotency(Items),
    #[prost(message, tag = "10")]
    Replicas(Items),
}

/// Items of one primitive: JSON, or protobuf for audit records.
#[derive(Clone, PartialEq, Message)]
struct Items {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    items: Vec<Bytes>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Head {
    formation: Option<Formation>,
    applied: Position,
    revision: u64,
    clock: Clock,
    deletions_floor: u64,
    last_event: u64,
    last_audit: u64,
    audit_head: [u8; 32],
    /// The active format; a state of a newer one is refused.
    #[serde(default)]
    format: u32,
    /// Idempotency keys that were forgotten before their time.
    #[serde(default, skip_serializing_if = "is_zero")]
    evicted: u64,
    /// Tables in order, the empty ones among them.
    tables: Vec<String>,
}

/// What is newer than the format is written only where it is used, so that the bytes of a state
/// without it stay what they were.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Why chunks do not make a state.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A chunk is not one of this format.
    #[error("snapshot chunk {chunk} cannot be read")]
    Unreadable {
        /// Counted from 0.
        chunk: usize,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A section of a newer build.
    #[error(
        "snapshot chunk {chunk} holds a section that this build does not know: run a newer binary"
    )]
    UnknownSection {
        /// Counted from 0.
        chunk: usize,
    },
    /// The cluster moved on to a format that this build does not read.
    #[error(
        "the snapshot is of a cluster of format {format}, this build reads up to {FORMAT}: run a newer binary"
    )]
    NewerFormat {
        /// The cluster's format.
        format: u32,
    },
    /// The first chunk is missing.
    #[error("the snapshot has no head")]
    NoHead,
}

/// Encodes a view, chunk by chunk.
///
/// # Errors
/// What the sink answered.
pub fn encode<E: From<serde_json::Error>>(
    view: &View,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let state = view.state();
    let head = Head {
        formation: state.formation.as_deref().cloned(),
        applied: state.applied,
        revision: state.revision,
        clock: state.clock,
        deletions_floor: state.deletions.floor,
        last_event: state.outbox.last_seq,
        last_audit: state.audit.last_seq,
        audit_head: state.audit.head,
        format: state.format(),
        evicted: state.idempotency.evicted,
        tables: state.tables.keys().map(ToString::to_string).collect(),
    };
    put(Section::Head(serde_json::to_vec(&head)?), &mut sink)?;
    rows::encode(state, &mut sink)?;
    encode_items(
        state.deletions.by_row.iter().map(|((t, k), rev)| (t, k.as_slice(), rev)),
        Section::Deletions,
        &mut sink,
    )?;
    if !planted::is(Defect::SnapshotWithoutLeases) {
        encode_items(state.leases.iter(), Section::Leases, &mut sink)?;
    }
    encode_items(state.sessions.iter(), Section::Sessions, &mut sink)?;
    encode_items(state.queue.rows(), Section::Work, &mut sink)?;
    encode_items(state.outbox.events.iter(), Section::Events, &mut sink)?;
    let records = state.audit.records.values().map(|record| Ok(record.encode_to_vec()));
    encode_bytes(records, Section::Audit, &mut sink)?;
    encode_items(state.idempotency.rows.iter(), Section::Idempotency, &mut sink)?;
    encode_items(state.replicas.iter(), Section::Replicas, &mut sink)
}

fn put<E>(section: Section, sink: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    sink(&Chunk { section: Some(section) }.encode_to_vec())
}

fn encode_items<T: Serialize, E: From<serde_json::Error>>(
    items: impl Iterator<Item = T>,
    section: fn(Items) -> Section,
    sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    encode_bytes(items.map(|item| serde_json::to_vec(&item).map_err(E::from)), section, sink)
}

fn encode_bytes<E>(
    items: impl Iterator<Item = Result<Vec<u8>, E>>,
    section: fn(Items) -> Section,
    sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut batch, mut size) = (Items::default(), 0);
    for item in items {
        let item = item?;
        size += item.len() + 8;
        batch.items.push(item.into());
        if size >= CHUNK_BYTES {
            size = 0;
            put(section(std::mem::take(&mut batch)), sink)?;
        }
    }
    if batch.items.is_empty() { Ok(()) } else { put(section(batch), sink) }
}

/// SHA-256 over all chunks of a view, lengths included.
#[must_use]
pub fn hash(view: &View) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let done: Result<(), serde_json::Error> = encode(view, |chunk| {
        hasher.update((chunk.len() as u64).to_le_bytes());
        hasher.update(chunk);
        Ok(())
    });
    debug_assert!(done.is_ok(), "state of known types encodes");
    hasher.finalize().into()
}

/// Builds a state from chunks.
#[derive(Default)]
pub struct Loader {
    head: Option<Head>,
    state: State,
    deletions: Vec<(Name, KeyBytes, u64)>,
    work: Vec<(WorkKey, WorkRow)>,
    chunks: usize,
}

impl Loader {
    /// Takes the next chunk.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<(), LoadError> {
        let chunk = self.chunks;
        self.chunks += 1;
        let unreadable = |source| LoadError::Unreadable { chunk, source };
        let decoded = Chunk::decode(Bytes::copy_from_slice(bytes))
            .map_err(|error| unreadable(error.into()))?;
        let section = decoded.section.ok_or(LoadError::UnknownSection { chunk })?;
        self.section(section).map_err(unreadable)
    }

    fn section(
        &mut self,
        section: Section,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match section {
            Section::Head(json) => self.head = Some(serde_json::from_slice(&json)?),
            Section::Rows(batch) => {
                let name = self.state.table_name(&batch.table);
                rows::load(batch.rows, self.state.table_mut(&name));
            }
            Section::Deletions(items) => each(items, |(table, key, rev): (Name, Vec<u8>, u64)| {
                self.deletions.push((table, KeyBytes::from_slice(&key), rev));
            })?,
            Section::Leases(items) => each(items, |(name, lease): (Name, Lease)| {
                self.state.leases.insert(name, lease);
            })?,
            Section::Sessions(items) => each(items, |(id, session): ((Role, Name), Session)| {
                self.state.sessions.insert(id, session);
            })?,
            Section::Work(items) => each(items, |(id, row): (WorkKey, WorkRow)| {
                self.work.push((id, row));
            })?,
            Section::Events(items) => each(items, |(seq, event): (u64, Event)| {
                self.state.outbox.events.insert(seq, event);
            })?,
            Section::Audit(items) => {
                for item in items.items {
                    let record = AuditRecord::decode(item)?;
                    self.state.audit.records.insert(record.seq, record);
                }
            }
            Section::Idempotency(items) => {
                each(items, |(id, row): (IdempotencyId, IdempotencyRow)| {
                    self.state.idempotency.put(id, row);
                })?
            }
            Section::Replicas(items) => each(items, |(id, row): (u64, ReplicaRow)| {
                self.state.replicas.insert(id, row);
            })?,
        }
        Ok(())
    }

    /// The state.
    ///
    /// # Errors
    /// There was no head, or its format is newer than this build.
    pub fn finish(self) -> Result<State, LoadError> {
        let head = self.head.ok_or(LoadError::NoHead)?;
        if head.format > FORMAT {
            return Err(LoadError::NewerFormat { format: head.format });
        }
        let mut state = self.state;
        // A format of 1 is the same state whether it was raised or not.
        state.format_raised = if head.format > 1 { head.format } else { 0 };
        for table in head.tables {
            state.tables.entry(table.into()).or_default();
        }
        for (id, row) in self.work {
            state.queue.put(id, row, head.clock.now_ms);
        }
        state.formation = head.formation.map(Into::into);
        state.applied = head.applied;
        state.revision = head.revision;
        state.clock = head.clock;
        state.deletions = Deletions::restore(self.deletions, head.deletions_floor);
        state.idempotency.evicted = head.evicted;
        state.outbox.last_seq = head.last_event;
        state.audit.last_seq = head.last_audit;
        state.audit.head = head.audit_head;
        Ok(state)
    }
}

fn each<T: DeserializeOwned>(
    items: Items,
    mut take: impl FnMut(T),
) -> Result<(), serde_json::Error> {
    for item in items.items {
        take(serde_json::from_slice(&item)?);
    }
    Ok(())
}
