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
    record::{Record, Stamp},
    replicas::ReplicaRow,
};

/// A name that many rows share.
pub type Name = Arc<str>;

/// The rows of one table.
pub type Rows = OrdMap<KeyBytes, Record>;

/// One table.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableRows {
    pub(crate) rows: Rows,
    /// No row that is there was changed after this revision.
    pub(crate) changed_rev: u64,
}

impl TableRows {
    /// Writes a row at `revision`.
    pub(crate) fn put(&mut self, key: &KeyBytes, value: &[u8], revision: u64) {
        self.changed_rev = revision;
        if let Some(record) = self.rows.get_mut(key.as_slice()) {
            let Stamp { created_rev, version, .. } = record.stamp();
            let stamp = Stamp { created_rev, modified_rev: revision, version: version + 1 };
            *record = Record::new(stamp, value);
        } else {
            let stamp = Stamp { created_rev: revision, modified_rev: revision, version: 1 };
            self.rows.insert(key.clone(), Record::new(stamp, value));
        }
    }

    /// Takes the next rows of a snapshot, in order. A leaf that is filled in order is split in
    /// halves and stays half full; with every other row first, the rest fills the halves up.
    pub(crate) fn load(&mut self, rows: impl ExactSizeIterator<Item = (KeyBytes, Record)>) {
        let mut rest = Vec::with_capacity(rows.len() / 2);
        for (at, (key, record)) in rows.enumerate() {
            self.changed_rev = self.changed_rev.max(record.stamp().modified_rev);
            if at % 2 == 0 {
                self.rows.insert(key, record);
            } else {
                rest.push((key, record));
            }
        }
        for (key, record) in rest {
            self.rows.insert(key, record);
        }
    }
}

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
    pub(crate) formation: Option<Arc<Formation>>,
    /// The last entry applied.
    pub(crate) applied: Position,
    /// The index of the entry that last changed anything but the clock.
    pub(crate) revision: u64,
    pub(crate) clock: Clock,
    pub(crate) tables: OrdMap<Name, TableRows>,
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
        self.tables.get(table)?.rows.get(key)
    }

    /// The name of a table, the one that state holds if there is one.
    pub(crate) fn table_name(&self, table: &str) -> Name {
        self.tables.get_key_value(table).map_or_else(|| table.into(), |(name, _)| name.clone())
    }

    /// A table, made if it is not there.
    pub(crate) fn table_mut(&mut self, name: &Name) -> &mut TableRows {
        self.tables.entry(name.clone()).or_default()
    }
}
