//! Putting a Palisade together: the built-in modules in their order, then a third party's own.
//!
//! A third party ships its own binary with `palisade::Builder::new().plugin(AcmeWidgets).run()`,
//! which has every verb of ours.

use std::{sync::Arc, time::Duration};

use palisade_agent::commands::{Executor, Executors};
use palisade_contract::{Code, Error, Module, Result};
use palisade_iam::Bootstrap;
pub use palisade_modules::Assembled;

use crate::recovery::{Backups, Source};

/// What a binary is made of beside the built-in modules.
#[derive(Clone, Default)]
pub struct Builder {
    modules: Vec<Arc<dyn Module>>,
    plugins: Vec<Arc<dyn Module>>,
    executors: Executors,
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

    /// Adds what this binary, as `palisade agent run`, can be told to do on a node: a kind of command that one of the
    /// modules declares.
    #[must_use]
    pub fn on_agent(mut self, executor: impl Executor) -> Self {
        self.executors.add(Arc::new(executor));
        self
    }

    pub(crate) fn executors(&self) -> Executors {
        self.executors.clone()
    }

    /// Runs the command line of this process with these modules.
    #[must_use]
    pub fn run(self) -> std::process::ExitCode {
        crate::cli::main(std::env::args_os(), self)
    }

    /// Checks the modules by everything that can be checked before a replica's directory is looked at.
    ///
    /// # Errors
    /// `INVALID_CONFIG`, naming the module and the rule that it breaks.
    pub fn check(&self) -> Result<()> {
        let settings =
            Settings { bootstrap: None, node_lost: palisade_inventory::LOST_GRACE, backups: None };
        self.assemble(settings).map(drop)
    }

    /// Puts the modules together in registration order, which is also the order of migrations, of
    /// starting and of merging NodeSpecs. Opens nothing.
    ///
    /// # Errors
    /// `INVALID_CONFIG`, naming the module and the rule that it breaks.
    pub fn assemble(&self, settings: Settings) -> Result<Assembled> {
        let refuse = |module: &Arc<dyn Module>, rule: &str| {
            Err(Error::new(Code::InvalidConfig, format!("module {}: {rule}", module.name())))
        };
        if let Some(module) = self.plugins.iter().find(|plugin| plugin.plugin().is_none()) {
            return refuse(module, "was added as a plugin and has no plugin id");
        }
        if let Some(module) = self.modules.iter().find(|module| module.plugin().is_some()) {
            return refuse(module, "has a plugin id and was not added as a plugin");
        }
        let built_in = palisade_modules::Settings {
            version: env!("CARGO_PKG_VERSION"),
            bootstrap: settings.bootstrap,
            node_lost: settings.node_lost,
        };
        let backup: Arc<dyn Module> = Arc::new(Backups::new(settings.backups));
        let more = [backup].into_iter().chain(self.modules.iter().cloned());
        palisade_modules::assemble(built_in, more.chain(self.plugins.iter().cloned()).collect())
    }
}

#[cfg(test)]
mod matrix;
#[cfg(test)]
mod surface;
#[cfg(test)]
mod tables;
#[cfg(test)]
mod tenants;

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use palisade_capacity::CapacityModule;
    use palisade_contract::{
        Context,
        audit::{AuditBatch, AuditSink, RegisteredAuditSink},
        module::Extension,
    };

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
    fn the_method_table_is_the_committed_one() {
        let registry = assembled(&Builder::new()).unwrap().registry;
        let text = palisade_api::methods::table(&registry);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/api/server/methods.txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap();
        assert!(
            committed == text,
            "api/server/methods.txt has drifted: look at who may do what now, then run this test with UPDATE_GOLDEN=1"
        );
    }

    #[test]
    fn built_in_modules_are_in_their_order() {
        let registry = assembled(&Builder::new()).unwrap().registry;
        let names: Vec<&str> = registry.modules().iter().map(|module| module.name()).collect();
        let mut order = palisade_modules::ORDER.to_vec();
        order.retain(|name| names.contains(name));
        assert_eq!(names, order);
    }

    /// The tables that the sources below a directory make.
    fn tables_below(dir: &std::path::Path, found: &mut Vec<String>) {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("tests") && !path.ends_with("target") {
                tables_below(&path, found);
            } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs")
            {
                let text = std::fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                for made in text.split("> = Table::new(").skip(1) {
                    found.push(made.split('"').nth(1).unwrap().to_owned());
                }
            }
        }
    }

    /// A module with an audit sink: with it comes the one that fills sinks.
    struct Sinking;

    impl AuditSink for Sinking {
        fn deliver<'a>(
            &'a self,
            _: &'a Context,
            _: &'a AuditBatch,
        ) -> BoxFuture<'a, palisade_contract::Result<()>> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    impl Module for Sinking {
        fn name(&self) -> &'static str {
            "sinking"
        }

        fn extensions(&self) -> Vec<Extension> {
            vec![Extension { kind: "audit-sink", id: "drain", version: "1" }]
        }

        fn audit_sinks(&self) -> Vec<RegisteredAuditSink> {
            let sink = std::sync::Arc::new(Self);
            vec![RegisteredAuditSink { id: "drain", version: "1", sink }]
        }
    }

    #[test]
    fn where_a_module_has_an_audit_sink_there_is_one_that_fills_them() {
        let registry = assembled(&Builder::new().module(Sinking)).unwrap().registry;
        let names: Vec<&str> = registry.modules().iter().map(|module| module.name()).collect();
        assert_eq!(names[names.len() - 2..], ["audit-sinks", "sinking"], "ORDER-1");
        let bare = assembled(&Builder::new()).unwrap().registry;
        assert!(bare.modules().iter().all(|module| module.name() != "audit-sinks"));
    }

    #[test]
    fn every_table_of_the_sources_is_declared() {
        let registry = assembled(&Builder::new().module(Sinking)).unwrap().registry;
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut found = vec![];
        for rooms in ["modules", "scheduler/src", "api", "src"] {
            tables_below(&root.join(rooms), &mut found);
        }
        found.sort();
        let declared: Vec<&str> = registry.tables().iter().copied().collect();
        assert_eq!(found, declared, "made in the sources, and declared by modules");
    }

    #[test]
    fn a_plugin_is_not_added_as_a_module() {
        struct Acme;
        impl Module for Acme {
            fn name(&self) -> &'static str {
                "acme-pets"
            }
            fn plugin(&self) -> Option<&'static str> {
                Some("acme")
            }
        }
        let error = Builder::new().module(Acme).check().unwrap_err();
        assert_eq!(error.code, Code::InvalidConfig);
        assert_eq!(error.detail, "module acme-pets: has a plugin id and was not added as a plugin");
        assert!(Builder::new().plugin(Acme).check().is_ok());
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
