//! Leases under random beats, releases, elections and passing time.

use std::collections::BTreeMap;

use palisade_state::{
    Fence, Machine, Position, Role, Store, Table, Tx, Verdict,
    command::{Entry, FORMAT, FenceCheck, HeldLease, Kind, LeaseRelease, WorkerBeat},
    limits::{HANDOFF_MS, SESSION_MS},
    memory::MemoryStore,
};
use proptest::prelude::*;

const T: Table<String, u64> = Table::new("t", &[]);

fn beat(store: &MemoryStore, worker: u8, incarnation: u64, draining: bool) -> bool {
    let beat = WorkerBeat {
        worker: worker.to_string(),
        incarnation,
        role: Role::Controllers.into(),
        singletons: vec!["sweeper".into()],
        draining,
        sharded: true,
    };
    store.apply(Kind::WorkerBeat(beat).into()).unwrap().is_applied()
}

fn release(store: &MemoryStore, worker: u8, incarnation: u64, leave: bool) {
    let view = store.view();
    let leases = view
        .leases()
        .filter(|(_, l)| l.owner.as_ref() == worker.to_string() && l.incarnation == incarnation)
        .map(|(name, l)| HeldLease { lease: name.to_string(), fence: Some(l.fence.into()) })
        .collect();
    let role = Role::Controllers.into();
    let release = LeaseRelease { worker: worker.to_string(), incarnation, leases, role, leave };
    store.apply(Kind::LeaseRelease(release).into()).unwrap();
}

fn fenced_write(store: &MemoryStore, check: FenceCheck) -> Verdict {
    let mut tx = Tx::new(store.view());
    tx.put(&T, &"k".to_owned(), &1).unwrap();
    tx.fenced(check);
    store.apply(tx.build().unwrap().into()).unwrap().verdict.unwrap()
}

fn held(store: &MemoryStore, lease: &str) -> FenceCheck {
    let view = store.view();
    let current = view.lease(lease).unwrap();
    FenceCheck {
        lease: lease.into(),
        worker: current.owner.to_string(),
        incarnation: current.incarnation,
        fence: Some(current.fence.into()),
    }
}

#[test]
fn a_fenced_write_of_the_holder_is_applied() {
    let store = MemoryStore::default();
    beat(&store, 1, 1, false);
    assert!(matches!(fenced_write(&store, held(&store, "shard:0")), Verdict::Applied(_)));
}

#[test]
fn a_fenced_write_after_an_election_is_refused_until_the_owner_beats() {
    let store = MemoryStore::default();
    beat(&store, 1, 1, false);
    let before = held(&store, "shard:0");
    store.elect();
    assert!(matches!(fenced_write(&store, before.clone()), Verdict::Fenced(_)));
    beat(&store, 1, 1, false);
    assert!(matches!(fenced_write(&store, before), Verdict::Fenced(_)), "the old fence stays dead");
    assert!(matches!(fenced_write(&store, held(&store, "shard:0")), Verdict::Applied(_)));
}

#[test]
fn a_write_with_anything_wrong_in_its_fence_is_refused() {
    let store = MemoryStore::default();
    beat(&store, 1, 1, false);
    let good = held(&store, "shard:0");
    let fence: Fence = good.fence.unwrap().into();
    let wrong = [
        FenceCheck { worker: "2".into(), ..good.clone() },
        FenceCheck { incarnation: 2, ..good.clone() },
        FenceCheck {
            fence: Some(Fence { index: fence.index + 1, ..fence }.into()),
            ..good.clone()
        },
        FenceCheck {
            fence: Some(Fence { epoch: fence.epoch + 1, ..fence }.into()),
            ..good.clone()
        },
        FenceCheck { fence: None, ..good.clone() },
        FenceCheck { lease: "shard:999".into(), ..good },
    ];
    for check in wrong {
        assert!(matches!(fenced_write(&store, check.clone()), Verdict::Fenced(_)), "{check:?}");
    }
}

#[test]
fn a_handed_over_lease_moves_on_release_or_when_its_time_is_over() {
    let store = MemoryStore::default();
    beat(&store, 1, 1, false);
    beat(&store, 2, 1, false);
    let leaving = |store: &MemoryStore| {
        store.view().leases().filter(|(_, lease)| lease.handoff.is_some()).count()
    };
    let moving = leaving(&store);
    assert!(moving > 60, "{moving}");
    release(&store, 1, 1, false);
    assert_eq!(leaving(&store), 0);
    beat(&store, 3, 1, false);
    assert!(leaving(&store) > 40);
    store.advance(HANDOFF_MS - 1);
    beat(&store, 1, 1, false);
    beat(&store, 2, 1, false);
    beat(&store, 3, 1, false);
    assert!(leaving(&store) > 40);
    store.advance(1);
    assert_eq!(leaving(&store), 0, "moved although nobody released it");
}

