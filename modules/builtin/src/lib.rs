//! The built-in modules, put together in their order: by the binary, by a third party's, and by the simulator.
//!
//! # Invariants
//! - `ORDER-1` The registration order, which is that of migrations, of starting and of merging NodeSpecs, is written in
//!   one place, here: the built-in modules as [`ORDER`] has them, then whatever is added.

use std::{sync::Arc, time::Duration};

use palisade_api::ServerModule;
use palisade_audit::{AuditModule, AuditSinks};
use palisade_capacity::CapacityModule;
use palisade_commands::CommandsModule;
use palisade_contract::{Module, Registry, Result};
use palisade_events::EventsModule;
use palisade_iam::{Bootstrap, Iam};
use palisade_inventory::Inventory;
use palisade_pki::PkiModule;
use palisade_quorum::QuorumModule;
use palisade_scheduler::NodeControllers;
use palisade_secrets::SecretsModule;
use palisade_tenancy::Tenancy;
use palisade_workloads::WorkloadsModule;

/// The order of built-in modules, those that a process does without and those that are to come among them
/// (decision 0015). The operator's modules follow, then plugins.
pub const ORDER: [&str; 17] = [
    "server",
    "node-controllers",
    "site-boot",
    "inventory",
    "capacity",
    "iam",
    "tenancy",
    "commands",
    "quorum",
    "secrets",
    "pki",
    "events",
    "audit",
    "workloads",
    "backup",
    "tunnels",
    "audit-sinks",
];

/// What the built-in modules are told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The version of the program.
    pub version: &'static str,
    /// The first admin token; none: this process makes none.
    pub bootstrap: Option<Bootstrap>,
    /// How long a node without a session keeps its instances.
    pub node_lost: Duration,
}

/// The modules of a process, checked.
pub struct Assembled {
    /// All of them, in registration order.
    pub registry: Registry,
    /// The server's own module, which is told of the process that it runs in.
    pub server: Arc<ServerModule>,
}

/// Puts the built-in modules together, and behind them `more` in the order in which they come. Opens nothing.
///
/// # Errors
/// `INVALID_CONFIG`, naming the module and the rule that it breaks.
pub fn assemble(settings: Settings, more: Vec<Arc<dyn Module>>) -> Result<Assembled> {
    let server = ServerModule::new(settings.version);
    let controllers = Arc::new(NodeControllers::default());
    let iam = Arc::new(Iam::new(settings.bootstrap));
    let tenancy = Arc::new(Tenancy::default());
    let commands = Arc::new(CommandsModule::default());
    let quorum = Arc::new(QuorumModule::default());
    let secrets = Arc::new(SecretsModule::default());
    let events = Arc::new(EventsModule::default());
    let mut modules: Vec<Arc<dyn Module>> = vec![
        server.clone(),
        controllers.clone(),
        Arc::new(Inventory::new(settings.node_lost)),
        Arc::new(CapacityModule),
        iam.clone(),
        tenancy.clone(),
        commands.clone(),
        quorum.clone(),
        secrets.clone(),
        Arc::new(PkiModule::default()),
        events.clone(),
        Arc::new(AuditModule),
        Arc::new(WorkloadsModule),
    ];
    modules.extend(with_sinks(more));
    let registry = Registry::new(modules)?;
    controllers.bind(&registry);
    iam.bind(&registry);
    tenancy.bind(&registry);
    commands.bind(&registry);
    quorum.bind(&registry);
    secrets.bind(&registry);
    events.bind(&registry);
    Ok(Assembled { registry, server })
}

/// With the module that fills the audit sinks, where any of these has one: behind what is built in (`ORDER-1`).
fn with_sinks(mut more: Vec<Arc<dyn Module>>) -> Vec<Arc<dyn Module>> {
    let sinks: Vec<_> = more.iter().flat_map(|module| module.audit_sinks()).collect();
    if !sinks.is_empty() {
        let last = more.iter().rposition(|module| ORDER.contains(&module.name()));
        more.insert(last.map_or(0, |last| last + 1), Arc::new(AuditSinks::new(sinks)));
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Last;

    impl Module for Last {
        fn name(&self) -> &'static str {
            "last"
        }
    }

    #[test]
    fn built_in_modules_are_in_their_order_and_others_behind_them() {
        let settings =
            Settings { version: "1", bootstrap: None, node_lost: Duration::from_secs(30) };
        let registry = assemble(settings, vec![Arc::new(Last)]).unwrap().registry;
        let mut names: Vec<&str> = registry.modules().iter().map(|m| m.name()).collect();
        assert_eq!(names.pop(), Some("last"));
        let mut order = ORDER.iter();
        for name in names {
            assert!(order.any(|known| *known == name), "ORDER-1: {name} is out of its place");
        }
    }
}
