//! See `mod.rs`.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::executor::block_on;
use palisade_commands::CommandsModule;
use palisade_contract::{
    Catalog, Check, CommandKind, CommandRequest, Context, Error, Finding, Method, MethodContext,
    Module, NodeId, Nothing, Principal, Problems, ReconcileContext, Registry, Resource, Result,
    approvals::{Asked, BatchRequest, Scoped, whose},
    command::Command,
    method::Handler,
    module::Run,
    node::{HostFacts, Node, NodePhase},
};
use palisade_iam::Iam;
use palisade_state::{
    Declared, Role, Store, Table, Tx, View,
    command::{FenceCheck, Finish, Kind, WorkerBeat},
    memory::MemoryStore,
    shard::shard_of,
    step::StepRuntime,
};
use palisade_tenancy::Tenancy;
use palisade_testing::FakeNodes;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{QuorumModule, records::BATCHES};

/// Things by `<tenant>/<name>`; the value is what removing them does: `ok`, or `stuck`.
pub const THINGS: Table<String, String> = Table::new("things", &[]);

#[derive(Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneThing {
    thing: String,
    #[serde(default)]
    tenant: String,
}

impl Check for OneThing {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.thing.is_empty() {
            problems.add(format!("{at}/thing"), "must not be empty");
        }
    }
}

struct Inventory;

impl Module for Inventory {
    fn name(&self) -> &'static str {
        "inventory"
    }
}

/// Has things.
struct Things;

fn remove(cx: &MethodContext, tx: &mut Tx, input: OneThing) -> Result<Value> {
    let key = format!("{}/{}", input.tenant, input.thing);
    let found = tx.get_versioned(&THINGS, &key)?;
    let found = found.ok_or_else(|| Error::not_found("thing", &input.thing))?;
    cx.check_if_match(found.stamp.modified_rev)?;
    if found.value == "stuck" {
        return Err(Error::new(palisade_contract::Code::InvalidState, "it is stuck"));
    }
    tx.delete(&THINGS, &key)?;
    let by = json!({ "by": cx.principal.name });
    tx.publish("thing.removed", &input.tenant, format!("thing/{}", input.thing), &by);
    Ok(json!({}))
}

impl Module for Things {
    fn name(&self) -> &'static str {
        "things"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![THINGS.declared()]
    }

    fn catalog(&self) -> Catalog {
        Catalog { actions: vec!["compute:things:write"], resource_types: vec!["thing"] }
    }

    fn command_kinds(&self) -> Vec<CommandKind> {
        let second = Duration::from_secs(1);
        vec![
            CommandKind::new::<Nothing>("acme.reboot", "power", 30 * second),
            CommandKind::new::<Nothing>("acme.wipe", "power", 30 * second),
        ]
    }

    fn methods(&self) -> Vec<Method> {
        let on = |value: &Value| {
            let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
            Resource::of_tenant("thing", text("thing"), text("tenant"))
        };
        let action = "compute:things:write";
        let melt = |_: &MethodContext, tx: &mut Tx, input: OneThing| {
            tx.delete(&THINGS, &format!("{}/{}", input.tenant, input.thing))?;
            Ok(json!({}))
        };
        let polish = |_: &MethodContext, tx: &mut Tx, input: OneThing| {
            let key = format!("{}/{}", input.tenant, input.thing);
            let found = tx.get(&THINGS, &key)?;
            if found.is_some_and(|does| does == "stuck") {
                let of_it = format!("{}/{}-lock", input.tenant, input.thing);
                if tx.get(&THINGS, &of_it)?.is_some() {
                    return Err(Error::new(palisade_contract::Code::InvalidState, "it is locked"));
                }
            }
            tx.delete(&THINGS, &key)?;
            Ok(json!({}))
        };
        let look = |_: &MethodContext, _: &mut Tx, _: OneThing| Ok(json!({}));
        vec![
            Method::mutation("things", "remove", action, remove).destructive().on(on),
            Method::mutation("things", "paint", action, look).on(on),
            Method::mutation("things", "melt", action, melt).destructive().on(on),
            Method::mutation("things", "open", action, polish).destructive().on(on),
            Method::mutation("things", "burn", action, look)
                .secret(&["thing"])
                .destructive()
                .on(on),
        ]
    }
}

