//! What was planted in a history, or in the state at the end, is found.

use std::time::Duration;

use palisade_state::{
    Machine, Position, Txn, View,
    command::{Enqueue, Entry, EventDraft},
};

use super::{
    chores,
    eyes::{Breach, Eyes},
    judge::judge,
    nodes::Nodes,
    record::{Action, Outcome, Record},
};

fn draft(kind: &str, data: &str) -> EventDraft {
    EventDraft {
        kind: kind.to_owned(),
        tenant: String::new(),
        subject: "register/r0".to_owned(),
        data: data.as_bytes().to_vec(),
    }
}

fn set(value: u64) -> Txn {
    Txn { events: vec![draft("register.set", &value.to_string())], ..Txn::default() }
}

fn state(txns: Vec<Txn>) -> View {
    let mut machine = Machine::default();
    for (nth, txn) in txns.into_iter().enumerate() {
        let entry = Entry { proposer_term: 1, commands: vec![txn.into()], ..Entry::default() };
        machine.apply(Position { term: 1, index: nth as u64 + 1 }, entry).unwrap();
    }
    drop(machine.publish());
    machine.published().view()
}

fn record(client: u64, action: Action, outcome: Outcome, ms: (u64, u64), revision: u64) -> Record {
    let (invoked, ended) = (Duration::from_millis(ms.0), Duration::from_millis(ms.1));
    let revision = (revision > 0).then_some(revision);
    Record { client, key: 0, action, outcome, invoked, ended, revision }
}

/// What is found, but for the leases, of which these states have none.
fn found(records: &[Record], last: &View) -> Vec<&'static str> {
    let eyes = Eyes::new(Nodes::new(1, false));
    let breaches = judge(records, last, 1, &eyes);
    breaches.iter().map(|breach| breach.check).filter(|check| *check != "I5").collect()
}

fn write(client: u64, value: u64, outcome: Outcome, ms: (u64, u64)) -> Record {
    let revision = if let Outcome::Done(revision) = outcome { revision } else { 0 };
    record(client, Action::Write(value), outcome, ms, revision)
}

fn read(client: u64, value: Option<u64>, ms: (u64, u64), revision: u64) -> Record {
    record(client, Action::Read, Outcome::Value(value), ms, revision)
}

#[test]
fn a_sound_history_has_no_breach() {
    let records = [
        write(1, 7, Outcome::Done(1), (0, 9)),
        read(2, Some(7), (10, 12), 1),
        write(1, 8, Outcome::Unknown, (13, 30)),
        write(2, 9, Outcome::Refused, (13, 14)),
    ];
    assert_eq!(found(&records, &state(vec![set(7)])), [""; 0]);
    assert_eq!(found(&records, &state(vec![set(7), set(8)])), [""; 0]);
}

#[test]
fn a_lost_write_a_doubled_one_and_one_that_was_refused_and_done_are_found() {
    let done = [write(1, 7, Outcome::Done(1), (0, 9))];
    assert_eq!(found(&done, &state(vec![])), ["L2"]);
    assert_eq!(found(&done, &state(vec![set(7), set(7)])), ["L2"]);
    let unknown = [write(1, 7, Outcome::Unknown, (0, 9))];
    assert_eq!(found(&unknown, &state(vec![set(7), set(7)])), ["L2"]);
    let refused = [write(1, 7, Outcome::Refused, (0, 9))];
    assert_eq!(found(&refused, &state(vec![set(7)])), ["L2"]);
}

#[test]
fn a_stale_read_is_found_by_the_order_and_by_the_revisions() {
    let records = [
        write(1, 7, Outcome::Done(1), (0, 9)),
        write(1, 8, Outcome::Done(2), (10, 19)),
        read(2, Some(7), (20, 22), 1),
    ];
    assert_eq!(found(&records, &state(vec![set(7), set(8)])), ["L1", "L3"]);
}

#[test]
fn a_client_that_goes_back_is_found() {
    let records = [
        write(1, 7, Outcome::Done(1), (0, 9)),
        read(2, Some(7), (10, 12), 5),
        read(2, Some(7), (10, 13), 4),
    ];
    assert_eq!(found(&records, &state(vec![set(7)])), ["L3"]);
}

#[test]
fn work_that_is_left_at_the_end_is_found() {
    let work = Enqueue { kind: chores::KIND.into(), key: "c1".into(), delay_ms: 0 };
    let last = state(vec![Txn { enqueues: vec![work], ..Txn::default() }]);
    assert_eq!(found(&[], &last), ["Q1"]);
}

fn done(generation: u64) -> Txn {
    let data = serde_json::json!({
        "key": "c1", "upto": 1, "generation": generation, "lease": "shard:7", "worker": "1",
        "incarnation": 3, "fence": [0, 1, 1],
    });
    Txn { events: vec![draft(chores::DONE, &data.to_string())], ..Txn::default() }
}

#[test]
fn a_generation_that_is_done_twice_is_found_and_so_is_a_fence_of_later() {
    let blank = || Txn::default();
    assert_eq!(found(&[], &state(vec![blank(), done(1), done(2)])), [""; 0]);
    assert_eq!(found(&[], &state(vec![blank(), done(1), done(1)])), ["Q2"]);
    assert_eq!(found(&[], &state(vec![done(1)])), ["I3"]);
}

#[test]
fn events_out_of_order_and_with_gaps_are_found() {
    let last = state(vec![set(7)]);
    let seen =
        |events: &[(u64, u64)]| -> Vec<Breach> { super::judge::order(events.iter().copied()) };
    assert_eq!(seen(&[(1, 1), (2, 1), (3, 4)]), []);
    assert_eq!(seen(&[(1, 1), (3, 4)]).len(), 1);
    assert_eq!(seen(&[(1, 4), (2, 3)]).len(), 1);
    assert_eq!(super::judge::order(last.events(1).map(|(at, event)| (at, event.revision))), []);
}
