//! Who is distinct from whom.

use palisade_contract::Code;
use serde_json::json;

use super::world::World;

/// A world in which `root` may everything and has made what is made from now on by it.
fn world() -> World {
    let world = World::new();
    world.policy(&[(1, 1)]);
    for name in ["root", "eve"] {
        world.call("principals.create", &json!({ "name": name }));
        world.call("roleBindings.create", &json!({"principal": name, "role": "cluster-admin"}));
    }
    world
}

#[test]
fn what_somebody_made_is_his_own_hand_both_ways() {
    let world = world();
    let sock = world.token("root", "sock", 1);
    let id = world.asked("root", &["lamp"]);
    let refused = world.approve(&sock, &id).unwrap_err();
    assert_eq!(refused.code, Code::AccessDenied, "QUO-1");
    assert!(refused.detail.contains("user/root made token/"), "{refused}");
    let id = world.asked(&sock, &["chair"]);
    assert_eq!(world.approve("root", &id).unwrap_err().code, Code::AccessDenied, "QUO-1");
    assert!(world.has("lamp") && world.has("chair"));
    world.approve("bob", &id).unwrap();
    assert!(!world.has("chair"), "somebody else is distinct from both");
}

#[test]
fn it_is_his_hand_through_others_too() {
    let world = world();
    let own = json!({"secretSha256": "cc".repeat(32), "name": "of-eve", "principal": "eve"});
    world.as_who("root", "apiTokens.create", &own).unwrap();
    let sock = world.token("eve", "sock", 1);
    let id = world.asked("root", &["lamp"]);
    assert_eq!(world.approve(&sock, &id).unwrap_err().code, Code::AccessDenied, "QUO-1");
    let refused = world.approve("eve", &id).unwrap_err();
    assert!(refused.detail.contains("or a token of it"), "QUO-1: {refused}");
}

#[test]
fn of_two_hands_of_one_only_one_approves() {
    let world = world();
    world.policy(&[(1, 2)]);
    let sock = world.token("root", "sock", 1);
    let id = world.asked("ada", &["lamp"]);
    world.approve("root", &id).unwrap();
    let refused = world.approve(&sock, &id).unwrap_err();
    assert!(refused.detail.contains("user/root has approved it"), "QUO-1: {refused}");
    assert!(world.has("lamp"), "QUO-1");
}

#[test]
fn two_whom_a_third_made_are_distinct() {
    let world = world();
    world.policy(&[(1, 2)]);
    let [one, two] = ["one", "two"].map(|name| {
        let n = if name == "one" { 1 } else { 2 };
        world.token("root", name, n)
    });
    let id = world.asked("ada", &["lamp"]);
    world.approve(&one, &id).unwrap();
    assert_eq!(world.approve(&two, &id).unwrap()["state"], "released");
}
