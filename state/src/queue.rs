//! The work queue: coalescing keys with generations.
//!
//! # Invariants
//! - `QUEUE-1` There is at most one row for a kind and key.
//! - `Q1` A finish deletes a row only at the generation that the run began with, so a key that was
//!   enqueued meanwhile stays.
//! - `QUEUE-2` A generation of a kind and key is never used again: it is at least the index of the
//!   entry that enqueued it, so a run that is late by a whole life of the row finds another number.
//! - `Q2` (its half) Of two runs of one generation only one can commit: what the other writes for a
//!   row that is gone is refused.

use std::ops::Bound;

use imbl::{OrdMap, OrdSet};

use crate::{
    command::{Enqueue, Finish, Requeue},
    planted::{self, Defect},
    state::Name,
};

/// A kind and a key.
pub type WorkKey = (Name, Name);

/// One dirty key.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkRow {
    /// Grows with each enqueue; never used again for this kind and key.
    pub generation: u64,
    /// Logical milliseconds before which it is not run.
    pub due_ms: u64,
    /// Failed runs since the last enqueue.
    pub attempts: u32,
    /// What went wrong in the last run; empty: nothing.
    pub last_error: String,
    /// The revision of the last enqueue.
    pub enqueued_rev: u64,
}

/// All dirty keys.
#[derive(Clone, Debug, Default)]
pub struct WorkQueue {
    kinds: OrdMap<Name, OrdMap<Name, WorkRow>>,
    /// The rows that were not due when they were written, by due time. Those whose time has come
    /// since may still be in it.
    later: OrdSet<(u64, Name, Name)>,
}

