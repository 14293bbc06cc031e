//! What is true of all actions; which role may call which method is the golden file of the root package,
//! `api/server/matrix.txt`.

use palisade_contract::{Code, Principal, Resource};

use super::world::World;
use crate::{ROLES, Role, access, may};

/// Of each kind: in a guarded area and not, reading and writing, for everybody, and of a module that nobody knows.
const ACTIONS: [&str; 9] = [
    "compute:api-tokens:write",
    "compute:auth:read",
    "compute:role-bindings:write",
    "compute:roles:write",
    "compute:cluster:write",
    "compute:instances:logs",
    "compute:nodes:read",
    "compute:widgets:paint",
    "compute:workloads:remove",
];

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
    let view = World::new().view();
    let principal =
        Principal { name: "token/ci".into(), roles: vec!["viewer".into()], tenant: String::new() };
    let node = Resource::cluster("node", "web-1");
    let denied = access::authorize(&view, &principal, "compute:nodes:write", &node).unwrap_err();
    assert_eq!(denied.code, Code::AccessDenied);
    assert_eq!(denied.detail, "token/ci (viewer) may not compute:nodes:write on node/web-1");
    assert!(access::authorize(&view, &principal, "compute:nodes:read", &node).is_ok());
}

#[test]
fn whoever_is_bound_to_a_tenant_may_nothing_with_what_is_not_that_tenants() {
    let for_everybody =
        ["compute:auth:read", "compute:roles:read", "compute:version:read", "compute:trust:read"];
    for role in ROLES.map(|role| vec![role.word().to_owned()]) {
        for action in ACTIONS.into_iter().filter(|action| !for_everybody.contains(action)) {
            for owner in ["", "other", "Acme", "acme "] {
                assert!(!may(&role, "acme", action, owner), "{role:?} {action} {owner:?}");
            }
        }
        for action in for_everybody {
            assert!(may(&role, "acme", action, ""), "{role:?} {action}");
        }
    }
}

#[test]
fn a_denial_says_whose_it_is_and_to_whom_one_is_bound() {
    let principal = Principal {
        name: "token/ci".into(),
        roles: vec!["operator".into()],
        tenant: "acme".into(),
    };
    let view = World::new().view();
    let denied = |owner: &str| {
        let on = Resource::of_tenant("workload", "web", owner);
        let refused =
            access::authorize(&view, &principal, "compute:workloads:write", &on).unwrap_err();
        assert_eq!(refused.code, Code::AccessDenied);
        refused.hint.unwrap()
    };
    assert_eq!(
        denied(""),
        "it is the cluster's: only who is bound to no tenant may, and you are to acme"
    );
    assert_eq!(denied("other"), "you are bound to tenant acme: name that one, or none");
}
