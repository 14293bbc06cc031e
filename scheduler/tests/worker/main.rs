//! The worker loop against the kernel in memory, on a clock that is stepped.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod handover;
mod migrations;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt, channel::oneshot, future::BoxFuture};
use palisade_contract::{
    Code, Context, Module, ReconcileContext, Reconciler, Registry, Result, ShardBy,
    module::{Periodic, Run},
};
use palisade_scheduler::worker::{Options, Worker};
use palisade_state::{
    Role, Runtime, Store, StoreError, Table,
    command::{Kind, WorkerBeat},
    memory::MemoryStore,
    step::StepRuntime,
};

const MARKS: Table<String, u64> = Table::new("marks", &[]);

type Script = dyn Fn(&ReconcileContext, &str) -> BoxFuture<'static, Result<Run>> + Send + Sync;

struct Scripted {
    shard_by: ShardBy,
    periodic: bool,
    ran: Arc<Mutex<Vec<String>>>,
    script: Arc<Script>,
}

impl Reconciler for Scripted {
    fn name(&self) -> &'static str {
        "test.marks"
    }

    fn shard_by(&self) -> ShardBy {
        self.shard_by
    }

    fn periodic(&self) -> Vec<Periodic> {
        let sweep = Periodic { key: "sweep".into(), every: Duration::from_secs(2) };
        if self.periodic { vec![sweep] } else { vec![] }
    }

    fn keys(&self, _view: &palisade_state::View) -> Result<Vec<String>> {
        Ok(vec!["resynced".into()])
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        self.ran.lock().unwrap().push(key.to_owned());
        (self.script)(cx, key)
    }
}

struct TestModule(Arc<Scripted>);

impl Module for TestModule {
    fn name(&self) -> &'static str {
        "test"
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![self.0.clone()]
    }
}

struct Rig {
    rt: Arc<StepRuntime>,
    store: Arc<MemoryStore>,
    context: Context,
    ran: Arc<Mutex<Vec<String>>>,
    registry: Registry,
}

impl Rig {
    fn new(shard_by: ShardBy, periodic: bool, script: Arc<Script>) -> Self {
        let rt = StepRuntime::new(7);
        let store = Arc::new(MemoryStore::default());
        let context = Context::new(rt.clone(), store.clone());
        let ran = Arc::new(Mutex::new(vec![]));
        let scripted = Arc::new(Scripted { shard_by, periodic, ran: ran.clone(), script });
        let registry = Registry::new(vec![Arc::new(TestModule(scripted))]).unwrap();
        Self { rt, store, context, ran, registry }
    }

    fn done(shard_by: ShardBy) -> Self {
        Self::new(shard_by, false, Arc::new(|_, _| futures::future::ready(Ok(Run::Done)).boxed()))
    }

    fn start(&self) -> oneshot::Sender<()> {
        let (stop, stopped) = oneshot::channel();
        let worker = Worker::new(
            self.context.clone(),
            &self.registry,
            Role::Controllers,
            Options::default(),
        );
        self.rt.spawn("worker", worker.run(stopped.map(drop).boxed()).boxed());
        self.rt.advance(Duration::from_millis(1));
        stop
    }

    fn enqueue(&self, key: &'static str) {
        let context = self.context.clone();
        let done = self
            .rt
            .block_on(async move { context.commit(|tx| Ok(tx.enqueue("test.marks", key)?)).await });
        done.expect("no time passes").expect("enqueued");
        self.rt.settle();
    }

    /// Lets the same time pass on the machine's clock and on the logical one, as a leader's ticks do.
    fn pass(&self, ms: u64) {
        for _ in 0..ms / 500 {
            self.rt.advance(Duration::from_millis(500));
            self.store.advance(500);
            self.rt.settle();
        }
    }

    fn ran(&self) -> Vec<String> {
        std::mem::take(&mut self.ran.lock().unwrap())
    }
}

#[test]
fn a_worker_alone_holds_all_shards_and_runs_what_is_enqueued() {
    let rig = Rig::done(ShardBy::Key);
    let _stop = rig.start();
    assert_eq!(rig.store.view().leases().count(), 256);
    rig.enqueue("a");
    rig.enqueue("b");
    assert_eq!(rig.ran(), ["a", "b"]);
    assert_eq!(rig.store.view().all_work().count(), 0, "both rows are finished");
}

#[test]
fn work_that_waited_for_a_worker_is_run() {
    let rig = Rig::done(ShardBy::None);
    rig.enqueue("early");
    let _stop = rig.start();
    assert_eq!(rig.ran(), ["early"]);
}

