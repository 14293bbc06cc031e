//! A kernel in memory with the module on it, and a clock that stands until it is stepped.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::{executor::block_on, future::BoxFuture};
use palisade_contract::{
    Context, Error, Finding, MethodContext, Module, NodeId, Principal, ReconcileContext,
    Reconciler, Result, SessionId,
    method::Handler,
    module::Run,
    node::{HostFacts, Node, NodeSession},
    ports::{JoinRequest, Nodes},
};
use palisade_state::{
    Role, Runtime, Store, Tx, View,
    command::{FenceCheck, Finish, Kind, WorkerBeat},
    lease::singleton_lease,
    memory::MemoryStore,
    shard::shard_of,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::Inventory;

/// Random numbers that are all different; tasks wait until they are asked to run.
#[derive(Default)]
pub struct TestRuntime {
    counter: AtomicU64,
    tasks: Mutex<Vec<BoxFuture<'static, ()>>>,
}

impl Runtime for TestRuntime {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000
    }

    fn sleep(&self, _duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) {
        self.tasks.lock().unwrap().push(task);
    }

    fn random(&self) -> u64 {
        let n = self.counter.fetch_add(1, Ordering::Relaxed);
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ n
    }
}

pub struct World {
    pub store: Arc<MemoryStore>,
    pub rt: Arc<TestRuntime>,
    pub cx: Context,
    pub module: Inventory,
    pub nodes: Arc<dyn Nodes>,
}

/// A key as a certificate request has it: only its hash counts.
pub fn key(name: &str) -> String {
    hex::encode(Sha256::digest(name))
}

pub fn secret(n: u8) -> [u8; 32] {
    [n; 32]
}

pub fn token_text(id: &str, secret: [u8; 32]) -> String {
    format!("palj1.{id}.{}", URL_SAFE_NO_PAD.encode(secret))
}

pub fn facts(hostname: &str) -> HostFacts {
    HostFacts {
        hostname: hostname.to_owned(),
        address: "10.0.0.7".to_owned(),
        product_uuid: "00112233-4455-6677-8899-aabbccddeeff".to_owned(),
        ..HostFacts::default()
    }
}