/// One entry after `delta_ms`, by which a worker shows itself.
fn beat_after(machine: &mut Machine, delta_ms: u64, worker: &str, incarnation: u64) {
    let role = Role::Controllers.into();
    let worker = worker.to_owned();
    let beat = WorkerBeat { worker, incarnation, role, sharded: true, ..WorkerBeat::default() };
    let commands = vec![Kind::WorkerBeat(beat).into()];
    let entry = Entry { format: FORMAT, proposer_term: 1, delta_ms, wall_ms: 0, commands };
    let index = machine.applied().index + 1;
    let outcomes = machine.apply(Position { term: 1, index }, entry).unwrap();
    assert!(outcomes.iter().all(palisade_state::Outcome::is_applied));
    machine.publish();
}

/// I1, I2: the entry that ends one worker's session brings another one back under a new incarnation.
#[test]
fn a_lease_is_granted_once_at_one_entry() {
    let mut machine = Machine::default();
    beat_after(&mut machine, 0, "dies", 1);
    beat_after(&mut machine, 0, "stays", 1);
    beat_after(&mut machine, SESSION_MS / 2, "stays", 1);
    let before = machine.published().view();
    assert!(before.leases().any(|(_, lease)| lease.owner.as_ref() == "dies"));
    // A grant to the old incarnation would have the fence that the new one gets: debug builds assert that it is not so.
    beat_after(&mut machine, SESSION_MS / 2 + 1, "stays", 2);
    let after = machine.published().view();
    for (name, lease) in after.leases() {
        assert_eq!((lease.owner.as_ref(), lease.incarnation), ("stays", 2), "{name}");
        assert!(lease.fence > before.lease(name).unwrap().fence && lease.handoff.is_none());
    }
    assert_eq!(after.sessions().count(), 1);
}

#[test]
fn only_leases_whose_winner_changed_move() {
    let store = MemoryStore::default();
    for worker in 1..=3 {
        beat(&store, worker, 1, false);
        (1..=3).for_each(|owner| release(&store, owner, 1, false));
    }
    let owners = |store: &MemoryStore| -> BTreeMap<String, (String, Fence)> {
        let view = store.view();
        view.leases().map(|(name, l)| (name.to_string(), (l.owner.to_string(), l.fence))).collect()
    };
    let before = owners(&store);
    beat(&store, 4, 1, false);
    assert_eq!(before, owners(&store), "nobody loses a lease before it was released");
    (1..=3).for_each(|owner| release(&store, owner, 1, false));
    let after = owners(&store);
    let moved = after.iter().filter(|(name, held)| before[*name] != **held);
    let moved: Vec<&str> = moved.map(|(_, (owner, _))| owner.as_str()).collect();
    assert!(moved.iter().all(|owner| *owner == "4"), "I2: nothing else moves");
    assert!((30..100).contains(&moved.len()), "about a quarter: {}", moved.len());
    release(&store, 4, 1, true);
    let back = owners(&store);
    assert!(back.iter().all(|(name, (owner, _))| *owner == before[name].0), "and back they go");
}

#[test]
fn a_draining_workers_leases_move_when_it_releases_them() {
    let store = MemoryStore::default();
    beat(&store, 1, 1, false);
    beat(&store, 2, 1, false);
    beat(&store, 1, 1, true);
    let view = store.view();
    let mine = view.leases().map(|(_, lease)| lease).filter(|lease| lease.owner.as_ref() == "1");
    let mine: Vec<_> = mine.map(|lease| lease.handoff.as_ref().map(|to| to.to.as_ref())).collect();
    assert!(!mine.is_empty() && mine.iter().all(|to| *to == Some("2")), "{mine:?}");
    release(&store, 1, 1, false);
    let view = store.view();
    assert!(view.leases().all(|(_, lease)| lease.owner.as_ref() == "2"), "I5");
}

#[test]
fn a_release_under_an_old_fence_gives_nothing_away() {
    let store = MemoryStore::default();
    beat(&store, 1, 1, false);
    beat(&store, 2, 1, false);
    let view = store.view();
    let (name, lease) = view.leases().find(|(_, lease)| lease.handoff.is_some()).unwrap();
    let old = Fence { index: lease.fence.index - 1, ..lease.fence };
    let leases = vec![HeldLease { lease: name.to_string(), fence: Some(old.into()) }];
    let role = Role::Controllers.into();
    let release = LeaseRelease { worker: "1".into(), incarnation: 1, leases, role, leave: false };
    store.apply(Kind::LeaseRelease(release).into()).unwrap();
    assert_eq!(store.view().lease(name), Some(lease));
}

