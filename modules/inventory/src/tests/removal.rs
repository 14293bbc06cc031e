//! Removing a node that holds instances.

use std::{collections::BTreeMap, sync::Arc};

use palisade_contract::{
    Code, Context, InstanceId, NodeId, Result,
    input::Problems,
    node::NodePhase,
    ports::{Allocation, Capacity, Demand, Misfit, NodeCapacity},
};
use palisade_state::{Tx, View};
use serde_json::{Value, json};

use super::world::World;

/// Books that say that each node holds so many.
struct Holds(u64);

impl Capacity for Holds {
    fn demand(&self, _tx: &mut Tx, _demand: &Demand) -> Result<()> {
        Ok(())
    }

    fn release(&self, _tx: &mut Tx, _id: &InstanceId) -> Result<()> {
        Ok(())
    }

    fn allocation(&self, _view: &View, _id: &InstanceId) -> Result<Option<Allocation>> {
        Ok(None)
    }

    fn node(&self, _view: &View, _node: &NodeId) -> Result<NodeCapacity> {
        Ok(NodeCapacity { allocations: self.0, ..NodeCapacity::default() })
    }

    fn check(&self, _: &BTreeMap<String, Value>, _at: &str, _problems: &mut Problems) {}

    fn dry_run(
        &self,
        _cx: &Context,
        _view: &View,
        _demand: &Demand,
        _count: u32,
    ) -> Result<(Vec<String>, Vec<Misfit>)> {
        Ok((vec![], vec![]))
    }
}

fn holding(instances: u64) -> (World, NodeId) {
    let world = World::new();
    world.cx.ports.capacity.fill(Arc::new(Holds(instances))).unwrap();
    let id = world.join("a").id;
    (world, id)
}

fn removed(world: &World) -> Value {
    let view = world.view();
    let (_, event) = view.events(1).find(|(_, event)| &*event.kind == "node.removed").unwrap();
    serde_json::from_slice(&event.data).unwrap()
}

#[test]
fn a_node_that_is_there_and_holds_instances_is_removed_by_force_alone() {
    let (world, id) = holding(3);
    let session = world.open(&id, 1);
    for phase in [NodePhase::Ready, NodePhase::Unhealthy] {
        assert_eq!(world.node(&id).phase, phase);
        let refused = world.call("nodes.remove", json!({"node": "a"})).unwrap_err();
        assert_eq!(refused.code, Code::InvalidState);
        assert!(refused.detail.contains("holds 3 instances"), "{}", refused.detail);
        assert!(refused.hint.unwrap().contains("--force"));
        world.close(&id, &session);
    }
    world.call("nodes.remove", json!({"node": "a", "force": true})).unwrap();
    assert_eq!(world.node(&id).phase, NodePhase::Retired);
    let event = removed(&world);
    assert_eq!((&event["forced"], &event["instances"]), (&json!(true), &json!(3)));
}

#[test]
fn an_empty_node_and_one_that_never_came_are_removed_without_force() {
    let (world, id) = holding(0);
    world.open(&id, 1);
    world.call("nodes.remove", json!({"node": "a"})).unwrap();
    assert_eq!(removed(&world)["forced"], json!(false));
    let (world, _) = holding(3);
    world.call("nodes.remove", json!({"node": "a"})).unwrap();
}

#[test]
fn a_lost_node_is_removed_without_force() {
    let (world, id) = holding(3);
    let session = world.open(&id, 1);
    world.close(&id, &session);
    world.store.advance(31_000);
    world.beat("1");
    world.run("inventory.nodes", id.as_str());
    assert_eq!(world.node(&id).phase, NodePhase::Lost);
    world.call("nodes.remove", json!({"node": "a"})).unwrap();
}
