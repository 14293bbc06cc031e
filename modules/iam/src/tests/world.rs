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
    Context, MethodContext, Module, Principal, Result, method::Handler, ports::Credential,
};
use palisade_state::{Runtime, Store, Tx, View, memory::MemoryStore};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{Bootstrap, Iam};

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

    fn spawn(&self, _name: &'static str, _task: BoxFuture<'static, ()>) {
        unreachable!("the module runs no tasks")
    }

    fn random(&self) -> u64 {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ n
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
        MethodContext {
            context: self.cx.clone(),
            principal: Principal {
                name: "user/ada".into(),
                roles: vec!["cluster-admin".into()],
                tenant: String::new(),
            },
            request_id: "r".into(),
            dry_run: false,
            if_match: None,
        }
    }

    pub fn call(&self, name: &str, input: Value) -> Result<Value> {
        let method = self.module.methods().into_iter().find(|m| m.full_name() == name).unwrap();
        (method.validate)(&input)?;
        let cx = self.method_cx();
        match method.handler {
            Handler::Query(run) => run(&cx, &self.view(), input),
            Handler::Mutation(run) => self.commit(|tx| run(&cx, tx, input.clone())),
            Handler::Stream(_) | Handler::Action(_) => unreachable!(),
        }
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
        let access = self.cx.ports.access.get().unwrap();
        let credential = Credential::Certificate { uri: uri.to_owned(), key: String::new() };
        access.authenticate(&self.view(), &credential)
    }
}
