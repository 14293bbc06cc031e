//! What can be held: the destructive methods of all modules, and the kinds of commands.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::OnceLock,
};

use palisade_contract::{
    Code, Error, Handler, Method, MethodKind, Registry, Result, input::nearest,
};

#[derive(Default)]
struct All {
    methods: BTreeMap<String, Method>,
    kinds: BTreeSet<String>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Known(OnceLock<All>);

impl Known {
    /// Notes what there is; the first registry counts.
    pub fn bind(&self, registry: &Registry) {
        let mut all = All::default();
        for module in registry.modules() {
            let plugin = module.plugin().map(|id| format!("{id}:")).unwrap_or_default();
            for method in module.methods() {
                if method.kind == MethodKind::Destructive {
                    all.methods.insert(format!("{plugin}{}", method.full_name()), method);
                }
            }
            all.kinds.extend(module.command_kinds().into_iter().map(|kind| kind.kind.to_owned()));
        }
        let _ = self.0.set(all);
    }

    /// The name under which a method is held: a plugin's has its id before it.
    pub fn name_of(&self, method: &Method) -> Option<&str> {
        let all = self.0.get()?;
        let is_it = |one: &Method| {
            one.action == method.action && one.group == method.group && one.name == method.name
        };
        all.methods.iter().find(|(_, one)| is_it(one)).map(|(name, _)| name.as_str())
    }

    /// All that a policy can be about, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.0.get().into_iter().flat_map(|all| {
            let held = all.methods.iter().filter(|(_, method)| can_be_held(method).is_ok());
            held.map(|(name, _)| name.as_str()).chain(all.kinds.iter().map(String::as_str))
        })
    }

    /// A method that can be held.
    ///
    /// # Errors
    /// `NOT_FOUND`, with the nearest one; `UNSUPPORTED`.
    pub fn method(&self, name: &str) -> Result<&Method> {
        let all = self.0.get().map(|all| &all.methods);
        let Some(method) = all.and_then(|all| all.get(name)) else {
            let error = Error::not_found("destructive method", name);
            let names = all.into_iter().flat_map(BTreeMap::keys).map(String::as_str);
            return Err(match nearest(name, names) {
                Some(near) => error.hint(format!("did you mean {near}?")),
                None => error.hint("what can be held is in the documentation of approvals"),
            });
        };
        can_be_held(method)?;
        Ok(method)
    }
}

/// Whether a call of a method can wait: it is a transaction, and holds no secret that would be stored in the clear.
pub(crate) fn can_be_held(method: &Method) -> Result<()> {
    let why = if !matches!(method.handler, Handler::Mutation(_)) {
        "it is no transaction"
    } else if !method.secret.is_empty() {
        "its input holds a secret"
    } else {
        return Ok(());
    };
    Err(Error::new(
        Code::Unsupported,
        format!("{} cannot wait for approval: {why}", method.full_name()),
    ))
}
