//! The transaction builder: reads a view, remembers what it read, collects what it writes.
//!
//! # Invariants
//! - `TX-1` Whatever the builder read through itself is in the transaction's read set, so that the
//!   transaction is applied only if a repetition would have read the same.
//! - `TX-2` Index rows are the difference between the old and the new record, never written by hand.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    check::{self, Malformed, TooLarge},
    command::{
        AuditDraft, Command, Enqueue, EventDraft, FenceCheck, Finish, Idempotency, Kind,
        PointCheck, RangeCheck, Requeue, Txn, Write,
    },
    key::{Key, KeyBytes, after_prefix, joined},
    limits::WORK_ERROR_BYTES_MAX,
    ranges::{Span, merged},
    record::Stamp,
    table::{Corrupt, Table, Versioned},
    view::View,
};

/// Why a transaction could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxError {
    /// A row cannot be read.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A record cannot be written.
    #[error("a record of table {table} cannot be encoded")]
    Encode {
        /// The table.
        table: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Over a limit of [`crate::limits`].
    #[error(transparent)]
    TooLarge(TooLarge),
    /// Against a rule of the kernel; says which.
    #[error("{0}")]
    Invalid(String),
}

impl From<Malformed> for TxError {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::TooLarge(large) => Self::TooLarge(large),
            Malformed::Invalid(why) => Self::Invalid(why),
        }
    }
}

type RowId = (String, KeyBytes);
type Ends = (String, Vec<u8>, Option<Vec<u8>>);

/// A transaction in the making.
#[derive(Debug)]
pub struct Tx {
    view: View,
    points: BTreeMap<RowId, (u64, u64)>,
    ranges: BTreeSet<Ends>,
    enqueues: BTreeMap<(String, String), u64>,
    writes: BTreeMap<RowId, Option<Vec<u8>>>,
    index_writes: BTreeMap<RowId, Option<Vec<u8>>>,
    about: Option<String>,
    txn: Txn,
}

impl Tx {
    /// Begins on a view.
    #[must_use]
    pub fn new(view: View) -> Self {
        let txn = Txn { view_rev: view.applied().index, ..Txn::default() };
        Self {
            view,
            points: BTreeMap::new(),
            ranges: BTreeSet::new(),
            enqueues: BTreeMap::new(),
            writes: BTreeMap::new(),
            index_writes: BTreeMap::new(),
            about: None,
            txn,
        }
    }

