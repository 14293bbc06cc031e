//! Somebody can always administrate the cluster (`IAM-3`).

use palisade_contract::{Code, Handler, Module};
use palisade_state::Tx;
use serde_json::{Value, json};

use super::world::{World, admin, text};

#[test]
fn the_last_way_in_is_a_principals_token_as_well() {
    let world = World::new();
    let token = world.principal(2, "root", "", &[("cluster-admin", "")]);
    world.call("apiTokens.revoke", json!({"token": "boot"})).unwrap();
    let takes = [
        ("roleBindings.remove", json!({"binding": "root.cluster-admin"})),
        ("principals.update", json!({"principal": "root", "disabled": true})),
        ("principals.remove", json!({"principal": "root"})),
        ("apiTokens.revoke", json!({"token": "root"})),
    ];
    for (method, input) in &takes {
        let refused = world.call(method, input.clone()).unwrap_err();
        assert_eq!(refused.code, Code::InvalidState, "IAM-3: {method}");
        assert!(refused.detail.contains("nobody could make another"), "{refused}");
        assert!(world.present(&token).is_ok(), "{method}");
    }
    world.token(3, "another", "cluster-admin", json!({}));
    world.call("principals.remove", json!({"principal": "root"})).unwrap();
    assert!(world.present(&token).is_err());
}

#[test]
fn two_that_take_each_others_way_at_once_leave_one() {
    let world = World::new();
    world.principal(2, "root", "", &[("cluster-admin", "")]);
    let view = world.view();
    let txn = |name: &str, input: Value| {
        let method =
            world.module.methods().into_iter().find(|method| method.full_name() == name).unwrap();
        let Handler::Mutation(run) = method.handler else { unreachable!() };
        let mut tx = Tx::new(view.clone());
        run(&world.method_cx(), &mut tx, input).unwrap();
        tx.build().unwrap()
    };
    let revoke = txn("apiTokens.revoke", json!({"token": "boot"}));
    for (name, input) in [
        ("roleBindings.remove", json!({"binding": "root.cluster-admin"})),
        ("principals.update", json!({"principal": "root", "disabled": true})),
        ("principals.remove", json!({"principal": "root"})),
    ] {
        let other = txn(name, input);
        let world = World::new();
        world.principal(2, "root", "", &[("cluster-admin", "")]);
        assert!(world.store.apply(revoke.clone().into()).unwrap().is_applied());
        assert!(!world.store.apply(other.into()).unwrap().is_applied(), "IAM-3: {name}");
    }
}

#[test]
fn the_certificate_of_init_can_be_disabled_while_a_token_is_left() {
    let world = World::new();
    let certificate = || world.certificate("palisade://memory/user/admin");
    let disabled = |disabled: bool| json!({"principal": "admin", "disabled": disabled});
    let row = world.call("principals.update", disabled(true)).unwrap();
    assert_eq!((&row["status"], &row["name"]), (&json!("disabled"), &json!("admin")));
    assert!(certificate().is_err());
    assert!(world.present(&text("boot", 1)).is_ok());
    world.call("principals.update", disabled(false)).unwrap();
    assert_eq!(certificate().unwrap().roles, ["cluster-admin"]);
    let refused = world.call("principals.remove", json!({"principal": "admin"})).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
    assert!(refused.hint.unwrap().contains("palisade principal disable admin"));
    world.token(2, "short", "cluster-admin", json!({"ttlSeconds": 7200}));
    world.call("apiTokens.revoke", json!({"token": "boot"})).unwrap();
    world.store.advance(7_200_000);
    let refused = world.call_as(&admin(), "principals.update", disabled(true)).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState, "IAM-3: no token is left");
}

#[test]
fn a_principals_token_is_looked_at_by_doctor() {
    let world = World::new();
    let findings = || world.module.self_check(&world.cx, &world.view()).unwrap();
    world.principal(2, "root", "", &[("cluster-admin", "")]);
    world.call("apiTokens.revoke", json!({"token": "boot"})).unwrap();
    assert!(findings().is_empty(), "{:?}", findings());
}
