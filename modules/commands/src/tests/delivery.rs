//! Handing over: order, sessions, fences, answers.

use palisade_contract::{Code, node_spec::NODE_SPEC_KIND};

use super::*;

#[test]
fn one_command_of_a_lane_is_in_flight_and_they_go_in_order() {
    let world = World::new();
    let a = world.enqueue(&paint(&world.node, "a"));
    let b = world.enqueue(&CommandRequest::new(
        &world.node,
        "acme.varnish",
        json!({"color": "red"}),
        "b",
    ));
    let other = world.enqueue(&look(&world.node, "c"));
    assert_eq!(world.due(), [other.clone(), a.clone()]);
    assert_eq!(world.send(&b, 1, 1), None, "it is not its turn");
    assert_eq!(world.send(&a, 1, 1).unwrap().state, CommandState::Sent);
    assert_eq!(world.send(&b, 1, 1), None, "its lane is busy");
    assert!(world.send(&other, 1, 1).is_some(), "another lane is not");
    world.answer(&a, &Answer::Running);
    assert_eq!(world.state(&a), CommandState::Running);
    assert_eq!(world.send(&b, 1, 1), None);
    world.answer(&a, &done());
    assert_eq!(world.due(), [other, b.clone()]);
    assert!(world.send(&b, 1, 1).is_some());
}

#[test]
fn lanes_of_other_nodes_are_others() {
    let world = World::new();
    let other = world.bench.node("node-2", 1000, 1 << 30);
    let a = world.enqueue(&paint(&world.node, "a"));
    let b = world.enqueue(&paint(&other, "a"));
    assert!(world.send(&a, 1, 1).is_some());
    assert_eq!(world.send(&b, 1, 1), None, "a session of node-1 sends nothing to node-2");
    let from = (other, session(2));
    let sent = world.commit(|tx| world.port.send(tx, &b, (&from.0, &from.1), fence(1), false));
    assert!(sent.unwrap().is_some());
}

#[test]
fn sending_twice_over_one_session_is_sending_once() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a"));
    let first = world.send(&id, 1, 1).unwrap();
    let revision = world.bench.view().revision();
    assert_eq!(world.send(&id, 1, 1).unwrap(), first, "the answer to the first was lost");
    assert_eq!(world.bench.view().revision(), revision, "it writes nothing");
}

#[test]
fn what_is_retry_safe_is_sent_again_over_the_next_session() {
    let world = World::new();
    let id = world.enqueue(&look(&world.node, "a"));
    let first = world.send(&id, 1, 1).unwrap().sending.unwrap();
    world.answer(&id, &Answer::Running);
    let again = world.send(&id, 2, 2).unwrap();
    assert_eq!(again.state, CommandState::Sent);
    let again = again.sending.unwrap();
    assert_eq!((again.times, again.session), (2, session(2)));
    assert_eq!(again.deadline_ms, first.deadline_ms, "its time goes on");
}

#[test]
fn what_is_not_is_sent_again_only_when_the_agent_has_never_begun() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a"));
    world.send(&id, 1, 1).unwrap();
    assert_eq!(world.due(), std::slice::from_ref(&id), "the next session asks for it");
    assert_eq!(world.send(&id, 2, 2), None, "CMD-5");
    world.answer(&id, &Answer::Unknown);
    assert_eq!(world.state(&id), CommandState::Sent);
    let again = world.send_as(&id, 2, 2, true).unwrap();
    assert_eq!(again.sending.unwrap().times, 2);
}

#[test]
fn a_session_with_a_lower_fence_sends_nothing() {
    let world = World::new();
    let a = world.enqueue(&paint(&world.node, "a"));
    let b = world.enqueue(&look(&world.node, "b"));
    assert!(world.send(&a, 2, 20).is_some());
    assert_eq!(world.send(&b, 1, 19), None, "CMD-4");
    assert_eq!(world.state(&b), CommandState::Pending);
    world.answer(&a, &done());
    assert_eq!(world.send(&b, 1, 19), None, "CMD-4 holds when nothing is in flight");
    assert!(world.send(&b, 2, 20).is_some());
    let rebuilt = Fence { epoch: 1, term: 0, index: 1 };
    let c = world.enqueue(&paint(&world.node, "c"));
    let from = (world.node.clone(), session(3));
    let sent = world.commit(|tx| world.port.send(tx, &c, (&from.0, &from.1), rebuilt, false));
    assert!(sent.unwrap().is_some(), "a rebuilt cluster outranks all before it");
}

