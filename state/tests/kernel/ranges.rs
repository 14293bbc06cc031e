//! `RANGE-1`: range checks answer as a scan would, whatever a machine remembers of recent changes, and cost what changed.

use palisade_state::{
    Machine, Position, Store, Txn, Verdict,
    command::{Entry, FORMAT, RangeCheck, Write},
    limits::{DELETIONS_MAX, TXN_RANGES_MAX, TXN_WRITES_MAX},
    memory::MemoryStore,
    snapshot::{Loader, encode},
};
use proptest::prelude::*;

const TABLES: [&str; 3] = ["a", "ab", "b"];

#[derive(Clone, Debug)]
enum Op {
    Write {
        table: usize,
        key: String,
        put: bool,
    },
    Check {
        lag: u64,
        ranges: Vec<(usize, String, Option<String>)>,
    },
    /// One of the two machines goes on from a snapshot: it remembers no change.
    Restart,
}

fn key() -> impl Strategy<Value = String> {
    "[a-c]{1,2}"
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..3_usize, "[a-c]{0,2}", prop::option::of(key()));
    prop_oneof![
        5 => (0..3_usize, key(), any::<bool>())
            .prop_map(|(table, key, put)| Op::Write { table, key, put }),
        5 => (0..6_u64, prop::collection::vec(range, 0..4))
            .prop_map(|(lag, ranges)| Op::Check { lag, ranges }),
        1 => Just(Op::Restart),
    ]
}

fn check(table: usize, start: &str, end: Option<&str>) -> RangeCheck {
    let end = end.map(|end| end.max(start).as_bytes().to_vec());
    RangeCheck { table: TABLES[table].into(), start: start.as_bytes().to_vec(), end }
}

fn restarted(machine: &Machine) -> Machine {
    let mut loader = Loader::default();
    encode(&machine.published().view(), |chunk| {
        loader.chunk(chunk).unwrap();
        Ok::<(), serde_json::Error>(())
    })
    .unwrap();
    Machine::new(loader.finish().unwrap())
}

fn apply(machine: &mut Machine, index: u64, txn: Txn) -> Option<Verdict> {
    let entry =
        Entry { format: FORMAT, proposer_term: 1, commands: vec![txn.into()], ..Entry::default() };
    let outcomes = machine.apply(Position { term: 1, index }, entry).unwrap();
    machine.publish();
    outcomes.into_iter().next().unwrap().verdict
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_check_answers_as_a_scan_whatever_is_remembered(ops in prop::collection::vec(op(), 1..60)) {
        let (mut steady, mut forgetful) = (Machine::default(), Machine::default());
        let mut changed: Vec<(u64, usize, String)> = vec![];
        let mut rows = std::collections::BTreeSet::new();
        for (index, op) in (1..).zip(ops) {
            let mut txn = Txn { view_rev: index - 1, ..Txn::default() };
            let mut expected = true;
            match op {
                Op::Restart => {
                    forgetful = restarted(&forgetful);
                }
                Op::Write { table, key, put } => {
                    let value = put.then(Vec::new);
                    let row = key.as_bytes().to_vec();
                    txn.writes = vec![Write { table: TABLES[table].into(), key: row, value }];
                    let was_there =
                        if put { !rows.insert((table, key.clone())) } else { rows.remove(&(table, key.clone())) };
                    if put || was_there {
                        changed.push((index, table, key));
                    }
                }
                Op::Check { lag, ranges } => {
                    txn.view_rev = (index - 1).saturating_sub(lag);
                    let newer = || changed.iter().filter(|(at, ..)| *at > txn.view_rev);
                    expected = ranges.iter().all(|(table, start, end)| {
                        newer().all(|(_, of, key)| {
                            of != table || key < start || end.as_ref().is_some_and(|end| key >= end)
                        })
                    });
                    txn.ranges =
                        ranges.iter().map(|(table, start, end)| check(*table, start, end.as_deref())).collect();
                }
            }
            let one = apply(&mut steady, index, txn.clone());
            let other = apply(&mut forgetful, index, txn.clone());
            prop_assert_eq!(&one, &other, "APPLY-1: {:?}", txn);
            prop_assert_eq!(matches!(one, Some(Verdict::Applied(_))), expected, "{:?}", txn);
        }
    }
}

