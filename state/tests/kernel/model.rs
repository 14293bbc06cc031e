//! The kernel against a naive model that keeps everything in plain maps and rescans it each time:
//! tables and indexes (`TX-1`, `TX-2`), the queue (`QUEUE-1`, `QUEUE-2`, `Q1`, `Q2`), idempotency
//! (`L2`), events (`E1`), audit (`AUDIT-1`, `AUDIT-2`), and refusals that leave nothing (`TXN-1`).

use std::collections::BTreeMap;

use palisade_state::{
    Index, Outcome, Store, Table, Tx, Verdict, View,
    command::{AuditDraft, Enqueue, Finish, Idempotency, Kind, Requeue, Tick, Txn},
    memory::MemoryStore,
    snapshot,
};
use proptest::prelude::*;
use prost::Message;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Row {
    group: u8,
    n: u64,
}

fn group_of(row: &Row) -> Vec<String> {
    vec![row.group.to_string()]
}

const ROWS: Table<String, Row> = Table::new("rows", &[Index { name: "group", keys: group_of }]);

/// What a transaction reads before it writes, on a view `lag` steps old.
#[derive(Clone, Debug)]
enum Read {
    Point { key: u8 },
    All,
    Group { group: u8 },
}

#[derive(Clone, Debug)]
enum Op {
    Put {
        key: u8,
        group: u8,
    },
    Delete {
        key: u8,
    },
    Guarded {
        read: Read,
        lag: usize,
        key: u8,
        group: u8,
    },
    Enqueue {
        key: u8,
        delay_ms: u64,
    },
    Finish {
        key: u8,
        behind: u64,
    },
    /// A whole run: tied to its row, writes, ends.
    Run {
        key: u8,
        behind: u64,
    },
    Requeue {
        key: u8,
        behind: u64,
        delay_ms: u64,
        fails: bool,
    },
    Keyed {
        key: u8,
        hash: u8,
    },
    Publish {
        count: u8,
    },
    Pass {
        ms: u64,
    },
}

