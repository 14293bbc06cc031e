//! Which rows changed lately, table by table: a range check then costs what changed since its view, whatever the size of
//! the range.
//!
//! It is no part of the state and not in snapshots: a machine that begins, or that installs a snapshot, begins it anew.
//! Whether it reaches back to a view decides only how the answer of a check is found, never what it is.
//!
//! # Invariants
//! - `RECENT-1` Each row that was put or deleted after a table's floor is in it, in the order of revisions.

use std::collections::{BTreeMap, VecDeque};

use crate::{key::KeyBytes, state::Name};

/// Changes that are remembered of one table. A view older than that reads the range instead.
pub(crate) const RECENT_ROWS_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Lately {
    floor: u64,
    rows: VecDeque<(u64, KeyBytes)>,
}

/// The newest changes of each table.
#[derive(Debug)]
pub(crate) struct Recent {
    /// Of tables that have not changed since it began.
    floor: u64,
    tables: BTreeMap<Name, Lately>,
    rows_max: usize,
}

impl Recent {
    /// Of a state whose changes up to `floor` nobody remembers.
    pub(crate) fn new(floor: u64) -> Self {
        Self { floor, tables: BTreeMap::new(), rows_max: RECENT_ROWS_MAX }
    }

    /// Remembers that a row was put or deleted.
    pub(crate) fn note(&mut self, table: &Name, key: &KeyBytes, revision: u64) {
        if !self.tables.contains_key(table) {
            let lately = Lately { floor: self.floor, rows: VecDeque::new() };
            self.tables.insert(table.clone(), lately);
        }
        let Some(lately) = self.tables.get_mut(table) else { return };
        debug_assert!(
            lately.rows.back().is_none_or(|(last, _)| *last <= revision)
                && lately.floor <= revision,
            "RECENT-1: changes come in the order of revisions"
        );
        if lately.rows.len() >= self.rows_max
            && let Some((oldest, _)) = lately.rows.pop_front()
        {
            lately.floor = oldest;
        }
        lately.rows.push_back((revision, key.clone()));
    }

    /// The rows of a table that were put or deleted after `revision`; `None` when that is not remembered.
    pub(crate) fn since(
        &self,
        table: &str,
        revision: u64,
    ) -> Option<impl Iterator<Item = &KeyBytes>> {
        let lately = self.tables.get(table);
        let floor = lately.map_or(self.floor, |lately| lately.floor);
        (floor <= revision).then(|| {
            lately.into_iter().flat_map(move |lately| {
                let first = lately.rows.partition_point(|(changed, _)| *changed <= revision);
                lately.rows.range(first..).map(|(_, key)| key)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn since(recent: &Recent, revision: u64) -> Option<Vec<Vec<u8>>> {
        recent.since("t", revision).map(|keys| keys.map(|key| key.to_vec()).collect())
    }

    #[test]
    fn what_is_not_remembered_is_not_said_to_be_unchanged() {
        let mut recent = Recent::new(10);
        assert_eq!((since(&recent, 9), since(&recent, 10)), (None, Some(vec![])));
        let table: Name = "t".into();
        for n in 0..=RECENT_ROWS_MAX as u64 {
            recent.note(&table, &KeyBytes::from_slice(&n.to_be_bytes()), 20 + n / 2);
        }
        assert_eq!(since(&recent, 19), None, "one of revision 20 was forgotten");
        assert_eq!(since(&recent, 20).unwrap().len(), RECENT_ROWS_MAX - 1);
        let last = 20 + RECENT_ROWS_MAX as u64 / 2;
        assert_eq!(since(&recent, last - 1), Some(vec![4096_u64.to_be_bytes().to_vec()]));
        assert_eq!(since(&recent, last), Some(vec![]));
        assert!(recent.since("another", 10).is_some(), "it has not changed");
    }

    proptest! {
        /// `RECENT-1`, against all changes ever, with little room.
        #[test]
        fn every_change_after_the_floor_is_remembered(
            steps in prop::collection::vec((0..3_usize, 0..6_u8, 0..3_u64), 1..60),
            rows_max in 1..6_usize,
            begun in 1..4_u64,
        ) {
            let tables: [Name; 3] = ["a".into(), "ab".into(), "b".into()];
            let (mut recent, mut revision) = (Recent { rows_max, ..Recent::new(begun) }, begun + 1);
            let mut all: Vec<(u64, usize, u8)> = vec![];
            for (table, key, later) in steps {
                revision += later;
                recent.note(&tables[table], &KeyBytes::from_slice(&[key]), revision);
                all.push((revision, table, key));
                for (n, name) in tables.iter().enumerate() {
                    for since in 0..=revision {
                        let newer = all.iter().filter(|(at, of, _)| *at > since && *of == n);
                        let expected: Vec<u8> = newer.map(|(.., key)| *key).collect();
                        let found = recent.since(name, since);
                        let found = found.map(|keys| keys.map(|key| key[0]).collect::<Vec<u8>>());
                        let must = since >= begun && expected.len() < rows_max;
                        prop_assert!(found.is_some() || !must, "it had room for {:?}", expected);
                        prop_assert!(found.is_none() || since >= begun, "RECENT-1: before it began");
                        prop_assert!(found.is_none_or(|found| found == expected), "RECENT-1");
                    }
                }
            }
        }
    }
}
