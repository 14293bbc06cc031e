//! A kernel in memory with the module on it, beside modules that have rows of tenants.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::executor::block_on;
use palisade_contract::{
    Code, Context, Error, Finding, MethodContext, Module, Principal, ReconcileContext, Registry,
    Result, Sweep,
    method::Handler,
    module::Run,
    tenants::{Amounts, Charging, sweep},
};
use palisade_state::{
    Declared, Role, Store, Table, Tx, View,
    command::{FenceCheck, Finish, Kind, WorkerBeat},
    memory::MemoryStore,
    shard::shard_of,
    step::StepRuntime,
};
use serde_json::{Value, json};

use crate::{SWEEP_KIND, Tenancy};

pub const WIDGETS: Table<String, String> = Table::new("widgets", &[]);
pub const GADGETS: Table<String, String> = Table::new("gadgets", &[]);

/// A module with two tables, whose values are names of tenants.
#[derive(Default)]
pub struct Things {
    /// It fails when it is asked.
    pub fails: AtomicBool,
    /// It has something left that it cannot remove yet.
    pub waits: AtomicBool,
    /// It panics when it is asked.
    pub panics: AtomicBool,
    /// Another term begins when it is asked, as when the leader ends.
    pub elects: Mutex<Option<Arc<MemoryStore>>>,
    /// How many rows it had of each kind whenever it was asked.
    pub asked: Mutex<Vec<(usize, usize)>>,
}

impl Module for Things {
    fn name(&self) -> &'static str {
        "things"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![WIDGETS.declared(), GADGETS.declared()]
    }

    fn tenants_in_use(&self, view: &View) -> Result<BTreeSet<String>> {
        Ok(WIDGETS.all(view)?.into_iter().map(|(_, row)| row.value).collect())
    }

    fn tenant_deleted(&self, _: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
        let counts = (tx.view().count("widgets"), tx.view().count("gadgets"));
        self.asked.lock().unwrap().push(counts);
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::new(Code::ProviderError, "the shop does not answer"));
        }
        assert!(!self.panics.load(Ordering::Relaxed), "as the test wants it");
        let widgets = sweep(tx, &WIDGETS, |of| of == tenant)?;
        let gadgets = sweep(tx, &GADGETS, |of| of == tenant)?;
        if let Some(store) = self.elects.lock().unwrap_or_else(PoisonError::into_inner).take() {
            store.elect();
        }
        let waits = self.waits.load(Ordering::Relaxed);
        Ok(widgets.and(gadgets).and(if waits { Sweep::Again } else { Sweep::Done }))
    }
}

/// See the module.
pub struct World {
    pub store: Arc<MemoryStore>,
    pub cx: Context,
    pub tenancy: Arc<Tenancy>,
    pub things: Arc<Things>,
    pub registry: Registry,
}

pub fn amounts(instances: u64) -> Amounts {
    Amounts { workloads: 1, instances, cpu_milli: 500 * instances, memory_bytes: instances << 20 }
}

impl World {
    pub fn new() -> Self {
        let world = Self::unmigrated();
        world.migrate();
        world
    }

    /// As an earlier version left it.
    pub fn unmigrated() -> Self {
        let (tenancy, things) = (Arc::new(Tenancy::default()), Arc::new(Things::default()));
        let registry = Registry::new(vec![tenancy.clone(), things.clone()]).unwrap();
        tenancy.bind(&registry);
        let store = Arc::new(MemoryStore::default());
        let cx = Context::new(StepRuntime::new(7), store.clone()).with_tables(&registry);
        block_on(tenancy.start(&cx)).unwrap();
        let world = Self { store, cx, tenancy, things, registry };
        world.beat();
        world
    }

    pub fn migrate(&self) {
        for migration in self.tenancy.migrations() {
            self.commit(|tx| (migration.run)(tx)).unwrap();
        }
    }

    pub fn beat(&self) {
        let beat = WorkerBeat {
            worker: "1".to_owned(),
            incarnation: 1,
            role: Role::Controllers.into(),
            singletons: vec![],
            draining: false,
            sharded: true,
        };
        assert!(self.store.apply(Kind::WorkerBeat(beat).into()).unwrap().is_applied());
    }

