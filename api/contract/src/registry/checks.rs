//! The checks of one module after the other, with what those before it took.

use std::collections::{BTreeMap, BTreeSet};

use palisade_state::{Declared, queue::is_kind};

use super::{
    RESERVED_TABLES, Rule, binding_of,
    words::{
        SLUG, TABLE, is_method_name, is_slug, is_table, is_version, migration_number, parameters,
        without_parameter_names,
    },
};
use crate::{
    command::COMMAND_SWEEPER,
    fields,
    method::{Binding, Method, MethodKind, Verb},
    module::{CommandKind, EXTENSION_KINDS, Extension, Module},
};

/// Reconciler names that are kept, each for one built-in module.
const RESERVED_KINDS: [(&str, &str); 3] =
    [(COMMAND_SWEEPER, "commands"), ("outbox-dispatch", "events"), ("event-subscribers", "events")];

/// What the modules so far have taken, each with the module that did.
#[derive(Default)]
pub(super) struct Taken {
    names: BTreeSet<&'static str>,
    plugins: BTreeMap<&'static str, &'static str>,
    tables: BTreeMap<&'static str, &'static str>,
    extensions: BTreeMap<String, &'static str>,
    command_kinds: BTreeMap<&'static str, &'static str>,
    actions: BTreeMap<&'static str, &'static str>,
    resource_types: BTreeMap<&'static str, &'static str>,
    methods: BTreeSet<String>,
    routes: BTreeMap<(Verb, String), String>,
    reconcilers: BTreeMap<&'static str, &'static str>,
}

/// Takes a name for a module, unless one has it already.
fn take<K: Ord>(
    taken: &mut BTreeMap<K, &'static str>,
    name: K,
    module: &dyn Module,
    what: impl std::fmt::Display,
) -> Rule {
    match taken.insert(name, module.name()) {
        None => Ok(()),
        Some(other) if other == module.name() => Err(format!("{what} is registered twice")),
        Some(other) => Err(format!("{what} is module {other}'s already")),
    }
}

impl Taken {
    /// The first rule that a module breaks. `areas` are those of the actions of all modules that
    /// are no plugins, `names` all modules' names.
    pub(super) fn check(
        &mut self,
        module: &dyn Module,
        names: &BTreeSet<&'static str>,
        areas: &BTreeMap<String, &'static str>,
    ) -> Rule {
        self.name(module)?;
        self.plugin(module, areas)?;
        for required in module.requires() {
            if !names.contains(required) {
                return Err(format!("requires module {required}, which is not registered"));
            }
        }
        self.tables(module)?;
        migrations(module)?;
        self.extensions(module)?;
        self.command_kinds(module)?;
        self.catalog(module)?;
        self.methods(module)?;
        self.reconcilers(module)
    }

    fn name(&mut self, module: &dyn Module) -> Rule {
        if !is_slug(module.name()) {
            return Err(format!("its name does not match {SLUG}"));
        }
        if !self.names.insert(module.name()) {
            return Err("is registered twice".to_owned());
        }
        Ok(())
    }

    fn plugin(&mut self, module: &dyn Module, areas: &BTreeMap<String, &'static str>) -> Rule {
        let Some(id) = module.plugin() else { return Ok(()) };
        if !is_slug(id) {
            return Err(format!("its plugin id {id:?} does not match {SLUG}"));
        }
        if let Some(owner) = areas.get(id) {
            return Err(format!(
                "its plugin id {id} is the area of actions of module {owner}: choose another id"
            ));
        }
        take(&mut self.plugins, id, module, format_args!("plugin id {id}"))
    }