    /// The view it was begun on. What is read here directly is not part of the read set.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether it would change anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
            && self.enqueues.is_empty()
            && self.txn.finishes.is_empty()
            && self.txn.requeues.is_empty()
            && self.txn.events.is_empty()
    }

    /// The names of the tables that it writes, each once.
    pub fn written_tables(&self) -> impl Iterator<Item = &str> {
        let mut last = "";
        self.writes.keys().map(|(table, _)| table.as_str()).filter(move |table| {
            let is_new = *table != last;
            last = table;
            is_new
        })
    }

    /// Reads a record, as this transaction has left it.
    ///
    /// # Errors
    /// The row cannot be read.
    pub fn get<K: Key, V: Serialize + DeserializeOwned>(
        &mut self,
        table: &Table<K, V>,
        key: &K,
    ) -> Result<Option<V>, TxError> {
        Ok(self.get_versioned(table, key)?.map(|found| found.value))
    }

    /// Reads a record and the stamp that its row had in the view.
    ///
    /// # Errors
    /// The row cannot be read.
    pub fn get_versioned<K: Key, V: Serialize + DeserializeOwned>(
        &mut self,
        table: &Table<K, V>,
        key: &K,
    ) -> Result<Option<Versioned<V>>, TxError> {
        let bytes = key.to_key();
        let stamp = self.note_read(table.name(), &bytes);
        let id = (table.name().to_owned(), bytes);
        if let Some(written) = self.writes.get(&id) {
            return written
                .as_deref()
                .map(|value| {
                    let record = crate::record::Record::new(stamp, value);
                    Ok(table.read(&id.1, &record)?)
                })
                .transpose();
        }
        Ok(self
            .view
            .row(table.name(), &id.1)
            .map(|record| table.read(&id.1, record))
            .transpose()?)
    }

    /// Reads all records whose keys begin with `prefix`, as this transaction has left them.
    ///
    /// # Errors
    /// A row cannot be read.
    pub fn scan<K: Key + Ord, V: Serialize + DeserializeOwned>(
        &mut self,
        table: &Table<K, V>,
        prefix: &[u8],
    ) -> Result<Vec<(K, V)>, TxError> {
        let end = after_prefix(prefix);
        self.note_range(table.name(), prefix, end.as_deref());
        let mut found: BTreeMap<KeyBytes, V> = BTreeMap::new();
        for (key, record) in self.view.rows(table.name(), prefix, end.as_deref()) {
            found.insert(key.clone(), table.read(key, record)?.value);
        }
        let zero = Stamp::default();
        for ((name, key), value) in &self.writes {
            if name == table.name() && key.starts_with(prefix) {
                match value {
                    None => drop(found.remove(key)),
                    Some(value) => {
                        let record = crate::record::Record::new(zero, value);
                        found.insert(key.clone(), table.read(key, &record)?.value);
                    }
                }
            }
        }
        found.into_iter().map(|(key, value)| Ok((table.read_key(&key)?, value))).collect()
    }

    /// Reads the records that an index has under exactly `index_key`, as this transaction has left
    /// them.
    ///
    /// # Errors
    /// A row cannot be read.
    pub fn by_index<K: Key + Ord, V: Serialize + DeserializeOwned>(
        &mut self,
        table: &Table<K, V>,
        index: &str,
        index_key: &str,
    ) -> Result<Vec<(K, V)>, TxError> {
        let (start, end) = Table::<K, V>::index_range(index_key);
        let index_table = table.index_table(index);
        self.note_range(&index_table, &start, end.as_deref());
        let mut keys: BTreeSet<KeyBytes> = self
            .view
            .rows(&index_table, &start, end.as_deref())
            .filter_map(|(row, _)| row.get(start.len()..).map(KeyBytes::from_slice))
            .collect();
        for ((name, row), value) in &self.index_writes {
            if *name == index_table && row.starts_with(&start) {
                let key = KeyBytes::from_slice(row.get(start.len()..).unwrap_or_default());
                if value.is_some() {
                    keys.insert(key)
                } else {
                    keys.remove(&key)
                };
            }
        }
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let key = table.read_key(&key)?;
            if let Some(value) = self.get(table, &key)? {
                found.push((key, value));
            }
        }
        Ok(found)
    }

    /// Writes a record.
    ///
    /// # Errors
    /// The record cannot be encoded, is over a limit, or the old one cannot be read.
    pub fn put<K: Key, V: Serialize + DeserializeOwned>(
        &mut self,
        table: &Table<K, V>,
        key: &K,
        value: &V,
    ) -> Result<(), TxError> {
        let bytes = serde_json::to_vec(value)
            .map_err(|source| TxError::Encode { table: table.name(), source })?;
        let row = key.to_key();
        check::row_key(table.name(), &row)?;
        check::value(table.name(), &row, bytes.len())?;
        self.write(table, key, Some(value), Some(bytes))
    }

    /// Deletes a record; nothing happens when there is none.
    ///
    /// # Errors
    /// The old record cannot be read.
    pub fn delete<K: Key, V: Serialize + DeserializeOwned>(
        &mut self,
        table: &Table<K, V>,
        key: &K,
    ) -> Result<(), TxError> {
        self.write(table, key, None, None)
    }

    fn write<K: Key, V: Serialize + DeserializeOwned>(
        &mut self,
        table: &Table<K, V>,
        key: &K,
        new: Option<&V>,
        bytes: Option<Vec<u8>>,
    ) -> Result<(), TxError> {
        let old = self.get(table, key)?;
        let primary = key.to_key();
        for index in table.indexes() {
            let rows = |value: Option<&V>| -> Result<Vec<KeyBytes>, TxError> {
                let keys = value.map(index.keys).unwrap_or_default();
                keys.iter().map(|key| index_row(table.name(), index.name, key, &primary)).collect()
            };
            let (before, after) = (rows(old.as_ref())?, rows(new)?);
            let name = table.index_table(index.name);
            for row in before.iter().filter(|row| !after.contains(row)) {
                self.index_writes.insert((name.clone(), row.clone()), None);
            }
            for row in after.iter().filter(|row| !before.contains(row)) {
                self.index_writes.insert((name.clone(), row.clone()), Some(vec![]));
            }
        }
        self.writes.insert((table.name().to_owned(), primary), bytes);
        Ok(())
    }

    /// Wakes a reconciler for a key.
    ///
    /// # Errors
    /// The queue does not take such a kind or key.
    pub fn enqueue(&mut self, kind: &str, key: &str) -> Result<(), TxError> {
        self.enqueue_after(kind, key, 0)
    }

    /// Wakes a reconciler for a key, not before `delay_ms` from now.
    ///
    /// # Errors
    /// The queue does not take such a kind or key.
    pub fn enqueue_after(&mut self, kind: &str, key: &str, delay_ms: u64) -> Result<(), TxError> {
        check::work(kind, key)?;
        self.enqueues
            .entry((kind.to_owned(), key.to_owned()))
            .and_modify(|delay| *delay = delay_ms.min(*delay))
            .or_insert(delay_ms);
        Ok(())
    }

    /// Has `part` build a part of it. When that is refused, what it wrote is undone; what it read stays in the read set,
    /// so that what is written because of the refusal is applied only if a repetition would be refused too.
    ///
    /// # Errors
    /// Those of `part`.
    pub fn attempt<T, E>(&mut self, part: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<T, E> {
        let before = (
            self.enqueues.clone(),
            self.writes.clone(),
            self.index_writes.clone(),
            self.txn.clone(),
        );
        let made = part(self);
        if made.is_err() {
            (self.enqueues, self.writes, self.index_writes, self.txn) = before;
        }
        made
    }

    /// The rows that it writes and that were there before: table, key, and the revision at which each was made.
    pub fn changed_rows(&self) -> impl Iterator<Item = (&str, &[u8], u64)> {
        self.writes.keys().filter_map(|(table, key)| {
            let record = self.view.row(table, key)?;
            Some((table.as_str(), &key[..], record.stamp().created_rev))
        })
    }

    /// Ends a run of the work queue.
    pub fn finish(&mut self, finish: Finish) {
        self.txn.finishes.push(finish);
    }

    /// Puts a run of the work queue off. Of a long error the head is kept.
    pub fn requeue(&mut self, mut requeue: Requeue) {
        requeue.error.truncate(requeue.error.floor_char_boundary(WORK_ERROR_BYTES_MAX));
        self.txn.requeues.push(requeue);
    }

    /// Publishes an event.
    pub fn publish(&mut self, kind: &str, tenant: &str, subject: String, data: &serde_json::Value) {
        self.txn.events.push(EventDraft {
            kind: kind.to_owned(),
            tenant: tenant.to_owned(),
            subject,
            data: data.to_string().into_bytes(),
        });
    }

    /// The tenant of whom all of its events tell; empty: the cluster, several, or there are no events.
    #[must_use]
    pub fn tenant_told(&self) -> &str {
        let mut tenants = self.txn.events.iter().map(|event| event.tenant.as_str());
        let first = tenants.next().unwrap_or_default();
        if tenants.all(|tenant| tenant == first) { first } else { "" }
    }

    /// Chains an audit record, about what [`Tx::audited_as`] said.
    pub fn audit(&mut self, draft: AuditDraft) {
        let resource = self.about.clone().unwrap_or(draft.resource);
        self.txn.audit = Some(AuditDraft { resource, ..draft });
    }

    /// Says what its audit record is about, if it gets one, where that is more than the call names.
    pub fn audited_as(&mut self, resource: String) {
        self.about = Some(resource);
    }

    /// Makes it safe to propose twice.
    pub fn idempotent(&mut self, idempotency: Idempotency) {
        self.txn.idempotency = Some(idempotency);
    }

    /// Ties it to the work row for which a run writes it.
    pub fn for_work(&mut self, work: Finish) {
        self.txn.work = Some(work);
    }

    /// Ties it to a lease.
    pub fn fenced(&mut self, fence: FenceCheck) {
        self.txn.fence = Some(fence);
    }

    /// Sets what the caller is answered.
    pub fn respond(&mut self, response: Vec<u8>) {
        self.txn.response = response;
    }

    /// The transaction, ready to be proposed.
    ///
    /// # Errors
    /// It is over a limit, or against a rule.
    pub fn build(self) -> Result<Txn, TxError> {
        let mut txn = self.txn;
        let point = |((table, key), (version, created_rev)): (RowId, (u64, u64))| PointCheck {
            table,
            key: key.to_vec(),
            version,
            created_rev,
        };
        txn.points = self.points.into_iter().map(point).collect();
        let range = |Span { table, start, end }: Span<'_>| RangeCheck {
            table: table.to_owned(),
            start: start.to_vec(),
            end: end.map(<[u8]>::to_vec),
        };
        txn.ranges = merged(self.ranges.iter().map(span_of)).into_iter().map(range).collect();
        txn.writes = self
            .writes
            .into_iter()
            .chain(self.index_writes)
            .map(|((table, key), value)| Write { table, key: key.to_vec(), value })
            .collect();
        let enqueue = |((kind, key), delay_ms)| Enqueue { kind, key, delay_ms };
        txn.enqueues = self.enqueues.into_iter().map(enqueue).collect();
        let command = Command::from(txn);
        check::command(&command)?;
        match command.kind {
            Some(Kind::Txn(txn)) => Ok(txn),
            _ => Err(TxError::Invalid("a transaction is one".to_owned())),
        }
    }

    fn note_read(&mut self, table: &str, key: &KeyBytes) -> Stamp {
        let stamp = self.view.row(table, key).map(crate::record::Record::stamp).unwrap_or_default();
        self.points.insert((table.to_owned(), key.clone()), (stamp.version, stamp.created_rev));
        stamp
    }

    fn note_range(&mut self, table: &str, start: &[u8], end: Option<&[u8]>) {
        self.ranges.insert((table.to_owned(), start.to_vec(), end.map(<[u8]>::to_vec)));
    }
}

fn span_of((table, start, end): &Ends) -> Span<'_> {
    Span { table, start, end: end.as_deref() }
}

/// The row of an index for a record.
fn index_row(table: &str, index: &str, key: &str, primary: &[u8]) -> Result<KeyBytes, TxError> {
    if key.contains('\0') {
        let key = key.escape_default();
        return Err(TxError::Invalid(format!(
            "index {index} of table {table} takes no key with a zero byte: \"{key}\""
        )));
    }
    let row = joined(&[key.as_bytes(), primary]);
    check::key(&format!("{table}#{index}"), &row)?;
    Ok(row)
}
