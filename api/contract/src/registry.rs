//! Putting modules together: everything that can be checked without state is checked here, before
//! anything opens. Each refusal is `INVALID_CONFIG` and names the module and the rule.

use std::{collections::BTreeSet, sync::Arc};

use palisade_state::queue::is_kind;

use crate::{
    error::{Code, Error, Result},
    method::{Binding, Method, Verb},
    module::{Module, Reconciler, StatusHandler},
};

/// Reconciler names that the runtime keeps for itself.
const RESERVED_KINDS: [&str; 3] = ["command-sweeper", "outbox-dispatch", "event-subscribers"];

/// Group and method names that would collide with what clients' languages give a meaning to.
const RESERVED_NAMES: [&str; 8] =
    ["then", "catch", "finally", "toJSON", "constructor", "prototype", "__proto__", "plugins"];

/// All modules of a process, checked, in registration order.
#[derive(Clone)]
pub struct Registry {
    modules: Vec<Arc<dyn Module>>,
}

fn refuse(module: &str, rule: impl std::fmt::Display) -> Error {
    Error::new(Code::InvalidConfig, format!("module {module}: {rule}"))
}

impl Registry {
    /// Checks the modules.
    ///
    /// # Errors
    /// `INVALID_CONFIG`, with the first rule that is broken.
    pub fn new(modules: Vec<Arc<dyn Module>>) -> Result<Self> {
        let names: BTreeSet<&str> = modules.iter().map(|module| module.name()).collect();
        let mut seen = Seen::default();
        for module in &modules {
            seen.name(&**module)?;
            for required in module.requires() {
                if !names.contains(required) {
                    return Err(refuse(
                        module.name(),
                        format!("requires module {required}, which is not registered"),
                    ));
                }
            }
            check_migrations(&**module)?;
            seen.extensions(&**module)?;
            seen.command_kinds(&**module)?;
            seen.methods(&**module)?;
            seen.reconcilers(&**module)?;
            check_catalog(&**module)?;
        }
        Ok(Self { modules })
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

    /// All status handlers, in order.
    #[must_use]
    pub fn status_handlers(&self) -> Vec<StatusHandler> {
        self.modules.iter().flat_map(|module| module.status_handlers()).collect()
    }

    /// All actions, in order.
    #[must_use]
    pub fn actions(&self) -> Vec<&'static str> {
        self.modules.iter().flat_map(|module| module.catalog().actions).collect()
    }
}

/// Where a method is found: what it declares, else by its names.
#[must_use]
pub fn binding_of(module: &dyn Module, method: &Method) -> Binding {
    match (&method.binding, module.plugin()) {
        (Some(binding), None) => binding.clone(),
        (Some(binding), Some(id)) => {
            Binding { verb: binding.verb, path: format!("/plugins/{id}{}", binding.path) }
        }
        (None, None) => {
            Binding { verb: Verb::Post, path: format!("/{}/{}", method.group, method.name) }
        }
        (None, Some(id)) => Binding {
            verb: Verb::Post,
            path: format!("/plugins/{id}/{}/{}", method.group, method.name),
        },
    }
}

#[derive(Default)]
struct Seen {
    names: BTreeSet<String>,
    extensions: BTreeSet<String>,
    command_kinds: BTreeSet<String>,
    routes: BTreeSet<(Verb, String)>,
    methods: BTreeSet<String>,
    reconcilers: BTreeSet<String>,
}

impl Seen {
    fn name(&mut self, module: &dyn Module) -> Result<()> {
        let name = module.name();
        if !is_slug(name) {
            return Err(refuse(name, "its name must match ^[a-z][a-z0-9-]{0,63}$"));
        }
        if !self.names.insert(name.to_owned()) {
            return Err(refuse(name, "is registered twice"));
        }
        Ok(())
    }

    fn extensions(&mut self, module: &dyn Module) -> Result<()> {
        for extension in module.extensions() {
            let id = format!("{}:{}@{}", extension.kind, extension.id, extension.version);
            if !self.extensions.insert(id.clone()) {
                return Err(refuse(module.name(), format!("extension {id} is registered twice")));
            }
        }
        Ok(())
    }

    fn command_kinds(&mut self, module: &dyn Module) -> Result<()> {
        for kind in module.command_kinds() {
            if !self.command_kinds.insert(kind.kind.to_owned()) {
                return Err(refuse(
                    module.name(),
                    format!("command kind {} is registered twice", kind.kind),
                ));
            }
        }
        Ok(())
    }

    fn methods(&mut self, module: &dyn Module) -> Result<()> {
        let catalog = module.catalog();
        for method in module.methods() {
            let full_name = method.full_name();
            for name in [&method.group, &method.name] {
                if !is_method_name(name) {
                    return Err(refuse(
                        module.name(),
                        format!("method {full_name}: {name:?} is not a method name"),
                    ));
                }
            }
            if !self.methods.insert(format!("{}/{full_name}", module.plugin().unwrap_or_default()))
            {
                return Err(refuse(
                    module.name(),
                    format!("method {full_name} is registered twice"),
                ));
            }
            if !catalog.actions.contains(&method.action.as_str()) {
                return Err(refuse(
                    module.name(),
                    format!(
                        "method {full_name} needs action {}, which its catalog does not list",
                        method.action
                    ),
                ));
            }
            let Binding { verb, path } = binding_of(module, &method);
            if !self.routes.insert((verb, without_parameter_names(&path))) {
                return Err(refuse(
                    module.name(),
                    format!("route {verb:?} {path} is registered twice"),
                ));
            }
        }
        Ok(())
    }

