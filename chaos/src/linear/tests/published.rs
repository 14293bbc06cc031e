//! Histories that the literature argues about, as tables of our own: which have an order, which
//! have none, and what is left of those that have none.

use super::{super::*, brute, judge, table};

struct Known {
    /// Where such a history is discussed.
    from: &'static str,
    linearizable: bool,
    table: &'static str,
    /// Without an order: how many operations show it.
    least: usize,
}

const fn good(from: &'static str, table: &'static str) -> Known {
    Known { from, linearizable: true, table, least: 0 }
}

const fn bad(from: &'static str, least: usize, table: &'static str) -> Known {
    Known { from, linearizable: false, table, least }
}

const KNOWN: &[Known] = &[
    good(
        "Herlihy and Wing 1990: overlapping operations take effect in either order",
        "1 0 10 write 1 -> ok
         2 5 15 write 2 -> ok
         1 20 25 read -> 1
         2 30 35 read -> 1",
    ),
    bad(
        "Herlihy and Wing 1990: two readers see two orders of the same overlapping writes",
        4,
        "1 0 10 write 1 -> ok
         2 5 15 write 2 -> ok
         1 20 25 read -> 1
         2 30 35 read -> 2",
    ),
    bad(
        "Herlihy and Wing 1990: what was written before another write is seen after it",
        3,
        "1 0 5 write 1 -> ok
         1 10 15 write 2 -> ok
         2 20 25 read -> 1",
    ),
    good(
        "Herlihy and Wing 1990: a pending write may have taken effect already",
        "1 0 - write 1 -> unknown
         2 5 10 read -> 1
         2 15 20 read -> 1",
    ),
    bad(
        "Herlihy and Wing 1990: a pending write does not come and go",
        3,
        "1 0 - write 1 -> unknown
         2 5 10 read -> 1
         2 15 20 read -> _",
    ),
    bad(
        "Lamport 1986: regular but not atomic, a new value and then the old one beside one write",
        4,
        "1 0 1 write 1 -> ok
         1 2 20 write 2 -> ok
         2 4 6 read -> 2
         3 8 10 read -> 1",
    ),
    good(
        "Lamport 1986: the old value and then the new one beside one write",
        "1 0 1 write 1 -> ok
         1 2 20 write 2 -> ok
         2 4 6 read -> 1
         3 8 10 read -> 2",
    ),
    bad(
        "Attiya and Welch 1994: sequentially consistent, each in its own order, not in time",
        2,
        "1 0 5 write 1 -> ok
         2 10 15 read -> _
         2 20 25 read -> 1",
    ),
    good(
        "Porcupine's first example: readers beside a long write",
        "0 0 100 write 100 -> ok
         1 25 75 read -> 100
         2 30 60 read -> _",
    ),
    bad(
        "Porcupine's second example: the first reader saw it, the second no more",
        3,
        "0 0 100 write 200 -> ok
         1 10 30 read -> 200
         2 40 90 read -> _",
    ),
    bad(
        "Knossos: two compare-and-swaps from one value",
        3,
        "0 0 5 write 1 -> ok
         1 10 20 cas 1 2 -> ok
         2 11 21 cas 1 3 -> ok",
    ),
    good(
        "Knossos: one of two compare-and-swaps from one value finds another",
        "0 0 5 write 1 -> ok
         1 10 20 cas 1 2 -> ok
         2 11 21 cas 1 3 -> mismatch
         0 30 31 read -> 2",
    ),
    good(
        "Knossos: a crashed write takes effect long after its call",
        "0 0 1 write 1 -> ok
         1 2 - write 2 -> unknown
         0 10 11 read -> 1
         0 20 21 write 3 -> ok
         0 30 31 read -> 3
         0 40 41 read -> 2",
    ),
    bad(
        "Knossos: a crashed write takes effect once",
        5,
        "0 0 1 write 1 -> ok
         1 2 - write 2 -> unknown
         0 10 11 read -> 2
         0 20 21 write 3 -> ok
         0 40 41 read -> 2",
    ),
    bad(
        "Knossos: a failed write was not done",
        2,
        "0 0 1 write 1 -> ok
         1 2 3 write 2 -> failed
         0 10 11 read -> _",
    ),
    bad(
        "a read of a replica that did not hear yet (etcd 0.4, Consul before its consistent mode)",
        3,
        "1 0 10 write 1 -> ok
         1 20 30 cas 1 2 -> ok
         2 40 45 read -> 1
         2 50 55 read -> 2",
    ),
    bad(
        "a lost update: two read the same, both replace it",
        3,
        "0 0 1 write 1 -> ok v1
         1 2 3 read -> 1 v1
         2 2 3 read -> 1 v1
         1 10 15 casv 1 2 -> ok v2
         2 20 25 casv 1 3 -> ok v3",
    ),
    bad(
        "a lost write: acknowledged by a leader whose log was cut off",
        3,
        "0 0 1 write 1 -> ok
         1 10 11 write 2 -> ok
         0 20 21 read -> 1
         0 30 31 read -> 1",
    ),
    bad(
        "a split brain: each side reads its own writes",
        5,
        "1 0 5 write 1 -> ok
         2 10 15 write 2 -> ok
         1 20 25 write 3 -> ok
         2 30 35 read -> 2
         1 40 45 read -> 3",
    ),
    bad(
        "a dirty read: of a write that was rolled back",
        4,
        "0 0 1 write 1 -> ok
         1 5 30 write 2 -> unknown
         2 10 12 read -> 2
         2 20 22 read -> 1",
    ),
    bad(
        "a resurrection: a deleted value is read again",
        3,
        "1 0 5 write 1 -> ok
         1 10 15 delete -> ok
         2 20 25 read -> 1",
    ),
    good(
        "a deletion beside a creation, either way",
        "1 0 20 write 1 -> ok
         2 5 15 delete -> ok
         3 30 35 read -> _
         3 40 45 casv 0 2 -> ok",
    ),
    bad(
        "a lock that two hold: both created what must not be there",
        2,
        "1 0 5 casv 0 1 -> ok
         2 10 15 casv 0 2 -> ok",
    ),
    bad(
        "a refusal for no reason: the version that was asked for is there",
        2,
        "1 0 5 write 1 -> ok v7
         2 10 15 casv 7 2 -> mismatch",
    ),
    good(
        "a refusal because of a write of which nobody heard, and that nobody saw",
        "1 0 5 write 1 -> ok v7
         3 6 - write 9 -> unknown
         2 10 15 casv 7 2 -> mismatch
         1 20 25 write 3 -> ok v9
         1 30 35 read -> 3 v9",
    ),
    bad(
        "versions that go back: two leaders number the same",
        2,
        "1 0 5 write 1 -> ok v7
         2 10 15 write 2 -> ok v7",
    ),
];

