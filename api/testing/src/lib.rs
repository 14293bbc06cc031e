//! A bench for tests of modules: the kernel in memory, nodes out of thin air, and reconcilers that
//! are stepped by hand.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "for tests: whatever goes wrong here is the test's failure"
)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    executor::block_on,
    future::{BoxFuture, ready},
};
use palisade_contract::{
    Context, Error, Module, NodeId, ReconcileContext, Reconciler, Result, ShardBy,
    module::Run,
    node::{HostFacts, Node, NodePhase, NodeSession},
    ports::{JoinRequest, Nodes},
};
use palisade_state::{
    Role, Runtime, Tx, View,
    command::{FenceCheck, Finish, Kind, WorkerBeat},
    lease::singleton_lease,
    memory::MemoryStore,
    shard::shard_of,
};

/// Time that stands still until a test lets it pass, and numbers that follow from a seed.
#[derive(Debug, Default)]
pub struct TestRuntime {
    drawn: AtomicU64,
    now_ms: AtomicU64,
}

impl TestRuntime {
    /// Lets time pass by the monotonic clock of this process; that of the cluster is [`Bench::advance`]'s.
    pub fn pass(&self, time: Duration) {
        self.now_ms.fetch_add(milliseconds(time), Ordering::Relaxed);
    }
}

impl Runtime for TestRuntime {
    fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms.load(Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000
    }

    fn sleep(&self, _duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(ready(()))
    }

    fn spawn(&self, name: &'static str, _task: BoxFuture<'static, ()>) {
        panic!("the bench spawns nothing, not even {name}");
    }

    /// Grows with each call, so that ids sort as they were made.
    fn random(&self) -> u64 {
        self.drawn.fetch_add(1, Ordering::Relaxed)
    }
}

type Meanwhile = Box<dyn FnOnce() + Send>;

/// Nodes that are what the test says.
#[derive(Default)]
pub struct FakeNodes {
    all: Mutex<BTreeMap<String, Node>>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl FakeNodes {
    /// Adds or replaces one.
    pub fn set(&self, node: Node) {
        self.lock().insert(node.id.key(), node);
    }

    /// Something that happens once, when they are listed next: in between for whoever has its view already.
    pub fn meanwhile(&self, happens: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(happens));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Node>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes one by name.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Node)) -> NodeId {
        let mut nodes = self.lock();
        let node = nodes.values_mut().find(|node| node.name == name).expect("a node of this name");
        change(node);
        node.id.clone()
    }
}

fn unused<T>() -> Result<T> {
    Err(Error::internal("the bench's nodes do not join"))
}

impl Nodes for FakeNodes {
    fn find(&self, _view: &View, id_or_name: &str) -> Result<Option<Node>> {
        let nodes = self.lock();
        let named = |node: &&Node| node.name == id_or_name && node.phase != NodePhase::Retired;
        Ok(nodes.get(id_or_name).or_else(|| nodes.values().find(named)).cloned())
    }

    fn find_in(&self, tx: &mut Tx, id_or_name: &str) -> Result<Option<Node>> {
        self.find(tx.view(), id_or_name)
    }

    fn list(&self, _view: &View) -> Result<Vec<Node>> {
        let meanwhile = self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(happens) = meanwhile {
            happens();
        }
        Ok(self.lock().values().cloned().collect())
    }

    fn join(&self, _cx: &Context, _tx: &mut Tx, _request: &JoinRequest) -> Result<Node> {
        unused()
    }

    fn note_replay(&self, _tx: &mut Tx, _request: &JoinRequest) -> Result<()> {
        unused()
    }

    fn authenticate(&self, _view: &View, _node: &NodeId, _key: &str) -> Result<Node> {
        unused()
    }

    fn renew(&self, _tx: &mut Tx, _node: &NodeId, _old_key: &str, _new_key: &str) -> Result<()> {
        unused()
    }

    fn session_opened(
        &self,
        _tx: &mut Tx,
        _node: &NodeId,
        _session: &NodeSession,
        _facts: &HostFacts,
        _agent_version: &str,
    ) -> Result<()> {
        unused()
    }

    fn holds_session(
        &self,
        _tx: &mut Tx,
        _node: &NodeId,
        _session: &palisade_contract::SessionId,
    ) -> Result<bool> {
        unused()
    }

