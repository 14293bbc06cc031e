//! The module on a bench: the kernel in memory, the real capacity module and node controllers, and
//! agents that do what they are told when the test says so.

mod inputs;
mod life;
mod rolling;
mod secrets;
mod signals;

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use palisade_capacity::CapacityModule;
use palisade_commands::CommandsModule;
use palisade_contract::{
    Error, Handler, MethodContext, Module, NodeId, Principal, Registry, Result,
    node::{InstancePhase, InstanceStatus, NodeStatus, Wanted},
    node_spec::{NODE_SPECS, NodeSpecRecord},
};
use palisade_scheduler::NodeControllers;
use palisade_state::{Tx, Verdict};
use palisade_testing::Bench;
use serde_json::{Value, json};

use crate::{WorkloadsModule, records::INSTANCES};

/// Stands for the module that the others require.
struct Inventory;

impl Module for Inventory {
    fn name(&self) -> &'static str {
        "inventory"
    }
}

type Answer = dyn Fn(&str) -> InstancePhase;

/// A cluster of one kernel and agents that follow their specs.
struct World {
    bench: Bench,
    module: Arc<WorkloadsModule>,
    _registry: Registry,
    phase: RefCell<Box<Answer>>,
}

const GIB: u64 = 1 << 30;

impl World {
    fn new(nodes: &[&str]) -> Self {
        let module = Arc::new(WorkloadsModule);
        let capacity = Arc::new(CapacityModule);
        let commands = Arc::new(CommandsModule::default());
        let registry = Registry::new(vec![
            Arc::new(Inventory),
            capacity.clone(),
            commands.clone(),
            module.clone(),
        ])
        .unwrap();
        let controllers = NodeControllers::default();
        controllers.bind(&registry);
        commands.bind(&registry);
        let bench = Bench::new(&[&*capacity, &*commands, &*module, &controllers]);
        for name in nodes {
            bench.node(name, 4000, 4 * GIB);
        }
        let phase: RefCell<Box<Answer>> = RefCell::new(Box::new(|_| InstancePhase::Healthy));
        Self { bench, module, _registry: registry, phase }
    }

    /// What agents will say of an instance that is wanted up, by its name.
    fn answer(&self, phase: impl Fn(&str) -> InstancePhase + 'static) {
        *self.phase.borrow_mut() = Box::new(phase);
    }

    fn call(&self, method: &str, input: Value) -> Result<Value> {
        self.call_as(method, input, false, None)
    }

    fn call_as(
        &self,
        method: &str,
        input: Value,
        dry_run: bool,
        if_match: Option<u64>,
    ) -> Result<Value> {
        let method = self
            .module
            .methods()
            .into_iter()
            .find(|m| m.full_name() == method)
            .expect("a method of this name");
        let cx = MethodContext {
            context: self.bench.context.clone(),
            principal: Principal {
                name: "token/test".to_owned(),
                roles: vec![],
                tenant: String::new(),
            },
            request_id: "test".to_owned(),
            dry_run,
            if_match,
        };
        match method.handler {
            Handler::Query(run) => run(&cx, &self.bench.view(), input),
            Handler::Mutation(run) => {
                let mut tx = Tx::new(self.bench.view());
                let answer = run(&cx, &mut tx, input)?;
                if !dry_run && !tx.is_empty() {
                    let outcome = self.bench.store.apply(tx.build()?.into()).unwrap();
                    assert!(matches!(outcome.verdict, Some(Verdict::Applied(_))), "{outcome:?}");
                }
                Ok(answer)
            }
            Handler::Read(_) | Handler::Stream(_) | Handler::Action(_) => {
                Err(Error::internal("streams are tested elsewhere"))
            }
        }
    }

    fn apply(&self, spec: Value) -> Value {
        let mut input = spec;
        input["workload"] = input["name"].clone();
        self.call("workloads.apply", input).unwrap()
    }

