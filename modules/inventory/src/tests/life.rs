use std::time::Duration;

use palisade_contract::{Module, module::Run, node::NodePhase};
use palisade_state::Tx;
use serde_json::json;

use super::world::{World, facts};

const NODES: &str = "inventory.nodes";
const SESSIONS: &str = "inventory.sessions";

#[test]
fn a_session_makes_a_node_ready_and_wakes_who_must_know() {
    let world = World::new();
    let id = world.join("a").id;
    world.drop_work();
    world.open(&id, 1);
    assert_eq!(world.node(&id).phase, NodePhase::Ready);
    assert_eq!(world.work(), ["capacity.nodes", "workloads.nodes"]);
    assert_eq!(world.count_events("node.ready"), 1);
}

#[test]
fn what_does_not_change_is_not_written() {
    let world = World::new();
    let node = world.join("a");
    world.open(&node.id, 1);
    let session = world.node(&node.id).session.unwrap();
    assert!(world.is_silent(|tx| {
        world.nodes.session_opened(tx, &node.id, &session, &node.facts, "0.1.0")
    }));
    assert!(world.is_silent(|tx| world.nodes.facts_changed(tx, &node.id, &node.facts)));
}

#[test]
fn a_second_session_of_a_ready_node_is_no_event_and_wakes_nobody() {
    let world = World::new();
    let id = world.join("a").id;
    let first = world.open(&id, 1);
    world.drop_work();
    let second = world.open(&id, 2);
    world.close(&id, &first);
    assert_eq!(world.node(&id).session.unwrap().id, second);
    assert_eq!(world.node(&id).phase, NodePhase::Ready);
    assert!(world.work().is_empty());
    assert_eq!(world.count_events("node.ready"), 1);
}

#[test]
fn what_is_written_for_a_session_is_not_applied_once_the_node_has_another() {
    let world = World::new();
    let id = world.join("a").id;
    let first = world.open(&id, 1);
    let mut tx = Tx::new(world.view());
    assert!(world.nodes.holds_session(&mut tx, &id, &first).unwrap());
    tx.publish("report", "", "node/a".to_owned(), &json!({}));
    let second = world.open(&id, 2);
    let outcome = world.store.apply(tx.build().unwrap().into()).unwrap();
    assert!(!outcome.is_applied(), "{outcome:?}");
    let mut tx = Tx::new(world.view());
    assert!(!world.nodes.holds_session(&mut tx, &id, &first).unwrap());
    assert!(world.nodes.holds_session(&mut tx, &id, &second).unwrap());
}

#[test]
fn changed_facts_wake_capacity_alone() {
    let world = World::new();
    let id = world.join("a").id;
    world.open(&id, 1);
    world.drop_work();
    let mut changed = facts("a");
    changed.threads = 64;
    world.commit(|tx| world.nodes.facts_changed(tx, &id, &changed)).unwrap();
    assert_eq!(world.node(&id).facts.threads, 64);
    assert_eq!(world.work(), ["capacity.nodes"]);
}

#[test]
fn a_node_is_lost_when_the_grace_is_over_and_not_before() {
    let world = World::new();
    world.beat("1");
    let id = world.join("a").id;
    let session = world.open(&id, 1);
    world.drop_work();
    world.close(&id, &session);
    assert_eq!(world.node(&id).phase, NodePhase::Unhealthy);
    let due_ms = world.view().work(NODES, id.as_str()).unwrap().due_ms;
    assert_eq!(due_ms, world.view().clock().now_ms + 30_000);
    assert_eq!(world.work(), [NODES]);

    world.store.advance(29_999);
    world.beat("1");
    assert_eq!(world.run(NODES, id.as_str()), (Run::After(Duration::from_millis(1)), false));
    assert_eq!(world.node(&id).phase, NodePhase::Unhealthy);

    world.store.advance(1);
    assert_eq!(world.run(NODES, id.as_str()), (Run::Done, true));
    assert_eq!(world.node(&id).phase, NodePhase::Lost);
    assert_eq!(world.work(), ["capacity.nodes", "workloads.nodes"]);
    assert_eq!(world.count_events("node.lost"), 1);
    assert_eq!(world.run(NODES, id.as_str()), (Run::Done, false));
    assert!(world.finding("nodes.lost").unwrap().message.ends_with(": a"));
}

