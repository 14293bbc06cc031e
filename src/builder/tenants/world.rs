//! All built-in modules of a replica on a kernel in memory, with things of two tenants in it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::{executor::block_on, future::ready};
use palisade_api::{
    GatewayOptions, LocalApi, LocalOptions,
    envelope::{CallOptions, Caller, Reply},
    pki::{Authority, Identity},
};
use palisade_audit::key::ClusterSeal;
use palisade_contract::{
    CommandRequest, Context, NodeId, Principal, ReconcileContext, Registry, Result, SessionId,
    When,
    life::Running,
    module::Run,
    node::{HostFacts, NodeSession, NodeStatus},
    node_spec::NODE_SPECS,
    ports::{Credential, JoinRequest},
};
use palisade_modules::Assembled;
use palisade_scheduler::migrate;
use palisade_secrets::keyring::KeyRing;
use palisade_state::{
    Role, Runtime, Store, View,
    command::{FenceCheck, Finish, Kind, WorkerBeat},
    memory::MemoryStore,
    shard::shard_of,
    step::StepRuntime,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    super::{Builder, Settings},
    past::Still,
};

pub const VICTIM: &str = "victim-corp";
pub const INTRUDER: &str = "intruder";

/// See the module.
pub struct World {
    pub store: Arc<MemoryStore>,
    pub registry: Registry,
    api: LocalApi,
    cx: Context,
    rt: Arc<StepRuntime>,
    tokens: u8,
    _running: Running,
    _keys: tempfile::TempDir,
}

/// What there is of a tenant.
pub struct Things {
    pub workload: String,
    pub instances: Vec<Value>,
    pub api_token: String,
    pub join_token: String,
    pub node: String,
    pub command: String,
    pub approval: String,
    /// Of whoever is in its tenant, by role.
    pub credentials: BTreeMap<&'static str, Caller>,
}

/// What was answered.
pub type Answered = Result<Value>;

fn secret(n: u8) -> ([u8; 32], String) {
    ([n; 32], hex::encode(Sha256::digest([n; 32])))
}

/// Somebody of this process.
pub fn somebody(role: &str, tenant: &str) -> Caller {
    let name = format!("internal/{role}");
    Caller::Internal(Principal { name, roles: vec![role.to_owned()], tenant: tenant.to_owned() })
}

pub fn admin() -> Caller {
    somebody("cluster-admin", "")
}

impl World {
    pub fn new() -> Self {
        let settings =
            Settings { bootstrap: None, node_lost: Duration::from_secs(30), backups: None };
        let Assembled { registry, server } = Builder::new().assemble(settings).unwrap();
        let (store, rt) = (Arc::new(MemoryStore::default()), StepRuntime::new(7));
        let cx = Context::new(rt.clone(), store.clone()).with_tables(&registry);
        cx.ports.history.fill(Arc::new(Still(store.clone()))).unwrap();
        let seal = ClusterSeal::derive(b"canary-of-the-ca", "memory").unwrap();
        cx.ports.seal.fill(Arc::new(seal)).unwrap();
        let keys = tempfile::tempdir().unwrap();
        let nobody: palisade_secrets::keyring::Ask = Arc::new(|| Box::pin(ready(vec![])));
        let ring = KeyRing::open(keys.path().to_owned(), nobody).unwrap();
        cx.ports.secret_keys.fill(Arc::new(ring)).unwrap();
        let running = block_on(Running::start(&registry, &cx)).unwrap();
        block_on(migrate::run(&cx, &registry)).unwrap();
        let authority = Arc::new(Authority::create("memory", rt.wall_ms()).unwrap());
        let issued = authority.issue_replica(1, &["127.0.0.1:0".to_owned()], rt.wall_ms());
        let api = LocalApi::start(LocalOptions {
            authority,
            identity: Identity::try_from(&issued.unwrap()).unwrap(),
            registry: registry.clone(),
            server_module: server,
            context: cx.clone(),
            gateway: GatewayOptions { heartbeat: Duration::from_secs(5) },
            own_address: "replica-1:2".to_owned(),
        });
        let api = api.unwrap();
        let world =
            Self { store, registry, api, cx, rt, tokens: 0, _running: running, _keys: keys };
        world.beat();
        world.keys();
        world
    }

