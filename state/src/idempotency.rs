//! Idempotency records: a proposal under a known key is answered, not applied.
//!
//! # Invariants
//! - `L2` (its half) A transaction under one scope and key changes state at most once while its
//!   record lives.

use imbl::OrdMap;

use crate::{
    command::Idempotency,
    limits::{IDEMPOTENCY_MAX, IDEMPOTENCY_MS, TRIM_STEP_MAX},
    state::Name,
};

/// Scope and key.
pub type IdempotencyId = (Name, Name);

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct IdempotencyRow {
    /// SHA-256 of the request.
    pub request_hash: Vec<u8>,
    /// The revision at which it was applied.
    pub revision: u64,
    /// The answer.
    pub response: Vec<u8>,
    /// Logical milliseconds at which it may be forgotten.
    pub expires_ms: u64,
}

/// The known keys, by id and by age.
#[derive(Clone, Debug, Default)]
pub struct IdempotencyTable {
    pub(crate) rows: OrdMap<IdempotencyId, IdempotencyRow>,
    by_age: OrdMap<(u64, IdempotencyId), ()>,
    /// How many left before their time, because there were too many.
    pub(crate) evicted: u64,
}

impl IdempotencyTable {
    pub(crate) fn get(&self, item: &Idempotency) -> Option<&IdempotencyRow> {
        let id: IdempotencyId = (item.scope.as_str().into(), item.key.as_str().into());
        self.rows.get(&id)
    }

    pub(crate) fn insert(
        &mut self,
        item: &Idempotency,
        now_ms: u64,
        revision: u64,
        response: Vec<u8>,
    ) {
        let id: IdempotencyId = (item.scope.as_str().into(), item.key.as_str().into());
        let row = IdempotencyRow {
            request_hash: item.request_hash.clone(),
            revision,
            response,
            expires_ms: now_ms.saturating_add(IDEMPOTENCY_MS),
        };
        self.put(id, row);
        self.bound(IDEMPOTENCY_MAX);
    }

    fn bound(&mut self, rows_max: usize) {
        while self.rows.len() > rows_max {
            self.drop_oldest();
            self.evicted += 1;
        }
    }

    pub(crate) fn put(&mut self, id: IdempotencyId, row: IdempotencyRow) {
        self.by_age.insert((row.expires_ms, id.clone()), ());
        let earlier = self.rows.insert(id, row);
        debug_assert!(earlier.is_none(), "L2: a live key is answered, never written again");
    }

    pub(crate) fn expire(&mut self, now_ms: u64) {
        for _ in 0..TRIM_STEP_MAX {
            match self.by_age.get_min() {
                Some(((expires, _), ())) if *expires <= now_ms => self.drop_oldest(),
                _ => return,
            }
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((oldest, ())) = self.by_age.get_min().cloned() {
            self.by_age.remove(&oldest);
            self.rows.remove(&oldest.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_keys_the_oldest_leave_and_are_counted() {
        let mut table = IdempotencyTable::default();
        let item = |n: u64| Idempotency {
            scope: "s".into(),
            key: n.to_string(),
            ..Idempotency::default()
        };
        for n in 0..5 {
            table.insert(&item(9 - n), 100 + n, n, vec![]);
        }
        table.bound(3);
        assert_eq!((table.rows.len(), table.by_age.len(), table.evicted), (3, 3, 2));
        assert!(table.get(&item(9)).is_none() && table.get(&item(8)).is_none());
        assert!(table.get(&item(7)).is_some());
    }
}
