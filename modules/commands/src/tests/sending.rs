//! What may be sent, and what is the same command.

use palisade_contract::{Code, Principal};

use super::*;
use crate::OPEN_MAX;

#[test]
fn the_same_key_on_the_same_node_is_the_same_command() {
    let world = World::new();
    let other = world.bench.node("node-2", 1000, 1 << 30);
    let first = world.enqueue(&paint(&world.node, "k"));
    assert_eq!(world.enqueue(&paint(&world.node, "k")), first);
    assert_eq!(world.enqueue(&look(&world.node, "k")), first, "whatever else it asks for");
    assert_ne!(world.enqueue(&paint(&other, "k")), first);
    assert_ne!(world.enqueue(&paint(&world.node, "l")), first);
    assert_eq!(world.count(), 3);
}

#[test]
fn a_key_gives_the_finished_command_and_what_became_of_it() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "k"));
    world.send(&id, 1, 1).unwrap();
    let data = json!({"coats": 2});
    let result = CommandResult { data: data.clone(), ..CommandResult::default() };
    world.answer(&id, &Answer::Succeeded(result));
    let again = world.try_enqueue(&paint(&world.node, "k")).unwrap();
    assert_eq!((again.id, again.state), (id, CommandState::Succeeded));
    assert_eq!(again.result.unwrap().data, data);
    let found = world.port.by_key(&world.bench.view(), &world.node, "k").unwrap().unwrap();
    assert_eq!(found.state, CommandState::Succeeded);
    assert_eq!(world.port.by_key(&world.bench.view(), &world.node, "l").unwrap(), None);
}

#[test]
fn a_kind_that_nobody_registered_is_refused() {
    let world = World::new();
    let refused = world
        .try_enqueue(&CommandRequest::new(&world.node, "acme.sand", json!({}), "k"))
        .unwrap_err();
    assert_eq!(refused.code, Code::Unsupported);
    assert!(refused.detail.contains("acme.sand"), "{refused}");
    assert_eq!(world.count(), 0);
}

#[test]
fn a_payload_is_what_its_kind_says() {
    let world = World::new();
    let pointers = |payload: Value| {
        let request = CommandRequest::new(&world.node, "acme.paint", payload, "k");
        let refused = world.try_enqueue(&request).unwrap_err();
        assert_eq!(refused.code, Code::InvalidInput);
        refused.problems.into_iter().map(|problem| problem.pointer).collect::<Vec<_>>()
    };
    assert_eq!(pointers(json!({"color": 3})), ["/payload/color"]);
    assert_eq!(pointers(json!({"color": "beige"})), ["/payload/color"]);
    assert_eq!(pointers(json!({"color": "red", "coats": 2})), ["/payload/coats"]);
    let long = json!({"color": "r".repeat(70_000)});
    let request = CommandRequest::new(&world.node, "acme.paint", long, "k");
    assert_eq!(world.try_enqueue(&request).unwrap_err().code, Code::TooLarge);
    assert_eq!(world.count(), 0);
}

#[test]
fn a_key_is_short_and_printable() {
    let world = World::new();
    for key in ["", "a\0b", "a\nb", &"k".repeat(257)] {
        let refused = world.try_enqueue(&paint(&world.node, key)).unwrap_err();
        assert_eq!(refused.problems[0].pointer, "/key", "{key:?}");
    }
    world.enqueue(&paint(&world.node, &"k".repeat(256)));
}

#[test]
fn a_principal_needs_a_role_of_the_kind_and_a_reconciler_does_not() {
    let world = World::new();
    let burn = CommandRequest::new(&world.node, "acme.burn", json!({"color": "red"}), "k");
    let principal = |role: &str| Principal {
        name: "token/ada".to_owned(),
        roles: vec![role.to_owned()],
        tenant: String::new(),
    };
    let refused = world.try_enqueue(&burn.clone().by(&principal("operator"))).unwrap_err();
    assert_eq!(refused.code, Code::AccessDenied);
    assert!(refused.hint.unwrap().contains("cluster-admin"));
    let sent = world.try_enqueue(&burn.clone().by(&principal("cluster-admin"))).unwrap();
    assert_eq!(sent.created_by, "token/ada");
    let own = CommandRequest { key: "l".to_owned(), ..burn };
    assert_eq!(world.try_enqueue(&own).unwrap().created_by, "");
}

#[test]
fn a_node_that_is_not_there_is_sent_nothing() {
    let world = World::new();
    let nobody = NodeId::parse("nd_01arz3ndektsv4rrffq69g5fav").unwrap();
    let refused = world.try_enqueue(&paint(&nobody, "k")).unwrap_err();
    assert_eq!(refused.code, Code::NotFound);
    world.bench.nodes.change("node-1", |node| {
        node.phase = palisade_contract::node::NodePhase::Retired;
    });
    assert_eq!(world.try_enqueue(&paint(&world.node, "k")).unwrap_err().code, Code::NotFound);
}

#[test]
fn so_many_wait_for_a_node_and_no_more() {
    let world = World::new();
    let ids: Vec<CommandId> =
        (0..OPEN_MAX).map(|n| world.enqueue(&paint(&world.node, &n.to_string()))).collect();
    let refused = world.try_enqueue(&paint(&world.node, "more")).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
    assert_eq!(world.try_enqueue(&paint(&world.node, "0")).unwrap().id, ids[0], "known ones are");
    world.commit(|tx| world.port.cancel(tx, &ids[7], "no more")).unwrap();
    world.enqueue(&paint(&world.node, "more"));
}

#[test]
fn a_batch_holds_its_commands_until_they_are_released() {
    let world = World::new();
    let held = CommandRequest { batch: Some("b1".to_owned()), ..paint(&world.node, "k") };
    let id = world.enqueue(&held);
    assert_eq!(world.state(&id), CommandState::Held);
    assert_eq!(world.get(&id).batch.as_deref(), Some("b1"));
    assert_eq!(world.due(), []);
    assert_eq!(world.send(&id, 1, 1), None, "held is not sent");
    let other = world.enqueue(&paint(&world.node, "l"));
    assert_eq!(world.due(), std::slice::from_ref(&other), "what is held stands in nobody's way");
    world.commit(|tx| world.port.release(tx, &id)).unwrap();
    assert_eq!(world.due(), std::slice::from_ref(&id), "it was there before");
    let again = world.commit(|tx| world.port.release(tx, &id));
    assert!(detail(again).contains("is pending and cannot be released"));
}

#[test]
fn a_batch_says_what_is_put_in_it_and_whether_it_is_held() {
    let world = World::new();
    let into = |batch: &str, key: &str| CommandRequest {
        batch: Some(batch.to_owned()),
        ..paint(&world.node, key)
    };
    let id = world.enqueue(&into("released", "k"));
    assert_eq!(world.state(&id), CommandState::Pending);
    assert_eq!(world.try_enqueue(&into("full", "l")).unwrap_err().code, Code::AccessDenied);
    assert_eq!(world.count(), 1, "what is refused leaves nothing");
}
