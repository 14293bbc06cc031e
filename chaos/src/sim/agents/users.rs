//! Users of a simulated cluster with machines: they apply, scale, stop, restart and remove workloads, cordon nodes,
//! and send commands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, Either, select},
};
use palisade_api::{
    LocalApi,
    envelope::{CallOptions, Caller, Reply},
};
use palisade_contract::{Error, Principal};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    super::{
        nodes::{lock, now},
        runtime::world_sleep,
        world::World,
    },
    Fleet, STEADY, errands, judge,
};
use crate::random::Random;

const WORKLOADS: u64 = 5;
/// Errands that are asked for at once.
const ERRANDS_MAX: u64 = 12;
/// Methods whose answer is a command.
const COMMANDS: [&str; 4] = ["nodes.ping", "instances.signal", "commands.get", "commands.cancel"];
/// How long one call is waited for, and how long one change is tried.
const ASK_LIMIT: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(50);
/// A secret of 32 zero bytes, as tokens show it, and its SHA-256.
const SECRET: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const SECRET_SHA256: &str = "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925";

/// One user.
pub(crate) struct User {
    pub(crate) world: Arc<World>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) number: u64,
    pub(crate) pause_ms: u64,
    pub(crate) random: Random,
    pub(crate) stop: Arc<AtomicBool>,
    /// How many users and clients are at it.
    pub(crate) working: Arc<AtomicU64>,
}

type Answered = Result<Value, Error>;

impl User {
    /// Works until it is stopped. The first user makes the join token and what nobody touches before.
    pub(crate) async fn run(mut self) {
        let mut nth = 0;
        if self.number == 1 {
            self.found().await;
        }
        while !self.stop.load(Ordering::Relaxed) {
            let pause = self.random.within(1, self.pause_ms * 2);
            world_sleep(Duration::from_millis(pause)).await;
            nth += 1;
            let Some((method, input)) = self.wish(nth) else { continue };
            let answer = self.insist(method, input, &format!("{nth}")).await;
            if let Some(Ok(shown)) = answer
                && COMMANDS.contains(&method)
            {
                lock(&self.fleet.book).orders.tells(&shown);
            }
        }
        if self.number == 1 {
            self.last_wish().await;
        }
        self.working.fetch_sub(1, Ordering::Relaxed);
    }

    async fn found(&mut self) {
        let machines = self.fleet.machines().count();
        let token = json!({ "secretSha256": SECRET_SHA256, "uses": machines });
        while !self.stop.load(Ordering::Relaxed) {
            if let Some(Ok(made)) = self.insist("joinTokens.create", token.clone(), "token").await {
                let id = made.get("id").and_then(Value::as_str).unwrap_or_default();
                let _ = self.fleet.token.set(format!("palj1.{id}.{SECRET}"));
                break;
            }
        }
        // All machines are there, so that each gets a share of it.
        let is_there = |fleet: &Fleet| fleet.machines().all(|machine| machine.node_id().is_some());
        let begun = now();
        while !is_there(&self.fleet) && now() < begun + Duration::from_secs(10) {
            world_sleep(RETRY).await;
        }
        let steady = spec(STEADY, machines as u64, 100, 32 << 20, 0);
        while !self.stop.load(Ordering::Relaxed) {
            let applied = self.insist("workloads.apply", steady.clone(), "steady").await;
            if applied.is_some_and(|applied| applied.is_ok()) {
                break;
            }
        }
    }

    fn wish(&mut self, nth: u64) -> Option<(&'static str, Value)> {
        if self.random.below(4) == 0 {
            return self.order(nth);
        }
        let name = format!("work-{}", self.random.below(WORKLOADS));
        let one = json!({ "workload": name });
        let wish = match self.random.below(20) {
            0..=8 => {
                let (count, cpu) = (self.random.within(1, 4), 100 * self.random.within(2, 14));
                let memory = self.random.within(16, 700) << 20;
                // A few kinds of task, so that some changes replace what runs and some do not.
                ("workloads.apply", spec(&name, count, cpu, memory, self.random.below(3)))
            }
            9..=11 => {
                let count = self.random.within(1, 5);
                ("workloads.scale", json!({ "workload": name, "count": count }))
            }
            12 => ("workloads.stop", one),
            13 | 14 => ("workloads.start", one),
            15 => ("workloads.restart", one),
            16 => ("workloads.remove", one),
            nth => {
                let method = if nth == 17 { "nodes.cordon" } else { "nodes.uncordon" };
                (method, json!({ "node": self.node() }))
            }
        };
        Some(wish)
    }

    /// A machine's name.
    fn node(&mut self) -> String {
        let count = self.fleet.machines().count();
        let chosen = self.fleet.machines().nth(self.random.index(count));
        chosen.map_or(String::new(), |machine| machine.name.clone())
    }