#[test]
fn a_node_that_went_away_again_since_the_look_is_not_lost() {
    let world = World::new();
    let id = world.join("a").id;
    let session = world.open(&id, 1);
    world.close(&id, &session);
    world.store.advance(30_000);
    let session = world.open(&id, 1);
    world.close(&id, &session);
    assert!(world.is_silent(|tx| {
        let left_ms = crate::life::lose(tx, &id, crate::LOST_GRACE)?;
        assert_eq!(left_ms, Some(30_000));
        Ok(())
    }));
}

#[test]
fn a_node_that_comes_back_in_time_is_not_lost() {
    let world = World::new();
    world.beat("1");
    let id = world.join("a").id;
    let session = world.open(&id, 1);
    world.close(&id, &session);
    world.open(&id, 2);
    world.store.advance(60_000);
    world.beat("1");
    assert_eq!(world.run(NODES, id.as_str()), (Run::Done, false));
    assert_eq!(world.node(&id).phase, NodePhase::Ready);
    assert_eq!(world.node(&id).disconnected_at_ms, None);
}

#[test]
fn a_lost_node_that_comes_back_is_ready_and_wakes_who_must_know() {
    let world = World::new();
    world.beat("1");
    let id = world.join("a").id;
    let session = world.open(&id, 1);
    world.close(&id, &session);
    world.store.advance(30_000);
    world.beat("1");
    world.run(NODES, id.as_str());
    world.drop_work();
    world.open(&id, 1);
    assert_eq!(world.node(&id).phase, NodePhase::Ready);
    assert_eq!(world.work(), ["capacity.nodes", "workloads.nodes"]);
    assert_eq!(world.finding("nodes.lost"), None);
}

#[test]
fn the_resync_looks_at_nodes_that_are_away_alone() {
    let world = World::new();
    let (a, b) = (world.join("a").id, world.join("b").id);
    let session = world.open(&a, 1);
    world.open(&b, 1);
    world.close(&a, &session);
    let keys = world.reconciler(NODES).keys(&world.view()).unwrap();
    assert_eq!(keys, [a.key()]);
}

#[test]
fn sessions_of_a_dead_replica_are_taken_away_and_the_grace_begins() {
    let world = World::new();
    let (a, b) = (world.join("a").id, world.join("b").id);
    world.beat("1");
    world.beat("2");
    world.open(&a, 1);
    world.open(&b, 2);
    world.store.advance(9_000);
    world.beat("1");
    world.store.advance(2_000);
    world.drop_work();
    assert!(!world.view().worker_lives("2"));
    world.enqueue(SESSIONS, "all");
    world.run(SESSIONS, "all");
    assert_eq!(world.node(&a).phase, NodePhase::Ready);
    let orphan = world.node(&b);
    assert_eq!((orphan.phase, orphan.session), (NodePhase::Unhealthy, None));
    assert_eq!(orphan.disconnected_at_ms, Some(world.view().clock().now_ms));
    assert_eq!(world.work(), [NODES, SESSIONS]);
}

#[test]
fn the_look_for_orphans_writes_nothing_while_all_replicas_live() {
    let world = World::new();
    let (a, b) = (world.join("a").id, world.join("b").id);
    world.beat("1");
    world.beat("2");
    world.open(&a, 1);
    world.open(&b, 2);
    world.enqueue(SESSIONS, "all");
    let before = world.view().applied();
    assert_eq!(world.run(SESSIONS, "all"), (Run::Done, false));
    assert_eq!(world.view().applied(), before);
}

#[test]
fn all_sessions_of_a_dead_replica_are_taken_away_however_many() {
    let world = World::new();
    world.beat("1");
    let token = world.token(1, json!({"uses": 250}));
    for n in 0..250 {
        let name = format!("n{n}");
        let node = world.try_join(&world.request(&token, &name, &name)).unwrap();
        world.open(&node.id, 10);
    }
    world.enqueue(SESSIONS, "all");
    world.run(SESSIONS, "all");
    let away = world.reconciler(NODES).keys(&world.view()).unwrap();
    assert_eq!(away.len(), 250);
}

#[test]
fn the_module_passes_the_registration_checks() {
    let world = World::new();
    let module = crate::Inventory::default();
    assert!(palisade_contract::Registry::new(vec![std::sync::Arc::new(module)]).is_ok());
    assert_eq!(world.module.name(), "inventory");
}
