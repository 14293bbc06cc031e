//! The same log gives the same state, however it is cut into batches and snapshots.

use palisade_state::{
    Machine, Position, Role, Tx,
    command::{
        AuditDraft, Command, Entry, FORMAT, Form, Idempotency, Kind, ReplicaReport, Tick,
        WorkerBeat,
    },
    limits::{CLOCK_STEP_MS_MAX, IDEMPOTENCY_MS},
    machine::ApplyError,
    snapshot::{Loader, hash},
};
use proptest::prelude::*;
use prost::Message;

use crate::logs::{T, record, steps, through_snapshot};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn batches_and_snapshots_do_not_show_in_the_state(
        steps in steps(120),
        batch in 1..40_usize,
        cuts in prop::collection::vec(0..120_usize, 0..4),
    ) {
        let recorded = record(&steps);
        let mut other = Machine::default();
        for (n, (at, entry)) in recorded.log.iter().enumerate() {
            // As a replica has it: from its log.
            let entry = Entry::decode(entry.encode_to_vec().as_slice()).unwrap();
            let outcomes = other.apply(*at, entry).unwrap();
            prop_assert_eq!(&outcomes, &recorded.outcomes[n], "APPLY-1: entry {}", n);
            if cuts.contains(&n) {
                other.publish();
                let loaded = through_snapshot(&other);
                if n % 2 == 0 {
                    other = Machine::new(loaded);
                } else {
                    other.install(loaded);
                }
            } else if n % batch == 0 {
                other.publish();
            }
        }
        other.publish();
        let (one, other) = (recorded.views.last().unwrap(), other.published().view());
        prop_assert_eq!(hash(one), hash(&other), "APPLY-1, SNAP-1, S1");
        prop_assert_eq!(one.timers_pending(), other.timers_pending());
        one.verify_audit().unwrap();
        other.verify_audit().unwrap();
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
fn a_loaded_key_is_forgotten_when_its_time_has_come_and_not_before() {
    let mut machine = Machine::default();
    let mut tx = Tx::new(machine.published().view());
    tx.put(&T, &"a".to_owned(), &1).unwrap();
    tx.idempotent(Idempotency { scope: "s".into(), key: "k".into(), request_hash: vec![1] });
    let keyed: Command = tx.build().unwrap().into();
    let entry = |delta_ms, command| Entry {
        format: FORMAT,
        proposer_term: 1,
        delta_ms,
        wall_ms: 1,
        commands: vec![command],
    };
    machine.apply(Position { term: 1, index: 1 }, entry(0, keyed)).unwrap();
    machine.publish();
    let mut loaded = Machine::new(through_snapshot(&machine));
    let known = |machine: &mut Machine| {
        machine.publish();
        machine.published().view().idempotency_keys().0
    };
    for machine in [&mut machine, &mut loaded] {
        let mut tick = |delta_ms| {
            let at = Position { term: 1, index: machine.applied().index + 1 };
            machine.apply(at, entry(delta_ms, Kind::Tick(Tick {}).into())).unwrap();
        };
        (1..IDEMPOTENCY_MS / CLOCK_STEP_MS_MAX).for_each(|_| tick(CLOCK_STEP_MS_MAX));
        tick(CLOCK_STEP_MS_MAX - 1);
        assert_eq!(known(machine), 1, "a millisecond is missing");
        let at = Position { term: 1, index: machine.applied().index + 1 };
        machine.apply(at, entry(1, Kind::Tick(Tick {}).into())).unwrap();
        assert_eq!(known(machine), 0);
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
