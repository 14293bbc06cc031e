//! Logs that hold every kind of entry: what a leader would have written, its transactions built on
//! its own views, some of them old. Rows are updated and deleted, work is run, put off and
//! superseded, leases are handed over, workers drain and come back.

use std::collections::BTreeMap;

use palisade_state::{
    Machine, Outcome, Position, Role, State, Table, Tx, Verdict, View,
    command::{
        AuditDraft, Command, Entry, FORMAT, FenceCheck, Finish, ForgetReplica, Form, HeldLease,
        Idempotency, Kind, LeaseRelease, RaiseFormat, ReplicaReport, Requeue, Tick, Trim,
        WorkerBeat,
    },
    shard::shard_of,
    snapshot::{Loader, encode},
};
use proptest::prelude::*;

pub const T: Table<String, u64> = Table::new("t", &[]);
pub const OTHER: Table<String, u64> = Table::new("t2", &[]);

/// A transaction.
#[derive(Clone, Debug)]
pub enum Op {
    Put {
        key: u8,
    },
    PutOther {
        key: u8,
    },
    Delete {
        key: u8,
    },
    ScanAndPut {
        key: u8,
    },
    Enqueue {
        key: u8,
        delay_ms: u64,
    },
    /// A whole run under the lease of its key: tied to its row, writes, ends.
    Run {
        key: u8,
    },
    PutOff {
        key: u8,
        fails: bool,
    },
    Keyed {
        key: u8,
        hash: u8,
    },
    Publish {
        count: u8,
    },
}

/// An entry.
#[derive(Clone, Debug)]
pub enum What {
    /// Transactions that share it, each built on a view so many entries old.
    Txns(Vec<(Op, usize)>),
    Beat {
        worker: u8,
        role: bool,
        restarted: bool,
        draining: bool,
        sharded: bool,
    },
    Release {
        worker: u8,
        role: bool,
        leave: bool,
    },
    Report {
        replica: u8,
        format: u32,
    },
    Forget {
        replica: u8,
    },
    Raise {
        format: u32,
    },
    Trim,
    Tick,
}

/// An entry and what went before it.
#[derive(Clone, Debug)]
pub struct Step {
    pub what: What,
    pub delay_ms: u64,
    pub elects: bool,
    /// Of a proposer whose term is over.
    pub deposed: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0..6_u8;
    let delay_ms = prop_oneof![3 => Just(0), 1 => 1..5_000_u64];
    prop_oneof![
        5 => key.clone().prop_map(|key| Op::Put { key }),
        2 => key.clone().prop_map(|key| Op::PutOther { key }),
        4 => key.clone().prop_map(|key| Op::Delete { key }),
        3 => key.clone().prop_map(|key| Op::ScanAndPut { key }),
        4 => (key.clone(), delay_ms).prop_map(|(key, delay_ms)| Op::Enqueue { key, delay_ms }),
        5 => key.clone().prop_map(|key| Op::Run { key }),
        2 => (key.clone(), any::<bool>()).prop_map(|(key, fails)| Op::PutOff { key, fails }),
        2 => (key, 0..2_u8).prop_map(|(key, hash)| Op::Keyed { key, hash }),
        2 => (1..3_u8).prop_map(|count| Op::Publish { count }),
    ]
}

fn what() -> impl Strategy<Value = What> {
    let role = || prop::bool::weighted(0.3);
    let lag = prop_oneof![4 => Just(0), 1 => 1..6_usize];
    prop_oneof![
        12 => prop::collection::vec((op(), lag), 1..4).prop_map(What::Txns),
        4 => (0..3_u8, role(), prop::bool::weighted(0.1), prop::bool::weighted(0.15), prop::bool::weighted(0.8))
            .prop_map(|(worker, role, restarted, draining, sharded)| What::Beat { worker, role, restarted, draining, sharded }),
        2 => (0..3_u8, role(), prop::bool::weighted(0.2))
            .prop_map(|(worker, role, leave)| What::Release { worker, role, leave }),
        2 => (1..4_u8, 1..3_u32).prop_map(|(replica, format)| What::Report { replica, format }),
        1 => (1..4_u8).prop_map(|replica| What::Forget { replica }),
        1 => (1..3_u32).prop_map(|format| What::Raise { format }),
        1 => Just(What::Trim),
        2 => Just(What::Tick),
    ]
}