    fn tables(&mut self, module: &dyn Module) -> Rule {
        let own = module.plugin().map(|id| format!("plg_{id}_"));
        for name in module.tables().iter().map(Declared::name) {
            if !is_table(name) {
                return Err(format!("table {name:?} does not match {TABLE}"));
            }
            if RESERVED_TABLES.contains(&name) {
                return Err(format!("table {name} is kept for the runtime"));
            }
            match &own {
                Some(own) if name.strip_prefix(own.as_str()).is_none_or(str::is_empty) => {
                    return Err(format!("table {name} is not named {own}…, as a plugin's are"));
                }
                None if name.starts_with("plg_") => {
                    return Err(format!("table {name}: plg_… are the tables of plugins"));
                }
                _ => take(&mut self.tables, name, module, format_args!("table {name}"))?,
            }
        }
        Ok(())
    }

    fn extensions(&mut self, module: &dyn Module) -> Rule {
        for Extension { kind, id, version } in module.extensions() {
            let name = format!("{kind}:{id}@{version}");
            if !EXTENSION_KINDS.contains(&kind) {
                return Err(format!(
                    "extension {name}: {kind:?} is none of the kinds {}",
                    EXTENSION_KINDS.join(", ")
                ));
            }
            if !is_kind(id) || !is_version(version) {
                return Err(format!("extension {name:?} is not named {kind}:<id>@<version>"));
            }
            let what = format!("extension {name}");
            take(&mut self.extensions, name, module, what)?;
        }
        let audit_sinks = module.audit_sinks().into_iter().map(|sink| (sink.id, sink.version));
        with_code(module, "audit-sink", &audit_sinks.collect::<Vec<_>>())?;
        let event_sinks = module.event_sinks().into_iter().map(|sink| (sink.id, sink.version));
        with_code(module, "event-sink", &event_sinks.collect::<Vec<_>>())
    }

    fn command_kinds(&mut self, module: &dyn Module) -> Rule {
        for CommandKind { kind, lane, timeout, roles, .. } in module.command_kinds() {
            if !is_kind(kind) {
                return Err(format!(
                    "command kind {kind:?} does not match ^[a-z][a-z0-9._-]{{0,63}}$"
                ));
            }
            if !is_slug(lane) {
                return Err(format!(
                    "command kind {kind}: its lane {lane:?} does not match {SLUG}"
                ));
            }
            if timeout.is_zero() {
                return Err(format!("command kind {kind}: its timeout is 0"));
            }
            if let Some(role) = roles.iter().find(|role| !is_slug(role)) {
                return Err(format!(
                    "command kind {kind}: its role {role:?} does not match {SLUG}"
                ));
            }
            take(&mut self.command_kinds, kind, module, format_args!("command kind {kind}"))?;
        }
        Ok(())
    }

    fn catalog(&mut self, module: &dyn Module) -> Rule {
        let catalog = module.catalog();
        for action in catalog.actions {
            let its_own = area_of(action)
                .is_some_and(|area| module.plugin().is_none_or(|plugin| plugin == area));
            if !its_own {
                let area = module.plugin().unwrap_or("<area>");
                return Err(format!("action {action:?} is not compute:{area}:<verb>"));
            }
            take(&mut self.actions, action, module, format_args!("action {action}"))?;
        }
        for name in catalog.resource_types {
            if !is_slug(name) {
                return Err(format!("resource type {name:?} does not match {SLUG}"));
            }
            take(&mut self.resource_types, name, module, format_args!("resource type {name}"))?;
        }
        Ok(())
    }

    fn methods(&mut self, module: &dyn Module) -> Rule {
        let catalog = module.catalog();
        for method in module.methods() {
            let name = method.full_name();
            for word in [&method.group, &method.name] {
                if !is_method_name(word) {
                    return Err(format!("method {name}: {word:?} is not a method name"));
                }
            }
            let id = format!("{}:{name}", module.plugin().unwrap_or_default());
            if !self.methods.insert(id) {
                return Err(format!("method {name} is registered twice"));
            }
            if !catalog.actions.contains(&method.action.as_str()) {
                let action = &method.action;
                return Err(format!(
                    "method {name} needs action {action}, which its catalog does not list"
                ));
            }
            if method.watched.is_some() && !(method.list && method.kind == MethodKind::Query) {
                return Err(format!(
                    "method {name} is watched, and is not a query that answers a list"
                ));
            }
            self.route(module, &method)?;
        }
        Ok(())
    }