    fn session_closed(
        &self,
        _tx: &mut Tx,
        _node: &NodeId,
        _session: &palisade_contract::SessionId,
    ) -> Result<()> {
        unused()
    }

    fn facts_changed(&self, _tx: &mut Tx, _node: &NodeId, _facts: &HostFacts) -> Result<()> {
        unused()
    }
}

/// The bench.
pub struct Bench {
    /// The kernel.
    pub store: Arc<MemoryStore>,
    /// What modules are given.
    pub context: Context,
    /// The nodes.
    pub nodes: Arc<FakeNodes>,
    reconcilers: Vec<Arc<dyn Reconciler>>,
}

const ROLES: [Role; 2] = [Role::Controllers, Role::Scheduler];

impl Bench {
    /// Starts modules on an empty kernel.
    #[must_use]
    pub fn new(modules: &[&dyn Module]) -> Self {
        let store = Arc::new(MemoryStore::default());
        let nodes = Arc::new(FakeNodes::default());
        let context = Context::new(Arc::new(TestRuntime::default()), store.clone());
        context.ports.nodes.fill(nodes.clone()).expect("an empty port");
        for module in modules {
            block_on(module.start(&context)).expect("a start");
        }
        let reconcilers = modules.iter().flat_map(|module| module.reconcilers()).collect();
        let bench = Self { store, context, nodes, reconcilers };
        bench.beat();
        bench
    }

    /// Lets the workers live on.
    pub fn beat(&self) {
        for role in ROLES {
            let beat = WorkerBeat {
                worker: "1".to_owned(),
                incarnation: 1,
                role: role.into(),
                singletons: self.singletons(role),
                draining: false,
                sharded: true,
            };
            let outcome = self.store.apply(Kind::WorkerBeat(beat).into()).expect("a beat");
            assert!(outcome.is_applied(), "{outcome:?}");
        }
    }

    fn singletons(&self, role: Role) -> Vec<String> {
        let of_role = self.reconcilers.iter().filter(|reconciler| {
            reconciler.role() == role && reconciler.shard_by() == ShardBy::None
        });
        of_role.map(|reconciler| reconciler.name().to_owned()).collect()
    }

    /// Lets time pass without losing a lease.
    pub fn advance(&self, ms: u64) {
        let mut left = ms;
        while left > 0 {
            let step = left.min(3000);
            self.store.advance(step);
            self.beat();
            left -= step;
        }
    }

    /// The newest view.
    #[must_use]
    pub fn view(&self) -> View {
        palisade_state::Store::view(&*self.store)
    }

    /// A ready node of pool `default` with so many threads and bytes; ports 20000 to 20099.
    pub fn node(&self, name: &str, cpu_milli: u64, memory_bytes: u64) -> NodeId {
        let node = Node {
            id: NodeId::mint(&*self.context.rt),
            name: name.to_owned(),
            pool: "default".to_owned(),
            tenant: String::new(),
            labels: BTreeMap::new(),
            phase: NodePhase::Ready,
            schedulable: true,
            session: None,
            disconnected_at_ms: None,
            facts: HostFacts {
                offered_cpu_milli: cpu_milli,
                offered_memory_bytes: memory_bytes,
                drivers: vec!["process".to_owned()],
                port_first: 20_000,
                port_last: 20_099,
                address: format!("{name}.test"),
                ..HostFacts::default()
            },
            keys: vec![],
            joined_at_ms: 0,
            agent_version: String::new(),
        };
        let id = node.id.clone();
        self.nodes.set(node);
        id
    }

    /// Changes a node and wakes `kinds` for it, as inventory does.
    pub fn change_node(
        &self,
        name: &str,
        kinds: &[&str],
        change: impl FnOnce(&mut Node),
    ) -> NodeId {
        let id = self.nodes.change(name, change);
        self.commit(|tx| {
            for kind in kinds {
                tx.enqueue(kind, id.as_str())?;
            }
            Ok(())
        });
        id
    }

    /// Runs a transaction.
    pub fn commit(&self, build: impl FnMut(&mut Tx) -> Result<()> + Send) {
        block_on(self.context.commit(build)).expect("a commit");
    }

    /// Runs each due key of the modules' reconcilers once; how many there were.
    pub fn step(&self) -> usize {
        self.step_where(|_| true)
    }

