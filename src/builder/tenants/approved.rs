//! What is approved is that thing, and no other that has its name by then: with the real modules, whose things are known by
//! ids (`QUO-2`).

use palisade_api::envelope::Caller;
use palisade_contract::{NodeId, node::NodeStatus};
use serde_json::{Value, json};

use super::{
    Place, place,
    world::{VICTIM, World, admin},
};

fn ask(world: &World, who: &Caller, method: &str, input: &Value) -> Value {
    let calls = json!([{"method": method, "input": input}]);
    let asked = json!({"tenant": VICTIM, "calls": calls, "required": 1});
    world.done(who, "approvals.create", &asked)
}

fn approve(world: &World, who: &Caller, asked: &Value) -> Value {
    let approve = json!({"approval": asked["id"], "digest": asked["digest"]});
    world.done(who, "approvals.approve", &approve)
}

/// Agents let go of all that they are not to have.
fn let_go(world: &World) {
    world.settle();
    for node in world.nodes() {
        let generation = world.generation(&node);
        world.report(&node, &NodeStatus { generation, instances: vec![], conditions: vec![] });
    }
    world.settle();
}

#[test]
fn a_workload_that_was_applied_again_is_not_the_one_that_was_approved() {
    let Place { world, victim, .. } = place();
    let [ada, bob] = ["operator", "tenant-admin"].map(|role| &victim.credentials[role]);
    let of_it = json!({"workload": "ledger", "tenant": VICTIM});
    let asked = ask(&world, ada, "workloads.remove", &of_it);
    world.done(ada, "workloads.remove", &of_it);
    let_go(&world);
    world.call(ada, "workloads.get", &of_it, false).unwrap_err();
    let spec = json!({
        "workload": "ledger", "name": "ledger", "tenant": VICTIM, "count": 1,
        "task": {"command": ["/bin/true"]},
    });
    let new = world.done(ada, "workloads.apply", &spec);
    assert_ne!(new["id"], victim.workload.as_str());
    let ended = approve(&world, bob, &asked);
    assert_eq!(ended["state"], "failed", "QUO-2: {ended}");
    let shown = world.done(ada, "workloads.get", &of_it);
    assert_eq!((&shown["id"], &shown["status"]), (&new["id"], &new["status"]), "QUO-2");
    let again = ask(&world, ada, "workloads.remove", &of_it);
    assert_eq!(approve(&world, bob, &again)["state"], "released");
}

#[test]
fn a_node_that_joined_again_is_not_the_one_that_was_approved() {
    let Place { mut world, victim, .. } = place();
    let [ada, bob] = ["operator", "tenant-admin"].map(|role| &victim.credentials[role]);
    // Else the direct removal would be held, too.
    world.done(&admin(), "approvalPolicies.set", &json!({"tenant": VICTIM, "mode": "off"}));
    let remove = json!({"node": "vault-1", "tenant": VICTIM, "force": true});
    let asked = ask(&world, ada, "nodes.remove", &remove);
    world.done(&admin(), "nodes.remove", &json!({"node": "vault-1", "force": true}));
    world.settle();
    let (new, _) = world.node("vault-1", VICTIM);
    assert_ne!(new, victim.node);
    let ended = approve(&world, bob, &asked);
    assert_eq!(ended["state"], "failed", "QUO-2: {ended}");
    assert!(world.nodes().contains(&NodeId::parse(&new).unwrap()), "QUO-2");
    let again = ask(&world, ada, "nodes.remove", &remove);
    assert_eq!(approve(&world, bob, &again)["state"], "released");
    assert!(!world.nodes().contains(&NodeId::parse(&new).unwrap()));
}

#[test]
fn the_audit_chain_says_what_was_approved_and_history_finds_it() {
    let Place { world, victim, .. } = place();
    let [ada, bob] = ["operator", "tenant-admin"].map(|role| &victim.credentials[role]);
    let of_it = json!({"workload": "ledger", "tenant": VICTIM});
    let asked = ask(&world, ada, "workloads.remove", &of_it);
    approve(&world, bob, &asked);
    let (id, by) = (asked["id"].as_str().unwrap(), asked["createdBy"].as_str().unwrap());
    let about = format!("approval/{id} by {by}: workloads.remove workload/ledger");
    let audit = world.done(bob, "audit.list", &json!({"from": 0}));
    let methods: Vec<&Value> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|record| record["resource"] == about.as_str())
        .map(|record| &record["method"])
        .collect();
    assert_eq!(methods, ["approvals.create", "approvals.approve"]);
    let history = world.done(ada, "workloads.history", &of_it);
    let last = history["items"].as_array().unwrap().last().unwrap();
    assert_eq!(last["by"][0]["method"], "approvals.approve", "{last}");
    let events = world.done(ada, "events.list", &json!({"from": 0}));
    let released = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|event| event["kind"] == "approval.released")
        .unwrap();
    assert_eq!(released["data"]["createdBy"], by);
    assert_eq!(released["data"]["scope"][0]["subject"], "workload/ledger");
}
