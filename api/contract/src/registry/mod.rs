//! Putting modules together: everything that can be checked without state is checked here, before
//! anything opens. Each refusal is `INVALID_CONFIG` and names the module and the rule.

mod checks;
#[cfg(test)]
mod tests;
mod words;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use palisade_state::{Declared, past::Kept};

use self::{
    checks::{Taken, area_of},
    words::is_slug,
};
use crate::{
    error::{Code, Error, Result},
    method::{Binding, Method, Verb},
    module::{CommandKind, Module, Reconciler, StatusHandler},
};

/// Tables that are no module's: the ledger of migrations.
pub const RESERVED_TABLES: [&str; 1] = ["migrations"];

/// A rule that is kept, or how it is broken.
type Rule = std::result::Result<(), String>;

/// All modules of a process, checked, in registration order.
#[derive(Clone)]
pub struct Registry {
    modules: Vec<Arc<dyn Module>>,
    tables: Arc<BTreeSet<&'static str>>,
}

fn refuse(module: &str, rule: &str) -> Error {
    let name = if is_slug(module) { module.to_owned() } else { format!("{module:?}") };
    Error::new(Code::InvalidConfig, format!("module {name}: {rule}"))
}

impl Registry {
    /// Checks the modules.
    ///
    /// # Errors
    /// `INVALID_CONFIG`, with the first rule that is broken.
    pub fn new(modules: Vec<Arc<dyn Module>>) -> Result<Self> {
        let names = modules.iter().map(|module| module.name()).collect();
        let mut areas = BTreeMap::new();
        for module in modules.iter().filter(|module| module.plugin().is_none()) {
            for area in module.catalog().actions.into_iter().filter_map(area_of) {
                areas.entry(area.to_owned()).or_insert(module.name());
            }
        }
        let mut taken = Taken::default();
        for module in &modules {
            let checked = taken.check(&**module, &names, &areas);
            checked.map_err(|rule| refuse(module.name(), &rule))?;
        }
        let declared = modules.iter().flat_map(|module| module.tables());
        let names = declared.map(|table| table.name());
        let tables = Arc::new(names.chain(RESERVED_TABLES).collect());
        Ok(Self { modules, tables })
    }

    /// The modules, in order.
    #[must_use]
    pub fn modules(&self) -> &[Arc<dyn Module>] {
        &self.modules
    }

    /// All methods with their bindings, in order.
    #[must_use]
    pub fn methods(&self) -> Vec<(Method, Binding)> {
        self.modules
            .iter()
            .flat_map(|module| {
                module.methods().into_iter().map(|method| {
                    let binding = binding_of(&**module, &method);
                    (method, binding)
                })
            })
            .collect()
    }

    /// All reconcilers, in order.
    #[must_use]
    pub fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        self.modules.iter().flat_map(|module| module.reconcilers()).collect()
    }

    /// All kinds of commands, in order.
    #[must_use]
    pub fn command_kinds(&self) -> Vec<CommandKind> {
        self.modules.iter().flat_map(|module| module.command_kinds()).collect()
    }

    /// All status handlers, in order.
    #[must_use]
    pub fn status_handlers(&self) -> Vec<StatusHandler> {
        self.modules.iter().flat_map(|module| module.status_handlers()).collect()
    }

    /// The tables of all modules, in order.
    #[must_use]
    pub fn declared(&self) -> Vec<Declared> {
        self.modules.iter().flat_map(|module| module.tables()).collect()
    }

    /// The tables that can be read as they were, in order.
    #[must_use]
    pub fn kept(&self) -> Vec<Kept> {
        self.modules.iter().flat_map(|module| module.kept()).collect()
    }

    /// All actions, in order.
    #[must_use]
    pub fn actions(&self) -> Vec<&'static str> {
        self.modules.iter().flat_map(|module| module.catalog().actions).collect()
    }

    /// The tables that transactions of modules may write: those that some module declares, and the
    /// runtime's own.
    #[must_use]
    pub fn tables(&self) -> &Arc<BTreeSet<&'static str>> {
        &self.tables
    }
}

/// Where a method is found: what it declares, else by its names.
#[must_use]
pub fn binding_of(module: &dyn Module, method: &Method) -> Binding {
    let declared = method.binding.clone();
    let Binding { verb, path } = declared.unwrap_or_else(|| Binding {
        verb: Verb::Post,
        path: format!("/{}/{}", method.group, method.name),
    });
    match module.plugin() {
        None => Binding { verb, path },
        Some(id) => Binding { verb, path: format!("/plugins/{id}{path}") },
    }
}
