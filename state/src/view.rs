//! Views: one revision of everything, for as long as the reader wants it.

use std::{ops::Bound, sync::Arc};

use crate::{
    audit::{AuditRecord, BrokenChain},
    clock::Clock,
    command::Role,
    key::KeyBytes,
    lease::{Lease, Session},
    outbox::Event,
    queue::WorkRow,
    record::Record,
    replicas::ReplicaRow,
    state::{Formation, Name, Position, Rows, State},
};

/// A revision of the state. A clone costs one counter; holding one never blocks apply.
#[derive(Clone, Debug)]
pub struct View(Arc<State>);

pub(crate) fn range_of<'a>(
    rows: &'a Rows,
    start: &'a [u8],
    end: Option<&'a [u8]>,
) -> impl Iterator<Item = (&'a KeyBytes, &'a Record)> {
    let upper = end.map_or(Bound::Unbounded, Bound::Excluded);
    rows.range::<_, [u8]>((Bound::Included(start), upper))
}

impl View {
    pub(crate) fn new(state: Arc<State>) -> Self {
        Self(state)
    }

    pub(crate) fn state(&self) -> &State {
        &self.0
    }

    /// The index of the entry that last changed anything in it.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.0.revision
    }

    /// The last entry applied to it.
    #[must_use]
    pub fn applied(&self) -> Position {
        self.0.applied
    }

    /// Logical and human time.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// Who the cluster is, once it is formed.
    #[must_use]
    pub fn formation(&self) -> Option<&Formation> {
        self.0.formation.as_deref()
    }

    /// The format in which entries are written: every member reads it.
    #[must_use]
    pub fn format(&self) -> u32 {
        self.0.format()
    }

    /// What the replicas reported last, by id.
    pub fn replicas(&self) -> impl Iterator<Item = (u64, &ReplicaRow)> {
        self.0.replicas.iter().map(|(id, row)| (*id, row))
    }

    /// What one replica reported last.
    #[must_use]
    pub fn replica(&self, id: u64) -> Option<&ReplicaRow> {
        self.0.replicas.get(&id)
    }

    /// One row.
    #[must_use]
    pub fn row(&self, table: &str, key: &[u8]) -> Option<&Record> {
        self.0.row(table, key)
    }

    /// The rows of a table from `start` to before `end`, in key order.
    pub fn rows<'a>(
        &'a self,
        table: &str,
        start: &'a [u8],
        end: Option<&'a [u8]>,
    ) -> impl Iterator<Item = (&'a KeyBytes, &'a Record)> + 'a {
        let is_empty = end.is_some_and(|end| end <= start);
        self.0
            .tables
            .get(table)
            .filter(|_| !is_empty)
            .into_iter()
            .flat_map(move |table| range_of(&table.rows, start, end))
    }

    /// The rows of a table from a key on, which is not kept borrowed.
    pub(crate) fn rows_from(
        &self,
        table: &str,
        start: Vec<u8>,
    ) -> impl Iterator<Item = (&KeyBytes, &Record)> + use<'_> {
        let table = self.0.tables.get(table).into_iter();
        table.flat_map(move |table| {
            table.rows.range::<_, [u8]>((Bound::Included(start.as_slice()), Bound::Unbounded))
        })
    }

    /// How many rows a table has.
    #[must_use]
    pub fn count(&self, table: &str) -> usize {
        self.0.tables.get(table).map_or(0, |table| table.rows.len())
    }

    /// All tables that have ever held a row, by name, with their sizes.
    pub fn tables(&self) -> impl Iterator<Item = (&Name, usize)> {
        self.0.tables.iter().map(|(name, table)| (name, table.rows.len()))
    }

    /// One lease.
    #[must_use]
    pub fn lease(&self, name: &str) -> Option<&Lease> {
        self.0.leases.get(name)
    }

    /// All leases by name.
    pub fn leases(&self) -> impl Iterator<Item = (&Name, &Lease)> {
        self.0.leases.iter()
    }

    /// All live workers by role and name.
    pub fn sessions(&self) -> impl Iterator<Item = (&(Role, Name), &Session)> {
        self.0.sessions.iter()
    }

    /// Whether a worker of this name lives in any role.
    #[must_use]
    pub fn worker_lives(&self, worker: &str) -> bool {
        self.0.sessions.keys().any(|(_, name)| name.as_ref() == worker)
    }

    /// One row of the work queue.
    #[must_use]
    pub fn work(&self, kind: &str, key: &str) -> Option<&WorkRow> {
        self.0.queue.get(kind, key)
    }

    /// All rows of the work queue by kind and key.
    pub fn all_work(&self) -> impl Iterator<Item = ((&Name, &Name), &WorkRow)> {
        self.0.queue.rows()
    }

    /// The rows of one kind in the work queue, from a key on, in order.
    pub fn work_of<'a>(
        &'a self,
        kind: &str,
        from: &'a str,
    ) -> impl Iterator<Item = (&'a Name, &'a WorkRow)> + 'a {
        self.0.queue.of_kind(kind, from)
    }

    /// How many rows the work queue has.
    #[must_use]
    pub fn work_count(&self) -> usize {
        self.0.queue.len()
    }

    /// How many idempotency keys are known, and how many were forgotten before their time because
    /// there were too many.
    #[must_use]
    pub fn idempotency_keys(&self) -> (usize, u64) {
        (self.0.idempotency.rows.len(), self.0.idempotency.evicted)
    }

    /// Events from a sequence number on.
    pub fn events(&self, from: u64) -> impl DoubleEndedIterator<Item = (u64, &Event)> {
        self.0.outbox.events.range(from..).map(|(seq, event)| (*seq, event))
    }

    /// The sequence number of the last event; 0: there was none.
    #[must_use]
    pub fn last_event(&self) -> u64 {
        self.0.outbox.last_seq
    }

    /// The sequence number of the oldest event in memory; absent: there is none.
    #[must_use]
    pub fn first_event(&self) -> Option<u64> {
        self.0.outbox.events.get_min().map(|(seq, _)| *seq)
    }

    /// The sequence number of the last audit record; 0: there was none.
    #[must_use]
    pub fn last_audit(&self) -> u64 {
        self.0.audit.last_seq
    }

    /// The sequence number of the oldest audit record in memory; absent: there is none.
    #[must_use]
    pub fn first_audit(&self) -> Option<u64> {
        self.0.audit.records.get_min().map(|(seq, _)| *seq)
    }

    /// The hash of the last audit record; zeros before the first.
    #[must_use]
    pub fn audit_head(&self) -> [u8; 32] {
        self.0.audit.head
    }

    /// Audit records from a sequence number on.
    pub fn audit(&self, from: u64) -> impl DoubleEndedIterator<Item = &AuditRecord> {
        self.0.audit.records.range(from..).map(|(_, record)| record)
    }

    /// Checks the audit chain as far as it is kept in memory.
    ///
    /// # Errors
    /// Names the first record that does not fit.
    pub fn verify_audit(&self) -> Result<(), BrokenChain> {
        self.0.audit.verify()
    }

    /// Whether something waits for time to pass, so that the leader must tick.
    #[must_use]
    pub fn timers_pending(&self) -> bool {
        !self.0.sessions.is_empty() || self.0.queue.last_due_ms() > self.0.clock.now_ms
    }
}