    fn node_id(&self, name: &str) -> NodeId {
        let nodes = self.bench.context.ports.nodes.get().unwrap();
        nodes.find(&self.bench.view(), name).unwrap().expect("a node of this name").id
    }

    fn told(&self, node: &str) -> NodeSpecRecord {
        let id = self.node_id(node).key();
        NODE_SPECS.get(&self.bench.view(), &id).unwrap().map(|r| r.value).unwrap_or_default()
    }

    /// A node's agent does what it is told and reports; whether that was news.
    fn report(&self, node: &str) -> bool {
        let told = self.told(node);
        let instances = told.spec.instances.values().map(|spec| InstanceStatus {
            id: spec.id.clone(),
            phase: match spec.wanted {
                Wanted::Up => self.phase.borrow()(&spec.name),
                Wanted::Offline => InstancePhase::Stopped,
            },
            pid: 1,
            started_at_ms: 1,
            restarts: 0,
            last_exit: None,
            message: String::new(),
            code: String::new(),
            spec_version: spec.spec_version,
        });
        let status = NodeStatus {
            generation: told.generation,
            instances: instances.collect(),
            conditions: vec![],
        };
        self.report_as(node, &status)
    }

    fn report_as(&self, node: &str, status: &NodeStatus) -> bool {
        let handler = self.module.status_handlers().remove(0);
        let mut tx = Tx::new(self.bench.view());
        let id = self.node_id(node);
        (handler.handle)(&self.bench.context, &mut tx, &id, status).unwrap();
        if tx.is_empty() {
            return false;
        }
        let outcome = self.bench.store.apply(tx.build().unwrap().into()).unwrap();
        assert!(outcome.is_applied(), "{outcome:?}");
        true
    }

    /// Lets everything happen until nothing does any more, agents of `nodes` included.
    fn settle(&self, nodes: &[&str]) {
        for _ in 0..200 {
            let ran = self.bench.settle();
            let news = nodes.iter().filter(|node| self.report(node)).count();
            if ran == 0 && news == 0 {
                return;
            }
        }
        panic!("the world never settles");
    }

    fn workload(&self, name: &str) -> Value {
        self.call("workloads.get", json!({ "workload": name })).unwrap()
    }

    fn phase(&self, name: &str) -> String {
        self.workload(name)["status"]["phase"].as_str().unwrap().to_owned()
    }

    fn instances(&self) -> Vec<Value> {
        let list = self.call("instances.list", json!({})).unwrap();
        list.as_array().unwrap().clone()
    }

    /// Instances by name: their node and phase.
    fn shown(&self) -> BTreeMap<String, (String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        self.instances()
            .iter()
            .map(|i| (text(&i["name"]), (text(&i["nodeName"]), text(&i["status"]["phase"]))))
            .collect()
    }

    fn names(&self) -> Vec<String> {
        self.shown().into_keys().collect()
    }

    /// Healthy instances that count.
    fn ready(&self) -> usize {
        let rows = INSTANCES.all(&self.bench.view()).unwrap();
        rows.iter().filter(|(_, row)| row.value.is_ready()).count()
    }

    fn count(&self, table: &str) -> usize {
        self.bench.view().count(table)
    }

    fn books_balance(&self) {
        let found = CapacityModule.self_check(&self.bench.context, &self.bench.view()).unwrap();
        assert!(found.is_empty(), "{found:?}");
    }

    fn events(&self) -> Vec<String> {
        let view = self.bench.view();
        let kinds: Vec<String> = view.events(1).map(|(_, e)| e.kind.to_string()).collect();
        kinds
    }
}

/// A small web server, so many times.
fn web(count: u32) -> Value {
    json!({
        "name": "web",
        "count": count,
        "task": { "command": ["server"], "args": ["--port", "$PORT"] },
        "ports": [{ "name": "http" }],
        "resources": { "cpumem": { "cpu-request": 0.5, "memory-request": "256MB" } },
        "health": { "http": { "port": "http", "path": "/health" }, "interval": "1s" },
    })
}

fn with(mut spec: Value, changes: &Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}
