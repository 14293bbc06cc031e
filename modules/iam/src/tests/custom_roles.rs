use palisade_contract::{Code, Module};
use serde_json::{Value, json};

use super::world::{World, admin};
use crate::records::CUSTOM_ROLES;

fn create(world: &World, name: &str, actions: &[&str]) -> palisade_contract::Result<Value> {
    world.call("roles.create", json!({"name": name, "actions": actions}))
}

#[test]
fn whoever_holds_a_role_that_may_only_scale_may_only_scale() {
    let world = World::new();
    create(&world, "scaler", &["compute:workloads:scale"]).unwrap();
    let token = world.principal(2, "ci", "acme", &[("scaler", "acme")]);
    let ci = world.present(&token).unwrap();
    assert!(world.may(&ci, "compute:workloads:scale", "acme"));
    for action in ["compute:workloads:write", "compute:workloads:read", "compute:nodes:read"] {
        assert!(!world.may(&ci, action, "acme"), "{action}");
    }
    let can = |action: &str| {
        let asked = json!({"action": action});
        world.call_as(&ci, "auth.canI", asked).unwrap()["allowed"].clone()
    };
    assert_eq!((can("roles.list"), can("roles.create")), (json!(true), json!(false)));
}

#[test]
fn a_role_that_is_changed_is_changed_for_whoever_holds_it() {
    let world = World::new();
    create(&world, "ops", &["compute:workloads:scale"]).unwrap();
    let token = world.principal(2, "ci", "acme", &[("ops", "acme")]);
    let ci = world.present(&token).unwrap();
    let read = || world.call("roles.get", json!({"role": "ops"})).unwrap();
    let revision = read()["revision"].as_u64().unwrap();
    let change = |actions: &[&str]| {
        let input = json!({"role": "ops", "actions": actions});
        world.call_at(&admin(), Some(revision), "roles.update", input)
    };
    change(&["compute:workloads:write", "compute:workloads:write"]).unwrap();
    assert_eq!(read()["actions"], json!(["compute:workloads:write"]));
    assert!(world.may(&ci, "compute:workloads:write", "acme"));
    assert!(!world.may(&ci, "compute:workloads:scale", "acme"));
    assert_eq!(change(&["compute:workloads:scale"]).unwrap_err().code, Code::PreconditionFailed);
}

#[test]
fn unknown_actions_are_refused_with_the_near_one() {
    let world = World::new();
    let refused =
        create(&world, "ops", &["compute:workloads:scael", "compute:workloads:write", "*"]);
    let refused = refused.unwrap_err();
    let said: Vec<(&str, &str)> =
        refused.problems.iter().map(|p| (p.pointer.as_str(), p.message.as_str())).collect();
    let [(first, near), (second, far)] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!((*first, *second), ("/actions/0", "/actions/2"));
    assert!(near.ends_with("did you mean \"compute:workloads:scale\"?"), "{near}");
    assert!(!far.contains("did you mean"), "{far}");
    create(&world, "ops", &["compute:workloads:scale"]).unwrap();
    let changed = json!({"role": "ops", "actions": ["compute:nodes:remov"]});
    assert_eq!(world.call("roles.update", changed).unwrap_err().code, Code::InvalidInput);
}

#[test]
fn built_in_names_are_taken_and_built_in_roles_stay() {
    let world = World::new();
    for name in ["viewer", "operator", "tenant-admin", "cluster-admin", "Ops", "ops\u{200b}", "оps"]
    {
        let refused = create(&world, name, &["compute:workloads:scale"]).unwrap_err();
        assert_eq!(refused.problems[0].pointer, "/name", "{name:?}");
    }
    assert_eq!(create(&world, "ops", &[]).unwrap_err().problems[0].pointer, "/actions");
    for method in ["roles.update", "roles.remove"] {
        let refused = world.call(method, json!({"role": "viewer"})).unwrap_err();
        assert_eq!(refused.code, Code::InvalidState, "{method}");
        let refused = world.call(method, json!({"role": "nobody"})).unwrap_err();
        assert_eq!(refused.code, Code::NotFound, "{method}");
    }
    create(&world, "ops", &["compute:workloads:scale"]).unwrap();
    let twice = create(&world, "ops", &["compute:workloads:scale"]).unwrap_err();
    assert_eq!((twice.code, twice.retryable), (Code::Conflict, false));
}

#[test]
fn a_role_that_is_held_cannot_be_removed() {
    let world = World::new();
    create(&world, "ops", &["compute:workloads:scale"]).unwrap();
    world.principal(2, "ci", "acme", &[("ops", "acme")]);
    world.principal(3, "bot", "", &[("ops", "other")]);
    let refused = world.call("roles.remove", json!({"role": "ops"})).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
    assert_eq!(refused.detail, "role ops is held: by the binding bot.ops.other and 1 more");
    assert!(refused.hint.unwrap().contains("palisade binding ls --role ops"));
    world.call("principals.remove", json!({"principal": "bot"})).unwrap();
    world.call("roleBindings.remove", json!({"binding": "ci.ops.acme"})).unwrap();
    world.call("roles.remove", json!({"role": "ops"})).unwrap();
    assert_eq!(world.call("roles.get", json!({"role": "ops"})).unwrap_err().code, Code::NotFound);
}

#[test]
fn all_roles_are_listed_with_what_they_allow() {
    let world = World::new();
    create(&world, "ops", &["compute:workloads:scale"]).unwrap();
    let listed = world.call("roles.list", json!({})).unwrap();
    let listed = listed.as_array().unwrap();
    let names: Vec<&str> = listed.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["viewer", "operator", "tenant-admin", "cluster-admin", "ops"]);
    let allows =
        |n: usize, action: &str| listed[n]["actions"].as_array().unwrap().contains(&json!(action));
    assert!(allows(0, "compute:roles:read") && !allows(0, "compute:workloads:write"));
    assert!(allows(1, "compute:workloads:write") && !allows(1, "compute:role-bindings:write"));
    assert!(allows(2, "compute:role-bindings:write") && !allows(2, "compute:cluster:backup"));
    assert!(allows(3, "compute:cluster:backup") && allows(3, "compute:roles:write"));
}

#[test]
fn a_role_that_allows_what_nobody_knows_is_a_finding() {
    let world = World::new();
    create(&world, "ops", &["compute:workloads:scale"]).unwrap();
    let findings = || world.module.self_check(&world.cx, &world.view()).unwrap();
    assert!(findings().is_empty());
    let gone = |tx: &mut palisade_state::Tx| {
        let mut row = tx.get(&CUSTOM_ROLES, &"ops".to_owned())?.unwrap();
        row.actions.push("compute:acme:feed".to_owned());
        Ok(tx.put(&CUSTOM_ROLES, &row.name.clone(), &row)?)
    };
    world.commit(gone).unwrap();
    let found = findings();
    assert_eq!((found.len(), found[0].check.as_str()), (1, "roles.unknown-action"));
    assert!(found[0].message.starts_with("role ops allows compute:acme:feed"), "{found:?}");
}
