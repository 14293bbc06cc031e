//! Who may call what, of every method of the built-in modules: a golden file, written from the registry and from what
//! the iam module says.

use std::{fmt::Write, sync::Arc, time::Duration};

use palisade_contract::{Method, Principal, Registry, fields};
use palisade_iam::{Iam, ROLES, Role};
use palisade_state::{Store, memory::MemoryStore};
use serde_json::{Value, json};

use super::{Builder, Settings};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/api/server/matrix.txt");

const HEAD: &str = "\
# Who may call which method, as the iam module says. Generated: a test fails when it drifts; look at who may do what
# now, and run `cargo test -p palisade --lib matrix` with UPDATE_GOLDEN=1.
#
# Under each role: whoever is bound to no tenant (any), and whoever is bound to one (bound).
# c on what is the cluster's; t on a tenant's; o on what is of the own tenant; x on what is of another
# y allowed; - denied; . the method does not take a tenant
# There is no unbound tenant-admin and no bound cluster-admin.
#
#                                                         viewer       operator     tenant- cluster-
#                                                         any  bound   any  bound   admin   admin
# method                      action                      c t  c o x   c t  c o x   c o x   c t
";

const OWN: &str = "acme";
const OTHER: &str = "other";

/// Whose things a call is about: the cluster's, and those of a tenant.
const UNBOUND: [&str; 2] = ["", OTHER];
const BOUND: [&str; 3] = ["", OWN, OTHER];

/// Roles, and whether they are bound, as they come in a row.
const COLUMNS: [(Role, bool); 6] = [
    (Role::Viewer, false),
    (Role::Viewer, true),
    (Role::Operator, false),
    (Role::Operator, true),
    (Role::TenantAdmin, true),
    (Role::ClusterAdmin, false),
];

pub(super) fn registry() -> Registry {
    let settings = Settings { bootstrap: None, node_lost: Duration::from_secs(30), backups: None };
    Builder::new().assemble(settings).unwrap().registry
}

/// Whether this role may call a method on what is of `owner`; `None`: there is no such call.
fn may(method: &Method, role: Role, bound: bool, owner: &str) -> Option<bool> {
    if !owner.is_empty() && !fields::names(method).contains("tenant") {
        return None;
    }
    let input = if owner.is_empty() { json!({}) } else { json!({ "tenant": owner }) };
    Some(authorized(role, bound, &method.action, &(method.resource)(&input)))
}

fn authorized(role: Role, bound: bool, action: &str, on: &palisade_contract::Resource) -> bool {
    let principal = Principal {
        name: "token/somebody".to_owned(),
        roles: vec![role.word().to_owned()],
        tenant: if bound { OWN.to_owned() } else { String::new() },
    };
    let access = Iam::new(None).access();
    let view = Arc::new(MemoryStore::default()).view();
    access.authorize(&view, &principal, action, on).is_ok()
}

fn row(method: &Method) -> String {
    let cells = COLUMNS.iter().map(|(role, bound)| {
        let places: &[&str] = if *bound { &BOUND } else { &UNBOUND };
        let cells = places.iter().map(|owner| match may(method, *role, *bound, owner) {
            Some(true) => "y",
            Some(false) => "-",
            None => ".",
        });
        cells.collect::<Vec<_>>().join(" ")
    });
    let cells: Vec<String> = cells.collect();
    let [viewer, viewers, operator, operators, tenant, cluster] = cells.as_slice() else {
        unreachable!()
    };
    let (name, action) = (method.full_name(), &method.action);
    format!(
        "{name:<30}{action:<28}{viewer}  {viewers}   {operator}  {operators}   {tenant}   {cluster}"
    )
}

fn matrix(registry: &Registry) -> String {
    let mut methods: Vec<Method> =
        registry.methods().into_iter().map(|(method, _)| method).collect();
    methods.sort_by_key(Method::full_name);
    let mut text = HEAD.to_owned();
    for method in methods {
        let _ = writeln!(text, "{}", row(&method));
    }
    text
}

#[test]
fn who_may_call_which_method_is_as_committed() {
    let text = matrix(&registry());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(PATH, &text).unwrap();
    }
    let committed = std::fs::read_to_string(PATH).unwrap_or_default();
    assert!(
        committed == text,
        "api/server/matrix.txt has drifted: look at who may do what now, then run this test with UPDATE_GOLDEN=1:\n{text}"
    );
}

#[test]
fn a_method_that_takes_a_tenant_is_about_that_tenant() {
    for (method, _) in registry().methods() {
        let about = (method.resource)(&json!({ "tenant": OTHER })).tenant;
        if fields::names(&method).contains("tenant") && !is_of_the_cluster(&method) {
            assert_eq!(about, OTHER, "{} ignores whose things it is about", method.full_name());
        } else {
            assert_eq!(about, "", "{} is about a tenant and takes none", method.full_name());
        }
        let nobody = (method.resource)(&Value::Null);
        assert!(!nobody.kind.is_empty(), "{} does not say what it is about", method.full_name());
    }
}

/// API tokens and principals are the cluster's, whomever they let in: a tenant makes none for itself. So is what a tenant is
/// granted.
fn is_of_the_cluster(method: &Method) -> bool {
    let methods = [
        "apiTokens.create",
        "principals.create",
        "tenants.update",
        "tenants.suspend",
        "tenants.resume",
        "tenants.remove",
    ];
    methods.contains(&method.full_name().as_str())
}

#[test]
fn a_bound_principal_may_nothing_on_what_is_not_its_tenants_but_what_everybody_may() {
    let for_everybody =
        ["auth.canI", "auth.whoami", "cluster.trust", "roles.get", "roles.list", "system.version"];
    for (method, _) in registry().methods() {
        for role in ROLES {
            for owner in ["", OTHER] {
                let allowed = may(&method, role, true, owner) == Some(true);
                let name = method.full_name();
                let is_for_all = owner.is_empty() && for_everybody.contains(&name.as_str());
                assert_eq!(allowed, is_for_all, "{role:?} {name} on what is of {owner:?}");
            }
        }
    }
}
