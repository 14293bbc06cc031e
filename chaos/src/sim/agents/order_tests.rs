//! C2 with errors in what was told, and in what machines did.

use palisade_state::{
    Machine as States, Position, Txn, View,
    command::{Entry, EventDraft, Write},
};
use serde_json::{Value, json};

use super::{
    super::{nodes::Entered, world::World},
    driver::Rig,
    errands::{AGAIN, Done, LAST, ONCE},
    *,
};

fn row(table: &str, key: &str, value: &Value) -> Write {
    let (key, value) = (key.as_bytes().to_vec(), Some(value.to_string().into_bytes()));
    Write { table: table.to_owned(), key, value }
}

/// A command that ended, as it is stored.
fn command(id: &str, state: &str, code: &str) -> Write {
    row(
        "commands",
        id,
        &json!({ "id": id, "kind": "k", "state": state, "result": { "code": code } }),
    )
}

fn finished(id: &str, state: &str, code: &str) -> EventDraft {
    let data = json!({ "command": id, "state": state, "code": code });
    EventDraft {
        kind: "command.finished".to_owned(),
        tenant: String::new(),
        subject: format!("command/{id}"),
        data: data.to_string().into_bytes(),
    }
}

/// An errand whose one command ended so, as its reconciler has written it down.
fn errand(name: &str, kind: &str, state: &str, code: &str, data: &Value) -> Write {
    let ended = json!({ "state": state, "code": code, "data": data });
    let node = "nd_01890a5d-ac96-774b-bcce-b302099a8057";
    row("errands", name, &json!({ "node": node, "kind": kind, "commands": ["c1"], "ended": ended }))
}

fn state(writes: Vec<Write>, events: Vec<EventDraft>) -> View {
    let mut states = States::default();
    let txn = Txn { writes, events, ..Txn::default() };
    let entry = Entry { proposer_term: 1, commands: vec![txn.into()], ..Entry::default() };
    states.apply(Position { term: 1, index: 1 }, entry).unwrap();
    drop(states.publish());
    states.published().view()
}

fn fleet() -> (Arc<Fleet>, Entered, Arc<World>) {
    let nodes = Nodes::new(1, false);
    let entered = Entered::new(nodes.clone());
    let world = World::new(1, nodes, 1);
    (Fleet::found(&world, 1, 2), entered, world)
}

/// What C2 says of a state in which the machine has done this.
fn found(writes: Vec<Write>, events: Vec<EventDraft>, prepare: impl FnOnce(&Fleet)) -> Vec<String> {
    let (fleet, _entered, world) = fleet();
    prepare(&fleet);
    let view = state(writes, events);
    let mut breaches = fleet.unsettled(&view);
    breaches.extend(world.eyes.breaches());
    breaches.retain(|breach| breach.check == "C2");
    breaches.into_iter().map(|breach| breach.message).collect()
}

fn done(fleet: &Fleet, begun: usize, said: Vec<Result<Value, String>>) {
    let done = Done { begun: vec![1; begun], said };
    fleet.machines[0].state().errands.insert("e1".to_owned(), done);
}

fn is_one(found: &[String], with: &str) -> bool {
    matches!(found, [only] if only.contains(with))
}

#[test]
fn a_command_that_ends_once_and_as_it_was_told_is_in_order() {
    let one = |state, code| (vec![command("c1", state, code)], vec![finished("c1", state, code)]);
    for (end, code) in [("succeeded", ""), ("failed", "INTERRUPTED"), ("timed_out", "TIMED_OUT")] {
        let (rows, events) = one(end, code);
        let shown = json!({ "id": "c1", "state": end, "result": { "code": code } });
        assert_eq!(found(rows, events, |fleet| lock(&fleet.book).orders.tells(&shown)), [""; 0]);
    }
}

#[test]
fn a_command_that_ends_twice_or_otherwise_than_it_was_told_is_found() {
    let twice = vec![finished("c1", "succeeded", ""), finished("c1", "failed", "INTERRUPTED")];
    let rows = vec![command("c1", "failed", "INTERRUPTED")];
    assert!(is_one(&found(rows, twice, |_| {}), "and again as"));
    let rows = || vec![command("c1", "failed", "INTERRUPTED")];
    let told = found(rows(), vec![finished("c1", "succeeded", "")], |_| {});
    assert!(is_one(&told, "and was told as"), "{told:?}");
    let shown = json!({ "id": "c1", "state": "succeeded", "result": { "code": "" } });
    let events = || vec![finished("c1", "failed", "INTERRUPTED")];
    let told = found(rows(), events(), |fleet| lock(&fleet.book).orders.tells(&shown));
    assert!(is_one(&told, "and a user was told"), "{told:?}");
    let other = json!({ "id": "c1", "state": "failed", "result": { "code": "INTERRUPTED" } });
    let told = found(rows(), events(), |fleet| {
        lock(&fleet.book).orders.tells(&shown);
        lock(&fleet.book).orders.tells(&other);
    });
    assert!(is_one(&told, "and then as"), "{told:?}");
}