#[test]
fn after_an_election_runs_go_on_under_a_newer_fence() {
    let rig = Rig::done(ShardBy::Key);
    let _stop = rig.start();
    let lease = "shard:44"; // of the key "a"
    let before = rig.store.view().lease(lease).unwrap().fence;
    rig.store.elect();
    rig.rt.settle();
    let after = rig.store.view().lease(lease).unwrap().fence;
    assert!(after > before && after.term == before.term + 1);
    rig.enqueue("a");
    assert_eq!(rig.ran(), ["a"]);
}

#[test]
fn a_commit_of_a_run_that_an_election_overtook_is_refused() {
    let gate: Arc<Mutex<Option<oneshot::Receiver<()>>>> = Arc::default();
    let seen = Arc::new(Mutex::new(vec![]));
    let (open, opened) = oneshot::channel();
    *gate.lock().unwrap() = Some(opened);
    let results = seen.clone();
    let script = Arc::new(move |cx: &ReconcileContext, _: &str| {
        let (cx, gate, results) = (cx.clone(), gate.lock().unwrap().take(), results.clone());
        async move {
            if let Some(gate) = gate {
                let _ = gate.await;
            }
            let written = cx.finish(|tx| Ok(tx.put(&MARKS, &"m".to_owned(), &1)?)).await;
            results.lock().unwrap().push(written.as_ref().err().map(|error| error.code));
            written.map(|_| Run::Done)
        }
        .boxed()
    });
    let rig = Rig::new(ShardBy::Key, false, script);
    let _stop = rig.start();
    rig.enqueue("a");
    rig.store.elect();
    open.send(()).unwrap();
    rig.rt.settle();
    // The first run is fenced and leaves nothing; the key runs again under the new fence.
    assert_eq!(*seen.lock().unwrap(), [Some(Code::Fenced), None]);
    assert_eq!(rig.ran(), ["a", "a"]);
    assert_eq!(MARKS.get(&rig.store.view(), &"m".to_owned()).unwrap().unwrap().stamp.version, 1);
}

#[test]
fn a_failed_run_is_tried_again_later_and_keeps_its_error() {
    let script = Arc::new(|_: &ReconcileContext, _: &str| {
        futures::future::ready(Err(palisade_contract::Error::new(
            Code::Unavailable,
            "the moon is down",
        )))
        .boxed()
    });
    let rig = Rig::new(ShardBy::Key, false, script);
    let _stop = rig.start();
    rig.enqueue("a");
    assert_eq!(rig.ran(), ["a"]);
    let row = rig.store.view().work("test.marks", "a").cloned().unwrap();
    assert_eq!((row.attempts, row.last_error.as_str()), (1, "the moon is down"));
    rig.pass(1_000);
    assert!(!rig.ran().is_empty(), "it is tried again when its time has come");
}

#[test]
fn a_key_that_is_enqueued_while_it_runs_runs_again() {
    let gates: Arc<Mutex<Vec<oneshot::Receiver<()>>>> = Arc::default();
    let (open, opened) = oneshot::channel();
    gates.lock().unwrap().push(opened);
    let script = Arc::new(move |_: &ReconcileContext, _: &str| {
        let gate = gates.lock().unwrap().pop();
        async move {
            if let Some(gate) = gate {
                let _ = gate.await;
            }
            Ok(Run::Done)
        }
        .boxed()
    });
    let rig = Rig::new(ShardBy::Key, false, script);
    let _stop = rig.start();
    rig.enqueue("a");
    rig.enqueue("a");
    assert_eq!(rig.ran(), ["a"], "one run at a time");
    open.send(()).unwrap();
    rig.rt.settle();
    assert_eq!(rig.ran(), ["a"], "the second wake-up was not lost");
    assert_eq!(rig.store.view().all_work().count(), 0);
}

#[test]
fn a_periodic_key_comes_back() {
    let rig = Rig::new(
        ShardBy::None,
        true,
        Arc::new(|_, _| futures::future::ready(Ok(Run::Done)).boxed()),
    );
    let _stop = rig.start();
    rig.pass(500);
    assert_eq!(rig.ran(), ["sweep"], "seeded once");
    rig.pass(4_500);
    assert_eq!(rig.ran().len(), 2, "every two seconds");
}

#[test]
fn resync_wakes_every_key() {
    let rig = Rig::done(ShardBy::Key);
    let _stop = rig.start();
    rig.pass(610_000);
    assert!(rig.ran().contains(&"resynced".to_owned()));
}

