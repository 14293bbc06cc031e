//! A kernel in memory with the module on it, and a clock that stands until it is stepped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use futures::{executor::block_on, future::BoxFuture};
use palisade_contract::{
    Catalog, Context, MethodContext, Module, Principal, Registry, Resource, Result, fields,
    method::Handler, ports::Credential,
};
use palisade_state::{Runtime, Store, Tx, View, memory::MemoryStore};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{Bootstrap, Iam};

/// What can be done beside what the module does itself.
struct Others;

impl Module for Others {
    fn name(&self) -> &'static str {
        "others"
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec![
                "compute:cluster:backup",
                "compute:nodes:remove",
                "compute:workloads:scale",
                "compute:workloads:write",
            ],
            ..Catalog::default()
        }
    }
}

#[derive(Default)]
struct TestRuntime(AtomicU64);

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
        // What the one task does, tests do themselves.
        drop(task);
    }

    fn random(&self) -> u64 {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ n
    }
}

/// Whoever calls when nobody else is said to.
pub fn admin() -> Principal {
    Principal {
        name: "user/ada".into(),
        roles: vec!["cluster-admin".into()],
        tenant: String::new(),
    }
}

pub struct World {
    pub store: Arc<MemoryStore>,
    pub cx: Context,
    pub module: Iam,
}

pub fn secret(n: u8) -> [u8; 32] {
    [n; 32]
}

pub fn hash(n: u8) -> String {
    hex::encode(Sha256::digest(secret(n)))
}

pub fn text(id: &str, n: u8) -> String {
    format!("pal_{id}_{}", URL_SAFE_NO_PAD.encode(secret(n)))
}

impl World {
    /// With the first token `boot`, whose secret is `secret(1)`.
    pub fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let cx = Context::new(Arc::new(TestRuntime::default()), store.clone());
        let module = Iam::new(Bootstrap { token_id: "boot".into(), secret_sha256: hash(1) });
        let all: Vec<Arc<dyn Module>> = vec![Arc::new(Iam::new(None)), Arc::new(Others)];
        module.bind(&Registry::new(all).unwrap());
        block_on(module.start(&cx)).unwrap();
        let world = Self { store, cx, module };
        world.migrate().unwrap();
        world
    }

    pub fn migrate(&self) -> Result<()> {
        for migration in self.module.migrations() {
            self.commit(|tx| (migration.run)(tx))?;
        }
        Ok(())
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

    pub fn method_cx(&self) -> MethodContext {
        self.cx_of(&admin())
    }

    fn cx_of(&self, principal: &Principal) -> MethodContext {
        MethodContext {
            context: self.cx.clone(),
            principal: principal.clone(),
            request_id: "r".into(),
            dry_run: false,
            if_match: None,
        }
    }

    pub fn call(&self, name: &str, input: Value) -> Result<Value> {
        self.call_as(&admin(), name, input)
    }

    /// Calls as the envelope does: its tenant is implied, and it must be allowed.
    pub fn call_as(&self, who: &Principal, name: &str, input: Value) -> Result<Value> {
        self.call_at(who, None, name, input)
    }

    /// The same, if the record is at this revision.
    pub fn call_at(
        &self,
        who: &Principal,
        if_match: Option<u64>,
        name: &str,
        mut input: Value,
    ) -> Result<Value> {
        let method = self.module.methods().into_iter().find(|m| m.full_name() == name).unwrap();
        let implied = fields::names(&method).contains("tenant") && input.get("tenant").is_none();
        if implied && !who.tenant.is_empty() {
            input["tenant"] = json!(who.tenant);
        }
        (method.validate)(&input)?;
        let on = (method.resource)(&input);
        self.cx.ports.access.get()?.authorize(&self.view(), who, &method.action, &on)?;
        let cx = MethodContext { if_match, ..self.cx_of(who) };
        match method.handler {
            Handler::Query(run) => run(&cx, &self.view(), input),
            Handler::Mutation(run) => self.commit(|tx| run(&cx, tx, input.clone())),
            Handler::Read(_) | Handler::Stream(_) | Handler::Action(_) => unreachable!(),
        }
    }

    /// Whether somebody may do something on what is of `tenant`.
    pub fn may(&self, who: &Principal, action: &str, tenant: &str) -> bool {
        let on = Resource::of_tenant("thing", "", tenant);
        self.cx.ports.access.get().unwrap().authorize(&self.view(), who, action, &on).is_ok()
    }

    /// Makes a principal that holds these roles, with a token of `secret(n)`; answers that token.
    pub fn principal(&self, n: u8, name: &str, tenant: &str, holds: &[(&str, &str)]) -> String {
        let mut made = json!({"name": name});
        if !tenant.is_empty() {
            made["tenant"] = json!(tenant);
        }
        self.call("principals.create", made).unwrap();
        for (role, place) in holds {
            let bound = json!({"principal": name, "role": role, "tenant": place});
            self.call("roleBindings.create", bound).unwrap();
        }
        let token = json!({"secretSha256": hash(n), "name": name, "principal": name});
        let made = self.call("apiTokens.create", token).unwrap();
        text(made["id"].as_str().unwrap(), n)
    }

    /// Makes a token with `secret(n)`; answers its id.
    pub fn token(&self, n: u8, name: &str, role: &str, extra: Value) -> String {
        let mut input = json!({"secretSha256": hash(n), "name": name, "roles": [role]});
        input.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let made = self.call("apiTokens.create", input).unwrap();
        made["id"].as_str().unwrap().to_owned()
    }

    pub fn present(&self, token: &str) -> Result<Principal> {
        let access = self.cx.ports.access.get().unwrap();
        access.authenticate(&self.view(), &Credential::Token(token.to_owned()))
    }

    pub fn certificate(&self, uri: &str) -> Result<Principal> {
        self.certificate_of(uri, "")
    }

    /// Presents a certificate of a key.
    pub fn certificate_of(&self, uri: &str, key: &str) -> Result<Principal> {
        let access = self.cx.ports.access.get().unwrap();
        let credential = Credential::Certificate { uri: uri.to_owned(), key: key.to_owned() };
        access.authenticate(&self.view(), &credential)
    }
}