/// The steps of a log of fewer than `steps_max` of them.
pub fn steps(steps_max: usize) -> impl Strategy<Value = Vec<Step>> {
    let delay_ms = prop_oneof![6 => 0..400_u64, 1 => 3_000..12_000_u64];
    let step = (what(), delay_ms, prop::bool::weighted(0.04), prop::bool::weighted(0.08))
        .prop_map(|(what, delay_ms, elects, deposed)| Step { what, delay_ms, elects, deposed });
    prop::collection::vec(step, 1..steps_max)
}

/// A log, and what it led to on the machine that wrote it.
pub struct Recorded {
    pub log: Vec<(Position, Entry)>,
    pub outcomes: Vec<Vec<Outcome>>,
    /// Before the first entry, and after each.
    pub views: Vec<View>,
}

/// Writes the log.
pub fn record(steps: &[Step]) -> Recorded {
    let mut machine = Machine::default();
    let views = vec![machine.published().view()];
    let mut recorded = Recorded { log: vec![], outcomes: vec![], views };
    let mut incarnations: BTreeMap<(u8, bool), u64> = BTreeMap::new();
    let form = Form { cluster: "c".into(), lineage: "l".into(), epoch: 0 };
    let mut term = 1;
    let first = (vec![Kind::Form(form).into()], 0, false);
    let rest = steps.iter().map(|step| (vec![], step.delay_ms, step.deposed));
    for (n, (mut commands, delta_ms, deposed)) in std::iter::once(first).chain(rest).enumerate() {
        if let Some(step) = n.checked_sub(1).and_then(|n| steps.get(n)) {
            term += u64::from(step.elects);
            commands = commands_of(&step.what, n as u64, &recorded.views, &mut incarnations);
        }
        let proposer_term = if deposed { term - 1 } else { term };
        let wall_ms = 1_000 + delta_ms;
        let entry = Entry { format: FORMAT, proposer_term, delta_ms, wall_ms, commands };
        let at = Position { term, index: n as u64 + 1 };
        recorded.outcomes.push(machine.apply(at, entry.clone()).unwrap());
        machine.publish();
        recorded.log.push((at, entry));
        recorded.views.push(machine.published().view());
    }
    recorded
}

fn commands_of(
    what: &What,
    n: u64,
    views: &[View],
    incarnations: &mut BTreeMap<(u8, bool), u64>,
) -> Vec<Command> {
    let now = views.last().unwrap();
    let kind = match what {
        What::Txns(ops) => {
            let view = |lag: &usize| views[views.len() - 1 - lag.min(&(views.len() - 1))].clone();
            return ops.iter().map(|(op, lag)| txn(op, n, view(lag))).collect();
        }
        What::Beat { worker, role, restarted, draining, sharded } => {
            let incarnation = incarnations.entry((*worker, *role)).or_insert(1);
            *incarnation += u64::from(*restarted);
            Kind::WorkerBeat(WorkerBeat {
                worker: worker.to_string(),
                incarnation: *incarnation,
                role: role_of(*role).into(),
                singletons: vec![format!("one-{}", u8::from(*role))],
                draining: *draining,
                sharded: *sharded,
            })
        }
        What::Release { worker, role, leave } => {
            let incarnation = incarnations.get(&(*worker, *role)).copied().unwrap_or(1);
            Kind::LeaseRelease(release(now, &worker.to_string(), incarnation, *role, *leave))
        }
        What::Report { replica, format } => Kind::Report(ReplicaReport {
            replica: u64::from(*replica),
            format_max: *format,
            events_durable: n,
            ..ReplicaReport::default()
        }),
        What::Forget { replica } => {
            Kind::ForgetReplica(ForgetReplica { replica: u64::from(*replica) })
        }
        What::Raise { format } => {
            // A format that this build does not read would stop it, if all members did.
            let stops = now.replicas().all(|(_, row)| row.format_max >= *format);
            let members = now.replicas().map(|(id, _)| id).collect();
            Kind::RaiseFormat(RaiseFormat { format: if stops { FORMAT } else { *format }, members })
        }
        What::Trim => Kind::Trim(Trim { events_below: n, audit_below: n }),
        What::Tick => Kind::Tick(Tick {}),
    };
    vec![kind.into()]
}

