//! Signals to instances.

use palisade_contract::Code;

use super::*;

fn signal(world: &World, instance: &str, signal: &str) -> Result<Value> {
    world.call("instances.signal", json!({ "instance": instance, "signal": signal }))
}

#[test]
fn a_signal_is_a_command_to_the_instances_node() {
    let world = World::new(&["a"]);
    world.apply(with(web(1), &json!({ "tenant": "acme" })));
    world.settle(&["a"]);
    let instance = world.instances().remove(0);
    let name = instance["name"].as_str().unwrap();
    let first = signal(&world, name, "sighup").unwrap();
    assert_eq!(first["kind"], "instance.signal");
    assert_eq!(first["node"], world.node_id("a").as_str());
    assert_eq!(first["tenant"], "acme");
    assert_eq!(first["payload"], json!({ "instance": instance["id"], "signal": "HUP" }));
    assert_eq!(first["retrySafe"], false);
    let second = signal(&world, name, "HUP").unwrap();
    assert_ne!(first["id"], second["id"], "two signals are two");
}

#[test]
fn what_cannot_be_signalled_is_refused() {
    let world = World::new(&[]);
    world.apply(web(1));
    world.settle(&[]);
    let instance = world.instances().remove(0);
    let name = instance["name"].as_str().unwrap();
    let waits = signal(&world, name, "HUP").unwrap_err();
    assert_eq!(waits.code, Code::InvalidState);
    assert_eq!(signal(&world, "nobody", "HUP").unwrap_err().code, Code::NotFound);
    for wrong in ["SEGV", "", "HUP "] {
        let refused = signal(&world, name, wrong).unwrap_err();
        assert_eq!(refused.problems[0].pointer, "/signal", "{wrong:?}");
    }
}
