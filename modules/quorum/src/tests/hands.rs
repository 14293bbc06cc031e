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
    assert!(refused.detail.contains("or a token or key of it"), "QUO-1: {refused}");
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

/// Somebody who may everything, made by another, who comes with a token that this one made.
fn made_by(world: &World, maker: &str, name: &str, n: u8) {
    world.as_who(maker, "principals.create", &json!({ "name": name })).unwrap();
    let bound = json!({"principal": name, "role": "cluster-admin"});
    world.as_who(maker, "roleBindings.create", &bound).unwrap();
    let secret = format!("{n:02x}").repeat(32);
    let own = json!({"secretSha256": secret, "name": format!("of-{name}"), "principal": name});
    world.as_who(maker, "apiTokens.create", &own).unwrap();
}

#[test]
fn a_link_that_is_removed_makes_nobody_distinct() {
    let world = world();
    made_by(&world, "root", "one", 1);
    made_by(&world, "one", "two", 2);
    let id = world.asked("root", &["lamp"]);
    world.call("principals.remove", &json!({"principal": "one"}));
    let refused = world.approve("two", &id).unwrap_err();
    assert!(refused.detail.contains("user/root made user/two"), "QUO-1: {refused}");
    assert!(world.has("lamp"), "QUO-1");
}

/// A token with which `maker` comes as somebody else.
fn borrowed(world: &World, maker: &str, name: &str) {
    let own = json!({"secretSha256": "cc".repeat(32), "name": "borrowed", "principal": name});
    world.as_who(maker, "apiTokens.create", &own).unwrap();
}

#[test]
fn whose_hand_somebody_was_when_he_approved_he_stays() {
    let world = world();
    world.policy(&[(1, 2)]);
    let id = world.asked("ada", &["lamp"]);
    borrowed(&world, "root", "bob");
    world.approve("bob", &id).unwrap();
    world.call("apiTokens.revoke", &json!({"token": "borrowed"}));
    let refused = world.approve("root", &id).unwrap_err();
    assert!(refused.detail.contains("user/root made user/bob"), "QUO-1: {refused}");
    assert!(world.has("lamp"), "QUO-1");
    assert_eq!(world.approve("carol", &id).unwrap()["state"], "released");
}

#[test]
fn whose_hand_somebody_was_when_he_asked_he_stays() {
    let world = world();
    borrowed(&world, "root", "bob");
    let id = world.asked("bob", &["lamp"]);
    world.call("apiTokens.revoke", &json!({"token": "borrowed"}));
    assert_eq!(world.approve("root", &id).unwrap_err().code, Code::AccessDenied, "QUO-1");
    assert!(world.has("lamp"), "QUO-1");
}

#[test]
fn whoever_chose_a_key_of_somebody_is_his_hand() {
    let world = world();
    let id = world.asked("ada", &["lamp"]);
    let keys = json!({"principal": "carol", "keys": ["ab".repeat(32)]});
    world.as_who("root", "principals.update", &keys).unwrap();
    let none = json!({"principal": "carol", "keys": []});
    world.as_who("root", "principals.update", &none).unwrap();
    let of_root = world.asked("root", &["chair"]);
    let refused = world.approve("carol", &of_root).unwrap_err();
    assert!(refused.detail.contains("or a token or key of it"), "QUO-1: {refused}");
    let closed = |disabled: bool| json!({"principal": "bob", "disabled": disabled});
    world.call("principals.update", &closed(true));
    world.as_who("root", "principals.update", &closed(false)).unwrap();
    assert_eq!(world.approve("bob", &of_root).unwrap_err().code, Code::AccessDenied, "QUO-1");
    world.approve("bob", &id).unwrap();
    assert!(!world.has("lamp"), "from others he is distinct");
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

#[test]
fn who_becomes_anothers_hand_after_he_approved_does_not_count() {
    let world = world();
    world.policy(&[(1, 2)]);
    let id = world.asked("root", &["lamp"]);
    world.approve("bob", &id).unwrap();
    let own = json!({"secretSha256": "cc".repeat(32), "name": "of-bob", "principal": "bob"});
    world.as_who("root", "apiTokens.create", &own).unwrap();
    assert_eq!(world.approve("carol", &id).unwrap()["approved"], 1, "QUO-1");
    assert!(world.has("lamp"), "QUO-1");
    assert_eq!(world.approve("dave", &id).unwrap()["state"], "released");
}