    /// The first key of secrets, which comes by itself where tasks run.
    fn keys(&self) {
        for _ in 0..3 {
            block_on(palisade_secrets::look(&self.cx)).unwrap();
            self.settle();
        }
    }

    fn beat(&self) {
        for role in [Role::Controllers, Role::Scheduler] {
            let beat = WorkerBeat {
                worker: "1".to_owned(),
                incarnation: 1,
                role: role.into(),
                singletons: vec![],
                draining: false,
                sharded: true,
            };
            assert!(self.store.apply(Kind::WorkerBeat(beat).into()).unwrap().is_applied());
        }
    }

    pub fn view(&self) -> View {
        self.store.view()
    }

    /// Calls a method through the envelope.
    pub fn call(&self, caller: &Caller, method: &str, input: &Value, dry_run: bool) -> Answered {
        self.call_with(caller, method, input, CallOptions { dry_run, ..CallOptions::default() })
    }

    /// The same of the state as it was.
    pub fn call_past(&self, caller: &Caller, method: &str, input: &Value) -> Answered {
        let at = Some(When::Revision(self.view().revision()));
        self.call_with(caller, method, input, CallOptions { at, ..CallOptions::default() })
    }

    /// Calls a method; whether the call was held.
    pub fn answer(
        &self,
        caller: &Caller,
        method: &str,
        input: &Value,
        options: CallOptions,
    ) -> Result<(Value, bool)> {
        let called = self.api.envelope().call(method, input.clone(), caller.clone(), options);
        let answer = block_on(called)?;
        match answer.reply {
            Reply::Json(value) => Ok((value, answer.held)),
            Reply::Stream(_) => Ok((json!("a stream"), answer.held)),
        }
    }

    fn call_with(
        &self,
        caller: &Caller,
        method: &str,
        input: &Value,
        options: CallOptions,
    ) -> Answered {
        Ok(self.answer(caller, method, input, options)?.0)
    }

    pub fn done(&self, caller: &Caller, method: &str, input: &Value) -> Value {
        self.call(caller, method, input, false).unwrap()
    }

    fn secret(&mut self) -> ([u8; 32], String) {
        self.tokens += 1;
        secret(self.tokens)
    }

    /// A node that is ready, of a tenant or of the cluster; its id and its join token's.
    pub fn node(&mut self, name: &str, tenant: &str) -> (String, String) {
        let (secret, hash) = self.secret();
        let mut input = json!({"secretSha256": hash});
        if !tenant.is_empty() {
            input["tenant"] = json!(tenant);
        }
        let made = self.done(&admin(), "joinTokens.create", &input);
        let token = made["id"].as_str().unwrap().to_owned();
        let facts = HostFacts {
            hostname: format!("{name}.canary.test"),
            offered_cpu_milli: 2000,
            offered_memory_bytes: 1 << 30,
            drivers: vec!["process".to_owned()],
            port_first: 20_000,
            port_last: 20_099,
            address: format!("{name}.test"),
            ..HostFacts::default()
        };
        let request = JoinRequest {
            token: format!("palj1.{token}.{}", URL_SAFE_NO_PAD.encode(secret)),
            key: hex::encode(Sha256::digest(name)),
            name: name.to_owned(),
            facts: facts.clone(),
            agent_version: "1".to_owned(),
        };
        let (id, _) = block_on(self.api.join(&request)).unwrap();
        self.open(&id, &facts);
        (id.key(), token)
    }

    fn open(&self, id: &NodeId, facts: &HostFacts) {
        let nodes = self.cx.ports.nodes.get().unwrap();
        let session = NodeSession {
            id: SessionId::mint(&*self.rt),
            replica: 1,
            agent_incarnation: "1".to_owned(),
        };
        block_on(self.cx.commit(|tx| nodes.session_opened(tx, id, &session, facts, "1"))).unwrap();
    }

