//! Who somebody is later, and who made whom.

use palisade_contract::{Code, Principal, Resource, Result};
use palisade_state::Tx;
use serde_json::json;

use super::world::World;

fn standing(world: &World, name: &str) -> Result<Principal> {
    world.cx.ports.access.get().unwrap().standing(&mut Tx::new(world.view()), name)
}

#[test]
fn who_somebody_is_later_is_who_would_be_let_in_then() {
    let world = World::new();
    let held = &[("operator", "acme")];
    let own = world.principal(2, "bob", "acme", held);
    assert_eq!(standing(&world, "user/bob").unwrap(), world.present(&own).unwrap());
    let id = world.token(3, "ci", "viewer", json!({"ttlSeconds": 60}));
    let name = format!("token/{id}");
    assert_eq!(standing(&world, &name).unwrap().roles, ["viewer"]);
    world.store.advance(60_000);
    world.call("principals.update", json!({"principal": "bob", "disabled": true})).unwrap();
    for gone in [name.as_str(), "user/bob", "user/nobody", "token/none", "internal/x", ""] {
        assert_eq!(standing(&world, gone).unwrap_err().code, Code::Unauthenticated, "{gone}");
    }
    assert_eq!(standing(&world, "user/admin").unwrap().roles, ["cluster-admin"]);
}

#[test]
fn a_right_that_is_taken_meanwhile_is_noticed() {
    let world = World::new();
    world.principal(2, "bob", "acme", &[("operator", "acme")]);
    let mut tx = Tx::new(world.view());
    let access = world.cx.ports.access.get().unwrap().clone();
    access.standing(&mut tx, "user/bob").unwrap();
    tx.enqueue("something", "done on his behalf").unwrap();
    world.call("roleBindings.remove", json!({"binding": "bob.operator.acme"})).unwrap();
    let outcome = world.store.apply(tx.build().unwrap().into()).unwrap();
    assert!(!outcome.is_applied(), "{outcome:?}");
}

#[test]
fn makers_are_found_through_others_and_through_tokens() {
    let world = World::new();
    world.principal(2, "bob", "", &[("cluster-admin", "")]);
    let access = world.cx.ports.access.get().unwrap();
    let makers = |name: &str| access.makers(&mut Tx::new(world.view()), name).unwrap();
    let bob = standing(&world, "user/bob").unwrap();
    let made = json!({"secretSha256": super::world::hash(3), "name": "ci", "roles": ["viewer"]});
    let made = world.call_as(&bob, "apiTokens.create", made).unwrap();
    let ci = format!("token/{}", made["id"].as_str().unwrap());
    assert_eq!(makers("user/bob").into_iter().collect::<Vec<_>>(), ["user/ada"]);
    assert_eq!(makers(&ci).into_iter().collect::<Vec<_>>(), ["user/ada", "user/bob"]);
    let of_ada = json!({"secretSha256": super::world::hash(4), "name": "x", "principal": "bob"});
    world.call_as(&bob, "apiTokens.create", of_ada).unwrap();
    assert!(!makers("user/bob").contains("user/bob"), "nobody is his own maker");
}

#[test]
fn those_who_may_are_those_who_would_be_let_in() {
    let world = World::new();
    world.principal(2, "bob", "acme", &[("operator", "acme")]);
    world.principal(3, "eve", "other", &[("operator", "other")]);
    let able = || {
        let access = world.cx.ports.access.get().unwrap();
        let on = Resource::of_tenant("workload", "", "acme");
        access.able(&world.view(), "compute:workloads:scale", &on).unwrap()
    };
    assert_eq!(able(), ["token/boot", "user/admin", "user/bob"]);
    world.call("principals.update", json!({"principal": "bob", "disabled": true})).unwrap();
    assert_eq!(able(), ["token/boot", "user/admin"]);
}
