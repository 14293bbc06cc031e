//! Commands to agents: what a node's agent is to do once, in order, and what became of it.
//!
//! # Invariants
//! - `CMD-1` Of a node and lane at most one command is in flight (sent or running).
//! - `CMD-2` A finished command never changes again.
//! - `CMD-3` What is sent is the oldest pending command of its node and lane.
//! - `CMD-4` The fences under which a node's commands are sent never fall.
//! - `CMD-5` A command that is not retry-safe is sent again only when the agent has said that it never began.
//! - `CMD-6` Whoever waits for a command is woken in the transaction that finishes it.

mod check;
mod life;
mod methods;
mod port;
mod rows;
mod sweeper;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_contract::{
    Catalog, CommandKind, Context, Finding, Method, Module, Nothing, Reconciler, Registry, Result,
    Sweep,
    command::{Commands, Deliveries},
};
use palisade_state::{Declared, Tx, View};

pub use methods::{ListCommands, OneCommand, PingNode};

/// Commands of a node that are not finished, at most.
pub const OPEN_MAX: usize = 256;
/// Finished commands of a node that are kept, about.
pub const KEPT_MAX: usize = 200;
/// Logical milliseconds for which a finished command is kept at most.
pub const KEPT_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// The kind of command that an agent answers, and nothing else.
pub const PING: &str = "agent.ping";
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Rows of a deleted tenant that one call removes at most.
const TEARDOWN_MAX: usize = 100;

/// The module `commands`.
pub struct CommandsModule {
    port: Arc<Port>,
    kept_ms: u64,
}

impl Default for CommandsModule {
    fn default() -> Self {
        Self { port: Arc::default(), kept_ms: KEPT_MS }
    }
}

/// What fills `ports.commands` and `ports.deliveries`.
#[derive(Default)]
struct Port {
    bound: OnceLock<Bound>,
}

/// What is known of all modules.
struct Bound {
    kinds: BTreeMap<&'static str, CommandKind>,
    reconcilers: BTreeSet<&'static str>,
}

impl CommandsModule {
    /// Says which kinds and which reconcilers there are. A second call changes nothing.
    pub fn bind(&self, registry: &Registry) {
        let kinds = registry.command_kinds().into_iter().map(|kind| (kind.kind, kind));
        let names = registry.reconcilers().into_iter().map(|reconciler| reconciler.name());
        self.port
            .bound
            .get_or_init(|| Bound { kinds: kinds.collect(), reconcilers: names.collect() });
    }
}

impl Module for CommandsModule {
    fn name(&self) -> &'static str {
        "commands"
    }

    fn requires(&self) -> &[&'static str] {
        &["inventory"]
    }

    fn tables(&self) -> Vec<Declared> {
        vec![rows::COMMANDS.declared(), rows::NODES.declared()]
    }

    fn methods(&self) -> Vec<Method> {
        methods::all()
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(sweeper::Sweeper { port: self.port.clone(), kept_ms: self.kept_ms })]
    }

    fn command_kinds(&self) -> Vec<CommandKind> {
        vec![CommandKind::new::<Nothing>(PING, "agent", PING_TIMEOUT).retry_safe()]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec!["compute:commands:read", "compute:commands:cancel", "compute:nodes:ping"],
            resource_types: vec!["command"],
        }
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let commands: Arc<dyn Commands> = self.port.clone();
            let deliveries: Arc<dyn Deliveries> = self.port.clone();
            match cx.ports.commands.get() {
                // Started before; a port of somebody else's is a mistake of the composition.
                Ok(filled) if std::ptr::addr_eq(Arc::as_ptr(filled), Arc::as_ptr(&commands)) => {
                    Ok(())
                }
                _ => {
                    cx.ports.commands.fill(commands)?;
                    cx.ports.deliveries.fill(deliveries)
                }
            }
        })
    }

    fn self_check(&self, _cx: &Context, view: &View) -> Result<Vec<Finding>> {
        check::findings(view)
    }

    fn tenants_in_use(&self, view: &View) -> Result<BTreeSet<String>> {
        let mut tenants = BTreeSet::new();
        for found in rows::COMMANDS.page(view, &[], None) {
            tenants.insert(found?.1.value.tenant);
        }
        tenants.remove("");
        Ok(tenants)
    }

    fn tenant_deleted(&self, _cx: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
        let mut rows = rows::COMMANDS.by_index(tx.view(), rows::BY_TENANT, tenant)?;
        let more = rows.len() > TEARDOWN_MAX;
        rows.truncate(TEARDOWN_MAX);
        for (key, _) in rows {
            tx.delete(&rows::COMMANDS, &key)?;
        }
        Ok(if more { Sweep::Again } else { Sweep::Done })
    }
}
