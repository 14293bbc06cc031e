//! Tables, indexes, the queue and idempotency against a naive model.

use std::collections::BTreeMap;

use palisade_state::{
    Index, Store, Table, Tx, Verdict,
    command::{Finish, Idempotency},
    memory::MemoryStore,
};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Row {
    group: u8,
    n: u64,
}

fn group_of(row: &Row) -> Vec<String> {
    vec![row.group.to_string()]
}

const ROWS: Table<String, Row> = Table::new("rows", &[Index { name: "group", keys: group_of }]);

#[derive(Clone, Debug)]
enum Op {
    Put {
        key: u8,
        group: u8,
    },
    Delete {
        key: u8,
    },
    /// Puts `key` if a view `lag` transactions old has the same rows in the key's group.
    Guarded {
        key: u8,
        group: u8,
        lag: usize,
    },
    Enqueue {
        key: u8,
    },
    FinishAt {
        key: u8,
        behind: u64,
    },
    Keyed {
        key: u8,
        hash: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let (key, group) = (0..6_u8, 0..3_u8);
    prop_oneof![
        3 => (key.clone(), group.clone()).prop_map(|(key, group)| Op::Put { key, group }),
        2 => key.clone().prop_map(|key| Op::Delete { key }),
        3 => (key.clone(), group, 0..4_usize).prop_map(|(key, group, lag)| Op::Guarded { key, group, lag }),
        2 => key.clone().prop_map(|key| Op::Enqueue { key }),
        2 => (key.clone(), 0..2_u64).prop_map(|(key, behind)| Op::FinishAt { key, behind }),
        2 => (key, 0..2_u8).prop_map(|(key, hash)| Op::Keyed { key, hash }),
    ]
}

#[derive(Clone, Default)]
struct Model {
    rows: BTreeMap<u8, Row>,
    queue: BTreeMap<u8, u64>,
    keyed: BTreeMap<u8, u8>,
}

impl Model {
    fn group(&self, group: u8) -> Vec<(u8, Row)> {
        self.rows.iter().filter(|(_, r)| r.group == group).map(|(k, r)| (*k, r.clone())).collect()
    }
}

fn name(key: u8) -> String {
    format!("k{key}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_kernel_agrees_with_the_model(ops in prop::collection::vec(op(), 1..80)) {
        let store = MemoryStore::default();
        let mut model = Model::default();
        let mut past = vec![(store.view(), model.clone())];
        for (n, op) in ops.into_iter().enumerate() {
            let n = n as u64;
            let mut tx = Tx::new(store.view());
            let mut next = model.clone();
            let mut applies = true;
            match op {
                Op::Put { key, group } => {
                    tx.put(&ROWS, &name(key), &Row { group, n }).unwrap();
                    next.rows.insert(key, Row { group, n });
                }
                Op::Delete { key } => {
                    tx.delete(&ROWS, &name(key)).unwrap();
                    next.rows.remove(&key);
                }
                Op::Guarded { key, group, lag } => {
                    let (view, seen) = &past[past.len().saturating_sub(lag + 1)];
                    tx = Tx::new(view.clone());
                    let read = tx.by_index(&ROWS, "group", &group.to_string()).unwrap();
                    prop_assert_eq!(read.len(), seen.group(group).len());
                    tx.put(&ROWS, &name(key), &Row { group, n }).unwrap();
                    // Whoever read the group and the row's own place may write only if neither
                    // was touched since; rows carry `n`, so equal content means untouched, but for
                    // a row that left the group and came back.
                    applies = seen.group(group) == model.group(group) && seen.rows.get(&key) == model.rows.get(&key);
                    next.rows.insert(key, Row { group, n });
                    let outcome = store.apply(tx.build().unwrap().into()).unwrap();
                    if outcome.is_applied() {
                        prop_assert!(applies, "applied over a change it should have seen");
                        model = next;
                    }
                    past.push((store.view(), model.clone()));
                    continue;
                }
                Op::Enqueue { key } => {
                    tx.enqueue("kind", &name(key)).unwrap();
                    let index = store.view().applied().index + 1;
                    let before = model.queue.get(&key).copied().unwrap_or_default();
                    next.queue.insert(key, index.max(before + 1));
                }
                Op::FinishAt { key, behind } => {
                    let generation = model.queue.get(&key).map_or(0, |g| g.saturating_sub(behind));
                    tx.finish(Finish { kind: "kind".into(), key: name(key), generation });
                    if model.queue.get(&key) == Some(&generation) {
                        next.queue.remove(&key);
                    }
                }
                Op::Keyed { key, hash } => {
                    tx.put(&ROWS, &name(key), &Row { group: 0, n }).unwrap();
                    let request_hash = vec![hash];
                    tx.idempotent(Idempotency { scope: "s".into(), key: name(key), request_hash });
                    applies = !model.keyed.contains_key(&key);
                    next.keyed.insert(key, hash);
                    next.rows.insert(key, Row { group: 0, n });
                }
            }
            let outcome = store.apply(tx.build().unwrap().into()).unwrap();
            prop_assert_eq!(matches!(outcome.verdict, Some(Verdict::Applied(_))), applies);
            if applies {
                model = next;
            }
            past.push((store.view(), model.clone()));
        }
        let view = store.view();
        let rows: Vec<(String, Row)> =
            ROWS.all(&view).unwrap().into_iter().map(|(k, v)| (k, v.value)).collect();
        let expected: Vec<(String, Row)> = model.rows.iter().map(|(k, v)| (name(*k), v.clone())).collect();
        prop_assert_eq!(rows, expected);
        for group in 0..3 {
            let found = ROWS.by_index(&view, "group", &group.to_string()).unwrap();
            let keys: Vec<String> = found.into_iter().map(|(k, _)| k).collect();
            let expected: Vec<String> = model.group(group).iter().map(|(k, _)| name(*k)).collect();
            prop_assert_eq!(keys, expected);
        }
        let queue: Vec<(String, u64)> =
            view.all_work().map(|((_, key), row)| (key.to_string(), row.generation)).collect();
        let expected: Vec<(String, u64)> = model.queue.iter().map(|(k, g)| (name(*k), *g)).collect();
        prop_assert_eq!(queue, expected);
    }
}