#[test]
fn known_histories_are_judged_as_known() {
    for known in KNOWN {
        let ops = table(known.table);
        assert_eq!(brute::has_order(&ops), known.linearizable, "brute force: {}", known.from);
        let verdict = judge(&ops);
        match (&verdict, known.linearizable) {
            (Verdict::Linearizable, true) | (Verdict::Violation(_), false) => {}
            _ => panic!("{}: {verdict:?}", known.from),
        }
    }
}

#[test]
fn what_shows_that_there_is_no_order_is_little() {
    for known in KNOWN.iter().filter(|known| !known.linearizable) {
        let verdict = judge(&table(known.table));
        let found = verdict.counterexample().expect(known.from);
        assert!(found.ops.len() <= known.least, "{}:\n{found}", known.from);
        assert!(!brute::has_order(&found.ops), "{}:\n{found}", known.from);
    }
}

#[test]
fn a_counterexample_reads_as_a_timeline() {
    let ops = table(
        "1 0 10 write 1 -> ok v4
         2 12 - write 3 -> unknown
         1 20 30 write 2 -> ok v6
         3 25 60 read -> 2 v6
         2 40 45 read -> 1 v4",
    );
    let shown = judge(&ops).counterexample().unwrap().to_string();
    let bar = |from: usize| format!("{:<31}", format!("{}|-----|", " ".repeat(from)));
    let expected = [
        "x: no order of 3 (of 5) operations explains their answers; read by client 2 that saw 1 \
         (version 4) finds no place"
            .to_owned(),
        format!("client 1 {} write 1: ok (version 4)  [0..10]", bar(0)),
        format!("client 1 {} write 2: ok (version 6)  [20..30]", bar(12)),
        format!("client 2 {} read: saw 1 (version 4)  [40..45]  <-- no place", bar(24)),
    ];
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn keys_are_judged_one_by_one() {
    let mut ops = table("1 0 5 write 1 -> ok");
    ops.push(Op { key: "y".into(), ..table("1 10 15 read -> _").remove(0) });
    let verdicts = check(&ops, Budget::default());
    assert_eq!(verdicts.len(), 2);
    assert!(verdicts.values().all(|verdict| *verdict == Verdict::Linearizable));
}

#[test]
fn without_steps_nothing_passes() {
    let ops = table("1 0 5 write 1 -> ok");
    let budget = Budget { steps: 0, shrink_steps: 0 };
    assert_eq!(check_key(ops, budget), Verdict::Unknown { explored: 0 });
}
