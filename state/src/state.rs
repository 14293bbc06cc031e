//! Everything that Palisade remembers, in persistent maps: a clone costs a few counters.

use std::sync::Arc;

use imbl::OrdMap;

use crate::{
    audit::AuditChain,
    clock::Clock,
    command::Role,
    deletions::Deletions,
    idempotency::IdempotencyTable,
    key::KeyBytes,
    lease::{Lease, Session},
    outbox::Outbox,
    queue::WorkQueue,
    record::Record,
    replicas::ReplicaRow,
};

/// A name that many rows share.
pub type Name = Arc<str>;

/// The rows of one table.
pub type Rows = OrdMap<KeyBytes, Record>;

/// A position in the log.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Position {
    /// The Raft term.
    pub term: u64,
    /// The log index.
    pub index: u64,
}

/// Who the cluster is; set once by its first entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Formation {
    /// One life of the replica set.
    pub cluster: String,
    /// Survives recovery and restore.
    pub lineage: String,
    /// 0 at birth, raised by each restore or recovery.
    pub epoch: u64,
}

/// The whole replicated state.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(crate) formation: Option<Formation>,
    /// The last entry applied.
    pub(crate) applied: Position,
    /// The index of the entry that last changed anything but the clock.
    pub(crate) revision: u64,
    pub(crate) clock: Clock,
    pub(crate) tables: OrdMap<Name, Rows>,
    pub(crate) deletions: Deletions,
    pub(crate) leases: OrdMap<Name, Lease>,
    pub(crate) sessions: OrdMap<(Role, Name), Session>,
    pub(crate) queue: WorkQueue,
    pub(crate) outbox: Outbox,
    pub(crate) audit: AuditChain,
    pub(crate) idempotency: IdempotencyTable,
    pub(crate) replicas: OrdMap<u64, ReplicaRow>,
    /// 0 stands for the first format; see [`State::format`].
    pub(crate) format_raised: u32,
}

impl State {
    /// The format in which entries are written: every member reads it.
    pub(crate) fn format(&self) -> u32 {
        self.format_raised.max(1)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.formation.as_ref().map_or(0, |formation| formation.epoch)
    }

    pub(crate) fn row(&self, table: &str, key: &[u8]) -> Option<&Record> {
        self.tables.get(table)?.get(key)
    }
}
