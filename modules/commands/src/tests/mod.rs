//! The module on a bench: the kernel in memory, nodes out of thin air, and agents that say what the test says.

mod delivery;
mod methods;
mod sending;
mod sweeping;
mod table;
mod walk;

use std::{sync::Arc, time::Duration};

use futures::{executor::block_on, future::BoxFuture};
use palisade_contract::{
    Check, Code, CommandId, CommandKind, CommandRequest, CommandResult, CommandState, Context,
    Error, MethodContext, Module, NodeId, Problems, ReconcileContext, Reconciler, Registry, Result,
    SessionId, ShardBy,
    approvals::{Approvals, Asked, Batch, BatchRequest},
    command::{Answer, Command, Commands, Deliveries},
    module::Run,
};
use palisade_state::{Fence, Tx};
use palisade_testing::Bench;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{CommandsModule, Port, rows};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Paint {
    color: String,
}

impl Check for Paint {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.color == "beige" {
            problems.add(format!("{at}/color"), "must be a color");
        }
    }
}

/// Stands for the module that the others require.
struct Inventory;

impl Module for Inventory {
    fn name(&self) -> &'static str {
        "inventory"
    }
}

/// Sends commands, and waits for them.
struct Acme;

struct Widgets;

impl Reconciler for Widgets {
    fn name(&self) -> &'static str {
        "acme.widgets"
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn run<'a>(&'a self, _: &'a ReconcileContext, _: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(std::future::ready(Ok(Run::Done)))
    }
}

impl Module for Acme {
    fn name(&self) -> &'static str {
        "acme"
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(Widgets)]
    }

    fn command_kinds(&self) -> Vec<CommandKind> {
        let second = Duration::from_secs(1);
        vec![
            CommandKind::new::<Paint>("acme.paint", "paint", 30 * second),
            CommandKind::new::<Paint>("acme.varnish", "paint", 30 * second),
            CommandKind::new::<Paint>("acme.look", "look", 5 * second).retry_safe(),
            CommandKind::new::<Paint>("acme.burn", "burn", 5 * second).roles(&["cluster-admin"]),
        ]
    }
}

/// Holds whatever is put in a batch.
struct Held;

impl Approvals for Held {
    fn create_batch(&self, _: &Context, _: &mut Tx, _: &BatchRequest) -> Result<Batch> {
        Err(Error::internal("batches are there already"))
    }

    fn admit(&self, _: &mut Tx, command: &Command) -> Result<bool> {
        match command.batch.as_deref() {
            Some("released") => Ok(false),
            Some("full") => Err(Error::new(Code::AccessDenied, "it is not in the scope")),
            _ => Ok(true),
        }
    }

    fn asks(&self, _: &MethodContext, _: &mut Tx, _: Asked<'_>) -> Result<bool> {
        Ok(false)
    }

    fn hold(&self, _: &MethodContext, _: &mut Tx, _: Asked<'_>) -> Result<Value> {
        Ok(Value::Null)
    }
}

/// For how long finished commands are kept here.
const KEPT_MS: u64 = 600_000;

struct World {
    bench: Bench,
    port: Arc<Port>,
    module: CommandsModule,
    node: NodeId,
}

fn session(n: u8) -> SessionId {
    SessionId::parse(&format!("ss_{n:026}")).unwrap()
}

fn fence(index: u64) -> Fence {
    Fence { epoch: 0, term: 0, index }
}

fn done() -> Answer {
    Answer::Succeeded(CommandResult::default())
}

fn paint(node: &NodeId, key: &str) -> CommandRequest {
    CommandRequest::new(node, "acme.paint", json!({"color": "red"}), key)
}

fn look(node: &NodeId, key: &str) -> CommandRequest {
    CommandRequest::new(node, "acme.look", json!({"color": "red"}), key)
}

impl World {
    fn new() -> Self {
        let module = CommandsModule { kept_ms: KEPT_MS, ..CommandsModule::default() };
        let registry = Registry::new(vec![
            Arc::new(Inventory),
            Arc::new(CommandsModule { port: module.port.clone(), kept_ms: KEPT_MS }),
            Arc::new(Acme),
        ])
        .unwrap();
        module.bind(&registry);
        let mut bench = Bench::new(&[&module]);
        bench.context = bench.context.clone().with_tables(&registry);
        bench.context.ports.approvals.fill(Arc::new(Held)).unwrap();
        let node = bench.node("node-1", 1000, 1 << 30);
        Self { bench, port: module.port.clone(), module, node }
    }

    fn context(&self) -> &Context {
        &self.bench.context
    }

    fn commit<T: Send>(&self, mut build: impl FnMut(&mut Tx) -> Result<T> + Send) -> Result<T> {
        let mut answer = None;
        block_on(self.context().commit(|tx| {
            answer = Some(build(tx)?);
            Ok(())
        }))?;
        Ok(answer.unwrap())
    }

    fn try_enqueue(&self, request: &CommandRequest) -> Result<Command> {
        self.commit(|tx| self.port.enqueue(self.context(), tx, request))
    }

    fn enqueue(&self, request: &CommandRequest) -> CommandId {
        self.try_enqueue(request).unwrap().id
    }

    fn send(&self, id: &CommandId, n: u8, index: u64) -> Option<Command> {
        self.send_as(id, n, index, false)
    }

    fn send_as(&self, id: &CommandId, n: u8, index: u64, unknown: bool) -> Option<Command> {
        let from = (self.node.clone(), session(n));
        let send = |tx: &mut Tx| self.port.send(tx, id, (&from.0, &from.1), fence(index), unknown);
        self.commit(send).unwrap()
    }

    fn answer(&self, id: &CommandId, answer: &Answer) {
        let from = (self.node.clone(), session(1));
        self.commit(|tx| self.port.answered(tx, id, (&from.0, &from.1), answer)).unwrap();
    }

    fn get(&self, id: &CommandId) -> Command {
        let found = rows::COMMANDS.by_index(&self.bench.view(), rows::BY_ID, id.as_str()).unwrap();
        found.into_iter().next().unwrap().1.value
    }

    fn state(&self, id: &CommandId) -> CommandState {
        self.get(id).state
    }

    fn code(&self, id: &CommandId) -> String {
        self.get(id).result.unwrap_or_default().code
    }

    fn due(&self) -> Vec<CommandId> {
        let due = self.port.due(&self.bench.view(), &self.node).unwrap();
        due.into_iter().map(|row| row.id).collect()
    }

    /// Work rows of one kind, by key.
    fn work(&self, kind: &str) -> Vec<String> {
        let view = self.bench.view();
        view.all_work()
            .filter(|((k, _), _)| &***k == kind)
            .map(|((_, key), _)| key.to_string())
            .collect()
    }

    /// Lets time pass, and the sweeper do what is due.
    fn pass(&self, ms: u64) {
        self.bench.advance(ms);
        self.bench.settle();
    }

    fn count(&self) -> usize {
        self.bench.view().count(rows::COMMANDS.name())
    }

    fn call(&self, name: &str, input: Value) -> Result<Value> {
        methods::call(self, name, input)
    }
}

fn detail(refused: Result<impl std::fmt::Debug>) -> String {
    let error: Error = refused.unwrap_err();
    error.detail
}
