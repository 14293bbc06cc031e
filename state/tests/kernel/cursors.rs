//! Cursors of the outbox.

use palisade_state::{
    Formation, Machine, Position, State, Store, Tx, View,
    command::{Entry, FORMAT, Form, Kind, Trim},
    cursor::{self, Cursor, CursorError},
    limits::EVENTS_MAX,
    memory::MemoryStore,
    rebirth,
    snapshot::{Loader, encode},
};

fn publish(store: &MemoryStore, events: usize) {
    let mut tx = Tx::new(store.view());
    for n in 0..events {
        tx.publish("e", "", "s".into(), &serde_json::json!(n));
    }
    assert!(store.apply(tx.build().unwrap().into()).unwrap().is_applied());
}

fn advance(store: &MemoryStore, seq: u64) -> Result<(), String> {
    let mut tx = Tx::new(store.view());
    cursor::advance(&mut tx, "webhooks", seq).map_err(|error| error.to_string())?;
    assert!(store.apply(tx.build().unwrap().into()).unwrap().is_applied());
    Ok(())
}

fn position(store: &MemoryStore) -> u64 {
    cursor::position(&mut Tx::new(store.view()), "webhooks").unwrap()
}

#[test]
fn a_consumers_cursor_is_a_record_that_never_goes_back() {
    let store = MemoryStore::default();
    publish(&store, 5);
    assert_eq!(position(&store), 0);
    advance(&store, 3).unwrap();
    advance(&store, 2).unwrap();
    assert_eq!(position(&store), 3);
    let error = advance(&store, 6).unwrap_err();
    assert!(error.contains("event 6, the last one is 5"), "{error}");
}

#[test]
fn of_two_consumers_with_one_cursor_only_one_commits() {
    let store = MemoryStore::default();
    publish(&store, 5);
    let mut slow = Tx::new(store.view());
    cursor::advance(&mut slow, "webhooks", 2).unwrap();
    advance(&store, 2).unwrap();
    assert!(!store.apply(slow.build().unwrap().into()).unwrap().is_applied());
}

#[test]
fn a_cursor_goes_on_where_it_was() {
    let store = MemoryStore::default();
    let begin = Cursor::at(&store.view(), 0);
    assert_eq!(begin.next(&store.view()), Ok(1), "before the first event");
    publish(&store, 3);
    let cursor: Cursor = Cursor::at(&store.view(), 2).to_string().parse().unwrap();
    let next = cursor.next(&store.view()).unwrap();
    assert_eq!(store.view().events(next).map(|(seq, _)| seq).collect::<Vec<_>>(), [3]);
    let ahead = Cursor::at(&store.view(), 9).next(&store.view()).unwrap_err();
    assert_eq!(ahead, CursorError::Ahead { seq: 9, last: 3 });
}

fn reborn(view: &View) -> View {
    let mut loader = Loader::default();
    let sink = |chunk: &[u8]| {
        loader.chunk(chunk).unwrap();
        Ok::<(), serde_json::Error>(())
    };
    encode(view, sink).unwrap();
    let formation = Formation { cluster: "cl_2".into(), lineage: "memory".into(), epoch: 1 };
    Machine::new(rebirth(loader.finish().unwrap(), formation)).published().view()
}

#[test]
fn a_cursor_of_another_cluster_is_refused_and_both_are_named() {
    let store = MemoryStore::default();
    publish(&store, 3);
    let cursor = Cursor::at(&store.view(), 2);
    let error = cursor.next(&reborn(&store.view())).unwrap_err();
    assert!(
        matches!(&error, CursorError::OtherCluster { theirs, ours } if theirs == "memory" && ours == "cl_2")
    );
    assert!(error.to_string().contains("begin without a cursor"), "{error}");
}

#[test]
fn a_cursor_behind_the_window_says_where_the_window_begins() {
    let mut machine = Machine::new(State::default());
    let mut apply = |commands: Vec<palisade_state::Command>| {
        let at = Position { term: 1, index: machine.applied().index + 1 };
        let entry = Entry { format: FORMAT, proposer_term: 1, delta_ms: 0, wall_ms: 0, commands };
        machine.apply(at, entry).unwrap();
        machine.publish();
        machine.published().view()
    };
    let form = Form { cluster: "c".into(), lineage: "l".into(), epoch: 0 };
    let mut view = apply(vec![Kind::Form(form).into()]);
    for _ in 0..=EVENTS_MAX / 10_000 {
        let mut tx = Tx::new(view);
        for _ in 0..10_000 {
            tx.publish("e", "", String::new(), &serde_json::Value::Null);
        }
        view = apply(vec![tx.build().unwrap().into()]);
    }
    let view = apply(vec![Kind::Trim(Trim { events_below: 6, audit_below: 0 }).into()]);
    assert_eq!(Cursor::at(&view, 5).next(&view), Ok(6));
    assert_eq!(Cursor::at(&view, 4).next(&view), Err(CursorError::Behind { seq: 4, first: 6 }));
}
