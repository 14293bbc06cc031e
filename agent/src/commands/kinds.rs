//! What this agent can be told to do.

use std::{collections::BTreeMap, fmt, sync::Arc};

use futures::future::{BoxFuture, ready};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    driver::{Problem, Process, SignalName},
    engine::Drivers,
};

/// Carries out one kind of command.
pub trait Executor: Send + Sync + 'static {
    /// The kind.
    fn kind(&self) -> &'static str;

    /// Does it; what it answers is shown to operators and to whoever sent it. It is dropped when it takes longer than
    /// the kind allows.
    fn run(&self, payload: Value) -> BoxFuture<'static, Result<Value, Problem>>;
}

/// Who carries out what.
#[derive(Clone, Default)]
pub struct Executors(BTreeMap<&'static str, Arc<dyn Executor>>);

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Executors {
    /// Ours: `agent.ping` and `instance.signal`.
    #[must_use]
    pub fn built_in(drivers: &Drivers, agent_version: &str) -> Self {
        let mut all = Self::default();
        all.add(Arc::new(Ping { agent_version: agent_version.to_owned() }));
        all.add(Arc::new(Signal { drivers: drivers.clone() }));
        all
    }

    /// Adds one; ours are not replaced.
    pub fn add(&mut self, executor: Arc<dyn Executor>) {
        self.0.entry(executor.kind()).or_insert(executor);
    }

    /// Adds those of another set.
    pub fn extend(&mut self, others: &Self) {
        for executor in others.0.values() {
            self.add(executor.clone());
        }
    }

    pub(super) fn get(&self, kind: &str) -> Option<Arc<dyn Executor>> {
        self.0.get(kind).cloned()
    }
}

/// `agent.ping`.
struct Ping {
    agent_version: String,
}

impl Executor for Ping {
    fn kind(&self) -> &'static str {
        "agent.ping"
    }

    fn run(&self, _payload: Value) -> BoxFuture<'static, Result<Value, Problem>> {
        Box::pin(ready(Ok(json!({ "agentVersion": self.agent_version }))))
    }
}

/// `instance.signal`.
struct Signal {
    drivers: Drivers,
}

#[derive(Deserialize)]
struct ToSignal {
    instance: String,
    signal: String,
}

impl Executor for Signal {
    fn kind(&self) -> &'static str {
        "instance.signal"
    }

    fn run(&self, payload: Value) -> BoxFuture<'static, Result<Value, Problem>> {
        let drivers = self.drivers.clone();
        Box::pin(async move {
            let unreadable = |why: String| Problem::new("INVALID_PAYLOAD", why);
            let ToSignal { instance, signal } =
                serde_json::from_value(payload).map_err(|error| unreadable(error.to_string()))?;
            let signal = SignalName::parse(&signal)
                .filter(|_| !signal.is_empty())
                .ok_or_else(|| unreadable(format!("{signal:?} is no signal")))?;
            for driver in drivers.values() {
                let Some(found) = driver.inspect(&instance).await? else { continue };
                return match found.process {
                    Process::Running { pid, .. } if driver.signal(&instance, signal).await? => {
                        Ok(json!({ "pid": pid }))
                    }
                    _ => Err(Problem::new("NOT_RUNNING", "the instance does not run")),
                };
            }
            Err(Problem::new("INSTANCE_UNKNOWN", format!("this node has no instance `{instance}`")))
        })
    }
}