fn write(store: &MemoryStore, first: usize, count: usize) {
    let row = |n: usize| Write {
        table: "big".into(),
        key: format!("{n:08}").into_bytes(),
        value: Some(vec![]),
    };
    let txn = Txn { writes: (first..first + count).map(row).collect(), ..Txn::default() };
    assert!(store.apply(txn.into()).unwrap().is_applied());
}

/// Before a check cost what changed, this took minutes.
#[test]
#[expect(clippy::disallowed_methods, reason = "measures, coarsely, what a check costs")]
fn many_ranges_over_a_large_table_cost_what_changed_and_not_the_table() {
    let store = MemoryStore::default();
    (0..10).for_each(|n| write(&store, n * TXN_WRITES_MAX, TXN_WRITES_MAX));
    let ranges: Vec<RangeCheck> = (0..TXN_RANGES_MAX)
        .map(|n| RangeCheck { table: "big".into(), start: format!("{n:08}").into(), end: None })
        .collect();
    let begun = std::time::Instant::now();
    for recent in [true, false] {
        for _ in 0..10 {
            let view_rev = store.view().applied().index;
            write(&store, 0, 1);
            let after = RangeCheck { start: b"00000001".to_vec(), ..ranges[0].clone() };
            let ranges = ranges[1..].iter().cloned().chain([after]).collect();
            let txn = Txn { view_rev, ranges, ..Txn::default() };
            assert!(store.apply(txn.into()).unwrap().is_applied(), "row 0 is in none of them");
        }
        if recent {
            // So much changed that nobody remembers all of it: now the rows are read, each once.
            write(&store, 0, TXN_WRITES_MAX);
        }
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// `DEL-1`: what was forgotten cannot be looked up, so a view that has not seen it is refused whatever it scanned.
#[test]
fn a_view_from_before_the_forgotten_deletions_conflicts_and_one_at_their_floor_does_not() {
    let (mut machine, mut index) = (Machine::default(), 0);
    let mut apply_on = |machine: &mut Machine, txn: Txn| {
        index += 1;
        (index, apply(machine, index, txn))
    };
    let rows = |count: usize, value: Option<Vec<u8>>| {
        let row = |n: usize| Write {
            table: "t".into(),
            key: format!("{n:08}").into(),
            value: value.clone(),
        };
        Txn { writes: (0..count).map(row).collect(), ..Txn::default() }
    };
    let (_, put) = apply_on(&mut machine, rows(TXN_WRITES_MAX, Some(vec![])));
    assert!(matches!(put, Some(Verdict::Applied(_))));
    let (first, _) = apply_on(&mut machine, rows(DELETIONS_MAX, None));
    let scan = |view_rev| Txn { view_rev, ranges: vec![check(0, "", None)], ..Txn::default() };
    let (_, untouched) = apply_on(&mut machine, scan(first - 1));
    assert!(matches!(untouched, Some(Verdict::Applied(_))), "all deletions are remembered yet");
    // One more deletion, and one of the first ones is forgotten.
    let extra = |value| Write { table: "t".into(), key: "extra".into(), value };
    for value in [Some(vec![]), None] {
        apply_on(&mut machine, Txn { writes: vec![extra(value)], ..Txn::default() });
    }
    let mut loaded = restarted(&machine);
    for (view_rev, expected) in [(first - 1, false), (first, true)] {
        let (index, verdict) = apply_on(&mut machine, scan(view_rev));
        assert_eq!(
            matches!(verdict, Some(Verdict::Applied(_))),
            expected,
            "DEL-1: view {view_rev}: {verdict:?}"
        );
        assert_eq!(verdict, apply(&mut loaded, index, scan(view_rev)), "APPLY-1");
    }
}
