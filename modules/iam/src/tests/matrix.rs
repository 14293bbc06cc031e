//! The whole matrix: who may do what, on whose things. A change of it is a change of the file.

use std::fmt::Write;

use palisade_contract::{Code, Principal, Resource};

use super::world::World;
use crate::{ROLES, Role, access, may};

const ACTIONS: [&str; 19] = [
    "compute:api-tokens:read",
    "compute:api-tokens:write",
    "compute:audit:read",
    "compute:auth:read",
    "compute:cluster:read",
    "compute:cluster:write",
    "compute:events:read",
    "compute:instances:logs",
    "compute:instances:read",
    "compute:join-tokens:read",
    "compute:join-tokens:write",
    "compute:nodes:read",
    "compute:nodes:remove",
    "compute:nodes:write",
    "compute:system:read",
    "compute:widgets:paint",
    "compute:workloads:read",
    "compute:workloads:remove",
    "compute:workloads:write",
];

/// Bound to a tenant or not, and whose the thing is.
const PLACES: [(&str, &str); 5] =
    [("", ""), ("", "acme"), ("acme", "acme"), ("acme", "other"), ("acme", "")];

fn matrix() -> String {
    let mut text = String::new();
    for role in ROLES {
        let _ = writeln!(
            text,
            "{}\n{:28}any/cluster any/acme acme/acme acme/other acme/cluster",
            role.word(),
            "  caller's tenant/owner"
        );
        for action in ACTIONS {
            let cells: Vec<&str> = PLACES
                .iter()
                .map(|(tenant, owner)| {
                    if may(&[role.word().to_owned()], tenant, action, owner) { "yes" } else { "-" }
                })
                .collect();
            let [a, b, c, d, e] = cells.as_slice() else { unreachable!() };
            let row = format!("  {action:26}{a:12}{b:9}{c:10}{d:11}{e}");
            let _ = writeln!(text, "{}", row.trim_end());
        }
        text.push('\n');
    }
    text
}

#[test]
fn the_matrix_is_the_golden_one() {
    let golden = include_str!("matrix.txt");
    let found = matrix();
    assert!(found == golden, "the matrix of roles has changed; it is now:\n{found}");
}

#[test]
fn the_agreed_actions_are_all_in_the_matrix() {
    let world = World::new();
    let module: &dyn palisade_contract::Module = &world.module;
    assert!(module.catalog().actions.iter().all(|action| ACTIONS.contains(action)));
}

#[test]
fn no_roles_and_unknown_roles_may_nothing() {
    for action in ACTIONS {
        assert!(!may(&[], "", action, ""), "{action}");
        assert!(!may(&["root".to_owned()], "", action, ""), "{action}");
    }
}

#[test]
fn what_is_no_action_is_refused_to_everybody() {
    for action in ["", "compute", "compute:nodes", "compute:nodes:read:x", "other:nodes:read"] {
        assert!(!may(&[Role::ClusterAdmin.word().to_owned()], "", action, ""), "{action}");
    }
}

#[test]
fn roles_add_up() {
    let roles = ["viewer".to_owned(), "operator".to_owned()];
    assert!(
        may(&roles, "", "compute:nodes:write", "") && may(&roles, "", "compute:audit:read", "")
    );
}

#[test]
fn a_denial_names_who_what_and_on_what() {
    let principal =
        Principal { name: "token/ci".into(), roles: vec!["viewer".into()], tenant: String::new() };
    let node = Resource::cluster("node", "web-1");
    let denied = access::authorize(&principal, "compute:nodes:write", &node).unwrap_err();
    assert_eq!(denied.code, Code::AccessDenied);
    assert_eq!(denied.detail, "token/ci (viewer) may not compute:nodes:write on node/web-1");
    assert!(access::authorize(&principal, "compute:nodes:read", &node).is_ok());
}