#[test]
fn a_command_that_is_open_at_the_end_or_was_acknowledged_and_lost_is_found() {
    for open in ["held", "pending", "sent", "running"] {
        let rows = vec![command("c1", open, "")];
        assert!(is_one(&found(rows, vec![], |_| {}), &format!("is still {open}")));
    }
    let shown = json!({ "id": "c2", "state": "pending", "result": null });
    let lost = found(vec![], vec![], |fleet| lock(&fleet.book).orders.tells(&shown));
    assert!(is_one(&lost, "never ends"), "{lost:?}");
}

#[test]
fn an_errand_is_told_as_its_machine_did_it() {
    let answer = json!({ "errand": "e1", "begun": 1 });
    let of = |kind: &str, end: &str, code: &str, begun: usize, said: Vec<Result<Value, String>>| {
        let rows = vec![command("c1", end, code), errand("e1", kind, end, code, &answer)];
        let prepare = |fleet: &Fleet| {
            if begun > 0 {
                done(fleet, begun, said);
            }
        };
        found(rows, vec![finished("c1", end, code)], prepare)
    };
    let (yes, no) = (Ok(answer.clone()), Err("UNABLE".to_owned()));
    for right in [
        of(ONCE, "succeeded", "", 1, vec![yes.clone()]),
        of(AGAIN, "succeeded", "", 2, vec![no.clone(), yes.clone()]),
        of(LAST, "succeeded", "", 1, vec![]),
        of(ONCE, "failed", "UNABLE", 1, vec![no.clone()]),
        of(ONCE, "failed", "INTERRUPTED", 1, vec![]),
        of(ONCE, "timed_out", "TIMED_OUT", 0, vec![]),
        of(ONCE, "expired", "EXPIRED", 0, vec![]),
    ] {
        assert_eq!(right, [""; 0]);
    }
    for wrong in [
        of(ONCE, "succeeded", "", 0, vec![]),
        of(ONCE, "succeeded", "", 1, vec![no]),
        of(ONCE, "failed", "UNABLE", 1, vec![yes.clone()]),
        of(ONCE, "expired", "EXPIRED", 1, vec![]),
        of(ONCE, "cancelled", "CANCELLED", 1, vec![yes]),
    ] {
        assert!(is_one(&wrong, "errand e1 ended as"), "{wrong:?}");
    }
}

#[test]
fn an_errand_of_which_nobody_was_told_or_that_became_two_commands_is_found() {
    let node = "nd_01890a5d-ac96-774b-bcce-b302099a8057";
    let open = json!({ "node": node, "kind": ONCE, "commands": ["c1"], "ended": null });
    let rows = vec![command("c1", "failed", "X"), row("errands", "e1", &open)];
    let waits = found(rows, vec![finished("c1", "failed", "X")], |_| {});
    assert!(is_one(&waits, "was not told its end"), "{waits:?}");
    let two = json!({ "node": node, "kind": ONCE, "commands": ["c1", "c2"], "ended": null });
    assert!(is_one(&found(vec![row("errands", "e1", &two)], vec![], |_| {}), "more than one"));
    let unasked = found(vec![], vec![], |fleet| done(fleet, 1, vec![]));
    assert!(is_one(&unasked, "for which nobody asked"), "{unasked:?}");
    let both = found(vec![], vec![], |fleet| {
        done(fleet, 1, vec![]);
        let copy = fleet.machines[0].state().errands.clone();
        fleet.machines[1].state().errands = copy;
    });
    assert!(both.iter().any(|message| message.contains("on machine-1 and on")), "{both:?}");
}

#[test]
fn a_signal_that_comes_more_often_than_it_was_asked_for_is_found() {
    let came = |times: u64| {
        found(vec![], vec![], |fleet| {
            lock(&fleet.book).orders.signals("in_1", "HUP");
            let signal = ("in_1".to_owned(), "HUP".to_owned());
            fleet.machines[0].state().signals.insert(signal, times);
        })
    };
    assert_eq!(came(1), [""; 0]);
    assert!(is_one(&came(2), "came to in_1 2 times"));
}

/// What the machine says when it begins an errand in each of these lives of its agent.
fn begins(kind: &'static str, lives: &[Life]) -> usize {
    let (fleet, _entered, world) = fleet();
    for life in lives {
        let machine = fleet.machines[0].clone();
        let clock = crate::sim::clock::NodeClock::new(Duration::ZERO, Duration::ZERO, 0, 0);
        world.nodes.begin(*life, machine.number, clock, None);
        Rig { fleet: fleet.clone(), machine, life: *life }.begins("e1", kind);
    }
    world.eyes.breaches().iter().filter(|breach| breach.check == "C2").count()
}

#[test]
fn what_begins_again_and_must_not_is_found() {
    assert_eq!(begins(ONCE, &[1_000_001]), 0);
    assert_eq!(begins(ONCE, &[1_000_001, 1_000_002]), 1, "not in another life either");
    assert_eq!(begins(LAST, &[1_000_001, 1_000_002]), 1);
    assert_eq!(begins(AGAIN, &[1_000_001, 1_000_002]), 0, "its end was not known");
    assert_eq!(begins(AGAIN, &[1_000_001, 1_000_001]), 1, "its end was known");
}