impl World {
    pub fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let rt = Arc::new(TestRuntime::default());
        let cx = Context::new(rt.clone(), store.clone());
        let module = Inventory::default();
        block_on(module.start(&cx)).unwrap();
        let nodes = cx.ports.nodes.get().unwrap().clone();
        Self { store, rt, cx, module, nodes }
    }

    pub fn view(&self) -> View {
        self.store.view()
    }

    pub fn commit<T: Send>(&self, mut build: impl FnMut(&mut Tx) -> Result<T> + Send) -> Result<T> {
        let mut answer = None;
        block_on(self.cx.commit(|tx| {
            answer = Some(build(tx)?);
            Ok(())
        }))?;
        Ok(answer.unwrap())
    }

    /// Calls a method as the envelope does.
    pub fn call(&self, name: &str, input: Value) -> Result<Value> {
        self.call_with(name, input, None)
    }

    pub fn call_with(&self, name: &str, input: Value, if_match: Option<u64>) -> Result<Value> {
        let method = self.module.methods().into_iter().find(|m| m.full_name() == name).unwrap();
        (method.validate)(&input)?;
        let cx = MethodContext {
            context: self.cx.clone(),
            principal: Principal { name: "user/ada".into(), roles: vec![], tenant: String::new() },
            request_id: "r".into(),
            dry_run: false,
            if_match,
        };
        match method.handler {
            Handler::Query(run) => run(&cx, &self.view(), input),
            Handler::Mutation(run) => self.commit(|tx| run(&cx, tx, input.clone())),
            Handler::Read(_) | Handler::Stream(_) | Handler::Action(_) => unreachable!(),
        }
    }

    /// A token with this secret; `extra` is added to the input.
    pub fn token(&self, n: u8, extra: Value) -> String {
        let mut input = json!({"secretSha256": hex::encode(Sha256::digest(secret(n)))});
        input.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let made = self.call("joinTokens.create", input).unwrap();
        token_text(made["id"].as_str().unwrap(), secret(n))
    }

    pub fn request(&self, token: &str, key_name: &str, hostname: &str) -> JoinRequest {
        JoinRequest {
            token: token.to_owned(),
            key: key(key_name),
            name: String::new(),
            facts: facts(hostname),
            agent_version: "0.1.0".to_owned(),
        }
    }

    pub fn try_join(&self, request: &JoinRequest) -> Result<Node> {
        self.commit(|tx| self.nodes.join(&self.cx, tx, request))
    }

    /// Joins with a token of its own.
    pub fn join(&self, hostname: &str) -> Node {
        let token = self.token(1, json!({}));
        self.try_join(&self.request(&token, hostname, hostname)).unwrap()
    }

    pub fn open(&self, node: &NodeId, replica: u64) -> SessionId {
        self.open_with(node, replica, &self.node(node).facts)
    }

    pub fn open_with(&self, node: &NodeId, replica: u64, facts: &HostFacts) -> SessionId {
        let id = SessionId::mint(&*self.rt);
        let session = NodeSession { id: id.clone(), replica, agent_incarnation: "i".into() };
        self.commit(|tx| self.nodes.session_opened(tx, node, &session, facts, "0.1.0")).unwrap();
        id
    }

    pub fn close(&self, node: &NodeId, session: &SessionId) {
        self.commit(|tx| self.nodes.session_closed(tx, node, session)).unwrap();
    }

    pub fn node(&self, id: &NodeId) -> Node {
        self.nodes.find(&self.view(), id.as_str()).unwrap().unwrap()
    }

    /// Lets the worker of a replica live.
    pub fn beat(&self, replica: &str) {
        let beat = WorkerBeat {
            worker: replica.to_owned(),
            incarnation: 1,
            role: Role::Controllers.into(),
            singletons: vec!["inventory.sessions".to_owned()],
            draining: false,
            sharded: true,
        };
        assert!(self.store.apply(Kind::WorkerBeat(beat).into()).unwrap().is_applied());
    }

    pub fn reconciler(&self, name: &str) -> Arc<dyn Reconciler> {
        self.module.reconcilers().into_iter().find(|r| r.name() == name).unwrap()
    }

    /// Asks for a run: what a run commits is tied to its row.
    pub fn enqueue(&self, kind: &str, key: &str) {
        self.commit(|tx| Ok(tx.enqueue(kind, key)?)).unwrap();
    }

    /// Runs a reconciler for a key under its lease, as the worker does; says whether it ended the
    /// row itself.
    pub fn run(&self, kind: &str, key: &str) -> (Run, bool) {
        let view = self.view();
        let lease_name = match kind {
            "inventory.sessions" => singleton_lease(kind),
            _ => Role::Controllers.shard_lease(shard_of(key)),
        };
        let lease = view.lease(&lease_name).unwrap();
        let check = FenceCheck {
            lease: lease_name,
            worker: lease.owner.to_string(),
            incarnation: lease.incarnation,
            fence: Some(lease.fence.into()),
        };
        // A run is for a row; a test that has no other reason for one makes it.
        if view.work(kind, key).is_none() {
            block_on(self.cx.commit(|tx| Ok(tx.enqueue(kind, key)?))).unwrap();
        }
        let generation = self.view().work(kind, key).unwrap().generation;
        let work = Finish { kind: kind.to_owned(), key: key.to_owned(), generation };
        let cx = ReconcileContext::new(self.cx.clone(), check, shard_of(key), work, None);
        let run = block_on(self.reconciler(kind).run(&cx, key)).unwrap();
        (run, cx.is_finished())
    }

    pub fn run_tasks(&self) {
        let tasks = std::mem::take(&mut *self.rt.tasks.lock().unwrap());
        for task in tasks {
            block_on(task);
        }
    }

    pub fn events(&self) -> Vec<String> {
        self.view().events(1).map(|(_, event)| event.kind.to_string()).collect()
    }

    pub fn count_events(&self, kind: &str) -> usize {
        self.events().iter().filter(|event| *event == kind).count()
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.module.self_check(&self.cx, &self.view()).unwrap()
    }

    pub fn finding(&self, check: &str) -> Option<Finding> {
        self.findings().into_iter().find(|finding| finding.check == check)
    }

    pub fn work(&self) -> Vec<String> {
        self.view().all_work().map(|((kind, _), _)| kind.to_string()).collect()
    }

    /// Forgets all wake-ups, so that the next ones can be told.
    pub fn drop_work(&self) {
        let rows: Vec<Finish> = self
            .view()
            .all_work()
            .map(|((kind, key), row)| Finish {
                kind: kind.to_string(),
                key: key.to_string(),
                generation: row.generation,
            })
            .collect();
        self.commit(|tx| {
            for row in &rows {
                tx.finish(row.clone());
            }
            Ok(())
        })
        .unwrap();
    }

    /// Whether building this would write anything.
    pub fn is_silent(&self, build: impl FnOnce(&mut Tx) -> Result<()>) -> bool {
        let mut tx = Tx::new(self.view());
        build(&mut tx).unwrap();
        tx.is_empty()
    }
}

pub fn detail(result: Result<impl std::fmt::Debug>) -> String {
    let error: Error = result.unwrap_err();
    error.detail
}