fn role_of(is_scheduler: bool) -> Role {
    if is_scheduler { Role::Scheduler } else { Role::Controllers }
}

fn release(
    view: &View,
    worker: &str,
    incarnation: u64,
    is_scheduler: bool,
    leave: bool,
) -> LeaseRelease {
    let role = role_of(is_scheduler);
    let held = view.leases().filter(|(_, lease)| {
        lease.role == role && lease.owner.as_ref() == worker && lease.incarnation == incarnation
    });
    let leases = held
        .map(|(name, lease)| HeldLease { lease: name.to_string(), fence: Some(lease.fence.into()) })
        .collect();
    LeaseRelease { worker: worker.to_owned(), incarnation, leases, role: role.into(), leave }
}

/// The lease of a work key, as its holder in the view would name it.
fn fence_of(view: &View, key: &str) -> FenceCheck {
    let lease = Role::Controllers.shard_lease(shard_of(key));
    let held = view.lease(&lease);
    FenceCheck {
        worker: held.map_or_else(|| "nobody".to_owned(), |held| held.owner.to_string()),
        incarnation: held.map(|held| held.incarnation).unwrap_or_default(),
        fence: held.map(|held| held.fence.into()),
        lease,
    }
}

fn txn(op: &Op, n: u64, view: View) -> Command {
    let mut tx = Tx::new(view);
    let work = |tx: &Tx, key: u8| {
        let key = key.to_string();
        let generation = tx.view().work("kind", &key).map_or(1, |row| row.generation);
        Finish { kind: "kind".into(), key, generation }
    };
    match op {
        Op::Put { key } => tx.put(&T, &key.to_string(), &n).unwrap(),
        Op::PutOther { key } => tx.put(&OTHER, &key.to_string(), &n).unwrap(),
        Op::Delete { key } => tx.delete(&T, &key.to_string()).unwrap(),
        Op::ScanAndPut { key } => {
            let sum: u64 = tx.scan(&T, b"").unwrap().iter().map(|(_, n)| n % 100).sum();
            tx.put(&OTHER, &key.to_string(), &sum).unwrap();
        }
        Op::Enqueue { key, delay_ms } => {
            tx.enqueue_after("kind", &key.to_string(), *delay_ms).unwrap();
        }
        Op::Run { key } => {
            let work = work(&tx, *key);
            tx.fenced(fence_of(tx.view(), &work.key));
            tx.for_work(work.clone());
            tx.finish(work);
            tx.put(&T, &format!("ran-{key}"), &n).unwrap();
        }
        Op::PutOff { key, fails } => {
            let Finish { kind, key, generation } = work(&tx, *key);
            let error = if *fails { "it broke".to_owned() } else { String::new() };
            tx.requeue(Requeue { kind, key, generation, delay_ms: 700, error });
        }
        Op::Keyed { key, hash } => {
            tx.put(&T, &key.to_string(), &n).unwrap();
            let (scope, key) = ("s".to_owned(), key.to_string());
            tx.idempotent(Idempotency { scope, key, request_hash: vec![*hash] });
            tx.respond(vec![*hash]);
        }
        Op::Publish { count } => {
            for n in 0..*count {
                tx.publish("happened", "", format!("t/{n}"), &serde_json::json!({ "n": n }));
            }
        }
    }
    tx.audit(AuditDraft { actor: n.to_string(), ..AuditDraft::default() });
    tx.build().unwrap().into()
}

