//! A bounded memory of deletions, so that a range check sees a row that left the range.
//!
//! # Invariants
//! - `DEL-1` Every deletion after `floor` is remembered, and a view at the floor has seen all that were
//!   forgotten; a check from a view below it is a conflict, never a guess.

use imbl::OrdMap;

use crate::{key::KeyBytes, limits::DELETIONS_MAX, state::Name};

/// The newest deletions, by row and by age.
#[derive(Clone, Debug, Default)]
pub struct Deletions {
    pub(crate) by_row: OrdMap<(Name, KeyBytes), u64>,
    by_age: OrdMap<(u64, Name, KeyBytes), ()>,
    /// The revision up to which deletions may have been forgotten.
    pub(crate) floor: u64,
}

impl Deletions {
    pub(crate) fn record(&mut self, table: Name, key: KeyBytes, revision: u64) {
        debug_assert!(
            self.by_age.get_max().is_none_or(|((last, ..), ())| *last <= revision),
            "DEL-1: deletions come in order"
        );
        if let Some(earlier) = self.by_row.insert((table.clone(), key.clone()), revision) {
            self.by_age.remove(&(earlier, table.clone(), key.clone()));
        }
        self.by_age.insert((revision, table, key), ());
        self.bound(DELETIONS_MAX);
        debug_assert!(
            self.by_age.len() == self.by_row.len() && self.floor <= revision,
            "DEL-1: what is remembered by row and by age is not the same"
        );
    }

    fn bound(&mut self, rows_max: usize) {
        while self.by_age.len() > rows_max {
            let Some((oldest, ())) = self.by_age.get_min().cloned() else {
                break;
            };
            self.floor = self.floor.max(oldest.0);
            self.by_age.remove(&oldest);
            self.by_row.remove(&(oldest.1, oldest.2));
        }
    }

    /// The rows that were deleted after `revision`, which is not below the floor.
    pub(crate) fn since(&self, revision: u64) -> impl Iterator<Item = (&Name, &KeyBytes)> {
        debug_assert!(revision >= self.floor, "DEL-1");
        let first = (revision.saturating_add(1), Name::from(""), KeyBytes::new());
        self.by_age.range(first..).map(|((_, table, key), ())| (table, key))
    }

    pub(crate) fn restore(
        rows: impl IntoIterator<Item = (Name, KeyBytes, u64)>,
        floor: u64,
    ) -> Self {
        let mut restored = Self { floor, ..Self::default() };
        for (table, key, revision) in rows {
            restored.by_age.insert((revision, table.clone(), key.clone()), ());
            restored.by_row.insert((table, key), revision);
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_deleted_after_the_floor_is_remembered() {
        let mut deletions = Deletions::default();
        let table: Name = "t".into();
        for number in 0..=DELETIONS_MAX {
            let key = KeyBytes::from_slice(format!("{number:08}").as_bytes());
            deletions.record(table.clone(), key, number as u64 + 1);
        }
        assert_eq!(deletions.floor, 1);
        assert_eq!(deletions.since(1).count(), DELETIONS_MAX);
        let (table, key) = deletions.since(DELETIONS_MAX as u64).next().unwrap();
        assert_eq!((table.as_ref(), key.as_slice()), ("t", &b"00010000"[..]));
        assert!(deletions.since(DELETIONS_MAX as u64 + 1).next().is_none());
    }

    proptest! {
        /// `DEL-1`, against all deletions ever, with little room.
        #[test]
        fn every_deletion_after_the_floor_is_remembered(
            steps in prop::collection::vec((0..8_u8, 0..3_u64), 1..60),
            rows_max in 1..6_usize,
            restored_at in 0..60_usize,
        ) {
            let (mut deletions, mut revision) = (Deletions::default(), 1);
            let mut all: Vec<(u64, u8)> = vec![];
            for (n, (key, later)) in steps.into_iter().enumerate() {
                revision += later;
                all.retain(|(_, other)| *other != key);
                all.push((revision, key));
                deletions.record("t".into(), KeyBytes::from_slice(&[key]), revision);
                deletions.bound(rows_max);
                if n == restored_at {
                    let rows = deletions.by_row.iter();
                    let rows = rows.map(|((table, key), at)| (table.clone(), key.clone(), *at));
                    deletions = Deletions::restore(rows.collect::<Vec<_>>(), deletions.floor);
                }
                prop_assert!(deletions.by_row.len() <= rows_max);
                for since in deletions.floor..=revision {
                    let found: Vec<u8> = deletions.since(since).map(|(_, key)| key[0]).collect();
                    let mut newer: Vec<_> = all.iter().filter(|(at, _)| *at > since).collect();
                    newer.sort_unstable();
                    let expected: Vec<u8> = newer.into_iter().map(|(_, key)| *key).collect();
                    prop_assert_eq!(found, expected, "DEL-1: since {}", since);
                }
            }
        }
    }
}
