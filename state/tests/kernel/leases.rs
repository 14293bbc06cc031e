//! Leases under random beats, releases, elections and passing time.

use std::collections::BTreeMap;

use palisade_state::{
    Fence, Machine, Position, Role, Store, Table, Tx, Verdict, View,
    command::{Entry, FORMAT, FenceCheck, HeldLease, Kind, LeaseRelease, WorkerBeat},
    lease::{Lease, Session},
    limits::{HANDOFF_MS, SESSION_MS},
    memory::MemoryStore,
    shard::rendezvous_weight,
};
use proptest::prelude::*;

const T: Table<String, u64> = Table::new("t", &[]);

fn beat(store: &MemoryStore, worker: u8, incarnation: u64, draining: bool) -> bool {
    beat_as(store, Role::Controllers, worker, incarnation, draining)
}

fn beat_as(store: &MemoryStore, role: Role, worker: u8, incarnation: u64, draining: bool) -> bool {
    let beat = WorkerBeat {
        worker: worker.to_string(),
        incarnation,
        role: role.into(),
        singletons: vec![format!("sweeper-{}", role as i32)],
        draining,
        sharded: true,
    };
    store.apply(Kind::WorkerBeat(beat).into()).unwrap().is_applied()
}

fn release(store: &MemoryStore, worker: u8, incarnation: u64, leave: bool) {
    release_as(store, Role::Controllers, worker, incarnation, leave);
}

fn release_as(store: &MemoryStore, role: Role, worker: u8, incarnation: u64, leave: bool) {
    let view = store.view();
    let name = worker.to_string();
    let held =
        |l: &Lease| (l.role, l.owner.as_ref(), l.incarnation) == (role, name.as_str(), incarnation);
    let leases = view
        .leases()
        .filter(|(_, lease)| held(lease))
        .map(|(name, l)| HeldLease { lease: name.to_string(), fence: Some(l.fence.into()) })
        .collect();
    let (worker, role) = (worker.to_string(), role.into());
    let release = LeaseRelease { worker, incarnation, leases, role, leave };
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

/// A worker in one of the two roles.
type Who = (Role, u8);

#[derive(Clone, Debug)]
enum Step {
    Beat {
        who: Who,
        draining: bool,
    },
    Restart {
        who: Who,
    },
    Release {
        who: Who,
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

const WATCHED: [&str; 5] =
    ["shard:0", "shard:1", "shard:200", "scheduler/shard:7", "singleton:sweeper-0"];

/// The fences under which the watched leases are held.
fn all_held(store: &MemoryStore) -> Vec<Option<FenceCheck>> {
    WATCHED.iter().map(|name| store.view().lease(name).map(|_| held(store, name))).collect()
}

fn step() -> impl Strategy<Value = Step> {
    let role = prop::sample::select(vec![Role::Controllers, Role::Controllers, Role::Scheduler]);
    let who = (role, 1..5_u8);
    prop_oneof![
        6 => (who.clone(), prop::bool::weighted(0.1)).prop_map(|(who, draining)| Step::Beat { who, draining }),
        1 => who.clone().prop_map(|who| Step::Restart { who }),
        2 => (who, prop::bool::weighted(0.2)).prop_map(|(who, leave)| Step::Release { who, leave }),
        1 => Just(Step::Elect),
        4 => (1..6_000_u64).prop_map(|ms| Step::Pass { ms }),
        6 => (0..WATCHED.len(), 0..6_usize).prop_map(|(lease, age)| Step::Write { lease, age }),
    ]
}

/// The leases of a role and whose each should be, worked out anew from who lives.
fn winners(view: &View, role: Role) -> BTreeMap<String, String> {
    let live: Vec<(&str, &Session)> = view
        .sessions()
        .filter(|((of, _), _)| *of == role)
        .map(|((_, worker), session)| (worker.as_ref(), session))
        .collect();
    let mut names: Vec<String> =
        (0..=255).map(|n| format!("{}shard:{n}", role.lease_prefix())).collect();
    names.push(format!("singleton:sweeper-{}", role as i32));
    let stays = |session: &Session| !session.draining;
    let any_stays = live.iter().any(|(_, session)| stays(session));
    let mut best = BTreeMap::new();
    for name in names {
        let may = live.iter().filter(|(_, session)| stays(session) || !any_stays);
        let weights = may.map(|(worker, _)| (rendezvous_weight(worker, &name), *worker));
        if let Some((_, worker)) = weights.max() {
            best.insert(name, worker.to_owned());
        }
    }
    best
}

/// Does one step. The incarnations are those of the workers' last starts.
fn take(store: &MemoryStore, step: &Step, incarnations: &mut BTreeMap<Who, u64>) {
    match step {
        Step::Beat { who, draining } => {
            beat_as(store, who.0, who.1, incarnations[who], *draining);
        }
        Step::Restart { who } => {
            *incarnations.entry(*who).or_default() += 1;
            beat_as(store, who.0, who.1, incarnations[who], false);
        }
        Step::Release { who, leave } => {
            release_as(store, who.0, who.1, incarnations[who], *leave);
        }
        Step::Elect => store.elect(),
        Step::Pass { ms } => store.advance(*ms),
        Step::Write { .. } => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// I1, I2, I3 and I5, and that after every step a lease is, or is on its way to be, with the live
    /// worker of the highest weight.
    #[test]
    fn fences_only_grow_and_every_lease_has_a_live_owner(steps in prop::collection::vec(step(), 1..60)) {
        let store = MemoryStore::default();
        let roles = [Role::Controllers, Role::Scheduler];
        let mut incarnations: BTreeMap<Who, u64> =
            roles.into_iter().flat_map(|role| (1..5).map(move |worker| ((role, worker), 1))).collect();
        let mut highest: BTreeMap<String, Fence> = BTreeMap::new();
        let (mut term, mut past) = (1, vec![all_held(&store)]);
        for step in steps {
            term += u64::from(matches!(step, Step::Elect));
            take(&store, &step, &mut incarnations);
            if let Step::Write { lease, age } = step
                && let Some(check) = past[past.len() - 1 - age.min(past.len() - 1)][lease].clone()
            {
                let is_current = all_held(&store)[lease].as_ref() == Some(&check)
                    && check.fence.is_some_and(|fence| fence.term == term);
                let verdict = fenced_write(&store, check);
                prop_assert_eq!(matches!(verdict, Verdict::Applied(_)), is_current, "I3");
            }
            let view = store.view();
            let live: BTreeMap<(Role, String), u64> =
                view.sessions().map(|((role, worker), s)| ((*role, worker.to_string()), s.incarnation)).collect();
            let expected: BTreeMap<String, String> =
                roles.into_iter().flat_map(|role| winners(&view, role)).collect();
            let mut going: BTreeMap<String, String> = BTreeMap::new();
            for (name, lease) in view.leases() {
                let before = highest.insert(name.to_string(), lease.fence);
                prop_assert!(before.is_none_or(|before| before <= lease.fence), "I2 {name}");
                let owner = (lease.role, lease.owner.to_string());
                prop_assert_eq!(live.get(&owner), Some(&lease.incarnation), "I1 {}", name);
                prop_assert!(lease.handoff.as_ref().is_none_or(|h| h.to != lease.owner));
                let to = lease.handoff.as_ref().map_or(&lease.owner, |handoff| &handoff.to);
                going.insert(name.to_string(), to.to_string());
            }
            prop_assert_eq!(going, expected, "I5, and the rendezvous winner");
            past.push(all_held(&store));
        }
    }
}
