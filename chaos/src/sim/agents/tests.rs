//! When what nobody touches may be stopped.

use palisade_proto::agent::InstanceSpec;
use palisade_state::{
    Machine as States, Position, Txn, View,
    command::{Entry, EventDraft},
};

use super::{
    super::{nodes::Entered, world::World},
    *,
};

fn draft(kind: &str, subject: &str, data: &serde_json::Value) -> EventDraft {
    EventDraft {
        kind: kind.to_owned(),
        tenant: String::new(),
        subject: subject.to_owned(),
        data: data.to_string().into_bytes(),
    }
}

fn node_lost(node: &str) -> EventDraft {
    draft("node.lost", &format!("node/{node}"), &serde_json::json!({ "node": node }))
}

fn given_up(instance: &str, node: &str) -> EventDraft {
    let data = serde_json::json!({ "instance": instance, "node": node });
    draft("instance.lost", &format!("instance/{instance}"), &data)
}

fn state(events: Vec<EventDraft>) -> View {
    let mut states = States::default();
    let txn = Txn { events, ..Txn::default() };
    let entry = Entry { proposer_term: 1, commands: vec![txn.into()], ..Entry::default() };
    states.apply(Position { term: 1, index: 1 }, entry).unwrap();
    drop(states.publish());
    states.published().view()
}

/// What is found when an instance of a workload is stopped on a machine that has just learnt of it.
fn found(events: Vec<EventDraft>, workload: &str, instance: &str) -> Vec<&'static str> {
    let nodes = Nodes::new(1, false);
    let _entered = Entered::new(nodes.clone());
    let world = World::new(1, nodes, 1);
    let fleet = Fleet::found(&world, 1, 1);
    fleet.look(&state(events));
    let spec = InstanceSpec { workload: workload.to_owned(), ..InstanceSpec::default() };
    fleet.check_steady(&fleet.machines[0], instance, &Proc::new(&spec, 1, 0));
    world.eyes.breaches().iter().map(|breach| breach.check).collect()
}

#[test]
fn what_nobody_touches_is_stopped_only_where_it_was_given_up_however_late_its_machine_learnt_of_it()
{
    let lost = || vec![node_lost("nd_1"), given_up("in_1", "nd_1")];
    assert_eq!(found(lost(), STEADY, "in_1"), [""; 0]);
    assert_eq!(
        found(lost(), STEADY, "in_2"),
        ["A2"],
        "another of its node, which was not given up"
    );
    assert_eq!(found(vec![], STEADY, "in_1"), ["A2"]);
    assert_eq!(found(vec![node_lost("nd_1")], STEADY, "in_1"), ["A2"]);
    let not_lost = vec![node_lost("nd_2"), given_up("in_1", "nd_1")];
    assert_eq!(found(not_lost, STEADY, "in_1"), ["A2"], "its node was not lost");
    assert_eq!(found(vec![], "work-1", "in_1"), [""; 0], "users touch it");
}
