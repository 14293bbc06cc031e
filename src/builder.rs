//! Putting a Palisade together: the built-in modules in their order, then a third party's own.
//!
//! A third party ships its own binary with `palisade::Builder::new().plugin(AcmeWidgets).run()`,
//! which has every verb of ours.

use std::{sync::Arc, time::Duration};

use palisade_api::ServerModule;
use palisade_capacity::CapacityModule;
use palisade_contract::{Code, Error, Module, Registry, Result};
use palisade_iam::{Bootstrap, Iam};
use palisade_inventory::Inventory;
use palisade_scheduler::NodeControllers;
use palisade_workloads::WorkloadsModule;

use crate::recovery::{Backups, Source};

/// What a binary is made of beside the built-in modules.
#[derive(Clone, Default)]
pub struct Builder {
    modules: Vec<Arc<dyn Module>>,
    plugins: Vec<Arc<dyn Module>>,
}

/// What the built-in modules are told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The first admin token.
    pub bootstrap: Option<Bootstrap>,
    /// How long a node without a session keeps its instances.
    pub node_lost: Duration,
    /// What backups are made of; `None`: this process makes none.
    pub backups: Option<Source>,
}

/// The modules of a process, checked.
pub struct Assembled {
    /// All of them, in registration order.
    pub registry: Registry,
    /// The server's own module, which is told of the process it runs in.
    pub server: Arc<ServerModule>,
}

impl Builder {
    /// The built-in modules alone.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a module of the operator's.
    #[must_use]
    pub fn module(mut self, module: impl Module + 'static) -> Self {
        self.modules.push(Arc::new(module));
        self
    }

    /// Adds a plugin.
    #[must_use]
    pub fn plugin(mut self, plugin: impl Module + 'static) -> Self {
        self.plugins.push(Arc::new(plugin));
        self
    }

    /// Runs the command line of this process with these modules.
    #[must_use]
    pub fn run(self) -> std::process::ExitCode {
        crate::cli::main(std::env::args_os(), self)
    }

    /// Puts the modules together in registration order, which is also the order of migrations, of
    /// starting and of merging NodeSpecs.
    ///
    /// # Errors
    /// `INVALID_CONFIG`, naming the module and the rule that it breaks.
    pub fn assemble(&self, settings: Settings) -> Result<Assembled> {
        let not_a_plugin = self.plugins.iter().find(|plugin| plugin.plugin().is_none());
        if let Some(module) = not_a_plugin {
            let detail =
                format!("module {}: was added as a plugin and has no plugin id", module.name());
            return Err(Error::new(Code::InvalidConfig, detail));
        }
        let server = ServerModule::new(env!("CARGO_PKG_VERSION"));
        let controllers = Arc::new(NodeControllers::default());
        let mut modules: Vec<Arc<dyn Module>> = vec![
            server.clone(),
            controllers.clone(),
            Arc::new(Inventory::new(settings.node_lost)),
            Arc::new(CapacityModule),
            Arc::new(Iam::new(settings.bootstrap)),
            Arc::new(WorkloadsModule),
            Arc::new(Backups::new(settings.backups)),
        ];
        modules.extend(self.modules.iter().cloned());
        modules.extend(self.plugins.iter().cloned());
        let registry = Registry::new(modules)?;
        controllers.bind(&registry);
        Ok(Assembled { registry, server })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembled(builder: &Builder) -> Result<Assembled> {
        builder.assemble(Settings {
            bootstrap: None,
            node_lost: Duration::from_secs(30),
            backups: None,
        })
    }

    #[test]
    fn the_openapi_document_is_the_committed_one() {
        let assembled = assembled(&Builder::new()).unwrap();
        let document = palisade_api::openapi::document(&assembled.registry);
        let text = serde_json::to_string_pretty(&document).unwrap() + "\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/api/server/openapi.json");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == text,
            "api/server/openapi.json has drifted: look at the difference, then run this test with UPDATE_GOLDEN=1"
        );
    }

    #[test]
    fn a_module_without_an_id_is_no_plugin() {
        let error = assembled(&Builder::new().plugin(CapacityModule)).err().unwrap();
        assert_eq!(error.code, Code::InvalidConfig);
        assert!(error.detail.contains("capacity"), "{error}");
    }

    #[test]
    fn a_module_that_is_there_twice_is_refused() {
        let error = assembled(&Builder::new().module(CapacityModule)).err().unwrap();
        assert!(error.detail.contains("registered twice"), "{error}");
    }
}