    /// An API token bound to a tenant, and its id.
    pub fn token(&mut self, name: &str, role: &str, tenant: &str) -> (Caller, String) {
        let (secret, hash) = self.secret();
        let input = json!({
            "secretSha256": hash, "name": name, "roles": [role], "tenant": tenant,
        });
        let made = self.done(&admin(), "apiTokens.create", &input);
        let id = made["id"].as_str().unwrap().to_owned();
        let text = format!("pal_{id}_{}", URL_SAFE_NO_PAD.encode(secret));
        (Caller::Credential(Credential::Token(text)), id)
    }

    /// An API token of a principal, and its id.
    pub fn principals_token(&mut self, principal: &str) -> (Caller, String) {
        let (secret, hash) = self.secret();
        let input = json!({"secretSha256": hash, "name": principal, "principal": principal});
        let made = self.done(&admin(), "apiTokens.create", &input);
        let id = made["id"].as_str().unwrap().to_owned();
        let text = format!("pal_{id}_{}", URL_SAFE_NO_PAD.encode(secret));
        (Caller::Credential(Credential::Token(text)), id)
    }

    /// A tenant with a node, a workload that runs, and people.
    pub fn tenant(&mut self, tenant: &str, node: &str, workload: &str) -> Things {
        self.done(&admin(), "tenants.create", &json!({ "name": tenant }));
        let (node, join_token) = self.node(node, tenant);
        let mut credentials = BTreeMap::new();
        let mut api_token = String::new();
        for role in ["viewer", "operator", "tenant-admin"] {
            let (caller, id) = self.token(&format!("{workload}-{role}"), role, tenant);
            credentials.insert(role, caller);
            api_token = id;
        }
        let principal = format!("{workload}-bot");
        self.done(&admin(), "principals.create", &json!({"name": principal, "tenant": tenant}));
        let bound = json!({"principal": principal, "role": "operator"});
        self.done(&admin(), "roleBindings.create", &bound);
        let (bot, _) = self.principals_token(&principal);
        credentials.insert("principal", bot);
        let secret = json!({
            "secret": format!("{workload}-password"), "tenant": tenant,
            "value": format!("canary-secret-of-{workload}"),
        });
        self.done(&admin(), "secrets.set", &secret);
        let pager = json!({
            "name": format!("{workload}-pager"), "tenant": tenant, "url": format!("https://{workload}.test/"),
            "secretRef": format!("{workload}-hook"),
        });
        let hook = json!({
            "secret": format!("{workload}-hook"), "tenant": tenant, "value": format!("whsec_{}", "B".repeat(32)),
        });
        self.done(&admin(), "secrets.set", &hook);
        self.done(&admin(), "subscriptions.create", &pager);
        let spec = json!({
            "workload": workload, "name": workload, "tenant": tenant, "count": 2,
            "task": {
                "command": [format!("/opt/canary/{workload}")],
                "env": {"PASSWORD": format!("canary-password-of-{workload}")},
            },
        });
        let made = self.done(&admin(), "workloads.apply", &spec);
        self.settle();
        let of_it = json!({"tenant": tenant, "workload": workload});
        let instances = self.done(&admin(), "instances.list", &of_it);
        let instances = instances["items"].as_array().unwrap().clone();
        assert!(instances.len() == 2 && instances.iter().all(|one| one["nodeName"] != ""));
        let workload = made["id"].as_str().unwrap().to_owned();
        let command = self.command(&node, tenant);
        let approval = self.approval(&credentials["operator"], &principal);
        Things { workload, instances, api_token, join_token, node, command, approval, credentials }
    }

    /// Something of a tenant's that waits for approval, under a policy of its own.
    fn approval(&self, operator: &Caller, name: &str) -> String {
        let secret = name.replace("-bot", "-password");
        let calls = json!([{"method": "secrets.remove", "input": {"secret": secret}}]);
        let reason = format!("canary-reason-of-{name}");
        let asked = json!({"calls": calls, "required": 1, "reason": reason});
        let held = self.done(operator, "approvals.create", &asked);
        assert_eq!(held["state"], "held");
        let policy = json!({"tenant": held["tenant"], "mode": "on", "kinds": ["nodes.remove"]});
        self.done(&admin(), "approvalPolicies.set", &policy);
        held["id"].as_str().unwrap().to_owned()
    }