fn read() -> impl Strategy<Value = Read> {
    prop_oneof![
        (0..6_u8).prop_map(|key| Read::Point { key }),
        Just(Read::All),
        (0..3_u8).prop_map(|group| Read::Group { group }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let (key, group) = (0..6_u8, 0..3_u8);
    let delay_ms = prop_oneof![Just(0), 1..2_000_u64];
    prop_oneof![
        3 => (key.clone(), group.clone()).prop_map(|(key, group)| Op::Put { key, group }),
        3 => key.clone().prop_map(|key| Op::Delete { key }),
        6 => (read(), 0..4_usize, key.clone(), group)
            .prop_map(|(read, lag, key, group)| Op::Guarded { read, lag, key, group }),
        3 => (key.clone(), delay_ms.clone()).prop_map(|(key, delay_ms)| Op::Enqueue { key, delay_ms }),
        2 => (key.clone(), 0..2_u64).prop_map(|(key, behind)| Op::Finish { key, behind }),
        2 => (key.clone(), 0..3_u64).prop_map(|(key, behind)| Op::Run { key, behind }),
        2 => (key.clone(), 0..2_u64, delay_ms, any::<bool>())
            .prop_map(|(key, behind, delay_ms, fails)| Op::Requeue { key, behind, delay_ms, fails }),
        2 => (key, 0..2_u8).prop_map(|(key, hash)| Op::Keyed { key, hash }),
        2 => (0..4_u8).prop_map(|count| Op::Publish { count }),
        2 => (0..3_000_u64).prop_map(|ms| Op::Pass { ms }),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Kept {
    row: Row,
    created: u64,
    modified: u64,
    version: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Work {
    generation: u64,
    due_ms: u64,
    attempts: u32,
    error: String,
}

#[derive(Clone, Debug, Default)]
struct Model {
    index: u64,
    now_ms: u64,
    rows: BTreeMap<u8, Kept>,
    /// The newest deletion of a key, with the group that it was in.
    deleted: Vec<(u8, u8, u64)>,
    /// When a row left a group, or came into one.
    moved: Vec<(u8, u64)>,
    queue: BTreeMap<u8, Work>,
    keyed: BTreeMap<u8, (u8, u64)>,
    events: u64,
    audits: u64,
}

fn name(key: u8) -> String {
    format!("k{key}")
}

impl Model {
    fn put(&mut self, key: u8, row: Row) {
        let index = self.index;
        let before = self.rows.get(&key).cloned();
        if before.as_ref().map(|kept| kept.row.group) != Some(row.group) {
            self.moved.extend(before.iter().map(|kept| (kept.row.group, index)));
            self.moved.push((row.group, index));
        }
        let (created, version) = before.map_or((index, 1), |kept| (kept.created, kept.version + 1));
        self.rows.insert(key, Kept { row, created, modified: index, version });
    }

    fn delete(&mut self, key: u8) {
        if let Some(kept) = self.rows.remove(&key) {
            self.deleted.push((key, kept.row.group, self.index));
            self.moved.push((kept.row.group, self.index));
        }
    }

    /// Whether what was read on `past` is what would be read now.
    fn holds(&self, past: &Self, read: &Read) -> bool {
        let since = past.index;
        match read {
            Read::Point { key } => {
                let id =
                    |model: &Self| model.rows.get(key).map(|kept| (kept.created, kept.version));
                id(past) == id(self)
            }
            Read::All => {
                self.rows.values().all(|kept| kept.modified <= since)
                    && self.deleted.iter().all(|(_, _, at)| *at <= since)
            }
            Read::Group { group } => {
                let members = past.rows.iter().filter(|(_, kept)| kept.row.group == *group);
                self.moved.iter().all(|(of, at)| of != group || *at <= since)
                    && members
                        .into_iter()
                        .all(|(key, _)| self.holds(past, &Read::Point { key: *key }))
            }
        }
    }

    fn enqueue(&mut self, key: u8, delay_ms: u64) {
        let (index, due_ms) = (self.index, self.now_ms + delay_ms);
        let work = match self.queue.get(&key) {
            None => Work { generation: index, due_ms, attempts: 0, error: String::new() },
            Some(work) => Work {
                generation: index.max(work.generation + 1),
                due_ms: due_ms.min(work.due_ms),
                attempts: 0,
                error: String::new(),
            },
        };
        self.queue.insert(key, work);
    }

    fn finish(&mut self, key: u8, generation: u64) {
        if self.queue.get(&key).is_some_and(|work| work.generation == generation) {
            self.queue.remove(&key);
        }
    }

    fn generation(&self, key: u8, behind: u64) -> u64 {
        self.queue.get(&key).map_or(behind + 1, |work| work.generation.saturating_sub(behind))
    }
}

fn read_through(tx: &mut Tx, read: &Read) {
    match read {
        Read::Point { key } => drop(tx.get(&ROWS, &name(*key)).unwrap()),
        Read::All => drop(tx.scan(&ROWS, b"").unwrap()),
        Read::Group { group } => drop(tx.by_index(&ROWS, "group", &group.to_string()).unwrap()),
    }
}

/// What one step does to the kernel, and what it should do to the model: the transaction, and
/// whether it is applied.
fn step(op: &Op, view: View, past: &(View, Model), model: &Model, n: u64) -> (Txn, Model, bool) {
    let mut next = model.clone();
    let mut tx = Tx::new(view);
    let mut applies = true;
    match op {
        Op::Put { key, group } => {
            tx.put(&ROWS, &name(*key), &Row { group: *group, n }).unwrap();
            next.put(*key, Row { group: *group, n });
        }
        Op::Delete { key } => {
            tx.delete(&ROWS, &name(*key)).unwrap();
            next.delete(*key);
        }
        Op::Guarded { read, key, group, .. } => {
            tx = Tx::new(past.0.clone());
            read_through(&mut tx, read);
            tx.put(&ROWS, &name(*key), &Row { group: *group, n }).unwrap();
            // What it writes it reads, for its indexes.
            applies =
                model.holds(&past.1, read) && model.holds(&past.1, &Read::Point { key: *key });
            next.put(*key, Row { group: *group, n });
        }
        Op::Enqueue { key, delay_ms } => {
            tx.enqueue_after("kind", &name(*key), *delay_ms).unwrap();
            next.enqueue(*key, *delay_ms);
        }
        Op::Finish { key, behind } => {
            let generation = model.generation(*key, *behind);
            tx.finish(Finish { kind: "kind".into(), key: name(*key), generation });
            next.finish(*key, generation);
        }
        Op::Run { key, behind } => {
            let generation = model.generation(*key, *behind);
            let work = Finish { kind: "kind".into(), key: name(*key), generation };
            tx.for_work(work.clone());
            tx.finish(work);
            applies = model.queue.get(key).is_some_and(|work| work.generation >= generation);
            next.finish(*key, generation);
        }
        Op::Requeue { key, behind, delay_ms, fails } => {
            let generation = model.generation(*key, *behind);
            let error = if *fails { "it broke".to_owned() } else { String::new() };
            let (kind, key_name) = ("kind".to_owned(), name(*key));
            let delay_ms = *delay_ms;
            tx.requeue(Requeue { kind, key: key_name, generation, delay_ms, error: error.clone() });
            if let Some(work) = next.queue.get_mut(key).filter(|work| work.generation == generation)
            {
                work.due_ms = model.now_ms + delay_ms;
                work.attempts = if *fails { work.attempts + 1 } else { 0 };
                work.error = error;
            }
        }
        Op::Keyed { key, hash } => {
            tx.put(&ROWS, &name(*key), &Row { group: 0, n }).unwrap();
            let request_hash = vec![*hash];
            tx.idempotent(Idempotency { scope: "s".into(), key: name(*key), request_hash });
            applies = !model.keyed.contains_key(key);
            next.keyed.insert(*key, (*hash, model.index));
            next.put(*key, Row { group: 0, n });
        }
        Op::Publish { count } => {
            for n in 0..*count {
                tx.publish("happened", "", format!("x/{n}"), &serde_json::json!({ "n": n }));
            }
            tx.audit(AuditDraft { actor: n.to_string(), ..AuditDraft::default() });
            next.events += u64::from(*count);
            next.audits += 1;
        }
        Op::Pass { .. } => {}
    }
    (tx.build().unwrap(), next, applies)
}

/// Everything but where the state stands in the log.
fn contents(view: &View) -> (u64, Vec<Vec<u8>>) {
    let mut chunks = Vec::new();
    let sink = |chunk: &[u8]| {
        chunks.push(chunk.to_vec());
        Ok::<(), serde_json::Error>(())
    };
    snapshot::encode(view, sink).unwrap();
    chunks.remove(0);
    (view.revision(), chunks)
}

fn expected_verdict(op: &Op, model: &Model) -> &'static str {
    match op {
        Op::Run { .. } => "superseded",
        Op::Keyed { key, hash } if model.keyed[key].0 == *hash => "replayed",
        Op::Keyed { .. } => "mismatch",
        _ => "conflict",
    }
}

fn verdict_name(outcome: &Outcome) -> &'static str {
    match &outcome.verdict {
        Some(Verdict::Applied(_)) => "applied",
        Some(Verdict::Replayed(_)) => "replayed",
        Some(Verdict::IdempotencyMismatch(_)) => "mismatch",
        Some(Verdict::Conflict(_)) => "conflict",
        Some(Verdict::Superseded(_)) => "superseded",
        _ => "something else",
    }
}

fn check_tables(view: &View, model: &Model) -> Result<(), TestCaseError> {
    let rows: Vec<(String, Kept)> = ROWS
        .all(view)
        .unwrap()
        .into_iter()
        .map(|(key, found)| {
            let (row, stamp) = (found.value, found.stamp);
            let (created, modified, version) =
                (stamp.created_rev, stamp.modified_rev, stamp.version);
            (key, Kept { row, created, modified, version })
        })
        .collect();
    let expected: Vec<_> =
        model.rows.iter().map(|(key, kept)| (name(*key), kept.clone())).collect();
    prop_assert_eq!(rows, expected);
    for group in 0..3 {
        let found = ROWS.by_index(view, "group", &group.to_string()).unwrap();
        let keys: Vec<String> = found.into_iter().map(|(key, _)| key).collect();
        let members = model.rows.iter().filter(|(_, kept)| kept.row.group == group);
        let expected: Vec<String> = members.map(|(key, _)| name(*key)).collect();
        prop_assert_eq!(keys, expected, "TX-2");
    }
    prop_assert_eq!(view.count("rows#group"), model.rows.len(), "TX-2: nothing is left behind");
    Ok(())
}

fn check_queue(view: &View, model: &Model) -> Result<(), TestCaseError> {
    let queue: Vec<(String, Work)> = view
        .all_work()
        .map(|((_, key), row)| {
            let (generation, due_ms, attempts) = (row.generation, row.due_ms, row.attempts);
            (key.to_string(), Work { generation, due_ms, attempts, error: row.last_error.clone() })
        })
        .collect();
    let expected: Vec<_> =
        model.queue.iter().map(|(key, work)| (name(*key), work.clone())).collect();
    prop_assert_eq!(&queue, &expected, "QUEUE-1, Q1");
    let awaited = model.queue.values().any(|work| work.due_ms > model.now_ms);
    prop_assert_eq!(view.timers_pending(), awaited, "as a scan says");
    prop_assert_eq!(view.work_count(), model.queue.len());
    Ok(())
}

/// The chain, computed from what each record says and not by the kernel.
fn check_audit(view: &View, model: &Model) -> Result<(), TestCaseError> {
    let mut head = vec![0; 32];
    for (at, record) in view.audit(0).enumerate() {
        prop_assert_eq!(record.seq, at as u64 + 1, "AUDIT-2");
        prop_assert_eq!(&record.prev_hash, &head, "AUDIT-1");
        let mut bare = record.clone();
        bare.hash.clear();
        bare.prev_hash.clear();
        head = Sha256::new()
            .chain_update(&head)
            .chain_update(bare.encode_to_vec())
            .finalize()
            .to_vec();
        prop_assert_eq!(&record.hash, &head, "AUDIT-1");
    }
    prop_assert_eq!(view.audit_head().to_vec(), head, "AUDIT-1");
    prop_assert_eq!(view.last_audit(), model.audits, "AUDIT-2");
    prop_assert!(view.verify_audit().is_ok());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]

    #[test]
    fn the_kernel_agrees_with_the_model(ops in prop::collection::vec(op(), 1..90)) {
        let store = MemoryStore::default();
        let begun = store.view().applied().index;
        let mut model = Model { index: begun, ..Model::default() };
        let mut past = vec![(store.view(), model.clone())];
        let mut generations: BTreeMap<u8, u64> = BTreeMap::new();
        for (n, op) in ops.into_iter().enumerate() {
            let lag = if let Op::Guarded { lag, .. } = op { lag } else { 0 };
            let from = past[past.len() - 1 - lag.min(past.len() - 1)].clone();
            model.index += 1;
            if let Op::Pass { ms } = op {
                store.advance(ms);
                model.now_ms += ms;
            } else {
                let (txn, next, applies) = step(&op, store.view(), &from, &model, n as u64);
                let before = contents(&store.view());
                let outcome = store.apply(txn.into()).unwrap();
                let expected = if applies { "applied" } else { expected_verdict(&op, &model) };
                prop_assert_eq!(verdict_name(&outcome), expected, "{:?}", op);
                if applies {
                    model = next;
                } else {
                    prop_assert_eq!(before, contents(&store.view()), "TXN-1");
                }
                if let (Op::Enqueue { key, .. }, true) = (&op, applies) {
                    let generation = model.queue[key].generation;
                    let last = generations.insert(*key, generation).unwrap_or_default();
                    prop_assert!(generation > last, "QUEUE-2");
                }
            }
            let view = store.view();
            prop_assert_eq!(view.applied().index, model.index);
            check_queue(&view, &model)?;
            past.push((view, model.clone()));
        }
        let view = store.view();
        check_tables(&view, &model)?;
        check_audit(&view, &model)?;
        let seqs: Vec<u64> = view.events(0).map(|(seq, _)| seq).collect();
        prop_assert_eq!(seqs, (1..=model.events).collect::<Vec<_>>(), "E1");
        let places: Vec<_> = view.events(0).map(|(_, event)| (event.revision, event.n)).collect();
        prop_assert!(places.windows(2).all(|two| {
            two[0].0 < two[1].0 && two[1].1 == 0 || two[0].0 == two[1].0 && two[0].1 + 1 == two[1].1
        }), "E1: counted within each revision");
    }
}

#[test]
fn a_keyed_transaction_is_applied_once_however_often_it_comes_in_one_entry() {
    let store = MemoryStore::default();
    let mut tx = Tx::new(store.view());
    tx.enqueue("kind", "k").unwrap();
    tx.idempotent(Idempotency { scope: "s".into(), key: "k".into(), request_hash: vec![1] });
    let txn = tx.build().unwrap();
    let first = store.apply(txn.clone().into()).unwrap();
    let generation = store.view().work("kind", "k").unwrap().generation;
    store.apply(Kind::Tick(Tick {}).into()).unwrap();
    let again = store.apply(txn.into()).unwrap();
    assert_eq!((verdict_name(&first), verdict_name(&again)), ("applied", "replayed"));
    assert_eq!(store.view().work("kind", "k").unwrap().generation, generation, "L2");
}

#[test]
fn an_enqueue_keeps_the_earlier_time_and_forgets_failures() {
    let store = MemoryStore::default();
    let apply = |txn: Txn| assert!(store.apply(txn.into()).unwrap().is_applied());
    let enqueue = |delay_ms| Txn {
        enqueues: vec![Enqueue { kind: "kind".into(), key: "k".into(), delay_ms }],
        ..Txn::default()
    };
    apply(enqueue(500));
    let generation = store.view().work("kind", "k").unwrap().generation;
    let error = "it broke".to_owned();
    let requeue =
        Requeue { kind: "kind".into(), key: "k".into(), generation, delay_ms: 900, error };
    apply(Txn { requeues: vec![requeue], ..Txn::default() });
    let row = store.view().work("kind", "k").unwrap().clone();
    assert_eq!((row.due_ms, row.attempts, row.last_error.as_str()), (900, 1, "it broke"));
    apply(enqueue(2_000));
    let row = store.view().work("kind", "k").unwrap().clone();
    assert_eq!((row.due_ms, row.attempts, row.last_error.as_str()), (900, 0, ""));
}
