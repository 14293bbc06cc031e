//! Leases under random beats, releases, elections and passing time.

use std::collections::BTreeMap;

use palisade_state::{
    Fence, Role, Store, Table, Tx, Verdict,
    command::{FenceCheck, HeldLease, Kind, LeaseRelease, WorkerBeat},
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
    Beat { worker: u8, draining: bool },
    Restart { worker: u8 },
    Release { worker: u8, leave: bool },
    Elect,
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let worker = 1..5_u8;
    prop_oneof![
        6 => (worker.clone(), prop::bool::weighted(0.1)).prop_map(|(worker, draining)| Step::Beat { worker, draining }),
        1 => worker.clone().prop_map(|worker| Step::Restart { worker }),
        2 => (worker, prop::bool::weighted(0.2)).prop_map(|(worker, leave)| Step::Release { worker, leave }),
        1 => Just(Step::Elect),
        4 => (1..6_000_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// I1, I2 and I5, and that a lease's owner is a live worker after every step.
    #[test]
    fn fences_only_grow_and_every_lease_has_a_live_owner(steps in prop::collection::vec(step(), 1..60)) {
        let store = MemoryStore::default();
        let mut incarnations: BTreeMap<u8, u64> = (1..5).map(|worker| (worker, 1)).collect();
        let mut highest: BTreeMap<String, Fence> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Beat { worker, draining } => drop(beat(&store, worker, incarnations[&worker], draining)),
                Step::Restart { worker } => {
                    let incarnation = incarnations[&worker] + 1;
                    incarnations.insert(worker, incarnation);
                    beat(&store, worker, incarnation, false);
                }
                Step::Release { worker, leave } => release(&store, worker, incarnations[&worker], leave),
                Step::Elect => store.elect(),
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
        }
    }
}