/// The state of a machine that was written and read again.
pub fn through_snapshot(machine: &Machine) -> State {
    let mut loader = Loader::default();
    encode(&machine.published().view(), |chunk| {
        loader.chunk(chunk).unwrap();
        Ok::<(), serde_json::Error>(())
    })
    .unwrap();
    loader.finish().unwrap()
}

type Census = BTreeMap<&'static str, usize>;

fn verdict_name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Applied(_) => "applied",
        Verdict::Replayed(_) => "replayed",
        Verdict::IdempotencyMismatch(_) => "mismatch",
        Verdict::Fenced(_) => "fenced",
        Verdict::Superseded(_) => "superseded",
        Verdict::Conflict(_) => "conflict",
        Verdict::Dropped(_) => "dropped",
        Verdict::Invalid(_) => "invalid",
        Verdict::TooLarge(_) => "too large",
    }
}

/// What an entry did, seen from outside.
fn count_changes(before: &View, after: &View, census: &mut Census) {
    let mut saw = |what, times: usize| *census.entry(what).or_default() += times;
    let rows = || before.rows("t", &[], None);
    let gone = rows().filter(|(key, _)| after.row("t", key).is_none()).count();
    let updated = rows().filter(|(key, record)| {
        after.row("t", key).is_some_and(|now| now.stamp().version > record.stamp().version)
    });
    saw("updated", updated.count());
    saw("deleted", gone);
    let work = || after.all_work().filter(|((kind, key), _)| before.work(kind, key).is_some());
    let ended =
        before.all_work().filter(|((kind, key), _)| after.work(kind, key).is_none()).count();
    saw("work finished", ended);
    saw("work failed", work().filter(|(_, row)| row.attempts > 0).count());
    let same = |name| after.lease(name);
    saw(
        "lease handed over",
        before
            .leases()
            .filter(|(name, lease)| {
                let to = lease.handoff.as_ref().map(|handoff| &handoff.to);
                to.is_some_and(|to| same(name).is_some_and(|now| now.owner == *to))
            })
            .count(),
    );
    saw(
        "lease re-confirmed",
        before
            .leases()
            .filter(|(name, lease)| {
                same(name).is_some_and(|now| now.owner == lease.owner && now.fence > lease.fence)
            })
            .count(),
    );
    saw("lease lost", before.leases().filter(|(name, _)| same(name).is_none()).count());
    saw(
        "session ended",
        before.sessions().filter(|(id, _)| after.sessions().all(|(other, _)| other != *id)).count(),
    );
    saw("draining", after.sessions().filter(|(_, session)| session.draining).count());
    saw("second role", after.sessions().filter(|((role, _), _)| *role == Role::Scheduler).count());
    saw("new incarnation", after.sessions().filter(|(_, s)| s.incarnation > 1).count());
    saw("replica forgotten", usize::from(after.replicas().count() < before.replicas().count()));
}

/// What the properties of this log claim they claim of all of this.
#[test]
fn every_kind_of_thing_happens_in_the_logs() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let (mut runner, mut census) = (TestRunner::deterministic(), Census::new());
    for _ in 0..24 {
        let steps = steps(120).new_tree(&mut runner).unwrap().current();
        let recorded = record(&steps);
        for outcome in recorded.outcomes.iter().flatten() {
            *census.entry(verdict_name(outcome.verdict.as_ref().unwrap())).or_default() += 1;
        }
        recorded.views.windows(2).for_each(|two| count_changes(&two[0], &two[1], &mut census));
    }
    census.remove("too large");
    assert_eq!(census.len(), 8 + 12, "{census:?}");
    assert!(census.values().all(|times| *times >= 5), "{census:?}");
}
