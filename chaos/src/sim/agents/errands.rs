//! Errands: what a module has agents do once. A user asks for one by a name of its own; a reconciler sends it as a command
//! and writes down what became of it, which it learns only because it is woken (`CMD-6`). The machine that does it counts
//! what it does on its disk.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use palisade_agent::{
    commands::{Executor, Executors},
    driver::Problem,
};
use palisade_contract::{
    Catalog, Check, CommandKind, CommandRequest, Error, Method, MethodContext, Module, NodeId,
    ReconcileContext, Reconciler, Resource, Result, ShardBy, module::Run,
};
use palisade_state::{Declared, Table, Tx};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    super::{nodes::Life, runtime::world_sleep},
    driver::Rig,
};

/// The reconciler, and the table.
pub(crate) const ERRANDS: &str = "errands";
/// Done at most once.
pub(crate) const ONCE: &str = "errand.once";
/// May be done again when its end is not known.
pub(crate) const AGAIN: &str = "errand.again";
/// The agent ends with it.
pub(crate) const LAST: &str = "errand.last";
/// All of them.
pub(crate) const KINDS: [&str; 3] = [ONCE, AGAIN, LAST];

/// How long an agent has for one; some take longer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// For how long one may be sent.
const NOT_AFTER: Duration = Duration::from_secs(15);

/// What an agent is told.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ToDo {
    errand: String,
}

impl Check for ToDo {}

/// One errand that is asked for.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Asked {
    errand: String,
    kind: String,
    node: String,
}

/// Input of `errands.ask`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Ask {
    errands: Vec<Asked>,
}

impl Check for Ask {}

/// An errand as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ErrandRow {
    pub(crate) node: NodeId,
    pub(crate) kind: String,
    /// The commands that its one key has given.
    pub(crate) commands: BTreeSet<String>,
    /// What became of it, as its reconciler has seen.
    pub(crate) ended: Option<Ended>,
}

/// How one ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ended {
    pub(crate) state: String,
    pub(crate) code: String,
    pub(crate) data: Value,
}

static TABLE: Table<String, ErrandRow> = Table::new(ERRANDS, &[]);

fn ask(cx: &MethodContext, tx: &mut Tx, input: Ask) -> Result<Value> {
    let count = input.errands.len();
    for Asked { errand, kind, node } in input.errands {
        let found = cx.context.ports.nodes.get()?.find(tx.view(), &node)?;
        let node = found.ok_or_else(|| Error::not_found("node", &node))?.id;
        let row = ErrandRow { node, kind, commands: BTreeSet::new(), ended: None };
        tx.put(&TABLE, &errand, &row)?;
        tx.enqueue(ERRANDS, &errand)?;
    }
    Ok(json!({ "errands": count }))
}

struct Errands;

impl Reconciler for Errands {
    fn name(&self) -> &'static str {
        ERRANDS
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        async move {
            let key = key.to_owned();
            cx.commit(|tx| go(cx, tx, &key)).await?;
            Ok(Run::Done)
        }
        .boxed()
    }
}

/// Sends it, or looks at how it goes: the same key is the same command.
fn go(cx: &ReconcileContext, tx: &mut Tx, key: &String) -> Result<()> {
    let Some(before) = tx.get(&TABLE, key)?.filter(|row| row.ended.is_none()) else {
        return Ok(());
    };
    let todo = json!(ToDo { errand: key.clone() });
    let request =
        CommandRequest::new(&before.node, &before.kind, todo, format!("{ERRANDS}:{key}:go"))
            .not_after(NOT_AFTER);
    let command = cx.context.ports.commands.get()?.enqueue(&cx.context, tx, &request)?;
    let mut row = before.clone();
    row.commands.insert(command.id.to_string());
    if command.state.is_finished() {
        let result = command.result.unwrap_or_default();
        let state = command.state.word().to_owned();
        row.ended = Some(Ended { state, code: result.code, data: result.data });
    }
    if row != before {
        tx.put(&TABLE, key, &row)?;
    }
    Ok(())
}

struct ErrandsModule;