#[test]
fn an_election_gives_every_worker_a_whole_lifetime() {
    let store = MemoryStore::default();
    beat(&store, 1, 1, false);
    store.advance(SESSION_MS - 1);
    store.elect();
    store.advance(SESSION_MS - 1);
    assert!(store.view().worker_lives("1"));
    store.advance(1);
    assert!(!store.view().worker_lives("1"));
}

#[test]
fn an_older_incarnation_cannot_come_back() {
    let store = MemoryStore::default();
    assert!(beat(&store, 1, 5, false));
    assert!(!beat(&store, 1, 4, false));
    assert!(beat(&store, 1, 6, false));
}

#[derive(Clone, Debug)]
enum Step {
    Beat {
        worker: u8,
        draining: bool,
    },
    Restart {
        worker: u8,
    },
    Release {
        worker: u8,
        leave: bool,
    },
    Elect,
    Pass {
        ms: u64,
    },
    /// A write under a fence that was current `age` steps ago.
    Write {
        lease: usize,
        age: usize,
    },
}

const WATCHED: [&str; 4] = ["shard:0", "shard:1", "shard:200", "singleton:sweeper"];

/// The fences under which the watched leases are held.
fn all_held(store: &MemoryStore) -> Vec<Option<FenceCheck>> {
    WATCHED.iter().map(|name| store.view().lease(name).map(|_| held(store, name))).collect()
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 1..5_u8;
    prop_oneof![
        6 => (worker.clone(), prop::bool::weighted(0.1)).prop_map(|(worker, draining)| Step::Beat { worker, draining }),
        1 => worker.clone().prop_map(|worker| Step::Restart { worker }),
        2 => (worker, prop::bool::weighted(0.2)).prop_map(|(worker, leave)| Step::Release { worker, leave }),
        1 => Just(Step::Elect),
        4 => (1..6_000_u64).prop_map(|ms| Step::Pass { ms }),
        6 => (0..WATCHED.len(), 0..6_usize).prop_map(|(lease, age)| Step::Write { lease, age }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// I1, I2, I3 and I5, and that a lease's owner is a live worker after every step.
    #[test]
    fn fences_only_grow_and_every_lease_has_a_live_owner(steps in prop::collection::vec(step(), 1..60)) {
        let store = MemoryStore::default();
        let mut incarnations: BTreeMap<u8, u64> = (1..5).map(|worker| (worker, 1)).collect();
        let mut highest: BTreeMap<String, Fence> = BTreeMap::new();
        let (mut term, mut past) = (1, vec![all_held(&store)]);
        for step in steps {
            match step {
                Step::Beat { worker, draining } => drop(beat(&store, worker, incarnations[&worker], draining)),
                Step::Restart { worker } => {
                    let incarnation = incarnations[&worker] + 1;
                    incarnations.insert(worker, incarnation);
                    beat(&store, worker, incarnation, false);
                }
                Step::Release { worker, leave } => release(&store, worker, incarnations[&worker], leave),
                Step::Elect => {
                    store.elect();
                    term += 1;
                }
                Step::Write { lease, age } => {
                    let then = past[past.len() - 1 - age.min(past.len() - 1)][lease].clone();
                    if let Some(check) = then {
                        let is_current = all_held(&store)[lease].as_ref() == Some(&check)
                            && check.fence.is_some_and(|fence| fence.term == term);
                        let verdict = fenced_write(&store, check);
                        prop_assert_eq!(matches!(verdict, Verdict::Applied(_)), is_current, "I3");
                    }
                }
                Step::Pass { ms } => store.advance(ms),
            }
            let view = store.view();
            let live: BTreeMap<String, u64> =
                view.sessions().map(|((_, worker), s)| (worker.to_string(), s.incarnation)).collect();
            for (name, lease) in view.leases() {
                let before = highest.insert(name.to_string(), lease.fence);
                prop_assert!(before.is_none_or(|before| before <= lease.fence), "I2 {name}");
                prop_assert_eq!(live.get(lease.owner.as_ref()), Some(&lease.incarnation), "I1 {}", name);
                prop_assert!(lease.handoff.as_ref().is_none_or(|h| h.to != lease.owner));
            }
            let expected = if live.is_empty() { 0 } else { 257 };
            prop_assert_eq!(view.leases().count(), expected, "I5");
            past.push(all_held(&store));
        }
    }
}