    fn route(&mut self, module: &dyn Module, method: &Method) -> Rule {
        let name = method.full_name();
        let Binding { verb, path } = binding_of(module, method);
        let named =
            parameters(&path).map_err(|why| format!("method {name}: path {path:?}: {why}"))?;
        let is_of_plugins = path == "/plugins" || path.starts_with("/plugins/");
        if is_of_plugins && module.plugin().is_none() {
            return Err(format!("method {name}: path {path}: /plugins/… are the paths of plugins"));
        }
        let known = fields::names(method);
        if let Some(unknown) = named.iter().find(|parameter| !known.contains(**parameter)) {
            return Err(format!("method {name}: path {path}: its input has no field {unknown}"));
        }
        match self.routes.insert((verb, without_parameter_names(&path)), name.clone()) {
            None => Ok(()),
            Some(other) => Err(format!("method {name}: route {verb} {path} is that of {other}")),
        }
    }

    fn reconcilers(&mut self, module: &dyn Module) -> Rule {
        for reconciler in module.reconcilers() {
            let name = reconciler.name();
            if !is_kind(name) {
                return Err(format!(
                    "{name:?} is not a reconciler name: ^[a-z][a-z0-9._-]{{0,63}}$"
                ));
            }
            let owner = RESERVED_KINDS.iter().find(|(kept, _)| *kept == name);
            let is_owners =
                |(_, owner): &(_, &str)| module.plugin().is_none() && module.name() == *owner;
            if owner.is_some_and(|kept| !is_owners(kept)) {
                return Err(format!("reconciler name {name} is kept for the runtime"));
            }
            take(&mut self.reconcilers, name, module, format_args!("reconciler {name}"))?;
            let too_often = reconciler.periodic().into_iter().find(|p| p.every.as_millis() < 1000);
            if let Some(periodic) = too_often {
                let key = periodic.key;
                return Err(format!(
                    "reconciler {name}: periodic key {key:?} comes back in under 1 s"
                ));
            }
        }
        Ok(())
    }
}

/// Each extension of a kind that is code has its code, and all code is an extension's.
fn with_code(module: &dyn Module, kind: &str, code: &[(&'static str, &'static str)]) -> Rule {
    let of_kind = module.extensions().into_iter().filter(|one| one.kind == kind);
    let declared: BTreeSet<_> = of_kind.map(|one| (one.id, one.version)).collect();
    if let Some((id, version)) = code.iter().find(|one| !declared.contains(one)) {
        return Err(format!("the code of {kind}:{id}@{version} is none of its extensions'"));
    }
    match declared.iter().find(|one| code.iter().filter(|other| other == one).count() != 1) {
        Some((id, version)) => {
            Err(format!("extension {kind}:{id}@{version} has no code, or more than one"))
        }
        None => Ok(()),
    }
}

fn migrations(module: &dyn Module) -> Rule {
    let owner = module.name();
    let mut last = 0;
    for migration in module.migrations() {
        let name = migration.name;
        let number = migration_number(name, owner)
            .ok_or_else(|| format!("migration {name:?} is not named {owner}/<nnnn>_<slug>"))?;
        if number <= last {
            return Err(format!("migration {name} does not come behind {last:04}"));
        }
        last = number;
    }
    Ok(())
}

/// The area of a well-formed action.
pub(super) fn area_of(action: &str) -> Option<&str> {
    let parts: Vec<&str> = action.split(':').collect();
    match parts.as_slice() {
        ["compute", area, verb] if is_slug(area) && is_slug(verb) => Some(*area),
        _ => None,
    }
}
