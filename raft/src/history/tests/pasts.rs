//! Every revision reads as it was.

use std::collections::BTreeMap;

use palisade_state::View;
use proptest::prelude::*;

use super::{World, delete, empty, put, told, write};
use crate::history::{
    book::{More, Range},
    reading::{RangeOf, Reader, Unknown},
};

const TABLES: [&str; 2] = ["t", "t2"];

type Rows = BTreeMap<(String, Vec<u8>), (u64, Vec<u8>)>;

fn rows_of(view: &View) -> Rows {
    let mut all = Rows::new();
    for table in TABLES {
        for (key, record) in view.rows(table, &[], None) {
            let row = (record.stamp().modified_rev, record.value().to_vec());
            all.insert((table.to_owned(), key.to_vec()), row);
        }
    }
    all
}

fn rows_at(reader: &Reader, revision: u64, view: &View) -> Rows {
    let mut all = Rows::new();
    for table in TABLES {
        let range = RangeOf { table, limit: usize::MAX, ..RangeOf::default() };
        for row in reader.at(&range, revision, view).unwrap() {
            all.insert((table.to_owned(), row.key), (row.stamp.modified_rev, row.value));
        }
    }
    all
}

/// One write: table, key, and whether it deletes.
type Step = (usize, u8, bool);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn each_revision_reads_as_it_was(
        batches in prop::collection::vec(
            prop::collection::vec(prop::collection::vec((0..2_usize, 0..5_u8, prop::bool::weighted(0.3)), 1..4), 1..4),
            1..20,
        ),
        lost in prop::option::of(0..20_usize),
    ) {
        let mut world = World::new();
        let mut book = empty();
        let mut was: BTreeMap<u64, Rows> = BTreeMap::new();
        let mut lost_through = 0;
        for (at, batch) in batches.iter().enumerate() {
            // Entries are applied one by one for their views, and told of together, as one batch would be.
            let mut told: Option<Range> = None;
            for entry in batch {
                let commands = entry.iter().flat_map(|(table, key, is_delete): &Step| {
                    let (table, key) = (TABLES[*table], format!("k{key}"));
                    let value = format!("{at}");
                    write(vec![if *is_delete { delete(table, &key) } else { put(table, &key, &value) }])
                });
                let range = world.apply(vec![commands.collect()], true).unwrap();
                was.insert(world.view().applied().index, rows_of(&world.view()));
                match &mut told {
                    Some(told) => {
                        told.last = range.last;
                        told.versions.extend(range.versions);
                    }
                    None => told = Some(range),
                }
            }
            if lost == Some(at) {
                lost_through = world.view().applied().index;
            } else {
                book.append(&More { ranges: told.into_iter().collect(), ..More::default() }).unwrap();
            }
        }
        let (view, progress) = (world.view(), book.progress.clone());
        let reader = Reader { shelf: book.shelf.clone(), progress };
        for (revision, rows) in &was {
            match reader.unknown_at(*revision, &view) {
                None => prop_assert_eq!(&rows_at(&reader, *revision, &view), rows, "at {}", revision),
                Some(Unknown::Behind | Unknown::TooOld { .. } | Unknown::Gap(_)) => {
                    prop_assert!(*revision <= lost_through, "revision {} is known", revision);
                }
            }
        }
    }
}

#[test]
fn a_batch_of_many_entries_keeps_each_version_between() {
    let mut world = World::new();
    let mut book = empty();
    let entries = (0..5).map(|n| write(vec![put("t", "k", &n.to_string())])).collect();
    let range = world.apply(entries, true).unwrap();
    let ended: Vec<_> = range.versions.iter().map(|version| version.value.clone()).collect();
    assert_eq!(ended, [b"0", b"1", b"2", b"3"]);
    book.append(&More { ranges: vec![range], ..More::default() }).unwrap();
    let reader = Reader { shelf: book.shelf.clone(), progress: book.progress.clone() };
    let versions = reader.versions("t", b"k").unwrap().versions;
    let lives: Vec<_> =
        versions.iter().map(|past| (past.stamp.modified_rev, past.ended_rev)).collect();
    assert_eq!(lives, [(1, 2), (2, 3), (3, 4), (4, 5)]);
    assert_eq!(versions.iter().map(|past| past.stamp.version).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let at = |ms| reader.moment_at(ms).unwrap().map(|moment| moment.revision);
    for entry in 1..=5 {
        let ms = world.wall_ms - 1000 * (5 - entry);
        assert_eq!((at(ms - 1), at(ms)), ((entry > 1).then(|| entry - 1), Some(entry)));
        let moment = reader.moment_of(entry).unwrap().unwrap();
        assert_eq!((moment.revision, moment.clock.wall_ms), (entry, ms));
    }
    assert_eq!(at(1), None);
    assert_eq!(reader.moment_of(6).unwrap(), None);
}

proptest! {
    #[test]
    fn a_moment_is_the_last_entry_at_a_time_or_before_it(
        entries in prop::collection::vec((0..4_u64, prop::bool::weighted(0.3), prop::bool::ANY), 1..60),
    ) {
        let mut world = World::new();
        let mut book = empty();
        let (mut was, mut ranges) = (vec![], vec![]);
        for (wait, is_write, is_end) in entries {
            world.wall_ms = world.wall_ms + wait - 1000;
            let commands = if is_write { write(vec![put("t", "k", "v")]) } else { vec![told(1)] };
            ranges.push(world.apply(vec![commands], true).unwrap());
            was.push((world.wall_ms, world.view().applied().index));
            if is_end {
                let ranges = std::mem::take(&mut ranges);
                book.append(&More { ranges, ..More::default() }).unwrap();
            }
        }
        book.append(&More { ranges, ..More::default() }).unwrap();
        let reader = Reader { shelf: book.shelf.clone(), progress: book.progress.clone() };
        for ms in was[0].0 - 2..=world.wall_ms + 2 {
            let expected = was.iter().rev().find(|(at, _)| *at <= ms).map(|(_, index)| *index);
            let found = reader.moment_at(ms).unwrap().map(|moment| moment.revision);
            prop_assert_eq!(found, expected, "at {}", ms);
        }
        for (at, index) in &was {
            let moment = reader.moment_of(*index).unwrap().unwrap();
            prop_assert_eq!(moment.clock.wall_ms, *at, "of {}", index);
        }
    }
}

#[test]
fn index_rows_and_refused_transactions_leave_no_versions() {
    let mut world = World::new();
    world.apply(vec![write(vec![put("t#name", "k\0k", "1"), put("t", "k", "1")])], true);
    let mut refused = write(vec![put("t", "k", "2")]);
    if let Some(palisade_state::command::Kind::Txn(txn)) = &mut refused[0].kind {
        let (table, key) = ("t".into(), b"k".to_vec());
        txn.points =
            vec![palisade_state::command::PointCheck { table, key, version: 9, created_rev: 9 }];
    }
    let range = world.apply(vec![refused], true).unwrap();
    assert!(range.versions.is_empty());
    let both = write(vec![put("t#name", "k\0k", "2"), put("t", "k", "3")]);
    let range = world.apply(vec![both], true).unwrap();
    assert_eq!(range.versions.len(), 1);
}
