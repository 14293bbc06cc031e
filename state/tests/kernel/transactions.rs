//! Transactions: what is refused, and that a refusal leaves nothing.

use palisade_state::{
    Index, Outcome, Store, Table, Tx, TxError, Verdict,
    command::{AuditDraft, Idempotency},
    memory::MemoryStore,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Pet {
    owner: String,
    #[serde(default)]
    age: u32,
}

fn owner_of(pet: &Pet) -> Vec<String> {
    vec![pet.owner.clone()]
}

const PETS: Table<String, Pet> = Table::new("pets", &[Index { name: "owner", keys: owner_of }]);

fn pet(owner: &str, age: u32) -> Pet {
    Pet { owner: owner.into(), age }
}

fn key(name: &str) -> String {
    name.to_owned()
}

fn apply(store: &MemoryStore, tx: Tx) -> Outcome {
    store.apply(tx.build().unwrap().into()).unwrap()
}

fn write(store: &MemoryStore, build: impl FnOnce(&mut Tx) -> Result<(), TxError>) -> Outcome {
    let mut tx = Tx::new(store.view());
    build(&mut tx).unwrap();
    apply(store, tx)
}

fn with_pets(pets: &[(&str, &str)]) -> MemoryStore {
    let store = MemoryStore::default();
    for (name, owner) in pets {
        assert!(write(&store, |tx| tx.put(&PETS, &key(name), &pet(owner, 1))).is_applied());
    }
    store
}

fn is_conflict(outcome: &Outcome) -> bool {
    matches!(outcome.verdict, Some(Verdict::Conflict(_)))
}

#[test]
fn a_record_carries_its_versions() {
    let store = with_pets(&[("rex", "ada")]);
    let first = PETS.get(&store.view(), &key("rex")).unwrap().unwrap();
    write(&store, |tx| tx.put(&PETS, &key("rex"), &pet("ada", 2)));
    let second = PETS.get(&store.view(), &key("rex")).unwrap().unwrap();
    assert_eq!((first.stamp.version, second.stamp.version), (1, 2));
    assert_eq!(first.stamp.created_rev, second.stamp.created_rev);
    assert!(second.stamp.modified_rev > first.stamp.modified_rev);
    assert_eq!(second.value.age, 2);
}

#[test]
fn a_read_that_changed_is_a_conflict_and_leaves_nothing() {
    let store = with_pets(&[("rex", "ada")]);
    let mut slow = Tx::new(store.view());
    slow.get(&PETS, &key("rex")).unwrap();
    slow.put(&PETS, &key("tom"), &pet("bob", 1)).unwrap();
    slow.enqueue("work", "tom").unwrap();
    slow.publish("pet.born", "", "pet/tom".into(), &serde_json::json!({}));
    write(&store, |tx| tx.put(&PETS, &key("rex"), &pet("ada", 2)));
    let before = store.view();
    assert!(is_conflict(&apply(&store, slow)));
    let after = store.view();
    assert!(PETS.get(&after, &key("tom")).unwrap().is_none());
    assert_eq!(after.all_work().count(), 0);
    assert_eq!((after.last_event(), after.revision()), (before.last_event(), before.revision()));
}

#[test]
fn an_absent_read_that_appeared_is_a_conflict() {
    let store = MemoryStore::default();
    let mut slow = Tx::new(store.view());
    assert!(slow.get(&PETS, &key("rex")).unwrap().is_none());
    slow.put(&PETS, &key("tom"), &pet("bob", 1)).unwrap();
    write(&store, |tx| tx.put(&PETS, &key("rex"), &pet("ada", 1)));
    assert!(is_conflict(&apply(&store, slow)));
}

#[test]
fn a_row_that_was_deleted_and_made_again_is_another_row() {
    let store = with_pets(&[("rex", "ada")]);
    let mut slow = Tx::new(store.view());
    slow.get(&PETS, &key("rex")).unwrap();
    slow.put(&PETS, &key("tom"), &pet("bob", 1)).unwrap();
    write(&store, |tx| tx.delete(&PETS, &key("rex")));
    write(&store, |tx| tx.put(&PETS, &key("rex"), &pet("ada", 1)));
    assert!(is_conflict(&apply(&store, slow)), "version 1 again, but another birth");
}

#[test]
fn a_range_sees_what_entered_left_and_changed() {
    type Change = fn(&mut Tx) -> Result<(), TxError>;
    let changes: [Change; 3] = [
        |tx| tx.put(&PETS, &key("b2"), &pet("ada", 1)),
        |tx| tx.delete(&PETS, &key("b1")),
        |tx| tx.put(&PETS, &key("b1"), &pet("ada", 9)),
    ];
    for change in changes {
        let store = with_pets(&[("a", "ada"), ("b1", "ada"), ("c", "ada")]);
        let mut slow = Tx::new(store.view());
        assert_eq!(slow.scan(&PETS, b"b").unwrap().len(), 1);
        slow.put(&PETS, &key("z"), &pet("bob", 1)).unwrap();
        write(&store, change);
        assert!(is_conflict(&apply(&store, slow)));
    }
}

#[test]
fn a_change_outside_the_range_is_no_conflict() {
    let store = with_pets(&[("a", "ada"), ("b1", "ada"), ("c", "ada")]);
    let mut slow = Tx::new(store.view());
    slow.scan(&PETS, b"b").unwrap();
    slow.put(&PETS, &key("z"), &pet("bob", 1)).unwrap();
    write(&store, |tx| tx.put(&PETS, &key("a"), &pet("ada", 9)));
    write(&store, |tx| tx.delete(&PETS, &key("c")));
    assert!(apply(&store, slow).is_applied());
}

#[test]
fn an_index_follows_its_records() {
    let store = with_pets(&[("rex", "ada"), ("tom", "ada"), ("kit", "bob")]);
    let of = |owner: &str| {
        let found = PETS.by_index(&store.view(), "owner", owner).unwrap();
        found.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!((of("ada"), of("bob")), (vec![key("rex"), key("tom")], vec![key("kit")]));
    write(&store, |tx| tx.put(&PETS, &key("rex"), &pet("bob", 1)));
    write(&store, |tx| tx.delete(&PETS, &key("tom")));
    assert_eq!((of("ada"), of("bob")), (vec![], vec![key("kit"), key("rex")]));
    assert!(of("ad").is_empty(), "an index key is matched whole");
}

#[test]
fn an_index_read_conflicts_with_a_new_member() {
    let store = with_pets(&[("rex", "ada")]);
    let mut slow = Tx::new(store.view());
    assert_eq!(slow.by_index(&PETS, "owner", "ada").unwrap().len(), 1);
    slow.put(&PETS, &key("z"), &pet("bob", 1)).unwrap();
    write(&store, |tx| tx.put(&PETS, &key("tom"), &pet("ada", 1)));
    assert!(is_conflict(&apply(&store, slow)));
}

#[test]
fn a_transaction_reads_its_own_writes() {
    let store = with_pets(&[("rex", "ada"), ("tom", "ada")]);
    let mut tx = Tx::new(store.view());
    tx.put(&PETS, &key("kit"), &pet("ada", 1)).unwrap();
    tx.delete(&PETS, &key("rex")).unwrap();
    let names = |found: Vec<(String, Pet)>| found.into_iter().map(|(k, _)| k).collect::<Vec<_>>();
    assert_eq!(tx.get(&PETS, &key("rex")).unwrap(), None);
    assert_eq!(names(tx.scan(&PETS, b"").unwrap()), ["kit", "tom"]);
    assert_eq!(names(tx.by_index(&PETS, "owner", "ada").unwrap()), ["kit", "tom"]);
    assert!(apply(&store, tx).is_applied());
}

fn keyed(store: &MemoryStore, hash: u8, age: u32) -> Outcome {
    let mut tx = Tx::new(store.view());
    tx.put(&PETS, &key("rex"), &pet("ada", age)).unwrap();
    tx.idempotent(Idempotency { scope: "s".into(), key: "k".into(), request_hash: vec![hash; 32] });
    tx.respond(age.to_string().into_bytes());
    apply(store, tx)
}

#[test]
fn a_known_key_is_answered_and_not_applied() {
    let store = MemoryStore::default();
    let first = keyed(&store, 1, 5);
    let again = keyed(&store, 1, 6);
    assert_eq!(first.verdict, Some(Verdict::Applied(b"5".to_vec())));
    assert_eq!(again.verdict, Some(Verdict::Replayed(b"5".to_vec())));
    assert_eq!(again.revision, first.revision);
    assert_eq!(PETS.get(&store.view(), &key("rex")).unwrap().unwrap().value.age, 5);
    let other = keyed(&store, 2, 7);
    assert!(matches!(other.verdict, Some(Verdict::IdempotencyMismatch(_))));
}

#[test]
fn a_key_is_forgotten_after_a_day_of_logical_time() {
    let store = MemoryStore::default();
    keyed(&store, 1, 5);
    store.advance(palisade_state::limits::IDEMPOTENCY_MS - 1);
    assert!(matches!(keyed(&store, 1, 6).verdict, Some(Verdict::Replayed(_))));
    store.advance(1);
    assert!(matches!(keyed(&store, 1, 6).verdict, Some(Verdict::Applied(_))));
}

#[test]
fn events_and_audit_follow_commit_order() {
    let store = MemoryStore::default();
    for n in 0..5 {
        write(&store, |tx| {
            tx.publish("a", "", format!("x/{n}"), &serde_json::json!({}));
            tx.publish("b", "", format!("x/{n}"), &serde_json::json!({}));
            tx.audit(AuditDraft { actor: "ada".into(), ..AuditDraft::default() });
            Ok(())
        });
    }
    let view = store.view();
    let seqs: Vec<u64> = view.events(1).map(|(seq, _)| seq).collect();
    assert_eq!(seqs, (1..=10).collect::<Vec<_>>());
    let places: Vec<(u64, u32)> = view.events(1).map(|(_, e)| (e.revision, e.n)).collect();
    assert!(places.is_sorted() && places[1].1 == 1);
    assert_eq!(view.audit(1).count(), 5);
    view.verify_audit().unwrap();
}

#[test]
fn a_watcher_is_told_of_everything_that_a_batch_changed_and_of_nothing_else() {
    use palisade_state::{WatchEvent, command::Kind, command::Tick};
    let store = MemoryStore::default();
    let mut watch = store.watch();
    write(&store, |tx| {
        tx.put(&PETS, &key("rex"), &pet("ada", 1))?;
        tx.enqueue("work", "rex")?;
        tx.publish("pet.born", "", "pet/rex".into(), &serde_json::json!({}));
        Ok(())
    });
    let Some(WatchEvent::Changed(changes)) = watch.try_next() else { panic!("nothing came") };
    assert_eq!(changes.keys_of("pets").count(), 1);
    assert!(changes.touches("pets#owner"));
    assert_eq!(changes.work.len(), 1);
    assert_eq!(changes.events, Some((1, 2)));
    store.apply(Kind::Tick(Tick {}).into()).unwrap();
    let Some(WatchEvent::Changed(changes)) = watch.try_next() else { panic!("nothing came") };
    assert!(changes.rows.is_empty() && changes.work.is_empty() && changes.events.is_none());
}

fn finish(store: &MemoryStore, generation: u64) -> Outcome {
    use palisade_state::command::Finish;
    let mut tx = Tx::new(store.view());
    let work = Finish { kind: "work".into(), key: "k".into(), generation };
    tx.for_work(work.clone());
    tx.finish(work);
    apply(store, tx)
}

#[test]
fn of_two_runs_of_one_generation_only_the_first_commits() {
    let store = MemoryStore::default();
    write(&store, |tx| tx.enqueue("work", "k"));
    let generation = store.view().work("work", "k").unwrap().generation;
    assert!(finish(&store, generation).is_applied());
    assert!(matches!(finish(&store, generation).verdict, Some(Verdict::Superseded(_))));
}

#[test]
fn a_run_that_is_late_by_a_whole_life_of_its_row_takes_no_wake_up_away() {
    let store = MemoryStore::default();
    write(&store, |tx| tx.enqueue("work", "k"));
    let first = store.view().work("work", "k").unwrap().generation;
    finish(&store, first);
    write(&store, |tx| tx.enqueue("work", "k"));
    let second = store.view().work("work", "k").unwrap().generation;
    assert!(second > first, "a generation is never used again");
    // The row is at a later generation: what the late run writes stands, the wake-up stays.
    assert!(finish(&store, first).is_applied());
    assert_eq!(store.view().work("work", "k").unwrap().generation, second);
}

#[test]
fn a_run_ahead_of_its_row_is_refused() {
    let store = MemoryStore::default();
    write(&store, |tx| tx.enqueue("work", "k"));
    let generation = store.view().work("work", "k").unwrap().generation;
    assert!(matches!(finish(&store, generation + 1).verdict, Some(Verdict::Superseded(_))));
}

#[test]
fn a_part_that_is_refused_leaves_what_it_read_and_nothing_else() {
    let store = with_pets(&[("rex", "ada"), ("tom", "bob")]);
    let mut tx = Tx::new(store.view());
    tx.put(&PETS, &key("new"), &pet("ada", 1)).unwrap();
    let refused: Result<(), TxError> = tx.attempt(|tx| {
        tx.get(&PETS, &key("tom"))?;
        tx.delete(&PETS, &key("rex"))?;
        tx.put(&PETS, &key("new"), &pet("bob", 9))?;
        tx.enqueue("walk", "rex")?;
        tx.publish("pet.gone", "", key("pet/rex"), &serde_json::json!({}));
        Err(TxError::Invalid("no".to_owned()))
    });
    assert!(refused.is_err());
    assert_eq!(tx.get(&PETS, &key("rex")).unwrap(), Some(pet("ada", 1)));
    assert_eq!(tx.by_index(&PETS, "owner", "ada").unwrap().len(), 2, "TX-2");
    write(&store, |tx| tx.put(&PETS, &key("tom"), &pet("bob", 2)));
    let txn = tx.build().unwrap();
    assert!(txn.enqueues.is_empty() && txn.events.is_empty());
    let outcome = store.apply(txn.into()).unwrap();
    assert!(is_conflict(&outcome), "TX-1: what it read is part of why it was refused");
}

#[test]
fn a_part_that_is_not_refused_stays() {
    let store = with_pets(&[("rex", "ada")]);
    let outcome = write(&store, |tx| tx.attempt(|tx| tx.delete(&PETS, &key("rex"))));
    assert!(outcome.is_applied());
    assert_eq!(PETS.get(&store.view(), &key("rex")).unwrap(), None);
}
