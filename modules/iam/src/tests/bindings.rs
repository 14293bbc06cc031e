use palisade_contract::{Code, Handler, Module};
use palisade_state::Tx;
use serde_json::{Value, json};

use super::world::World;

fn bind(
    world: &World,
    principal: &str,
    role: &str,
    tenant: &str,
) -> palisade_contract::Result<Value> {
    let input = json!({"principal": principal, "role": role, "tenant": tenant});
    world.call("roleBindings.create", input)
}

#[test]
fn a_principal_of_a_tenant_is_bound_there_alone() {
    let world = World::new();
    world.principal(2, "ci", "acme", &[]);
    let refused = bind(&world, "ci", "viewer", "other").unwrap_err();
    assert_eq!(refused.problems[0].pointer, "/tenant", "IAM-5");
    assert!(refused.problems[0].message.contains("belongs to tenant acme"));
    assert_eq!(bind(&world, "ci", "viewer", "").unwrap()["tenant"], "acme");
    world.principal(3, "bot", "", &[]);
    assert_eq!(bind(&world, "bot", "viewer", "other").unwrap()["id"], "bot.viewer.other");
    assert_eq!(bind(&world, "bot", "viewer", "").unwrap()["id"], "bot.viewer");
}

#[test]
fn what_is_bound_must_be_there_and_be_held_where_it_can() {
    let world = World::new();
    world.principal(2, "bot", "", &[]);
    assert_eq!(bind(&world, "nobody", "viewer", "").unwrap_err().code, Code::NotFound);
    let said = |role: &str, tenant: &str| {
        let refused = bind(&world, "bot", role, tenant).unwrap_err();
        assert_eq!(
            (refused.code, refused.problems[0].pointer.as_str()),
            (Code::InvalidInput, "/role")
        );
        refused.problems[0].message.clone()
    };
    assert_eq!(said("veiwer", ""), "there is no role \"veiwer\"; did you mean \"viewer\"?");
    assert_eq!(said("tenant-admin", ""), "tenant-admin needs a tenant");
    assert!(said("cluster-admin", "acme").contains("use tenant-admin"));
    let scaler = json!({"name": "scaler", "actions": ["compute:workloads:scale"]});
    world.call("roles.create", scaler).unwrap();
    assert!(said("scalar", "").contains("did you mean \"scaler\"?"));
    assert!(bind(&world, "bot", "scaler", "acme").is_ok());
}

#[test]
fn a_binding_that_is_there_is_answered_and_not_made_again() {
    let world = World::new();
    world.principal(2, "ci", "acme", &[]);
    bind(&world, "ci", "viewer", "acme").unwrap();
    let events = world.view().last_event();
    let again = bind(&world, "ci", "viewer", "acme").unwrap();
    assert!(again["revision"].as_u64().unwrap() > 0);
    assert_eq!(world.view().last_event(), events);
}

#[test]
fn a_list_of_bindings_is_narrowed() {
    let world = World::new();
    let token = world.principal(2, "ci", "acme", &[("viewer", "acme"), ("operator", "acme")]);
    world.principal(3, "bot", "", &[("viewer", "other"), ("viewer", "")]);
    let ids = |input: Value| -> Vec<String> {
        let listed = world.call("roleBindings.list", input).unwrap();
        let listed = listed.as_array().unwrap().iter();
        listed.map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(json!({})).len(), 4);
    assert_eq!(ids(json!({"principal": "ci"})), ["ci.operator.acme", "ci.viewer.acme"]);
    assert_eq!(ids(json!({"role": "viewer", "tenant": "other"})), ["bot.viewer.other"]);
    assert_eq!(ids(json!({"tenant": ""})), ["bot.viewer"]);
    let ci = world.present(&token).unwrap();
    let own = world.call_as(&ci, "roleBindings.list", json!({})).unwrap();
    assert_eq!(own.as_array().unwrap().len(), 2);
    let strange = json!({"binding": "bot.viewer.other"});
    assert_eq!(world.call_as(&ci, "roleBindings.get", strange).unwrap_err().code, Code::NotFound);
}

#[test]
fn a_principal_holds_so_many_roles_and_no_more() {
    let world = World::new();
    world.principal(2, "bot", "", &[]);
    for n in 0..64 {
        bind(&world, "bot", "viewer", &format!("t{n}")).unwrap();
    }
    assert_eq!(bind(&world, "bot", "viewer", "t64").unwrap_err().code, Code::TooLarge);
    world.call("roleBindings.remove", json!({"binding": "bot.viewer.t0"})).unwrap();
    assert!(bind(&world, "bot", "viewer", "t64").is_ok());
}

#[test]
fn a_role_is_not_removed_while_somebody_is_bound_to_it() {
    let world = World::new();
    world.principal(2, "ci", "acme", &[]);
    let actions = json!({"name": "scaler", "actions": ["compute:workloads:scale"]});
    world.call("roles.create", actions).unwrap();
    let run = |name: &str, input: Value| {
        let methods = world.module.methods();
        let method = methods.into_iter().find(|method| method.full_name() == name).unwrap();
        let Handler::Mutation(run) = method.handler else { unreachable!() };
        let mut tx = Tx::new(world.view());
        run(&world.method_cx(), &mut tx, input).unwrap();
        tx.build().unwrap()
    };
    let bound = run("roleBindings.create", json!({"principal": "ci", "role": "scaler"}));
    let removed = run("roles.remove", json!({"role": "scaler"}));
    assert!(world.store.apply(bound.into()).unwrap().is_applied());
    assert!(!world.store.apply(removed.into()).unwrap().is_applied(), "it was bound meanwhile");
}