    fn reconcilers(&mut self, module: &dyn Module) -> Result<()> {
        for reconciler in module.reconcilers() {
            let name = reconciler.name();
            if !is_kind(name) || RESERVED_KINDS.contains(&name) {
                return Err(refuse(module.name(), format!("{name:?} is not a reconciler name")));
            }
            if !self.reconcilers.insert(name.to_owned()) {
                return Err(refuse(
                    module.name(),
                    format!("reconciler {name} is registered twice"),
                ));
            }
            let too_often = reconciler.periodic().into_iter().find(|p| p.every.as_millis() < 1000);
            if let Some(periodic) = too_often {
                return Err(refuse(
                    module.name(),
                    format!(
                        "reconciler {name}: periodic key {:?} comes back in under 1 s",
                        periodic.key
                    ),
                ));
            }
        }
        Ok(())
    }
}

fn check_migrations(module: &dyn Module) -> Result<()> {
    let mut last = 0;
    for migration in module.migrations() {
        let number = migration_number(migration.name, module.name()).ok_or_else(|| {
            refuse(
                module.name(),
                format!(
                    "migration {:?} is not named {}/<nnnn>_<slug>",
                    migration.name,
                    module.name()
                ),
            )
        })?;
        if number <= last {
            return Err(refuse(
                module.name(),
                format!("migration {:?} does not follow {last:04}", migration.name),
            ));
        }
        last = number;
    }
    Ok(())
}

fn migration_number(name: &str, owner: &str) -> Option<u32> {
    let (digits, slug) = name.strip_prefix(owner)?.strip_prefix('/')?.split_once('_')?;
    let mut letters = slug.bytes();
    let well_formed = digits.len() == 4
        && digits.bytes().all(|b| b.is_ascii_digit())
        && slug.len() <= 96
        && letters.next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
    well_formed.then(|| digits.parse().ok()).flatten()
}

fn check_catalog(module: &dyn Module) -> Result<()> {
    for action in module.catalog().actions {
        let parts: Vec<&str> = action.split(':').collect();
        let well_formed =
            matches!(parts.as_slice(), ["compute", area, verb] if is_slug(area) && is_slug(verb));
        let its_own = match (module.plugin(), parts.as_slice()) {
            (Some(id), [_, area, _]) => *area == id,
            _ => true,
        };
        if !well_formed || !its_own {
            let area = module.plugin().unwrap_or("<area>");
            return Err(refuse(
                module.name(),
                format!("action {action:?} is not compute:{area}:<verb>"),
            ));
        }
    }
    Ok(())
}

fn is_slug(text: &str) -> bool {
    let mut bytes = text.bytes();
    text.len() <= 64
        && bytes.next().is_some_and(|b| b.is_ascii_lowercase())
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn is_method_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    text.len() <= 64
        && bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        && !RESERVED_NAMES.contains(&text)
}

/// Two paths that differ in the names of their parameters alone are one route.
fn without_parameter_names(path: &str) -> String {
    let segments = path.split('/').map(|s| if s.starts_with('{') { "{}" } else { s });
    segments.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{FutureExt, future::BoxFuture};

    use super::*;
    use crate::{
        ReconcileContext, ShardBy,
        module::{Periodic, Run},
    };

    struct Sweeper(Duration);

    impl Reconciler for Sweeper {
        fn name(&self) -> &'static str {
            "test.sweep"
        }

        fn shard_by(&self) -> ShardBy {
            ShardBy::None
        }

        fn periodic(&self) -> Vec<Periodic> {
            let well = Periodic { key: "slow".into(), every: Duration::from_secs(60) };
            vec![well, Periodic { key: "sweep".into(), every: self.0 }]
        }

        fn run<'a>(&'a self, _: &'a ReconcileContext, _: &'a str) -> BoxFuture<'a, Result<Run>> {
            std::future::ready(Ok(Run::Done)).boxed()
        }
    }

    struct Sweeping(Duration);

    impl Module for Sweeping {
        fn name(&self) -> &'static str {
            "test"
        }

        fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
            vec![Arc::new(Sweeper(self.0))]
        }
    }

    #[test]
    fn a_periodic_key_comes_back_after_a_second_or_later() {
        let registered = |ms| Registry::new(vec![Arc::new(Sweeping(Duration::from_millis(ms)))]);
        for too_often in [0, 1, 999] {
            let Err(refused) = registered(too_often) else { panic!("{too_often} ms were taken") };
            assert_eq!(refused.code, Code::InvalidConfig);
            assert!(refused.detail.contains(r#""sweep" comes back in under 1 s"#), "{refused}");
        }
        assert!(registered(1_000).is_ok());
    }
}
