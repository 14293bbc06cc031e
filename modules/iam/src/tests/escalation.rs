//! Nobody gives away what he does not have (`IAM-4`), and whoever is bound to a tenant gives only within it (`IAM-5`).

use palisade_contract::{Code, Principal, Result};
use serde_json::{Value, json};

use super::world::{World, hash};

fn denied(answered: Result<Value>) {
    let refused = answered.expect_err("it gives away what it does not have");
    assert_eq!(refused.code, Code::AccessDenied, "IAM-4: {refused}");
    assert!(refused.detail.contains("may not give the role"), "{refused}");
}

/// A world, and its clerk: he may change who may what in the whole cluster, and nothing else.
fn with_clerk() -> (World, Principal) {
    let world = World::new();
    let writes = ["api-tokens", "principals", "role-bindings", "roles"];
    let actions: Vec<String> = writes.map(|area| format!("compute:{area}:write")).to_vec();
    world.call("roles.create", json!({"name": "clerk", "actions": actions})).unwrap();
    let token = world.principal(2, "clerk", "", &[("clerk", "")]);
    world
        .call("roles.create", json!({"name": "scaler", "actions": ["compute:workloads:scale"]}))
        .unwrap();
    let clerk = world.present(&token).unwrap();
    (world, clerk)
}

#[test]
fn a_token_of_more_than_its_maker_may_is_refused() {
    let (world, clerk) = with_clerk();
    let token = |input: Value| {
        let mut input = input;
        input["secretSha256"] = json!(hash(9));
        input["name"] = json!("mine");
        world.call_as(&clerk, "apiTokens.create", input)
    };
    for role in ["viewer", "operator", "cluster-admin"] {
        denied(token(json!({"roles": [role]})));
    }
    denied(token(json!({"roles": ["tenant-admin"], "tenant": "acme"})));
    world.principal(3, "root", "", &[("cluster-admin", "")]);
    world.principal(4, "ci", "acme", &[("scaler", "acme")]);
    denied(token(json!({"principal": "root"})));
    denied(token(json!({"principal": "ci"})));
    token(json!({"principal": "clerk"})).unwrap();
}

#[test]
fn a_role_of_more_than_its_maker_may_is_refused() {
    let (world, clerk) = with_clerk();
    let nodes = ["compute:roles:write", "compute:nodes:remove"];
    denied(world.call_as(&clerk, "roles.create", json!({"name": "mine", "actions": nodes})));
    denied(world.call_as(&clerk, "roles.update", json!({"role": "clerk", "actions": nodes})));
    let less = json!({"role": "clerk", "actions": ["compute:roles:write"]});
    world.call_as(&clerk, "roles.update", less).unwrap();
}

#[test]
fn a_binding_of_more_than_its_maker_may_is_refused() {
    let (world, clerk) = with_clerk();
    world.principal(3, "ci", "acme", &[]);
    let bind = |who: &Principal, principal: &str, role: &str| {
        world.call_as(who, "roleBindings.create", json!({"principal": principal, "role": role}))
    };
    for role in ["viewer", "operator", "cluster-admin", "scaler"] {
        denied(bind(&clerk, "clerk", role));
    }
    denied(bind(&clerk, "ci", "tenant-admin"));
    bind(&clerk, "ci", "clerk").unwrap();
}

#[test]
fn nobody_gets_hold_of_a_principal_that_may_more_than_he() {
    let (world, clerk) = with_clerk();
    world.principal(3, "root", "", &[("cluster-admin", "")]);
    let update = |who: &Principal, input: Value| world.call_as(who, "principals.update", input);
    denied(update(&clerk, json!({"principal": "root", "keys": [hash(9)]})));
    denied(update(&clerk, json!({"principal": "admin", "keys": [hash(9)]})));
    update(&super::world::admin(), json!({"principal": "root", "disabled": true})).unwrap();
    denied(update(&clerk, json!({"principal": "root", "disabled": false})));
    update(&super::world::admin(), json!({"principal": "root", "disabled": false})).unwrap();
    update(&clerk, json!({"principal": "clerk", "keys": [hash(9)]})).unwrap();
}

#[test]
fn a_tenants_admin_binds_within_its_tenant_and_what_it_may_itself() {
    let world = World::new();
    world
        .call("roles.create", json!({"name": "scaler", "actions": ["compute:workloads:scale"]}))
        .unwrap();
    world
        .call("roles.create", json!({"name": "backup", "actions": ["compute:cluster:backup"]}))
        .unwrap();
    let token = world.principal(2, "boss", "acme", &[("tenant-admin", "acme")]);
    for (n, name, tenant) in [(3, "ci", "acme"), (4, "vault", "other"), (5, "bot", "")] {
        world.principal(n, name, tenant, &[]);
    }
    let boss = world.present(&token).unwrap();
    let bind = |principal: &str, role: &str, extra: Value| {
        let mut input = json!({"principal": principal, "role": role});
        input.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        world.call_as(&boss, "roleBindings.create", input)
    };
    for role in ["viewer", "operator", "tenant-admin", "scaler"] {
        let made = bind("ci", role, json!({})).unwrap();
        assert_eq!(made["tenant"], "acme", "{role}");
    }
    denied(bind("ci", "backup", json!({})));
    let refused = bind("ci", "cluster-admin", json!({})).unwrap_err();
    assert_eq!(refused.code, Code::InvalidInput);
    let words = |principal: &str| {
        let refused = bind(principal, "viewer", json!({})).unwrap_err();
        (refused.code, refused.detail.replace(principal, "X"), refused.hint)
    };
    assert_eq!(words("nobody").0, Code::NotFound);
    assert_eq!(words("vault"), words("nobody"), "IAM-5");
    assert_eq!(words("bot"), words("nobody"), "IAM-5");
    for tenant in ["other", ""] {
        let refused = bind("ci", "viewer", json!({"tenant": tenant})).unwrap_err();
        assert_eq!(refused.code, Code::AccessDenied, "{tenant:?}");
    }
    world.call_as(&boss, "roleBindings.remove", json!({"binding": "ci.operator.acme"})).unwrap();
    world.call("roleBindings.create", json!({"principal": "vault", "role": "viewer"})).unwrap();
    let strange = json!({"binding": "vault.viewer.other"});
    let refused = world.call_as(&boss, "roleBindings.remove", strange).unwrap_err();
    assert_eq!(refused.code, Code::NotFound, "IAM-5");
    for method in ["principals.create", "roles.create", "apiTokens.create"] {
        let input = json!({
            "name": "mine", "actions": ["compute:workloads:scale"], "roles": ["viewer"],
            "secretSha256": hash(9), "tenant": "acme",
        });
        let known: &[&str] = match method {
            "principals.create" => &["name", "tenant"],
            "roles.create" => &["name", "actions"],
            _ => &["name", "roles", "secretSha256", "tenant"],
        };
        let mut fields = input.as_object().unwrap().clone();
        fields.retain(|field, _| known.contains(&field.as_str()));
        let refused = world.call_as(&boss, method, Value::Object(fields)).unwrap_err();
        assert_eq!(refused.code, Code::AccessDenied, "{method}");
    }
}
