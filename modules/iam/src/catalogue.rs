//! What can be done at all: the methods and the actions of all modules, once the process is put together.

use std::{
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use palisade_contract::{Error, Problem, Registry, Result, fields, input::nearest};
use serde_json::json;

/// A tenant that is nobody's, to see whether a method is about the tenant that its input names.
const SOMEBODY: &str = "somebody";

/// A method that there is, and what authorization must know of it.
#[derive(Clone, Debug)]
struct Known {
    name: String,
    action: String,
    takes_tenant: bool,
    /// What it is done to.
    kind: String,
}

/// What was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meant {
    /// The action.
    pub action: String,
    /// Whether it can be done on a tenant's things.
    pub takes_tenant: bool,
    /// To what it is done.
    pub kinds: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct All {
    methods: Vec<Known>,
    actions: BTreeSet<String>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue(Arc<OnceLock<All>>);

impl Catalogue {
    /// Notes what there is; the first registry counts.
    pub fn bind(&self, registry: &Registry) {
        let mut all = All::default();
        for module in registry.modules() {
            let plugin = module.plugin().map(|id| format!("{id}:")).unwrap_or_default();
            all.actions.extend(module.catalog().actions.into_iter().map(str::to_owned));
            all.methods.extend(module.methods().into_iter().map(|method| Known {
                name: format!("{plugin}{}", method.full_name()),
                takes_tenant: fields::names(&method).contains("tenant")
                    && (method.resource)(&json!({ "tenant": SOMEBODY })).tenant == SOMEBODY,
                kind: (method.resource)(&json!({})).kind,
                action: method.action,
            }));
        }
        let _ = self.0.set(all);
    }

    /// All actions, in order.
    pub fn actions(&self) -> impl Iterator<Item = &str> {
        self.0.get().into_iter().flat_map(|all| all.actions.iter().map(String::as_str))
    }

    /// What is wrong with an action that is to be allowed; `None`: nothing.
    pub fn wrong(&self, action: &str) -> Option<String> {
        if self.actions().any(|known| known == action) {
            return None;
        }
        let near = nearest(action, self.actions())
            .map_or(String::new(), |near| format!("; did you mean {near:?}?"));
        Some(format!("must be an action that there is, such as compute:nodes:read{near}"))
    }

    /// What is meant by an action or a method.
    ///
    /// # Errors
    /// There is neither; the nearest is named.
    pub fn find(&self, asked: &str) -> Result<Meant> {
        let known = self.0.get().map(|all| all.methods.as_slice()).unwrap_or_default();
        let meant = |one: &&Known| one.action == asked || one.name == asked;
        let found: Vec<&Known> = known.iter().filter(meant).collect();
        if let Some(first) = found.first() {
            return Ok(Meant {
                action: first.action.clone(),
                takes_tenant: found.iter().any(|one| one.takes_tenant),
                kinds: found.iter().map(|one| one.kind.clone()).collect(),
            });
        }
        let all = known.iter().flat_map(|one| [one.action.as_str(), one.name.as_str()]);
        let near =
            nearest(asked, all).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
        let message = format!("must be an action or a method that there is{near}");
        Err(Error::invalid(vec![Problem { pointer: "/action".to_owned(), message }]))
    }
}