pub struct World {
    pub store: Arc<MemoryStore>,
    pub cx: Context,
    pub quorum: Arc<QuorumModule>,
    registry: Registry,
    pub node: NodeId,
}

pub fn admin() -> Principal {
    Principal {
        name: "user/admin".to_owned(),
        roles: vec!["cluster-admin".to_owned()],
        tenant: String::new(),
    }
}

fn node(rt: &dyn palisade_state::Runtime) -> Node {
    Node {
        id: NodeId::mint(rt),
        name: "node-1".to_owned(),
        pool: "default".to_owned(),
        tenant: String::new(),
        labels: std::collections::BTreeMap::new(),
        phase: NodePhase::Ready,
        schedulable: true,
        session: None,
        disconnected_at_ms: None,
        facts: HostFacts::default(),
        keys: vec![],
        joined_at_ms: 0,
        agent_version: String::new(),
    }
}

impl World {
    /// With a tenant `acme`, whose operators ada, bob, carol and dave were made by somebody else than each other.
    pub fn new() -> Self {
        let (iam, tenancy) = (Arc::new(Iam::new(None)), Arc::new(Tenancy::default()));
        let (commands, quorum) =
            (Arc::new(CommandsModule::default()), Arc::new(QuorumModule::default()));
        let modules: Vec<Arc<dyn Module>> = vec![
            Arc::new(Inventory),
            iam.clone(),
            tenancy.clone(),
            commands.clone(),
            quorum.clone(),
            Arc::new(Things),
        ];
        let registry = Registry::new(modules).unwrap();
        iam.bind(&registry);
        tenancy.bind(&registry);
        commands.bind(&registry);
        quorum.bind(&registry);
        let (store, rt) = (Arc::new(MemoryStore::default()), StepRuntime::new(7));
        let cx = Context::new(rt.clone(), store.clone()).with_tables(&registry);
        let nodes = Arc::new(FakeNodes::default());
        let node = node(&*rt);
        nodes.set(node.clone());
        cx.ports.nodes.fill(nodes).unwrap();
        for module in registry.modules() {
            block_on(module.start(&cx)).unwrap();
        }
        let world = Self { store, cx, quorum, registry, node: node.id };
        world.beat();
        world.call("tenants.create", &json!({"name": "acme"}));
        for name in ["ada", "bob", "carol", "dave"] {
            world.person(name, "operator");
        }
        world
    }

    /// Somebody of acme with a role.
    pub fn person(&self, name: &str, role: &str) {
        self.call("principals.create", &json!({"name": name, "tenant": "acme"}));
        let bound = json!({"principal": name, "role": role, "tenant": "acme"});
        self.call("roleBindings.create", &bound);
    }

    pub fn unbind(&self, name: &str) {
        let binding = format!("{name}.operator.acme");
        self.call("roleBindings.remove", &json!({"binding": binding, "tenant": "acme"}));
    }

    /// An API token of acme that stands for itself; the name of whoever comes with it.
    pub fn token(&self, maker: &str, name: &str, n: u8) -> String {
        let input = json!({
            "secretSha256": format!("{n:02x}").repeat(32), "name": name, "roles": ["operator"],
            "tenant": "acme",
        });
        let made = self.as_who(maker, "apiTokens.create", &input).unwrap();
        format!("token/{}", made["id"].as_str().unwrap())
    }