impl WorkQueue {
    pub(crate) fn get(&self, kind: &str, key: &str) -> Option<&WorkRow> {
        self.kinds.get(kind)?.get(key)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = ((&Name, &Name), &WorkRow)> {
        self.kinds
            .iter()
            .flat_map(|(kind, rows)| rows.iter().map(move |(key, row)| ((kind, key), row)))
    }

    /// The rows of one kind from `key` on.
    pub(crate) fn of_kind<'a>(
        &'a self,
        kind: &str,
        from: &'a str,
    ) -> impl Iterator<Item = (&'a Name, &'a WorkRow)> + 'a {
        self.kinds
            .get(kind)
            .into_iter()
            .flat_map(move |rows| rows.range::<_, str>((Bound::Included(from), Bound::Unbounded)))
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.values().map(OrdMap::len).sum()
    }

    /// When the last row that waits for its time is due.
    pub(crate) fn last_due_ms(&self) -> u64 {
        self.later.get_max().map_or(0, |(due_ms, ..)| *due_ms)
    }

    /// Forgets which rows waited for a time that has come.
    pub(crate) fn pass_time(&mut self, now_ms: u64) {
        while let Some(due) = self.later.get_min().filter(|(due_ms, ..)| *due_ms <= now_ms).cloned()
        {
            self.later.remove(&due);
        }
    }

    /// Writes a row, over whatever there is.
    pub(crate) fn put(&mut self, id: WorkKey, row: WorkRow, now_ms: u64) {
        let (kind, key) = id;
        let due_ms = row.due_ms;
        let rows = match self.kinds.get_mut(kind.as_ref()) {
            Some(rows) => rows,
            None => self.kinds.entry(kind.clone()).or_default(),
        };
        if let Some(before) = rows.insert(key.clone(), row)
            && before.due_ms != due_ms
        {
            self.later.remove(&(before.due_ms, kind.clone(), key.clone()));
        }
        if due_ms > now_ms {
            self.later.insert((due_ms, kind, key));
        }
    }

    fn remove(&mut self, id: &WorkKey) -> Option<WorkRow> {
        let rows = self.kinds.get_mut(id.0.as_ref())?;
        let row = rows.remove(id.1.as_ref())?;
        if rows.is_empty() {
            self.kinds.remove(id.0.as_ref());
        }
        self.later.remove(&(row.due_ms, id.0.clone(), id.1.clone()));
        Some(row)
    }

    /// The name and the row of a kind and key, the names shared with those of state.
    fn find(&self, kind: &str, key: &str) -> (WorkKey, Option<&WorkRow>) {
        let Some((kind, rows)) = self.kinds.get_key_value(kind) else {
            return ((kind.into(), key.into()), None);
        };
        match rows.get_key_value(key) {
            Some((key, row)) => ((kind.clone(), key.clone()), Some(row)),
            None => ((kind.clone(), key.into()), None),
        }
    }

    pub(crate) fn enqueue(&mut self, item: &Enqueue, now_ms: u64, revision: u64) -> WorkKey {
        let (id, before) = self.find(&item.kind, &item.key);
        let due_ms = now_ms.saturating_add(item.delay_ms);
        let (generation, due_ms) = match before {
            None => (revision, due_ms),
            Some(row) => (revision.max(row.generation + 1), row.due_ms.min(due_ms)),
        };
        debug_assert!(
            generation >= revision && before.is_none_or(|row| row.generation < generation),
            "QUEUE-2: generation {generation} at revision {revision}"
        );
        let row = WorkRow {
            generation,
            due_ms,
            attempts: 0,
            last_error: String::new(),
            enqueued_rev: revision,
        };
        self.put(id.clone(), row, now_ms);
        id
    }

    /// Whether the row that a run began with is still there, at its generation or a later one.
    pub(crate) fn holds(&self, item: &Finish) -> bool {
        self.get(&item.kind, &item.key).is_some_and(|row| row.generation >= item.generation)
    }

    /// Deletes the row if nobody enqueued it since the run began.
    pub(crate) fn finish(&mut self, item: &Finish) -> Option<WorkKey> {
        let (id, row) = self.find(&item.kind, &item.key);
        let is_it = row?.generation == item.generation;
        (is_it || planted::is(Defect::FinishAnyGeneration)).then(|| {
            let removed = self.remove(&id);
            debug_assert!(
                planted::is(Defect::FinishAnyGeneration)
                    || removed.is_some_and(|row| row.generation == item.generation),
                "Q1: a finish of another generation"
            );
            id
        })
    }

    /// Puts the row off, unless somebody enqueued it since the run began.
    pub(crate) fn requeue(&mut self, item: &Requeue, now_ms: u64) -> Option<WorkKey> {
        let (id, row) = self.find(&item.kind, &item.key);
        let mut row = row.filter(|row| row.generation == item.generation)?.clone();
        row.due_ms = now_ms.saturating_add(item.delay_ms);
        row.attempts = if item.error.is_empty() { 0 } else { row.attempts.saturating_add(1) };
        row.last_error.clone_from(&item.error);
        self.put(id.clone(), row, now_ms);
        Some(id)
    }
}

/// Whether a reconciler may have this name: `^[a-z][a-z0-9._-]{0,63}$`.
#[must_use]
pub fn is_kind(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 64
        && bytes.next().is_some_and(|first| first.is_ascii_lowercase())
        && bytes.all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enqueue(queue: &mut WorkQueue, key: &str, delay_ms: u64, now_ms: u64) {
        queue.enqueue(&Enqueue { kind: "k".into(), key: key.into(), delay_ms }, now_ms, 1);
    }

    #[test]
    fn what_waits_for_time_is_known_without_a_scan() {
        let mut queue = WorkQueue::default();
        enqueue(&mut queue, "now", 0, 100);
        assert_eq!((queue.last_due_ms(), queue.len()), (0, 1));
        enqueue(&mut queue, "a", 50, 100);
        enqueue(&mut queue, "b", 80, 100);
        assert_eq!(queue.last_due_ms(), 180);
        enqueue(&mut queue, "b", 10, 100);
        assert_eq!(queue.last_due_ms(), 150, "an earlier wish wins");
        queue.pass_time(150);
        assert_eq!((queue.last_due_ms(), queue.len()), (0, 3));
    }

    #[test]
    fn a_finished_row_waits_for_nothing() {
        let mut queue = WorkQueue::default();
        enqueue(&mut queue, "a", 50, 100);
        queue.finish(&Finish { kind: "k".into(), key: "a".into(), generation: 1 });
        assert_eq!((queue.last_due_ms(), queue.len()), (0, 0));
        assert!(queue.kinds.is_empty());
    }
}
