//! The same log gives the same state, however it is cut into batches and snapshots.

use palisade_state::{
    Machine, Position, Role, State, Table, Tx,
    command::{
        AuditDraft, Command, Entry, FORMAT, Form, Idempotency, Kind, ReplicaReport, Tick, Trim,
        WorkerBeat,
    },
    machine::ApplyError,
    snapshot::{Loader, encode, hash},
};
use proptest::prelude::*;

const T: Table<String, u64> = Table::new("t", &[]);

fn txn(n: u64, key: u8) -> Command {
    // Built on an empty view: point checks of version 0 make some of them conflict, which must be
    // the same everywhere too.
    let mut tx = Tx::new(Machine::default().published().view());
    if key.is_multiple_of(3) {
        tx.delete(&T, &key.to_string()).unwrap();
    } else {
        tx.put(&T, &format!("{key}-{}", n % 7), &n).unwrap();
    }
    if n % 5 == 4 {
        tx.scan(&T, key.to_string().get(..1).unwrap_or_default().as_bytes()).unwrap();
    }
    tx.enqueue_after("kind", &key.to_string(), u64::from(key) * 7).unwrap();
    tx.publish("happened", "", format!("t/{key}"), &serde_json::json!({ "n": n }));
    tx.audit(AuditDraft { actor: "ada".into(), ..AuditDraft::default() });
    tx.idempotent(Idempotency {
        scope: "s".into(),
        key: (n % 50).to_string(),
        request_hash: vec![key],
    });
    tx.respond(vec![key]);
    tx.build().unwrap().into()
}

fn log(steps: &[(u8, u8, u16)]) -> Vec<(Position, Entry)> {
    let form = Form { cluster: "c".into(), lineage: "l".into(), epoch: 0 };
    let mut entries = vec![vec![Kind::Form(form).into()]];
    for (n, (what, key, _)) in steps.iter().enumerate() {
        entries.push(match what % 6 {
            0 => vec![Kind::Tick(Tick {}).into()],
            4 => vec![Kind::Trim(Trim { events_below: n as u64, audit_below: n as u64 }).into()],
            5 => {
                let report = ReplicaReport {
                    replica: u64::from(key % 3) + 1,
                    format_max: 1,
                    events_durable: n as u64,
                    ..ReplicaReport::default()
                };
                vec![Kind::Report(report).into()]
            }
            1 => vec![
                Kind::WorkerBeat(WorkerBeat {
                    worker: (key % 3).to_string(),
                    incarnation: 1,
                    role: Role::Controllers.into(),
                    singletons: vec!["one".into()],
                    draining: false,
                    sharded: key.is_multiple_of(2),
                })
                .into(),
            ],
            _ => (0..=key % 4).map(|m| txn(n as u64, key.wrapping_add(m))).collect(),
        });
    }
    let mut term = 1;
    entries
        .into_iter()
        .enumerate()
        .map(|(n, commands)| {
            let delay = n.checked_sub(1).map_or(0, |n| u64::from(steps[n].2));
            term += u64::from(delay % 11 == 10);
            // Some entries are of a proposer whose term is over.
            let proposer_term = if delay % 7 == 3 { term - 1 } else { term };
            let entry = Entry {
                format: FORMAT,
                proposer_term,
                delta_ms: delay,
                wall_ms: 1_000 + delay,
                commands,
            };
            (Position { term, index: n as u64 + 1 }, entry)
        })
        .collect()
}

fn through_snapshot(machine: &Machine) -> State {
    let mut loader = Loader::default();
    encode(&machine.published().view(), |chunk| {
        loader.chunk(chunk).unwrap();
        Ok::<(), serde_json::Error>(())
    })
    .unwrap();
    loader.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn batches_and_snapshots_do_not_show_in_the_state(
        steps in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u16>()), 1..120),
        batch in 1..40_usize,
        cut in 0..120_usize,
    ) {
        let log = log(&steps);
        let mut one = Machine::default();
        for (at, entry) in log.clone() {
            one.apply(at, entry).unwrap();
            one.publish();
        }
        let mut other = Machine::default();
        for (n, (at, entry)) in log.into_iter().enumerate() {
            other.apply(at, entry).unwrap();
            if n == cut {
                other.publish();
                other = Machine::new(through_snapshot(&other));
            } else if n % batch == 0 {
                other.publish();
            }
        }
        other.publish();
        prop_assert_eq!(
            hash(&one.published().view()),
            hash(&other.published().view()),
            "APPLY-1, SNAP-1, S1"
        );
        one.published().view().verify_audit().unwrap();
    }
}

