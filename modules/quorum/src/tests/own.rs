//! Policies that ask for less: a tenant's, and the cluster's own (`QUO-6`).

use serde_json::{Value, json};

use super::world::World;

/// A world whose cluster asks for so many, with these who may everything there. One made the others, and is of one hand
/// with each; they are distinct.
fn world(required: u32, names: &[&str]) -> World {
    let world = World::new();
    for name in names {
        world.call("principals.create", &json!({ "name": name }));
        world.call("roleBindings.create", &json!({"principal": name, "role": "cluster-admin"}));
    }
    // The last way in: the others may be disabled.
    let own = json!({"secretSha256": "cc".repeat(32), "name": "of-root", "principal": "root"});
    world.call("apiTokens.create", &own);
    assert!(world.held("root", "approvalPolicies.set", &asking(required)).is_none());
    world
}

fn asking(required: u32) -> Value {
    json!({"tenant": "_", "mode": "on", "thresholds": [{"size": 1, "required": required}]})
}

fn off(tenant: &str) -> Value {
    json!({"tenant": tenant, "mode": "off"})
}

fn lift(world: &World, who: &str) -> Option<Value> {
    world.held(who, "approvalPolicies.set", &off("_"))
}

fn is_on(world: &World) -> bool {
    world.call("approvalPolicies.get", &json!({"tenant": "_"}))["mode"] == "on"
}

fn disable(world: &World, name: &str) {
    world
        .as_who("root", "principals.update", &json!({"principal": name, "disabled": true}))
        .unwrap();
}

fn id(held: &Value) -> &str {
    held["id"].as_str().unwrap()
}

#[test]
fn nobody_lifts_the_clusters_own_policy_alone() {
    let world = world(1, &["root", "eve"]);
    let held = lift(&world, "root").expect("QUO-6");
    assert_eq!((&held["tenant"], &held["required"]), (&json!(""), &json!(1)));
    assert!(is_on(&world), "QUO-6");
    assert_eq!(lift(&world, "root").unwrap()["id"], held["id"], "it is held once");
    world.approve("root", id(&held)).unwrap_err();
    assert_eq!(world.approve("eve", id(&held)).unwrap()["state"], "released");
    assert!(!is_on(&world));
}

#[test]
fn whatever_asks_for_less_of_the_cluster_is_held_and_what_asks_for_more_is_not() {
    let world = world(2, &["root", "eve", "kim"]);
    let narrow = json!({"tenant": "_", "mode": "on", "kinds": ["things.remove"],
        "thresholds": [{"size": 1, "required": 2}]});
    for less in [&asking(1), &narrow] {
        let held = world.held("root", "approvalPolicies.set", less).expect("QUO-6");
        assert_eq!(held["required"], 2, "{less}");
    }
    assert!(world.held("root", "approvalPolicies.set", &asking(3)).is_none());
}

#[test]
fn where_there_are_fewer_as_many_as_there_are_approve() {
    let world = world(3, &["root", "eve", "kim"]);
    let held = lift(&world, "root").expect("QUO-6");
    assert_eq!(held["required"], 2);
    world.approve("kim", id(&held)).unwrap();
    assert!(is_on(&world), "QUO-1");
    world.approve("eve", id(&held)).unwrap();
    assert!(!is_on(&world));
}

#[test]
fn asking_for_more_than_there_are_is_no_way_to_ask_nobody() {
    let world = world(1, &["root", "eve"]);
    assert!(world.held("root", "approvalPolicies.set", &asking(16)).is_none());
    assert_eq!(lift(&world, "root").expect("QUO-6")["required"], 1);
    assert!(is_on(&world), "QUO-6");
}

#[test]
fn whoever_is_alone_lifts_it() {
    let world = world(1, &["root", "eve"]);
    // Whom he made is nobody who could approve for him.
    world.as_who("root", "principals.create", &json!({"name": "own"})).unwrap();
    let bound = json!({"principal": "own", "role": "cluster-admin"});
    world.as_who("root", "roleBindings.create", &bound).unwrap();
    assert!(lift(&world, "root").is_some());
    disable(&world, "eve");
    assert!(lift(&world, "root").is_none(), "he would be locked out");
    assert!(!is_on(&world));
}

#[test]
fn one_that_waits_for_people_who_are_gone_is_none_to_wait_for() {
    let world = world(2, &["root", "eve", "kim"]);
    let first = lift(&world, "root").expect("QUO-6");
    assert_eq!(first["required"], 2);
    disable(&world, "kim");
    assert!(world.found().contains("quorum.unreachable"));
    let second = lift(&world, "root").expect("QUO-6");
    assert_eq!(second["required"], 1);
    assert_ne!(second["id"], first["id"]);
    assert_eq!(lift(&world, "root").unwrap()["id"], second["id"], "it is held once");
    assert_eq!(world.approve("eve", id(&second)).unwrap()["state"], "released");
    assert!(!is_on(&world));
}

#[test]
fn only_the_clusters_own_asks_for_fewer_where_there_are_fewer() {
    let world = world(3, &["root", "eve"]);
    world.person("tess", "tenant-admin");
    world.policy(&[(1, 9)]);
    let held = world.held("tess", "approvalPolicies.set", &off("acme")).expect("QUO-6");
    assert_eq!(held["required"], 9, "the cluster's admin is the way out");
    assert!(world.held("root", "approvalPolicies.set", &off("acme")).is_none());
    world.thing("lamp", "ok");
    let key = "/lamp".to_owned();
    world.commit(|tx| Ok(tx.put(&super::world::THINGS, &key, &"ok".to_owned())?)).unwrap();
    let other = world.held("root", "things.remove", &json!({"thing": "lamp"})).expect("QUO-6");
    assert_eq!(other["required"], 3);
}
