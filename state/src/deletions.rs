//! A bounded memory of deletions, so that a range check sees a row that left the range.
//!
//! # Invariants
//! - `DEL-1` Every deletion after `floor` is remembered; a check from a view at or below the floor
//!   is a conflict, never a guess.

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
        if let Some(earlier) = self.by_row.insert((table.clone(), key.clone()), revision) {
            self.by_age.remove(&(earlier, table.clone(), key.clone()));
        }
        self.by_age.insert((revision, table, key), ());
        while self.by_age.len() > DELETIONS_MAX {
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
}