    /// Something that an agent is to do once, or a look at how that goes.
    fn order(&mut self, nth: u64) -> Option<(&'static str, Value)> {
        match self.random.below(8) {
            0 => Some(("nodes.ping", json!({ "node": self.node() }))),
            1 | 2 => self.signal(),
            3 => self.look("commands.get"),
            4 => self.look("commands.cancel"),
            _ => {
                let errands: Vec<Value> = (0..self.random.within(1, ERRANDS_MAX))
                    .map(|at| {
                        let kind = match self.random.below(8) {
                            0 => errands::LAST,
                            1 | 2 => errands::AGAIN,
                            _ => errands::ONCE,
                        };
                        let errand = format!("{}-{nth}-{at}", self.number);
                        json!({ "errand": errand, "kind": kind, "node": self.node() })
                    })
                    .collect();
                Some(("errands.ask", json!({ "errands": errands })))
            }
        }
    }

    /// One that goes on, or seems to.
    fn look(&mut self, method: &'static str) -> Option<(&'static str, Value)> {
        let open = lock(&self.fleet.book).orders.open();
        let command = open.get(self.random.index(open.len()))?;
        Some((method, json!({ "command": command })))
    }

    /// A signal to an instance that has a place, but to none of what nobody touches.
    fn signal(&mut self) -> Option<(&'static str, Value)> {
        let placed = judge::placed(&self.newest()?, "work-");
        let instance = placed.get(self.random.index(placed.len()))?;
        let signal = if self.random.coin() { "HUP" } else { "KILL" };
        lock(&self.fleet.book).orders.signals(instance, signal);
        Some(("instances.signal", json!({ "instance": instance, "signal": signal })))
    }

    /// Calls until somebody says for certain what became of it; `None`: nobody ever did.
    pub(super) async fn insist(
        &mut self,
        method: &'static str,
        input: Value,
        key: &str,
    ) -> Option<Answered> {
        let invoked = now();
        let key = format!("user-{}-{key}", self.number);
        loop {
            let ids = self.world.ids();
            let node = ids.get(self.random.index(ids.len())).copied().unwrap_or(1);
            let asked = self.ask(node, method, input.clone(), key.clone()).await;
            let answer = asked.filter(|answer| !answer.as_ref().is_err_and(|e| e.retryable));
            let is_late = now() >= invoked + PATIENCE;
            if answer.is_some() || is_late {
                let told = match &answer {
                    Some(Ok(_)) => "ok".to_owned(),
                    Some(Err(error)) => error.to_string(),
                    None => "nobody answered".to_owned(),
                };
                let number = self.number;
                self.fleet.nodes.tell(|| format!("user {number}: {method} {input}: {told}"));
                let is_done = u64::from(matches!(answer, Some(Ok(_))));
                self.fleet.nodes.note(&[9, number, is_done]);
                return answer;
            }
            world_sleep(RETRY).await;
        }
    }

    /// One call over the network: what runs at the replica runs as one of its tasks.
    async fn ask(
        &mut self,
        node: u64,
        method: &'static str,
        input: Value,
        key: String,
    ) -> Option<Answered> {
        self.way().await;
        let (life, api) = self.fleet.door(node)?;
        let name = format!("user-{}", self.number);
        let (answer, answered) = oneshot::channel();
        let calling: BoxFuture<'static, ()> = async move {
            let _ = answer.send(call(api, method, input, name, key).await);
        }
        .boxed();
        self.fleet.nodes.spawn(life, calling);
        let limit = std::pin::pin!(world_sleep(ASK_LIMIT));
        let value = match select(answered, limit).await {
            Either::Left((value, _)) => value.ok(),
            Either::Right(_) => None,
        };
        self.way().await;
        value
    }

    async fn way(&mut self) {
        world_sleep(Duration::from_micros(self.random.within(50, 2_000))).await;
    }
}

async fn call(
    api: Arc<LocalApi>,
    method: &str,
    input: Value,
    name: String,
    key: String,
) -> Answered {
    let roles = vec!["cluster-admin".to_owned()];
    let caller = Caller::Internal(Principal { name, roles, tenant: String::new() });
    let options = CallOptions { idempotency_key: Some(key), ..CallOptions::default() };
    let envelope = api.envelope().clone();
    drop(api);
    match envelope.call(method, input, caller, options).await?.reply {
        Reply::Json(value) => Ok(value),
        Reply::Stream(_) => Ok(Value::Null),
    }
}

pub(super) fn spec(name: &str, count: u64, cpu_milli: u64, memory: u64, kind: u64) -> Value {
    let mut spec = json!({
        "workload": name,
        "name": name,
        "count": count,
        "task": { "command": ["/bin/run", kind.to_string()] },
        "resources": { "cpumem": {
            "cpu-request": format!("{}.{}", cpu_milli / 1000, cpu_milli % 1000 / 100),
            "memory-request": memory,
        } },
        "stopGrace": "1s",
        "restart": { "backoffInitial": "200ms", "backoffMax": "2s" },
    });
    if kind == 1 {
        spec["health"] = json!({ "exec": { "command": ["check"] }, "interval": "1s" });
    }
    spec
}