    /// A command of a tenant's to a node, that waits for its agent.
    fn command(&self, node: &str, tenant: &str) -> String {
        let commands = self.cx.ports.commands.get().unwrap();
        let node = NodeId::parse(node).unwrap();
        let ping = CommandRequest::new(&node, "agent.ping", json!({}), format!("by-{tenant}"));
        let ping = ping.of_tenant(tenant);
        let mut id = String::new();
        block_on(self.cx.commit(|tx| {
            id = commands.enqueue(&self.cx, tx, &ping)?.id.key();
            Ok(())
        }))
        .unwrap();
        id
    }

    /// Lets time pass, in which nothing is asked for but what is due.
    pub fn pass(&self, time: Duration) {
        for _ in 0..time.as_secs().div_ceil(3) {
            self.store.advance(3000);
            self.beat();
        }
    }

    /// The ids of all nodes that are there.
    pub fn nodes(&self) -> Vec<NodeId> {
        let nodes = self.cx.ports.nodes.get().unwrap().list(&self.view()).unwrap();
        nodes.into_iter().filter(|node| node.session.is_some()).map(|node| node.id).collect()
    }

    /// The generation of a node's spec.
    pub fn generation(&self, node: &NodeId) -> u64 {
        let stored = NODE_SPECS.get(&self.view(), &node.key()).unwrap();
        stored.map_or(0, |stored| stored.value.generation)
    }

    /// An agent's report is taken in.
    pub fn report(&self, node: &NodeId, status: &NodeStatus) {
        for handler in self.registry.status_handlers() {
            block_on(self.cx.commit(|tx| (handler.handle)(&self.cx, tx, node, status))).unwrap();
        }
    }

    /// Runs the reconcilers until none has anything to do.
    pub fn settle(&self) {
        for _ in 0..100 {
            let view = self.view();
            let now_ms = view.clock().now_ms;
            let due: Vec<Finish> = view
                .all_work()
                .filter(|(_, row)| row.due_ms <= now_ms)
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
        let reconcilers = self.registry.reconcilers();
        let Some(reconciler) = reconcilers.iter().find(|one| one.name() == work.kind) else {
            panic!("nobody does {}", work.kind)
        };
        let (shard, key) = (shard_of(&work.key), work.key.clone());
        let name = reconciler.role().shard_lease(shard);
        let lease = self.view().lease(&name).cloned().unwrap();
        let check = FenceCheck {
            lease: name,
            worker: lease.owner.to_string(),
            incarnation: lease.incarnation,
            fence: Some(lease.fence.into()),
        };
        let cx = ReconcileContext::new(self.cx.clone(), check, shard, work, None);
        let run = block_on(reconciler.run(&cx, &key)).unwrap();
        if cx.is_finished() {
            return;
        }
        match run {
            Run::Done => block_on(cx.finish(|_| Ok(()))).map(drop).unwrap(),
            Run::Again => block_on(cx.put_off(0, "")).map(drop).unwrap(),
            Run::After(_) => block_on(cx.put_off(60_000, "")).map(drop).unwrap(),
        }
    }

    /// The rows of all tables, as text.
    pub fn rows(&self) -> Vec<String> {
        let (view, mut all) = (self.view(), vec![]);
        for (table, _) in view.tables() {
            all.extend(view.rows(table, &[], None).map(|(key, record)| {
                let [key, value] = [&key[..], record.value()].map(String::from_utf8_lossy);
                format!("{table} {key} {value}")
            }));
        }
        all
    }

    /// All that there is but the audit chain: each row with its stamps, the work, and the number of events.
    pub fn state(&self) -> Vec<String> {
        let view = self.view();
        let mut all = vec![format!("{} events", view.last_event())];
        for (table, _) in view.tables() {
            let rows = view.rows(table, &[], None);
            all.extend(rows.map(|(key, record)| {
                format!("{table} {key:?} {:?} {:?}", record.stamp(), record.value())
            }));
        }
        all.extend(view.all_work().map(|(key, row)| format!("{key:?} {row:?}")));
        all
    }
}
