//! Building, proposing and trying again: what a caller of `commit::run` sees of conflicts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_state::{
    Command, Outcome, ReplicaId, Runtime, Store, StoreError, Table, Tx, TxError, View, Watch,
    commit::{self, CommitError, Committed, TRIES_MAX},
    memory::MemoryStore,
    port::ClusterStatus,
    step::StepRuntime,
};

const COUNTS: Table<String, u64> = Table::new("counts", &[]);

/// A store in which somebody else is first, so many times.
struct Contended {
    store: MemoryStore,
    intrusions: AtomicU64,
    proposals: AtomicU64,
}

fn add(tx: &mut Tx) -> Result<(), TxError> {
    let count = tx.get(&COUNTS, &"c".to_owned())?.unwrap_or_default();
    tx.put(&COUNTS, &"c".to_owned(), &(count + 1))
}

impl Contended {
    fn new(intrusions: u64) -> Arc<Self> {
        let (store, proposals) = (MemoryStore::default(), AtomicU64::new(0));
        Arc::new(Self { store, intrusions: intrusions.into(), proposals })
    }

    fn count(&self) -> u64 {
        COUNTS.get(&self.store.view(), &"c".to_owned()).unwrap().map_or(0, |row| row.value)
    }
}

impl Store for Contended {
    fn view(&self) -> View {
        self.store.view()
    }

    fn linearizable(&self) -> BoxFuture<'_, Result<View, StoreError>> {
        self.store.linearizable()
    }

    fn at_revision(&self, revision: u64) -> BoxFuture<'_, Result<View, StoreError>> {
        self.store.at_revision(revision)
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, Result<Outcome, StoreError>> {
        self.proposals.fetch_add(1, Ordering::Relaxed);
        let left = self.intrusions.load(Ordering::Relaxed);
        if left > 0 {
            self.intrusions.store(left - 1, Ordering::Relaxed);
            let mut tx = Tx::new(self.store.view());
            add(&mut tx).unwrap();
            assert!(self.store.apply(tx.build().unwrap().into()).unwrap().is_applied());
        }
        self.store.propose(command)
    }

    fn watch(&self) -> Watch {
        self.store.watch()
    }

    fn watch_from(&self, revision: u64) -> Watch {
        self.store.watch_from(revision)
    }

    fn replica(&self) -> ReplicaId {
        self.store.replica()
    }

    fn status(&self) -> ClusterStatus {
        self.store.status()
    }
}

type Ended = Result<Committed, CommitError<TxError>>;

/// Runs it to its end, and answers how it ended and how long it waited.
fn run_on(store: &Arc<Contended>, seed: u64) -> (Ended, Duration) {
    let rt = StepRuntime::new(seed);
    let slot: Arc<std::sync::Mutex<Option<(Ended, Duration)>>> = Arc::default();
    let (store, answer, clock) = (store.clone(), slot.clone(), rt.clone());
    let task = async move {
        let ended = commit::run(&*store, &*clock, store.view(), add).await;
        *answer.lock().unwrap() = Some((ended, clock.now()));
    };
    rt.spawn("commit", Box::pin(task));
    rt.advance(Duration::from_secs(10));
    slot.lock().unwrap().take().expect("it ends")
}

#[test]
fn a_conflict_is_tried_again_on_a_fresh_view() {
    for intrusions in [0, 1, 3, u64::from(TRIES_MAX) - 1] {
        let store = Contended::new(intrusions);
        let (ended, _) = run_on(&store, 7);
        assert!(!ended.unwrap().replayed);
        assert_eq!(store.count(), intrusions + 1, "nobody's count is lost");
        assert_eq!(store.proposals.load(Ordering::Relaxed), intrusions + 1);
    }
}

#[test]
fn the_last_conflict_names_the_table_and_the_key() {
    let store = Contended::new(1_000);
    let (ended, _) = run_on(&store, 7);
    let error = ended.unwrap_err();
    assert!(
        matches!(&error, CommitError::Conflict(at) if at.table == "counts" && at.key == b"c"),
        "{error:?}"
    );
    assert_eq!(error.to_string(), "changed by somebody else, 8 times over: table counts, key c");
    assert_eq!(store.proposals.load(Ordering::Relaxed), u64::from(TRIES_MAX), "it gives up");
    assert_eq!(store.count(), u64::from(TRIES_MAX), "it wrote nothing");
}

#[test]
fn tries_wait_longer_each_time_and_not_all_the_same() {
    let waits: Vec<Duration> = (0..20).map(|seed| run_on(&Contended::new(1_000), seed).1).collect();
    // 2 ms, doubled six times, each from half as long to half as long again.
    let (least, most) = (Duration::from_millis(127), Duration::from_millis(381));
    assert!(waits.iter().all(|wait| (least..=most).contains(wait)), "{waits:?}");
    let distinct: std::collections::BTreeSet<_> = waits.iter().collect();
    assert!(distinct.len() > 10, "two that collide do not collide again: {waits:?}");
    let (_, once) = run_on(&Contended::new(1), 7);
    assert!((Duration::from_millis(1)..=Duration::from_millis(3)).contains(&once), "{once:?}");
}

#[test]
fn what_the_builder_refuses_is_not_tried_again() {
    let store = Contended::new(0);
    let rt = StepRuntime::new(1);
    let (of, clock) = (store.clone(), rt.clone());
    let ended = rt.block_on(async move {
        let refuse = |_: &mut Tx| Err::<(), &str>("no");
        commit::run(&*of, &*clock, of.view(), refuse).await
    });
    assert!(matches!(ended, Some(Err(CommitError::Refused("no")))));
    assert_eq!(store.proposals.load(Ordering::Relaxed), 0);
}