#[test]
fn whatever_differs_in_a_state_shows_in_its_hash() {
    let (mut machine, mut seen) = (Machine::default(), std::collections::BTreeSet::new());
    let tx = |build: fn(&mut Tx)| -> Kind {
        let mut tx = Tx::new(Machine::default().published().view());
        build(&mut tx);
        Kind::Txn(tx.build().unwrap())
    };
    let beat =
        WorkerBeat { worker: "1".into(), incarnation: 1, sharded: true, ..WorkerBeat::default() };
    let report = ReplicaReport { replica: 1, format_max: 1, ..ReplicaReport::default() };
    let kinds = [
        Kind::Form(Form { cluster: "c".into(), lineage: "l".into(), epoch: 0 }),
        tx(|tx| tx.put(&T, &"k".to_owned(), &1).unwrap()),
        tx(|tx| tx.enqueue("kind", "k").unwrap()),
        tx(|tx| tx.publish("e", "", String::new(), &serde_json::Value::Null)),
        tx(|tx| tx.audit(AuditDraft::default())),
        Kind::WorkerBeat(beat.clone()),
        Kind::WorkerBeat(WorkerBeat { role: Role::Scheduler.into(), ..beat }),
        Kind::Report(report),
        Kind::Tick(Tick {}),
    ];
    for kind in kinds {
        // The same place in the log each time, so that only what is in the state differs.
        let mut next = Machine::new(through_snapshot(&machine));
        let commands = vec![kind.clone().into()];
        let entry = Entry { format: FORMAT, proposer_term: 1, delta_ms: 1, wall_ms: 1, commands };
        let at = Position { term: 1, index: machine.applied().index + 1 };
        assert!(next.apply(at, entry).unwrap()[0].is_applied());
        next.publish();
        machine.pass(at).unwrap();
        machine.publish();
        let (with, without) = (hash(&next.published().view()), hash(&machine.published().view()));
        assert_ne!(with, without, "S1: {kind:?}");
        assert!(seen.insert(with) && seen.insert(without));
        machine = next;
    }
}

#[test]
fn a_loaded_state_goes_on_as_the_one_that_was_written() {
    // What is derived and not in the snapshot (the newest deletions by age, what waits for time,
    // keys by age, the tables' last changes) is the same after loading.
    let form = Form { cluster: "c".into(), lineage: "l".into(), epoch: 0 };
    let mut machine = Machine::default();
    let entry =
        |commands| Entry { format: FORMAT, proposer_term: 1, delta_ms: 9, wall_ms: 1, commands };
    machine.apply(Position { term: 1, index: 1 }, entry(vec![Kind::Form(form).into()])).unwrap();
    machine.publish();
    let old = machine.published().view();
    let mut tx = Tx::new(old.clone());
    tx.put(&T, &"a".to_owned(), &1).unwrap();
    tx.enqueue_after("kind", "k", 60_000).unwrap();
    machine.apply(Position { term: 1, index: 2 }, entry(vec![tx.build().unwrap().into()])).unwrap();
    machine.publish();
    let mut tx = Tx::new(machine.published().view());
    tx.delete(&T, &"a".to_owned()).unwrap();
    machine.apply(Position { term: 1, index: 3 }, entry(vec![tx.build().unwrap().into()])).unwrap();
    machine.publish();
    let mut slow = Tx::new(old);
    slow.scan(&T, b"").unwrap();
    slow.enqueue("kind", "other").unwrap();
    let slow: Command = slow.build().unwrap().into();
    let mut loaded = Machine::new(through_snapshot(&machine));
    assert!(machine.published().view().timers_pending());
    assert!(loaded.published().view().timers_pending());
    for machine in [&mut machine, &mut loaded] {
        let outcomes = machine.apply(Position { term: 1, index: 4 }, entry(vec![slow.clone()]));
        assert!(!outcomes.unwrap()[0].is_applied(), "it sees the deletion");
    }
}

#[test]
fn an_entry_of_a_newer_format_stops_the_replica() {
    let mut machine = Machine::default();
    let entry = Entry { format: FORMAT + 1, ..Entry::default() };
    let error = machine.apply(Position { term: 1, index: 1 }, entry).unwrap_err();
    assert_eq!(error, ApplyError::NewerFormat { index: 1, format: FORMAT + 1 });
    assert_eq!(machine.applied().index, 0);
}

#[test]
fn a_command_of_a_newer_build_stops_the_replica() {
    let mut machine = Machine::default();
    let entry =
        Entry { format: FORMAT, commands: vec![Command { kind: None }], ..Entry::default() };
    let error = machine.apply(Position { term: 1, index: 1 }, entry).unwrap_err();
    assert_eq!(error, ApplyError::UnknownCommand { index: 1 });
}

#[test]
fn a_deposed_leaders_tick_moves_no_time() {
    let mut machine = Machine::default();
    let tick = Entry {
        format: FORMAT,
        proposer_term: 1,
        delta_ms: 9_000,
        wall_ms: 9_000,
        commands: vec![Kind::Tick(Tick {}).into()],
    };
    let outcomes = machine.apply(Position { term: 2, index: 1 }, tick).unwrap();
    machine.publish();
    assert!(!outcomes[0].is_applied());
    assert_eq!(machine.published().view().clock().now_ms, 0);
}

#[test]
fn one_entry_moves_the_clock_ten_seconds_at_most() {
    let mut machine = Machine::default();
    let entry = Entry { format: FORMAT, proposer_term: 1, delta_ms: 1_000_000, ..Entry::default() };
    machine.apply(Position { term: 1, index: 1 }, entry).unwrap();
    machine.publish();
    assert_eq!(machine.published().view().clock().now_ms, 10_000);
}

#[test]
fn a_damaged_snapshot_is_an_error() {
    let mut loader = Loader::default();
    assert!(loader.chunk(b"\xff\xff\xff").is_err());
    assert!(Loader::default().finish().is_err());
}