    pub fn advance(&self, time: Duration) {
        let mut left = u64::try_from(time.as_millis()).unwrap();
        while left > 0 {
            let step = left.min(3000);
            self.store.advance(step);
            self.beat();
            left -= step;
        }
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

    pub fn call(&self, name: &str, input: Value) -> Result<Value> {
        self.call_as(name, input, "")
    }

    pub fn call_as(&self, name: &str, input: Value, tenant: &str) -> Result<Value> {
        let methods = self.tenancy.methods();
        let method = methods.into_iter().find(|method| method.full_name() == name).unwrap();
        (method.validate)(&input)?;
        let cx = MethodContext {
            context: self.cx.clone(),
            principal: Principal {
                name: "user/ada".to_owned(),
                roles: vec!["cluster-admin".to_owned()],
                tenant: tenant.to_owned(),
            },
            request_id: "r".to_owned(),
            dry_run: false,
            if_match: None,
        };
        match method.handler {
            Handler::Query(run) => run(&cx, &self.view(), input),
            Handler::Mutation(run) => self.commit(|tx| run(&cx, tx, input.clone())),
            Handler::Stream(_) | Handler::Action(_) | Handler::Read(_) => unreachable!(),
        }
    }

    pub fn create(&self, name: &str, quotas: Value) {
        self.call("tenants.create", json!({"name": name, "quotas": quotas})).unwrap();
    }

    pub fn remove(&self, name: &str) {
        self.call("tenants.remove", json!({"tenant": name, "force": true})).unwrap();
    }

    pub fn get(&self, name: &str) -> Value {
        self.call("tenants.get", json!({ "tenant": name })).unwrap()
    }

    pub fn state(&self, name: &str) -> String {
        self.get(name)["state"].as_str().unwrap().to_owned()
    }

    pub fn charge(&self, tenant: &str, subject: &str, to: Amounts, how: Charging) -> Result<()> {
        self.commit(|tx| self.cx.ports.charge(tx, tenant, subject, to, how))
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.tenancy.self_check(&self.cx, &self.view()).unwrap()
    }

    pub fn events(&self) -> Vec<String> {
        self.view().events(1).map(|(_, event)| event.kind.to_string()).collect()
    }

    /// The rows of both kinds, of `things`, of so many each.
    pub fn fill(&self, tenant: &str, count: usize) {
        self.commit(|tx| {
            for number in 0..count {
                let key = format!("{tenant}-{number:04}");
                tx.put(&WIDGETS, &key, &tenant.to_owned())?;
                tx.put(&GADGETS, &key, &tenant.to_owned())?;
            }
            Ok(())
        })
        .unwrap();
    }

    /// Runs the sweep for a tenant if it is due; what it said, or `None`: it is not due.
    pub fn sweep(&self, tenant: &str) -> Option<Result<Run>> {
        let view = self.view();
        let row = view.work(SWEEP_KIND, tenant)?;
        if row.due_ms > view.clock().now_ms {
            return None;
        }
        let work = Finish {
            kind: SWEEP_KIND.to_owned(),
            key: tenant.to_owned(),
            generation: row.generation,
        };
        let reconciler = self.tenancy.reconcilers().remove(0);
        let shard = shard_of(tenant);
        let name = reconciler.role().shard_lease(shard);
        let lease = view.lease(&name).cloned().unwrap();
        let check = FenceCheck {
            lease: name,
            worker: lease.owner.to_string(),
            incarnation: lease.incarnation,
            fence: Some(lease.fence.into()),
        };
        let cx = ReconcileContext::new(self.cx.clone(), check, shard, work, None);
        let run = block_on(reconciler.run(&cx, tenant));
        match &run {
            Ok(Run::Done) => drop(block_on(cx.finish(|_| Ok(()))).unwrap()),
            Ok(Run::Again) => drop(block_on(cx.put_off(0, "")).unwrap()),
            Ok(Run::After(time)) => {
                let ms = u64::try_from(time.as_millis()).unwrap();
                drop(block_on(cx.put_off(ms, "")).unwrap());
            }
            Err(_) => {}
        }
        Some(run)
    }

    /// Sweeps until nothing is due.
    pub fn settle(&self, tenant: &str) {
        for _ in 0..100 {
            match self.sweep(tenant) {
                None => return,
                Some(run) => drop(run.unwrap()),
            }
        }
        panic!("the sweep never settles");
    }
}