#[test]
fn an_answer_of_another_node_is_none() {
    let world = World::new();
    let other = world.bench.node("node-2", 1000, 1 << 30);
    let id = world.enqueue(&paint(&world.node, "a"));
    world.send(&id, 1, 1).unwrap();
    let from = (other, session(2));
    world.commit(|tx| world.port.answered(tx, &id, (&from.0, &from.1), &done())).unwrap();
    assert_eq!(world.state(&id), CommandState::Sent);
}

#[test]
fn a_second_answer_changes_nothing() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a"));
    world.answer(&id, &done());
    assert_eq!(world.state(&id), CommandState::Pending, "it was never sent");
    world.send(&id, 1, 1).unwrap();
    let failed = CommandResult { code: "NO_PAINT".to_owned(), ..CommandResult::default() };
    world.answer(&id, &Answer::Failed(failed));
    let before = world.get(&id);
    assert_eq!((before.state, world.code(&id).as_str()), (CommandState::Failed, "NO_PAINT"));
    for answer in [done(), Answer::Running, Answer::Unknown] {
        world.answer(&id, &answer);
        assert_eq!(world.get(&id), before, "CMD-2: {answer:?}");
    }
}

#[test]
fn a_long_answer_is_not_kept() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a"));
    world.send(&id, 1, 1).unwrap();
    let result = CommandResult {
        message: "ü".repeat(2_000),
        data: json!("x".repeat(20_000)),
        ..CommandResult::default()
    };
    world.answer(&id, &Answer::Succeeded(result));
    let kept = world.get(&id).result.unwrap();
    assert_eq!(kept.data, Value::Null);
    assert!(kept.message.len() < 1_200 && kept.message.contains("20002 bytes"), "{}", kept.message);
}

#[test]
fn whoever_waits_is_woken_in_the_transaction_that_finishes_it() {
    let world = World::new();
    for (key, woken) in [
        ("acme.widgets:w1:paint", vec!["w1"]),
        ("acme.widgets:w2", vec!["w2"]),
        ("acme.widgets:", vec![]),
        ("acme.gadgets:w3:paint", vec![]),
        ("token/ada", vec![]),
    ] {
        let id = world.enqueue(&paint(&world.node, key));
        world.send(&id, 1, 1).unwrap();
        world.bench.settle();
        assert_eq!(world.work(NODE_SPEC_KIND), Vec::<String>::new(), "{key}");
        let revision = world.bench.view().revision();
        world.answer(&id, &done());
        assert_eq!(world.bench.view().revision(), revision + 1, "CMD-6: one transaction");
        assert_eq!(world.work("acme.widgets"), woken, "{key}");
        assert_eq!(world.work(NODE_SPEC_KIND), [world.node.as_str()], "{key}");
        forget_work(&world);
    }
}

/// Forgets who was woken.
fn forget_work(world: &World) {
    let rows: Vec<(String, String, u64)> = world
        .bench
        .view()
        .all_work()
        .map(|((kind, key), row)| (kind.to_string(), key.to_string(), row.generation))
        .collect();
    world.bench.commit(|tx| {
        for (kind, key, generation) in rows.clone() {
            tx.finish(palisade_state::command::Finish { kind, key, generation });
        }
        Ok(())
    });
}

#[test]
fn only_what_was_not_sent_is_taken_back() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "acme.widgets:w1:x"));
    let cancel = |id: &CommandId| world.commit(|tx| world.port.cancel(tx, id, "ada took it back"));
    assert_eq!(cancel(&id).unwrap().state, CommandState::Cancelled);
    assert_eq!(world.code(&id), "CANCELLED");
    assert_eq!(world.work("acme.widgets"), ["w1"], "that is an end too");
    let sent = world.enqueue(&paint(&world.node, "b"));
    world.send(&sent, 1, 1).unwrap();
    let refused = cancel(&sent).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
    assert!(refused.detail.ends_with("is sent and cannot be cancelled"), "{refused}");
    assert!(detail(cancel(&id)).contains("is cancelled and"));
}

#[test]
fn the_end_of_a_command_is_an_event_of_its_tenants() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a").of_tenant("acme"));
    world.send(&id, 1, 1).unwrap();
    world.answer(&id, &done());
    let view = world.bench.view();
    let events: Vec<_> = view.events(1).map(|(_, event)| event.clone()).collect();
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&*event.kind, &*event.tenant), ("command.finished", "acme"));
    let data: Value = serde_json::from_slice(&event.data).unwrap();
    assert_eq!(data["state"], "succeeded");
    assert_eq!(data["command"], id.as_str());
}
