//! `MIG-1`: a migration and its row in the ledger are one transaction, applied at most once.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use palisade_contract::{Code, Context, Error, Module, Registry, Result, module::Migration};
use palisade_scheduler::migrate::{self, LEDGER};
use palisade_state::{
    Command, Declared, Outcome, ReplicaId, Runtime, Store, StoreError, Table, Tx, View, Watch,
    memory::MemoryStore, port::ClusterStatus, step::StepRuntime,
};

const ROWS: Table<String, u64> = Table::new("rows", &[]);

type Step = Arc<dyn Fn(&mut Tx) -> Result<()> + Send + Sync>;

struct Migrating(Vec<(&'static str, Step)>);

impl Module for Migrating {
    fn name(&self) -> &'static str {
        "test"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![ROWS.declared()]
    }

    fn migrations(&self) -> Vec<Migration> {
        let migration = |(name, run): &(&'static str, Step)| Migration { name, run: run.clone() };
        self.0.iter().map(migration).collect()
    }
}

fn registry(steps: Vec<(&'static str, Step)>) -> Registry {
    Registry::new(vec![Arc::new(Migrating(steps))]).unwrap()
}

fn add(key: &'static str, n: u64) -> Step {
    Arc::new(move |tx: &mut Tx| -> Result<()> {
        let key = key.to_owned();
        let there = tx.get(&ROWS, &key)?.unwrap_or_default();
        Ok(tx.put(&ROWS, &key, &(there + n))?)
    })
}

/// A store whose answers, and its proposals, take a moment: whoever starts at once reads before the
/// other one writes.
struct Slow {
    rt: Arc<StepRuntime>,
    memory: MemoryStore,
    proposals: AtomicUsize,
}

impl Store for Slow {
    fn view(&self) -> View {
        self.memory.view()
    }

    fn linearizable(&self) -> BoxFuture<'_, std::result::Result<View, StoreError>> {
        self.memory.linearizable()
    }

    fn at_revision(&self, revision: u64) -> BoxFuture<'_, std::result::Result<View, StoreError>> {
        self.memory.at_revision(revision)
    }

    fn propose(&self, command: Command) -> BoxFuture<'_, std::result::Result<Outcome, StoreError>> {
        self.proposals.fetch_add(1, Ordering::Relaxed);
        let pause = self.rt.sleep(Duration::from_millis(5));
        async move {
            pause.await;
            self.memory.apply(command)
        }
        .boxed()
    }

    fn watch(&self) -> Watch {
        self.memory.watch()
    }

    fn watch_from(&self, revision: u64) -> Watch {
        self.memory.watch_from(revision)
    }

    fn replica(&self) -> ReplicaId {
        self.memory.replica()
    }

    fn status(&self) -> ClusterStatus {
        self.memory.status()
    }
}

struct Rig {
    rt: Arc<StepRuntime>,
    store: Arc<Slow>,
}

impl Rig {
    fn new() -> Self {
        let rt = StepRuntime::new(7);
        let (memory, proposals) = (MemoryStore::default(), AtomicUsize::new(0));
        Self { rt: rt.clone(), store: Arc::new(Slow { rt, memory, proposals }) }
    }

    /// Runs them on so many replicas that start at once, and answers how each ended.
    fn migrate(&self, registry: &Registry, replicas: usize) -> Vec<Result<()>> {
        let ended: Arc<Mutex<Vec<Result<()>>>> = Arc::default();
        for _ in 0..replicas {
            let store = self.store.clone();
            let context = Context::new(self.rt.clone(), store);
            let (registry, ended) = (registry.clone(), ended.clone());
            let task = async move {
                let how = migrate::run(&context, &registry).await;
                ended.lock().unwrap().push(how);
            };
            self.rt.spawn("migrate", Box::pin(task));
        }
        self.rt.advance(Duration::from_secs(60));
        let ended = std::mem::take(&mut *ended.lock().unwrap());
        assert_eq!(ended.len(), replicas, "each ends");
        ended
    }

    fn row(&self, key: &str) -> Option<u64> {
        ROWS.get(&self.store.view(), &key.to_owned()).unwrap().map(|row| row.value)
    }

