//! Nobody takes away what he could not give (`IAM-7`).

use palisade_contract::{Code, Principal, Result};
use serde_json::{Value, json};

use super::world::World;

fn denied(answered: Result<Value>) {
    let refused = answered.expect_err("it takes away what it could not give");
    assert_eq!(refused.code, Code::AccessDenied, "IAM-7: {refused}");
    assert!(refused.detail.contains("may not take away the role"), "{refused}");
}

/// A world with an administrator, somebody who scales, and a clerk who may change who may what and nothing else.
fn place() -> (World, Principal) {
    let world = World::new();
    let writes = ["api-tokens", "principals", "role-bindings", "roles"];
    let actions: Vec<String> = writes.map(|area| format!("compute:{area}:write")).to_vec();
    world.call("roles.create", json!({"name": "clerk", "actions": actions})).unwrap();
    let scaler = json!({"name": "scaler", "actions": ["compute:workloads:scale"]});
    world.call("roles.create", scaler).unwrap();
    world.principal(3, "root", "", &[("cluster-admin", "")]);
    world.principal(4, "ci", "acme", &[("scaler", "acme")]);
    world.principal(5, "other", "", &[("clerk", "")]);
    let token = world.principal(2, "clerk", "", &[("clerk", "")]);
    let clerk = world.present(&token).unwrap();
    (world, clerk)
}

#[test]
fn what_allows_more_than_its_taker_may_stays() {
    let (world, clerk) = place();
    for (method, input) in [
        ("roleBindings.remove", json!({"binding": "root.cluster-admin"})),
        ("roleBindings.remove", json!({"binding": "ci.scaler.acme"})),
        ("principals.update", json!({"principal": "root", "disabled": true})),
        ("principals.update", json!({"principal": "ci", "disabled": true})),
        ("principals.remove", json!({"principal": "ci"})),
        ("apiTokens.revoke", json!({"token": "root"})),
        ("apiTokens.revoke", json!({"token": "boot"})),
        ("roles.update", json!({"role": "scaler", "actions": ["compute:roles:write"]})),
    ] {
        denied(world.call_as(&clerk, method, input));
    }
    world.call("roleBindings.remove", json!({"binding": "ci.scaler.acme"})).unwrap();
    denied(world.call_as(&clerk, "roles.remove", json!({"role": "scaler"})));
    world.call("roles.remove", json!({"role": "scaler"})).unwrap();
}

#[test]
fn what_its_taker_has_himself_is_taken_and_what_is_ones_own_is_given_up() {
    let (world, clerk) = place();
    let as_clerk = |method: &str, input: Value| world.call_as(&clerk, method, input).unwrap();
    as_clerk("principals.update", json!({"principal": "other", "disabled": true}));
    as_clerk("apiTokens.revoke", json!({"token": "other"}));
    as_clerk("principals.remove", json!({"principal": "other"}));
    as_clerk("apiTokens.revoke", json!({"token": "clerk"}));
    as_clerk("roleBindings.remove", json!({"binding": "clerk.clerk"}));
}
