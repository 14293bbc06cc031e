//! What cannot be signed is not sent, says so, and is not lost.

use std::time::Duration;

use serde_json::json;

use super::world::{World, answer, secret, subjects};
use crate::signature::{SigningKey, header};

const STEP: Duration = Duration::from_secs(1);

/// A subscription that signs with a secret that somebody else set.
fn world() -> World {
    let world = World::new();
    world.set_secret("hook", &secret(3));
    world.subscribe("pager", json!({"types": ["node"], "secret": null, "secretRef": "hook"}));
    world
}

fn stands(world: &World) -> (String, String) {
    let shown = world.shown("pager");
    let text = |field: &str| shown[field].as_str().unwrap().to_owned();
    (text("state"), text("reason"))
}

#[test]
fn a_secret_that_signs_no_more_is_said_and_costs_nothing() {
    let world = world();
    world.set_secret("hook", "hunter2");
    assert_eq!(world.findings(), ["subscriptions.secret"], "before anything is to be sent");
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    world.publish("", "node.lost", "node/nd_2");
    world.run();
    let (state, reason) = stands(&world);
    assert_eq!(state, "blocked");
    assert!(reason.contains("secret hook cannot sign") && !reason.contains("hunter2"), "{reason}");
    assert_eq!(world.findings(), ["subscriptions.secret"]);
    assert_eq!(world.told()["subscription.blocked"], 1, "once, and not for each attempt");
    world.pass(Duration::from_secs(7200), Duration::from_secs(60));
    assert!(world.receivers.take().is_empty(), "EVT-1: nothing is sent unsigned");
    world.set_secret("hook", &secret(4));
    world.pass(Duration::from_secs(31), STEP);
    let got = world.receivers.take();
    assert_eq!(subjects(&got), ["node/nd_1", "node/nd_2"], "EVT-3");
    let key = SigningKey::parse(secret(4).as_bytes()).unwrap();
    let at = got[0].timestamp.parse().unwrap();
    let body = got[0].body.to_string();
    assert_eq!(got[0].signature, header(&[key], &got[0].id, at, body.as_bytes()), "EVT-1");
    assert_eq!(stands(&world), ("active".to_owned(), String::new()));
    assert!(world.findings().is_empty());
}

#[test]
fn a_replica_that_lacks_the_key_says_so_and_goes_on_when_it_has_it() {
    let world = world();
    world.lose_keys();
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    let (state, reason) = stands(&world);
    assert_eq!(state, "blocked");
    assert!(reason.contains("lacks the key"), "{reason}");
    assert_eq!(world.findings(), ["subscriptions.secret"]);
    assert!(world.receivers.take().is_empty());
    world.find_keys();
    world.pass(Duration::from_secs(31), STEP);
    assert_eq!(subjects(&world.receivers.take()), ["node/nd_1"], "EVT-3");
    assert_eq!(stands(&world).0, "active");
}

#[test]
fn what_waited_before_waits_on_and_a_rotation_ends_it_at_once() {
    let world = world();
    world.receivers.answer(|_| answer(500));
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    world.receivers.take();
    world.receivers.answer(|_| answer(204));
    world.set_secret("hook", "hunter2");
    world.pass(Duration::from_secs(60), STEP);
    assert_eq!(stands(&world).0, "blocked");
    assert_eq!(world.listed("subscriptions.deliveries", "pager").len(), 1);
    // With an overlap: of what is no secret nobody waits for a signature.
    let rotate = json!({"subscription": "pager", "secret": secret(5)});
    world.done("subscriptions.rotate", rotate);
    world.bench.settle();
    let got = world.receivers.take();
    assert_eq!(subjects(&got), ["node/nd_1"]);
    assert_eq!(got[0].signature.split(' ').count(), 1);
    assert_eq!(stands(&world).0, "active");
}

#[test]
fn a_pause_ends_what_is_said_of_it() {
    let world = world();
    world.set_secret("hook", "hunter2");
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    world.done("subscriptions.pause", json!({"subscription": "pager"}));
    assert_eq!(stands(&world).0, "paused");
    // Nobody asks for what waited any more, and nothing is to be sent.
    world.done("subscriptions.update", json!({"subscription": "pager", "types": ["workload"]}));
    world.done("subscriptions.resume", json!({"subscription": "pager"}));
    world.bench.settle();
    assert_eq!(stands(&world), ("active".to_owned(), String::new()));
}

#[test]
fn the_same_secret_again_is_one_signature() {
    let world = world();
    let rotate = |overlap: u64| {
        let input =
            json!({"subscription": "pager", "secretRef": "hook", "overlapSeconds": overlap});
        world.done("subscriptions.rotate", input);
    };
    let signing = || world.shown("pager")["signing"].clone();
    let hook = |retiring: bool| json!({"secret": "hook", "own": false, "retiring": retiring});
    rotate(86_400);
    rotate(86_400);
    assert_eq!(signing(), json!([hook(false)]), "EVT-1");
    assert!(!world.told().contains_key("subscription.rotated"), "nothing has changed");
    world.publish("", "node.lost", "node/nd_1");
    world.run();
    assert_eq!(world.receivers.take()[0].signature.split(' ').count(), 1, "EVT-1");
    // What it replaced goes on for as long as it was to, or ends when the caller says so.
    let own = json!({"subscription": "pager", "secret": secret(6)});
    world.done("subscriptions.rotate", own);
    let kept = json!({"secret": "subscription.pager.1", "own": true, "retiring": true});
    rotate(86_400);
    assert_eq!(signing(), json!([hook(false), kept]));
    rotate(60);
    assert_eq!(signing(), json!([hook(false), kept]));
    rotate(0);
    assert_eq!(signing(), json!([hook(false)]));
    assert_eq!(world.secrets(), ["hook"]);
}
