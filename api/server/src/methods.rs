//! The method table: what a reviewed file says that this cluster's API is, and what registered modules say beyond it.

use std::collections::BTreeSet;

use palisade_contract::{Finding, Module, Registry, Severity, registry::binding_of};

/// The reviewed table: one line for each method, in order.
pub const TABLE: &str = include_str!("../methods.txt");

/// So many methods are named in the finding.
const NAMED_MAX: usize = 10;

/// The head of the table.
const HEAD: &str = "# group method kind action verb path\n";

/// The table of the modules that are no plugins, as it should be reviewed.
#[must_use]
pub fn table(registry: &Registry) -> String {
    let lines = registry.modules().iter().filter(|module| module.plugin().is_none());
    let mut lines: Vec<String> = lines.flat_map(|module| of_module(&**module)).collect();
    lines.sort();
    lines.iter().fold(HEAD.to_owned(), |text, line| text + line + "\n")
}

fn of_module(module: &dyn Module) -> Vec<String> {
    let line = |method: palisade_contract::Method| {
        let binding = binding_of(module, &method);
        format!(
            "{} {} {} {} {} {}",
            method.group, method.name, method.kind, method.action, binding.verb, binding.path
        )
    };
    module.methods().into_iter().map(line).collect()
}

/// The finding `catalog.undeclared`: methods of modules that are no plugins which the table lacks, or has otherwise.
pub(crate) fn undeclared(registry: &Registry, table: &str) -> Option<Finding> {
    let declared: BTreeSet<&str> = table.lines().collect();
    let mut modules = BTreeSet::new();
    let mut methods = vec![];
    for module in registry.modules().iter().filter(|module| module.plugin().is_none()) {
        for line in of_module(&**module) {
            if !declared.contains(line.as_str()) {
                let mut words = line.split(' ');
                let (group, name) = (words.next(), words.next());
                methods.push([group.unwrap_or_default(), name.unwrap_or_default()].join("."));
                modules.insert(module.name());
            }
        }
    }
    let count = methods.len();
    let named: Vec<String> = methods.into_iter().take(NAMED_MAX).collect();
    let modules: Vec<&str> = modules.into_iter().collect();
    (count > 0).then(|| Finding {
        check: "catalog.undeclared".to_owned(),
        severity: Severity::Warning,
        message: format!(
            "methods that nobody reviewed are served: {}{}, of {}",
            named.join(", "),
            if count > NAMED_MAX { " …" } else { "" },
            modules.join(", ")
        ),
        fix: "only built-in modules have methods outside /plugins/: give a module of your own a plugin id and add it \
              with `Builder::plugin`; a built-in method belongs in api/server/methods.txt"
            .to_owned(),
        count: u64::try_from(count).ok(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use palisade_contract::{Catalog, Method, Nothing, Verb};

    use super::*;

    struct Pets {
        plugin: Option<&'static str>,
        action: &'static str,
        many: usize,
    }

    impl Module for Pets {
        fn name(&self) -> &'static str {
            "pets"
        }

        fn plugin(&self) -> Option<&'static str> {
            self.plugin
        }

        fn catalog(&self) -> Catalog {
            Catalog { actions: vec![self.action], resource_types: vec![] }
        }

        fn methods(&self) -> Vec<Method> {
            let method = |n: usize| {
                let name = format!("m{n:02}");
                let handler = |_: &_, _: &_, _: Nothing| Ok(String::new());
                Method::query("pets", &name, self.action, handler)
                    .rest(Verb::Get, &format!("/pets/{name}"))
            };
            (0..self.many).map(method).collect()
        }
    }

    fn registry(pets: Pets) -> Registry {
        Registry::new(vec![Arc::new(pets)]).unwrap()
    }

    fn pets(many: usize) -> Registry {
        registry(Pets { plugin: None, action: "compute:pets:read", many })
    }

    #[test]
    fn a_method_that_the_table_lacks_is_found() {
        let one = pets(1);
        let found = undeclared(&one, TABLE).unwrap();
        assert_eq!((found.check.as_str(), found.count), ("catalog.undeclared", Some(1)));
        assert_eq!(found.message, "methods that nobody reviewed are served: pets.m00, of pets");
        let table = table(&one);
        assert_eq!(table, format!("{HEAD}pets m00 query compute:pets:read GET /pets/m00\n"));
        assert!(undeclared(&one, &table).is_none(), "it is declared now");
        let twelve = undeclared(&pets(12), &table).unwrap();
        assert!(twelve.message.contains("pets.m10 …, of pets"), "{}", twelve.message);
        assert_eq!(twelve.count, Some(11));
    }

    #[test]
    fn a_method_that_the_table_has_otherwise_is_found() {
        let reviewed = table(&pets(1));
        for other in ["mutation", "compute:cats:read", "POST", "/pets/m01"] {
            let word = match other {
                "mutation" => "query",
                "POST" => "GET",
                "/pets/m01" => "/pets/m00",
                _ => "compute:pets:read",
            };
            assert!(undeclared(&pets(1), &reviewed.replace(word, other)).is_some(), "{other}");
        }
    }

    #[test]
    fn methods_of_a_plugin_are_not_in_the_table() {
        let acme = registry(Pets { plugin: Some("acme"), action: "compute:acme:read", many: 1 });
        assert_eq!(table(&acme), HEAD);
        assert!(undeclared(&acme, TABLE).is_none());
    }
}
