use palisade_contract::Code;
use serde_json::{Value, json};

use super::world::{World, key};

#[test]
fn a_node_is_shown_as_a_record() {
    let world = World::new();
    let id = world.join("a").id;
    world.open(&id, 7);
    let shown = world.call("nodes.get", json!({"node": "a"})).unwrap();
    assert_eq!(shown["id"], id.as_str());
    assert_eq!(
        shown["status"],
        json!({
            "phase": "ready", "replica": 7, "address": "10.0.0.7", "message": "",
        })
    );
    assert_eq!(shown["joinedAt"], "2023-11-14T22:13:20.000Z");
    assert_eq!((&shown["capacity"], &shown["allocations"]), (&json!({}), &json!(0)));
    assert!(shown["revision"].as_u64().unwrap() > 0);
    assert!(shown.get("keys").is_none());
    assert_eq!(world.call("nodes.get", json!({"node": id})).unwrap(), shown);
}

#[test]
fn a_node_that_is_not_there_is_not_found() {
    let world = World::new();
    for node in ["nobody", "", "a\0b", "nd_x"] {
        for method in ["nodes.get", "nodes.remove"] {
            let refused = world.call(method, json!({"node": node})).unwrap_err();
            assert_eq!(refused.code, Code::NotFound, "{node:?}");
        }
    }
}

#[test]
fn a_node_of_another_tenant_is_not_found() {
    let world = World::new();
    world.join("a");
    for name in ["nodes.get", "nodes.cordon", "nodes.remove"] {
        let refused = world.call(name, json!({"node": "a", "tenant": "acme"})).unwrap_err();
        assert_eq!(refused.code, Code::NotFound, "{name}");
    }
}

#[test]
fn a_list_is_filtered_and_leaves_retired_nodes_out() {
    let world = World::new();
    let ready = world.join("a").id;
    world.join("b");
    world.join("c");
    world.open(&ready, 1);
    world.call("nodes.remove", json!({"node": "c"})).unwrap();
    let names = |input: Value| -> Vec<String> {
        let listed = world.call("nodes.list", input).unwrap();
        let nodes = listed.as_array().unwrap();
        let mut names: Vec<String> =
            nodes.iter().map(|node| node["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(json!({})), ["a", "b"]);
    assert_eq!(names(json!({"phase": "ready"})), ["a"]);
    assert_eq!(names(json!({"phase": "retired"})), ["c"]);
    assert_eq!(names(json!({"pool": "other"})), [""; 0]);
}

#[test]
fn a_cordon_wakes_capacity_once() {
    let world = World::new();
    let id = world.join("a").id;
    world.drop_work();
    let cordoned = world.call("nodes.cordon", json!({"node": "a"})).unwrap();
    assert_eq!(cordoned["schedulable"], false);
    assert_eq!(world.work(), ["capacity.nodes"]);
    assert_eq!(world.count_events("node.cordoned"), 1);
    world.call("nodes.cordon", json!({"node": "a"})).unwrap();
    assert_eq!(world.count_events("node.cordoned"), 1);
    world.call("nodes.uncordon", json!({"node": "a"})).unwrap();
    assert!(world.node(&id).schedulable);
}

#[test]
fn if_match_guards_a_change() {
    let world = World::new();
    world.join("a");
    let revision = world.call("nodes.get", json!({"node": "a"})).unwrap()["revision"].as_u64();
    let stale = world.call_with("nodes.cordon", json!({"node": "a"}), revision.map(|r| r + 1));
    assert_eq!(stale.unwrap_err().code, Code::PreconditionFailed);
    assert!(world.call_with("nodes.cordon", json!({"node": "a"}), revision).is_ok());
}

#[test]
fn a_removed_nodes_name_is_free_and_its_neighbours_know() {
    let world = World::new();
    let id = world.join("a").id;
    world.open(&id, 1);
    world.drop_work();
    let removed = world.call("nodes.remove", json!({"node": "a"})).unwrap();
    assert_eq!(removed["status"]["phase"], "retired");
    assert_eq!(world.work(), ["capacity.nodes", "node-controllers", "workloads.nodes"]);
    assert_eq!(world.count_events("node.removed"), 1);
    assert_eq!(world.node(&id).keys, [""; 0]);
    let again = world.call("nodes.remove", json!({"node": id})).unwrap_err();
    assert_eq!(again.code, Code::NotFound);
    let token = world.token(2, json!({}));
    let anew = world.try_join(&world.request(&token, "k2", "a")).unwrap();
    assert_eq!(world.nodes.find(&world.view(), "a").unwrap().unwrap().id, anew.id);
}

#[test]
fn a_token_record_tells_its_end_and_no_secret() {
    let world = World::new();
    let made = world
        .call("joinTokens.create", json!({"secretSha256": key("s"), "ttlSeconds": 60}))
        .unwrap();
    assert_eq!(made["expiresAt"], "2023-11-14T22:14:20.000Z");
    assert_eq!((&made["pool"], &made["status"]), (&json!("default"), &json!("active")));
    assert_eq!(made["id"].as_str().unwrap().len(), 16);
    assert!(!made.to_string().contains(&key("s")));
    world.store.advance(60_000);
    assert_eq!(world.call("joinTokens.list", json!({})).unwrap()[0]["status"], "expired");
}

#[test]
fn every_problem_of_a_token_is_told_at_once() {
    let world = World::new();
    let refused = world
        .call(
            "joinTokens.create",
            json!({"secretSha256": "x", "pool": "No", "ttlSeconds": 86_401, "uses": 0}),
        )
        .unwrap_err();
    let pointers: Vec<&str> = refused.problems.iter().map(|p| p.pointer.as_str()).collect();
    assert_eq!(pointers, ["/secretSha256", "/pool", "/ttlSeconds", "/uses"]);
}

#[test]
fn tokens_that_ended_long_ago_are_forgotten() {
    let world = World::new();
    world.token(1, json!({"ttlSeconds": 1}));
    world.store.advance(8 * 24 * 60 * 60 * 1000);
    world.token(2, json!({}));
    let listed = world.call("joinTokens.list", json!({})).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[test]
fn an_unused_token_that_ends_soon_is_a_finding() {
    let world = World::new();
    world.token(1, json!({"ttlSeconds": 600}));
    assert_eq!(world.finding("join-tokens.expiring").unwrap().count, Some(1));
    world.store.advance(600_000);
    assert_eq!(world.finding("join-tokens.expiring"), None);
}

#[test]
fn a_node_that_never_connected_is_a_finding() {
    let world = World::new();
    world.join("a");
    assert_eq!(world.finding("nodes.never-connected"), None);
    world.store.advance(11 * 60 * 1000);
    assert!(world.finding("nodes.never-connected").is_some());
}
