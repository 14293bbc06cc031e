use palisade_contract::{Code, Severity};
use serde_json::json;

use super::world::{World, key};

#[test]
fn the_current_and_the_previous_key_are_accepted_and_no_other() {
    let world = World::new();
    let id = world.join("a").id;
    let accepts = |name: &str| world.nodes.authenticate(&world.view(), &id, &key(name)).is_ok();
    assert!(accepts("a") && !accepts("b"));
    world.commit(|tx| world.nodes.renew(tx, &id, &key("a"), &key("b"))).unwrap();
    assert!(accepts("a") && accepts("b"));
    world.commit(|tx| world.nodes.renew(tx, &id, &key("b"), &key("c"))).unwrap();
    assert!(!accepts("a") && accepts("b") && accepts("c"));
}

#[test]
fn a_renewal_repeated_after_a_lost_answer_is_the_same_renewal() {
    let world = World::new();
    let id = world.join("a").id;
    world.commit(|tx| world.nodes.renew(tx, &id, &key("a"), &key("b"))).unwrap();
    assert!(world.is_silent(|tx| world.nodes.renew(tx, &id, &key("a"), &key("b"))));
    world.run_tasks();
    assert_eq!(world.count_events("node.cloned"), 0);
}

#[test]
fn a_renewal_with_an_old_key_after_a_newer_one_is_a_clone() {
    let world = World::new();
    let id = world.join("a").id;
    world.commit(|tx| world.nodes.renew(tx, &id, &key("a"), &key("b"))).unwrap();
    for _ in 0..2 {
        let refused =
            world.commit(|tx| world.nodes.renew(tx, &id, &key("a"), &key("x"))).unwrap_err();
        assert_eq!(refused.code, Code::InvalidState);
        assert!(refused.detail.contains("two machines hold its identity"));
        world.run_tasks();
    }
    assert_eq!(world.count_events("node.cloned"), 1);
    assert_eq!(world.node(&id).keys, [key("b"), key("a")]);
    let finding = world.finding("nodes.cloned").unwrap();
    assert_eq!(finding.severity, Severity::Error);
    assert!(finding.message.contains(&key("a")) && finding.message.contains(&key("b")));
}

#[test]
fn a_key_that_the_node_never_had_renews_nothing() {
    let world = World::new();
    let id = world.join("a").id;
    let refused = world.commit(|tx| world.nodes.renew(tx, &id, &key("x"), &key("y"))).unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated);
    assert_eq!(world.node(&id).keys, [key("a")]);
}

#[test]
fn a_key_of_another_node_cannot_be_taken_over() {
    let world = World::new();
    let id = world.join("a").id;
    world.join("b");
    let refused = world.commit(|tx| world.nodes.renew(tx, &id, &key("a"), &key("b"))).unwrap_err();
    assert_eq!(refused.code, Code::Conflict);
}

#[test]
fn a_removed_node_is_refused_everywhere() {
    let world = World::new();
    let token = world.token(1, json!({}));
    let request = world.request(&token, "a", "a");
    let id = world.try_join(&request).unwrap().id;
    world.open(&id, 1);
    let session = world.node(&id).session.unwrap();
    world.call("nodes.remove", json!({"node": "a"})).unwrap();
    let refused = world.nodes.authenticate(&world.view(), &id, &key("a")).unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated);
    let facts = request.facts.clone();
    let opened = world.commit(|tx| world.nodes.session_opened(tx, &id, &session, &facts, "0.1.0"));
    assert_eq!(opened.unwrap_err().code, Code::Unauthenticated);
    let renewed = world.commit(|tx| world.nodes.renew(tx, &id, &key("a"), &key("b")));
    assert_eq!(renewed.unwrap_err().code, Code::Unauthenticated);
    assert_eq!(world.try_join(&request).unwrap_err().code, Code::InvalidState);
    assert!(world.is_silent(|tx| world.nodes.session_closed(tx, &id, &session.id)));
}