#[test]
fn a_worker_that_joins_gets_its_share_and_a_worker_that_stops_gives_all_back() {
    let rig = Rig::done(ShardBy::Key);
    let stop = rig.start();
    let other = WorkerBeat {
        worker: "2".into(),
        incarnation: 1,
        role: Role::Controllers.into(),
        singletons: vec![],
        draining: false,
        sharded: true,
    };
    rig.store.apply(Kind::WorkerBeat(other).into()).unwrap();
    rig.rt.settle();
    let owned_by = |worker: &str| {
        rig.store.view().leases().filter(|(_, lease)| lease.owner.as_ref() == worker).count()
    };
    assert!((90..=166).contains(&owned_by("2")), "about half moved at once: {}", owned_by("2"));
    stop.send(()).unwrap();
    rig.rt.settle();
    assert_eq!((owned_by("1"), owned_by("2")), (0, 256));
}

#[test]
fn shards_of_a_dead_worker_move_when_its_session_ends() {
    let rig = Rig::done(ShardBy::Key);
    let beat = |worker: &str| {
        let beat = WorkerBeat {
            worker: worker.into(),
            incarnation: 1,
            role: Role::Controllers.into(),
            singletons: vec![],
            draining: false,
            sharded: true,
        };
        rig.store.apply(Kind::WorkerBeat(beat).into()).unwrap();
    };
    beat("dead");
    let _stop = rig.start();
    rig.pass(30_000);
    assert!(rig.store.view().leases().all(|(_, lease)| lease.owner.as_ref() == "1"));
    rig.enqueue("a");
    assert!(rig.ran().contains(&"a".to_owned()));
}

#[test]
fn a_reconciler_that_panics_comes_back_later() {
    let script = Arc::new(|_: &ReconcileContext, key: &str| -> BoxFuture<'static, Result<Run>> {
        if key == "bad" {
            async { panic!("as planned") }.boxed()
        } else {
            futures::future::ready(Ok(Run::Done)).boxed()
        }
    });
    let rig = Rig::new(ShardBy::None, false, script);
    let _stop = rig.start();
    rig.enqueue("bad");
    let row = rig.store.view().work("test.marks", "bad").cloned().unwrap();
    assert_eq!(row.attempts, 1, "its row was put off: {row:?}");
    rig.ran();
    rig.pass(1_000);
    assert!(rig.ran().contains(&"bad".to_owned()), "and it is tried again");
    rig.enqueue("good");
    assert!(rig.ran().contains(&"good".to_owned()));
}

/// A store that can refuse everything at once, as a leader with a full disk does.
struct Full {
    store: Arc<MemoryStore>,
    full: std::sync::atomic::AtomicBool,
}

impl Store for Full {
    fn view(&self) -> palisade_state::View {
        self.store.view()
    }

    fn linearizable(&self) -> BoxFuture<'_, std::result::Result<palisade_state::View, StoreError>> {
        self.store.linearizable()
    }

    fn at_revision(
        &self,
        revision: u64,
    ) -> BoxFuture<'_, std::result::Result<palisade_state::View, StoreError>> {
        self.store.at_revision(revision)
    }

    fn propose(
        &self,
        command: palisade_state::Command,
    ) -> BoxFuture<'_, std::result::Result<palisade_state::Outcome, StoreError>> {
        if self.full.load(std::sync::atomic::Ordering::Relaxed) {
            return futures::future::ready(Err(StoreError::NoSpace("a test".into()))).boxed();
        }
        self.store.propose(command)
    }

    fn watch(&self) -> palisade_state::Watch {
        self.store.watch()
    }

    fn watch_from(&self, revision: u64) -> palisade_state::Watch {
        self.store.watch_from(revision)
    }

    fn replica(&self) -> palisade_state::ReplicaId {
        self.store.replica()
    }

    fn status(&self) -> palisade_state::port::ClusterStatus {
        self.store.status()
    }
}

#[test]
fn a_full_disk_makes_no_run_spin() {
    let mut rig = Rig::done(ShardBy::None);
    let full = Arc::new(Full { store: rig.store.clone(), full: false.into() });
    rig.context.store = full.clone();
    let _stop = rig.start();
    rig.enqueue("a");
    assert_eq!(rig.ran(), ["a"]);
    rig.enqueue("a");
    rig.ran();
    rig.store.apply(enqueue_command("b")).unwrap();
    full.full.store(true, std::sync::atomic::Ordering::Relaxed);
    rig.rt.advance(Duration::from_secs(20));
    let runs = rig.ran().len();
    assert!((1..=20).contains(&runs), "{runs} runs in 20 s");
    full.full.store(false, std::sync::atomic::Ordering::Relaxed);
    rig.pass(10_000);
    assert_eq!(rig.store.view().all_work().count(), 0, "it goes on by itself");
}

fn enqueue_command(key: &str) -> palisade_state::Command {
    let mut tx = palisade_state::Tx::new(MemoryStore::default().view());
    tx.enqueue("test.marks", key).unwrap();
    tx.build().unwrap().into()
}
