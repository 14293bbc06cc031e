//! Time: what is not sent, what is not answered, what is forgotten.

use palisade_contract::{Sweep, node::NodePhase};

use super::*;
use crate::KEPT_MAX;

#[test]
fn what_is_not_sent_in_time_expires_and_is_never_sent() {
    let world = World::new();
    let minute = Duration::from_mins(1);
    let id = world.enqueue(&paint(&world.node, "acme.widgets:w1:x").not_after(minute));
    let held = CommandRequest { batch: Some("b1".to_owned()), ..paint(&world.node, "b") };
    let held = world.enqueue(&held.not_after(minute));
    world.pass(59_000);
    assert_eq!(world.state(&id), CommandState::Pending);
    world.bench.advance(1_000);
    assert_eq!(world.due(), [], "before the sweeper has looked");
    assert_eq!(world.send(&id, 1, 1), None);
    world.bench.step();
    assert_eq!((world.state(&id), world.code(&id).as_str()), (CommandState::Expired, "EXPIRED"));
    assert_eq!(world.state(&held), CommandState::Expired);
    assert_eq!(world.work("acme.widgets"), ["w1"]);
    assert!(world.get(&held).result.unwrap().message.contains("not approved within 60 s"));
}

#[test]
fn without_a_limit_a_command_waits_for_a_day() {
    let world = World::new();
    let now_ms = world.bench.view().clock().now_ms;
    let id = world.enqueue(&paint(&world.node, "a"));
    assert_eq!(world.get(&id).expires_ms, now_ms + 24 * 60 * 60 * 1000);
}

#[test]
fn what_is_not_answered_in_time_is_timed_out_and_gives_its_lane_up() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "acme.widgets:w1:x"));
    let next = world.enqueue(&paint(&world.node, "b"));
    world.pass(10_000);
    world.send(&id, 1, 1).unwrap();
    world.pass(20_000);
    world.answer(&id, &Answer::Running);
    world.pass(9_999);
    assert_eq!(world.state(&id), CommandState::Running, "its 30 s began when it was sent");
    world.pass(1);
    assert_eq!((world.state(&id), world.code(&id).as_str()), (CommandState::TimedOut, "TIMED_OUT"));
    assert_eq!(world.work("acme.widgets"), ["w1"]);
    assert_eq!(world.due(), [next]);
    world.answer(&id, &done());
    assert_eq!(world.state(&id), CommandState::TimedOut, "it is too late to have been done");
}

#[test]
fn what_is_past_its_time_is_not_sent_again() {
    let world = World::new();
    let id = world.enqueue(&look(&world.node, "a"));
    world.send(&id, 1, 1).unwrap();
    world.bench.advance(5_000);
    assert_eq!(world.send(&id, 2, 2), None);
    world.bench.settle();
    assert_eq!(world.state(&id), CommandState::TimedOut);
}

#[test]
fn a_removed_node_is_sent_nothing_any_more() {
    let world = World::new();
    let waits = world.enqueue(&paint(&world.node, "a"));
    let sent = world.enqueue(&look(&world.node, "b"));
    world.send(&sent, 1, 1).unwrap();
    world.bench.change_node("node-1", &["command-sweeper"], |node| node.phase = NodePhase::Retired);
    world.bench.settle();
    assert_eq!(world.state(&waits), CommandState::Cancelled);
    assert_eq!(world.code(&waits), "NODE_REMOVED");
    assert_eq!(world.state(&sent), CommandState::Sent, "nobody knows what became of it yet");
    world.pass(5_000);
    assert_eq!(world.state(&sent), CommandState::TimedOut);
    world.pass(KEPT_MS + 60_000);
    world.pass(1);
    assert_eq!(world.count(), 0);
    assert_eq!(world.bench.view().count(rows::NODES.name()), 0, "nothing is left of it");
    assert_eq!(world.work("command-sweeper"), Vec::<String>::new());
}

#[test]
fn so_many_finished_commands_are_kept_the_newest_ones() {
    let world = World::new();
    for n in 0..KEPT_MAX + 30 {
        let id = world.enqueue(&paint(&world.node, &n.to_string()));
        world.send(&id, 1, 1).unwrap();
        world.answer(&id, &done());
    }
    assert_eq!(world.count(), KEPT_MAX + 30);
    world.pass(60_000);
    assert_eq!(world.count(), KEPT_MAX);
    let view = world.bench.view();
    assert_eq!(world.port.by_key(&view, &world.node, "29").unwrap(), None);
    assert!(world.port.by_key(&view, &world.node, "30").unwrap().is_some());
}

#[test]
fn a_finished_command_is_forgotten_after_a_while() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a"));
    world.send(&id, 1, 1).unwrap();
    world.answer(&id, &done());
    let open = world.enqueue(&paint(&world.node, "b").not_after(Duration::from_hours(24 * 30)));
    world.pass(KEPT_MS - 60_000);
    assert_eq!(world.count(), 2);
    world.pass(60_000);
    assert_eq!(world.count(), 1);
    assert_eq!(world.state(&open), CommandState::Pending, "what goes on is kept");
}

#[test]
fn a_sweeper_that_has_nothing_to_do_writes_nothing() {
    let world = World::new();
    world.enqueue(&paint(&world.node, "a"));
    let rows = |world: &World| {
        let view = world.bench.view();
        view.rows(rows::COMMANDS.name(), &[], None).map(|(_, r)| r.stamp()).collect::<Vec<_>>()
    };
    let before = rows(&world);
    world.bench.commit(|tx| Ok(tx.enqueue("command-sweeper", world.node.as_str())?));
    world.bench.settle();
    assert_eq!(rows(&world), before);
}

#[test]
fn a_deleted_tenants_commands_go_a_hundred_at_a_time() {
    let world = World::new();
    for n in 0..120 {
        world.enqueue(&paint(&world.node, &format!("acme-{n}")).of_tenant("acme"));
    }
    let other = world.enqueue(&paint(&world.node, "other").of_tenant("other"));
    let own = world.enqueue(&paint(&world.node, "own"));
    let sweep =
        || world.commit(|tx| world.module.tenant_deleted(world.context(), tx, "acme")).unwrap();
    assert_eq!((sweep(), world.count()), (Sweep::Again, 22));
    assert_eq!((sweep(), world.count()), (Sweep::Done, 2));
    assert_eq!(sweep(), Sweep::Done);
    for id in [other, own] {
        assert_eq!(world.state(&id), CommandState::Pending);
    }
}