    /// As [`Bench::step`], for the keys of one kind.
    pub fn step_only(&self, only: &str) -> usize {
        self.step_where(|kind| kind == only)
    }

    fn step_where(&self, wanted: impl Fn(&str) -> bool) -> usize {
        let view = self.view();
        let now = view.clock().now_ms;
        let due: Vec<(String, String, u64)> = view
            .all_work()
            .filter(|((kind, _), row)| row.due_ms <= now && wanted(kind))
            .map(|((kind, key), row)| (kind.to_string(), key.to_string(), row.generation))
            .collect();
        let mut ran = 0;
        for (kind, key, generation) in due {
            if let Some(reconciler) = self.reconcilers.iter().find(|r| r.name() == kind) {
                self.run(&**reconciler, Finish { kind, key, generation });
                ran += 1;
            }
        }
        ran
    }

    /// Steps until nothing is due; how many steps that took.
    pub fn settle(&self) -> usize {
        for steps in 0..100 {
            if self.step() == 0 {
                return steps;
            }
        }
        panic!("the reconcilers never settle: {:?}", self.view().all_work().collect::<Vec<_>>());
    }

    /// The reconciler of this name, to be stepped without a timer.
    ///
    /// # Panics
    /// No module has it.
    #[must_use]
    pub fn jobs(&self, name: &str) -> Jobs<'_> {
        let reconciler = self.reconcilers.iter().find(|reconciler| reconciler.name() == name);
        let reconciler = reconciler.unwrap_or_else(|| panic!("no module has a reconciler {name}"));
        Jobs { bench: self, reconciler: reconciler.clone() }
    }

    /// What a run of a key that is dirty is given, for a test that drives the run by itself.
    ///
    /// # Panics
    /// The key is not dirty, or no module has the reconciler.
    #[must_use]
    pub fn begin(&self, reconciler: &str, key: &str) -> ReconcileContext {
        let work = self.view().work(reconciler, key).map(|row| row.generation);
        let generation = work.unwrap_or_else(|| panic!("{key} of {reconciler} is not dirty"));
        let work = Finish { kind: reconciler.to_owned(), key: key.to_owned(), generation };
        self.context_of(&*self.jobs(reconciler).reconciler, work)
    }

    fn context_of(&self, reconciler: &dyn Reconciler, work: Finish) -> ReconcileContext {
        let shard = shard_of(&work.key);
        let name = match reconciler.shard_by() {
            ShardBy::None => singleton_lease(reconciler.name()),
            _ => reconciler.role().shard_lease(shard),
        };
        let lease = self.view().lease(&name).cloned().expect("a lease");
        let check = FenceCheck {
            lease: name,
            worker: lease.owner.to_string(),
            incarnation: lease.incarnation,
            fence: Some(lease.fence.into()),
        };
        let periodic = reconciler.periodic().into_iter().find(|periodic| periodic.key == work.key);
        let every_ms = periodic.map(|periodic| milliseconds(periodic.every));
        ReconcileContext::new(self.context.clone(), check, shard, work, every_ms)
    }

    fn run(&self, reconciler: &dyn Reconciler, work: Finish) {
        let key = work.key.clone();
        let cx = self.context_of(reconciler, work);
        let run = block_on(reconciler.run(&cx, &key)).expect("a run");
        if cx.is_finished() {
            return;
        }
        match run {
            Run::Done => block_on(cx.finish(|_| Ok(()))).expect("a finish"),
            Run::Again => block_on(cx.put_off(50, "")).expect("a requeue"),
            Run::After(delay) => block_on(cx.put_off(milliseconds(delay), "")).expect("a requeue"),
        };
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a delay")
}

/// A reconciler in a test's hands.
pub struct Jobs<'a> {
    bench: &'a Bench,
    reconciler: Arc<dyn Reconciler>,
}

impl Jobs<'_> {
    /// Runs each of its keys that is due once, as its worker would; how many there were.
    pub fn tick(&self) -> usize {
        let name = self.reconciler.name();
        let view = self.bench.view();
        for periodic in self.reconciler.periodic() {
            if view.work(name, &periodic.key).is_none() {
                self.bench.commit(|tx| Ok(tx.enqueue(name, &periodic.key)?));
            }
        }
        self.bench.step_only(name)
    }
}