    fn ledger(&self) -> Vec<(String, u64)> {
        let rows = LEDGER.all(&self.store.view()).unwrap();
        rows.into_iter().map(|(name, row)| (name, row.stamp.version)).collect()
    }
}

fn two_steps() -> Registry {
    registry(vec![("test/0001_rows", add("a", 1)), ("test/0002_more", add("a", 10))])
}

fn both_once() -> Vec<(String, u64)> {
    vec![("test/0001_rows".to_owned(), 1), ("test/0002_more".to_owned(), 1)]
}

#[test]
fn migrations_run_in_order_and_never_again() {
    let (rig, registry) = (Rig::new(), two_steps());
    assert!(!migrate::is_current(&rig.store.view(), &registry).unwrap());
    for _ in 0..3 {
        assert!(rig.migrate(&registry, 1)[0].is_ok());
        assert_eq!(rig.row("a"), Some(11));
        assert_eq!(rig.ledger(), both_once(), "MIG-1");
    }
    assert!(migrate::is_current(&rig.store.view(), &registry).unwrap());
}

#[test]
fn replicas_that_start_at_once_apply_each_migration_once() {
    for replicas in [2, 3, 5] {
        let rig = Rig::new();
        let ended = rig.migrate(&two_steps(), replicas);
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        assert_eq!(rig.row("a"), Some(11), "MIG-1: {replicas} replicas");
        assert_eq!(rig.ledger(), both_once(), "MIG-1");
        let proposals = rig.store.proposals.load(Ordering::Relaxed);
        assert!(proposals > 2 * replicas, "they did collide: {proposals} proposals");
    }
}

#[test]
fn a_migration_that_fails_leaves_nothing_and_is_named_and_runs_once_it_can() {
    let rig = Rig::new();
    let broken: Step = Arc::new(|tx: &mut Tx| -> Result<()> {
        add("b", 5)(tx)?;
        Err(Error::new(Code::Internal, "the moon is down"))
    });
    let steps = |second: Step| {
        registry(vec![
            ("test/0001_rows", add("a", 1)),
            ("test/0002_breaks", second),
            ("test/0003_after", add("c", 1)),
        ])
    };
    let failing = steps(broken);
    let error = rig.migrate(&failing, 1).remove(0).unwrap_err();
    assert!(error.detail.contains("test/0002_breaks"), "{error}");
    assert!(error.detail.contains("the moon is down"), "{error}");
    assert_eq!((rig.row("a"), rig.row("b"), rig.row("c")), (Some(1), None, None), "MIG-1");
    assert_eq!(rig.ledger(), [("test/0001_rows".to_owned(), 1)], "what came before it stays");
    assert!(!migrate::is_current(&rig.store.view(), &failing).unwrap());
    let mended = steps(add("b", 7));
    assert!(rig.migrate(&mended, 1)[0].is_ok());
    assert_eq!((rig.row("a"), rig.row("b"), rig.row("c")), (Some(1), Some(7), Some(1)));
}

#[test]
fn a_migration_that_is_added_later_runs_alone() {
    let rig = Rig::new();
    assert!(rig.migrate(&registry(vec![("test/0001_rows", add("a", 1))]), 1)[0].is_ok());
    assert!(!migrate::is_current(&rig.store.view(), &two_steps()).unwrap());
    assert!(rig.migrate(&two_steps(), 2).iter().all(Result::is_ok));
    assert_eq!(rig.row("a"), Some(11));
    assert_eq!(rig.ledger(), both_once());
}

#[test]
fn a_migration_that_writes_a_table_of_another_module_is_refused_and_leaves_nothing() {
    const STRAY: Table<String, u64> = Table::new("stray", &[]);
    let rig = Rig::new();
    let stray: Step = Arc::new(|tx: &mut Tx| -> Result<()> {
        add("a", 1)(tx)?;
        Ok(tx.put(&STRAY, &"k".to_owned(), &1)?)
    });
    let error = rig.migrate(&registry(vec![("test/0001_stray", stray)]), 1).remove(0).unwrap_err();
    assert_eq!(error.code, Code::InvalidConfig);
    assert_eq!(
        error.detail,
        "migration test/0001_stray: it writes table stray, which is none of module test",
        "MIG-2"
    );
    assert_eq!((rig.row("a"), rig.ledger()), (None, vec![]));
}