    fn beat(&self) {
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

    /// Lets time pass, and what is due be done.
    pub fn pass(&self, seconds: u64) {
        let mut left = seconds * 1000;
        while left > 0 {
            let step = left.min(3000);
            self.store.advance(step);
            self.beat();
            left -= step;
        }
        self.settle();
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

    pub fn who(&self, name: &str) -> Result<Principal> {
        if name == "admin" {
            return Ok(admin());
        }
        let name = if name.contains('/') { name.to_owned() } else { format!("user/{name}") };
        self.cx.ports.access.get().unwrap().standing(&mut Tx::new(self.view()), &name)
    }

    /// Calls a method as an admin.
    #[track_caller]
    pub fn call(&self, method: &str, input: &Value) -> Value {
        self.as_who("admin", method, input).unwrap()
    }

    pub fn as_who(&self, name: &str, method: &str, input: &Value) -> Result<Value> {
        self.if_match(name, method, input, None)
    }

    /// Calls a method as the envelope does.
    pub fn if_match(
        &self,
        name: &str,
        method: &str,
        input: &Value,
        if_match: Option<u64>,
    ) -> Result<Value> {
        let (found, cx, input) = self.call_of(name, method, input, if_match)?;
        match &found.handler {
            Handler::Query(run) => run(&cx, &self.view(), input),
            Handler::Mutation(run) => self.commit(|tx| {
                cx.context.ports.tenant_writable(tx, &cx.principal.tenant)?;
                run(&cx, tx, input.clone())
            }),
            _ => panic!("{method} is neither a query nor a mutation"),
        }
    }

    /// What is held of a destructive call, as the envelope does; `None`: it was made.
    pub fn held(&self, name: &str, method: &str, input: &Value) -> Option<Value> {
        let (found, cx, input) = self.call_of(name, method, input, None).unwrap();
        let Handler::Mutation(run) = &found.handler else { panic!("{method} is no mutation") };
        let approvals = self.cx.ports.approvals.get().unwrap();
        let about = (found.resource)(&input);
        let made = |tx: &mut Tx| {
            let tried = tx.attempt(|tx| {
                run(&cx, tx, input.clone()).unwrap();
                let tenant = whose(tx, &about);
                let asked = Asked { method: &found, input: &input, tenant: &tenant };
                if approvals.asks(&cx, tx, asked).unwrap() { Err(tenant) } else { Ok(()) }
            });
            let Err(tenant) = tried else { return Ok(None) };
            let asked = Asked { method: &found, input: &input, tenant: &tenant };
            approvals.hold(&cx, tx, asked).map(Some)
        };
        self.commit(made).unwrap()
    }

    fn call_of(
        &self,
        name: &str,
        method: &str,
        input: &Value,
        if_match: Option<u64>,
    ) -> Result<(Method, MethodContext, Value)> {
        let who = self.who(name)?;
        let mut input = input.clone();
        let all = self.registry.methods();
        let found = all.into_iter().find(|(one, _)| one.full_name() == method);
        let (found, _) = found.unwrap_or_else(|| panic!("no method {method}"));
        let takes = palisade_contract::fields::names(&found).contains("tenant");
        if takes && !who.tenant.is_empty() && input.get("tenant").is_none() {
            input["tenant"] = json!(who.tenant);
        }
        (found.validate)(&input)?;
        let access = self.cx.ports.access.get().unwrap();
        access.authorize(&self.view(), &who, &found.action, &(found.resource)(&input))?;
        let cx = MethodContext {
            context: self.cx.clone(),
            principal: who,
            request_id: "req_1".to_owned(),
            dry_run: false,
            if_match,
        };
        Ok((found, cx, input))
    }

    pub fn policy(&self, thresholds: &[(u32, u32)]) {
        let thresholds: Vec<Value> = thresholds
            .iter()
            .map(|(size, required)| json!({"size": size, "required": required}))
            .collect();
        let input = json!({"tenant": "acme", "mode": "on", "thresholds": thresholds});
        self.call("approvalPolicies.set", &input);
    }

    pub fn thing(&self, name: &str, does: &str) {
        let key = format!("acme/{name}");
        self.commit(|tx| Ok(tx.put(&THINGS, &key, &does.to_owned())?)).unwrap();
    }

    pub fn has(&self, name: &str) -> bool {
        THINGS.get(&self.view(), &format!("acme/{name}")).unwrap().is_some()
    }

    /// Asks for the removal of things.
    pub fn ask(&self, who: &str, things: &[&str]) -> Result<Value> {
        let one = |thing: &&str| json!({"method": "things.remove", "input": {"thing": thing}});
        let calls: Vec<Value> = things.iter().map(one).collect();
        let input = json!({"tenant": "acme", "calls": calls, "reason": "they are old"});
        self.as_who(who, "approvals.create", &input)
    }

    /// The things are there, and somebody has asked for their removal; its id.
    pub fn asked(&self, who: &str, things: &[&str]) -> String {
        for thing in things {
            self.thing(thing, "ok");
        }
        self.ask(who, things).unwrap()["id"].as_str().unwrap().to_owned()
    }

    pub fn approve(&self, who: &str, id: &str) -> Result<Value> {
        let digest = self.get(id)["digest"].clone();
        self.as_who(who, "approvals.approve", &json!({"approval": id, "digest": digest}))
    }

    pub fn get(&self, id: &str) -> Value {
        self.call("approvals.get", &json!({ "approval": id }))
    }

    pub fn state(&self, id: &str) -> String {
        self.get(id)["state"].as_str().unwrap().to_owned()
    }

    pub fn why(&self, id: &str) -> String {
        self.get(id)["ended"]["why"].as_str().unwrap_or_default().to_owned()
    }

    /// A batch for commands of acme to the node.
    pub fn batch(&self, kinds: &[&str]) -> Result<palisade_contract::approvals::Batch> {
        let scope = |kind: &&str| Scoped {
            subject: format!("node/{}", self.node),
            kind: (*kind).to_owned(),
        };
        let request = BatchRequest {
            tenant: "acme".to_owned(),
            scope: kinds.iter().map(scope).collect(),
            reason: String::new(),
            not_after: None,
            created_by: self.who("ada").unwrap(),
        };
        let port = self.cx.ports.approvals.get().unwrap();
        self.commit(|tx| port.create_batch(&self.cx, tx, &request))
    }

    pub fn put_in(&self, batch: &str, kind: &str, key: &str) -> Result<Command> {
        let request = CommandRequest::new(&self.node, kind, json!({}), key).of_tenant("acme");
        let request = CommandRequest { batch: Some(batch.to_owned()), ..request };
        let port = self.cx.ports.commands.get().unwrap();
        self.commit(|tx| port.enqueue(&self.cx, tx, &request))
    }

    pub fn command_state(&self, command: &Command) -> &'static str {
        let port = self.cx.ports.commands.get().unwrap();
        port.by_key(&self.view(), &self.node, &command.key).unwrap().unwrap().state.word()
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.quorum.self_check(&self.cx, &self.view()).unwrap()
    }

    pub fn events(&self, of: &str) -> Vec<String> {
        let view = self.view();
        let all = view.events(0).filter(|(_, event)| &*event.subject == of);
        all.map(|(_, event)| event.kind.to_string()).collect()
    }

    pub fn batches(&self) -> usize {
        self.view().count(BATCHES.name())
    }

    /// The kinds of what is found.
    pub fn found(&self) -> BTreeSet<String> {
        self.findings().into_iter().map(|finding| finding.check).collect()
    }

    pub fn settle(&self) {
        for _ in 0..100 {
            let view = self.view();
            let now_ms = view.clock().now_ms;
            let due: Vec<Finish> = view
                .all_work()
                .filter(|((kind, _), row)| row.due_ms <= now_ms && ***kind == *crate::EXPIRY_KIND)
                .map(|((kind, key), row)| Finish {
                    kind: kind.to_string(),
                    key: key.to_string(),
                    generation: row.generation,
                })
                .collect();
            if due.is_empty() {
                return;
            }
            due.into_iter().for_each(|work| self.run(work));
        }
        panic!("the reconcilers never settle");
    }

    fn run(&self, work: Finish) {
        let reconcilers = self.quorum.reconcilers();
        let (reconciler, key) = (&reconcilers[0], work.key.clone());
        let name = reconciler.role().shard_lease(shard_of(&key));
        let lease = self.view().lease(&name).cloned().unwrap();
        let check = FenceCheck {
            lease: name,
            worker: lease.owner.to_string(),
            incarnation: lease.incarnation,
            fence: Some(lease.fence.into()),
        };
        let cx = ReconcileContext::new(self.cx.clone(), check, shard_of(&key), work, None);
        match block_on(reconciler.run(&cx, &key)).unwrap() {
            Run::Done => block_on(cx.finish(|_| Ok(()))).map(drop).unwrap(),
            Run::Again => block_on(cx.put_off(0, "")).map(drop).unwrap(),
            Run::After(wait) => {
                let ms = u64::try_from(wait.as_millis()).unwrap();
                block_on(cx.put_off(ms, "")).map(drop).unwrap();
            }
        }
    }
}