impl Module for ErrandsModule {
    fn name(&self) -> &'static str {
        ERRANDS
    }

    fn requires(&self) -> &[&'static str] {
        &["commands"]
    }

    fn tables(&self) -> Vec<Declared> {
        vec![TABLE.declared()]
    }

    fn methods(&self) -> Vec<Method> {
        let on = |_: &Value| Resource::of_tenant("errand", "", "");
        vec![Method::mutation("errands", "ask", "compute:errands:ask", ask).on(on)]
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(Errands)]
    }

    fn command_kinds(&self) -> Vec<CommandKind> {
        let kind = |name| CommandKind::new::<ToDo>(name, "errands", TIMEOUT);
        // Ends agents beside what else they do.
        let last = CommandKind::new::<ToDo>(LAST, "last-errands", TIMEOUT).self_terminating();
        vec![kind(ONCE), kind(AGAIN).retry_safe(), last]
    }

    fn catalog(&self) -> Catalog {
        Catalog { actions: vec!["compute:errands:ask"], resource_types: vec!["errand"] }
    }
}

/// The module.
pub(super) fn module() -> Arc<dyn Module> {
    Arc::new(ErrandsModule)
}

/// What a machine knows of an errand, on its disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// In which lives of the agent it was begun.
    pub(crate) begun: Vec<Life>,
    /// What was answered each time.
    pub(crate) said: Vec<std::result::Result<Value, String>>,
}

/// Who does errands on a machine.
pub(super) fn executors(rig: &Arc<Rig>) -> Executors {
    let mut all = Executors::default();
    for kind in KINDS {
        all.add(Arc::new(Doer { rig: rig.clone(), kind }));
    }
    all
}

struct Doer {
    rig: Arc<Rig>,
    kind: &'static str,
}

impl Executor for Doer {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn run(&self, payload: Value) -> BoxFuture<'static, std::result::Result<Value, Problem>> {
        let (rig, kind) = (self.rig.clone(), self.kind);
        async move {
            let todo: ToDo = serde_json::from_value(payload)
                .map_err(|error| Problem::new("INVALID_PAYLOAD", error.to_string()))?;
            rig.does(todo.errand, kind).await
        }
        .boxed()
    }
}

impl Rig {
    /// Does an errand, which takes its time.
    async fn does(
        &self,
        errand: String,
        kind: &'static str,
    ) -> std::result::Result<Value, Problem> {
        if self.is_gone() {
            return std::future::pending().await;
        }
        let (begun, takes, is_able) = self.begins(&errand, kind);
        if kind == LAST {
            let (fleet, machine) = (self.fleet.clone(), self.machine.clone());
            let ends = async move {
                world_sleep(takes).await;
                fleet.end_agent(&machine, Duration::from_millis(300));
            };
            self.fleet.nodes.spawn(0, ends.boxed());
            return std::future::pending().await;
        }
        world_sleep(takes).await;
        if self.is_gone() {
            return std::future::pending().await;
        }
        let said = if is_able {
            Ok(json!({ "errand": errand, "begun": begun }))
        } else {
            Err(Problem::new("UNABLE", "it could not be done"))
        };
        let noted = said.clone().map_err(|problem| problem.code);
        if let Some(done) = self.machine.state().errands.get_mut(&errand) {
            done.said.push(noted);
        }
        said
    }

    /// C2: what is not retry-safe begins once, for ever; what is, once in each life of an agent.
    pub(super) fn begins(&self, errand: &str, kind: &'static str) -> (usize, Duration, bool) {
        let (begun, last, takes, is_able) = {
            let mut state = self.machine.state();
            let millis = match state.random.below(20) {
                0 => state.random.within(2_500, 5_000),
                1..=5 => state.random.within(100, 2_000),
                _ => state.random.within(1, 40),
            };
            let is_able = state.random.below(8) > 0;
            let done = state.errands.entry(errand.to_owned()).or_default();
            let last = done.begun.last().copied();
            done.begun.push(self.life);
            (done.begun.len(), last, Duration::from_millis(millis), is_able)
        };
        let name = &self.machine.name;
        self.fleet.nodes.tell(|| format!("{name}: errand {errand} begins, {kind}, for {takes:?}"));
        self.fleet.nodes.note(&[15, self.machine.number, begun as u64]);
        if begun > 1 && (kind != AGAIN || last == Some(self.life)) {
            self.breach("C2", format!("errand {errand}, {kind}, begins for the {begun}. time"));
        }
        (begun, takes, is_able)
    }
}
