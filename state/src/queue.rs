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

use imbl::OrdMap;

use crate::{
    command::{Enqueue, Finish, Requeue},
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
    pub(crate) rows: OrdMap<WorkKey, WorkRow>,
}

impl WorkQueue {
    pub(crate) fn enqueue(&mut self, item: &Enqueue, now_ms: u64, revision: u64) -> WorkKey {
        let id: WorkKey = (item.kind.as_str().into(), item.key.as_str().into());
        let due_ms = now_ms.saturating_add(item.delay_ms);
        let row = match self.rows.get(&id) {
            None => WorkRow {
                generation: revision,
                due_ms,
                attempts: 0,
                last_error: String::new(),
                enqueued_rev: revision,
            },
            Some(row) => WorkRow {
                generation: revision.max(row.generation + 1),
                due_ms: row.due_ms.min(due_ms),
                attempts: 0,
                last_error: String::new(),
                enqueued_rev: revision,
            },
        };
        self.rows.insert(id.clone(), row);
        id
    }

    /// Whether the row that a run began with is still there, at its generation or a later one.
    pub(crate) fn holds(&self, item: &Finish) -> bool {
        let id: WorkKey = (item.kind.as_str().into(), item.key.as_str().into());
        self.rows.get(&id).is_some_and(|row| row.generation >= item.generation)
    }

    /// Deletes the row if nobody enqueued it since the run began.
    pub(crate) fn finish(&mut self, item: &Finish) -> Option<WorkKey> {
        let id: WorkKey = (item.kind.as_str().into(), item.key.as_str().into());
        let current = self.rows.get(&id)?.generation;
        (item.generation == current).then(|| {
            self.rows.remove(&id);
            id
        })
    }

    /// Puts the row off, unless somebody enqueued it since the run began.
    pub(crate) fn requeue(&mut self, item: &Requeue, now_ms: u64) -> Option<WorkKey> {
        let id: WorkKey = (item.kind.as_str().into(), item.key.as_str().into());
        let row = self.rows.get_mut(&id)?;
        if row.generation != item.generation {
            return None;
        }
        row.due_ms = now_ms.saturating_add(item.delay_ms);
        if item.error.is_empty() {
            row.attempts = 0;
        } else {
            row.attempts = row.attempts.saturating_add(1);
        }
        row.last_error.clone_from(&item.error);
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
