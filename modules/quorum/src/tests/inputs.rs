//! What is refused before anybody is asked.

use palisade_contract::{Code, Error};
use serde_json::{Value, json};

use super::world::World;

fn refused(world: &World, method: &str, input: &Value) -> Error {
    let calls = json!([{"method": method, "input": input}]);
    let input = json!({"tenant": "acme", "calls": calls});
    world.as_who("ada", "approvals.create", &input).unwrap_err()
}

#[test]
fn what_would_be_refused_is_refused_now() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let error = refused(&world, "things.remove", &json!({"thing": "nothing"}));
    assert_eq!(error.code, Code::NotFound);
    assert_eq!(error.detail, "call 1 (things.remove): there is no thing \"nothing\"");
    let error = refused(&world, "things.remove", &json!({"thing": ""}));
    assert_eq!(error.problems[0].pointer, "/calls/0/input/thing");
    let error = refused(&world, "things.remov", &json!({"thing": "lamp"}));
    assert_eq!(error.hint.as_deref(), Some("did you mean things.remove?"));
    let error = refused(&world, "things.paint", &json!({"thing": "lamp"}));
    assert_eq!(error.code, Code::NotFound, "it is not destructive");
    let error = refused(&world, "things.burn", &json!({"thing": "lamp"}));
    assert_eq!(error.code, Code::Unsupported, "a secret would be stored in the clear");
    assert_eq!(world.batches(), 0);
}

#[test]
fn nobody_asks_for_what_he_may_not_do_himself() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    world.thing("lamp", "ok");
    world.call("roles.create", &json!({"name": "asker", "actions": ["compute:quorum:request"]}));
    world.person("erin", "asker");
    assert_eq!(world.ask("erin", &["lamp"]).unwrap_err().code, Code::AccessDenied);
    let others = json!({"thing": "lamp", "tenant": "other"});
    assert_eq!(refused(&world, "things.remove", &others).code, Code::AccessDenied);
    let calls = json!([{"method": "things.remove", "input": {"thing": "lamp", "tenant": "acme"}}]);
    let mixed = world.as_who("admin", "approvals.create", &json!({ "calls": calls })).unwrap_err();
    assert_eq!(mixed.code, Code::InvalidInput, "a thing of acme in a batch of the cluster");
}

#[test]
fn the_same_wish_is_held_once() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.asked("ada", &["lamp"]);
    assert_eq!(world.ask("ada", &["lamp"]).unwrap()["id"], id.as_str());
    assert_ne!(world.ask("dave", &["lamp"]).unwrap()["id"], id.as_str());
    world.as_who("ada", "approvals.withdraw", &json!({ "approval": id })).unwrap();
    assert_ne!(world.ask("ada", &["lamp"]).unwrap()["id"], id.as_str());
    world.thing("chair", "ok");
    let twice = world.ask("ada", &["chair", "chair"]).unwrap_err();
    assert_eq!(twice.code, Code::InvalidInput);
}

#[test]
fn so_many_wait_and_no_more() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    for n in 0..crate::HELD_OF_ONE_MAX {
        world.asked("ada", &[&format!("t{n}")]);
    }
    world.thing("lamp", "ok");
    let refused = world.ask("ada", &["lamp"]).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState, "nobody takes the room of all");
    assert!(refused.detail.contains("that user/ada has asked for"), "{refused}");
    for n in 0..crate::HELD_MAX - crate::HELD_OF_ONE_MAX {
        world.asked(["bob", "carol", "dave"][n % 3], &[&format!("u{n}")]);
    }
    world.person("erin", "operator");
    let refused = world.ask("erin", &["lamp"]).unwrap_err();
    assert_eq!(refused.detail, "200 batches of tenant acme wait for approval");
}

#[test]
fn the_same_wish_in_another_way_is_not_lost() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.asked("ada", &["lamp"]);
    let ask = |more: Value| {
        let calls = json!([{"method": "things.remove", "input": {"thing": "lamp"}}]);
        let mut input = json!({ "calls": calls });
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        world.as_who("ada", "approvals.create", &input)
    };
    for (more, what) in [
        (json!({"required": 2}), "requires 1"),
        (json!({"lifeSeconds": 60}), "waits for 86400 s in all"),
        (json!({"reason": "another"}), "has the reason \"they are old\""),
    ] {
        let refused = ask(more.clone()).unwrap_err();
        assert_eq!((refused.code, refused.retryable), (Code::Conflict, false), "{more}");
        assert_eq!(refused.detail, format!("approval {id} waits for the same already, and {what}"));
    }
    for less in [json!({}), json!({"required": 1}), json!({"lifeSeconds": 86_400})] {
        assert_eq!(ask(less).unwrap()["id"], id.as_str(), "nothing of it is lost");
    }
}

#[test]
fn a_wish_for_another_thing_of_the_same_name_is_another() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let old = world.asked("ada", &["lamp"]);
    world.call("things.remove", &json!({"thing": "lamp", "tenant": "acme"}));
    let new = world.asked("ada", &["lamp"]);
    assert_ne!(new, old);
    assert_eq!(world.ask("ada", &["lamp"]).unwrap()["id"], new.as_str());
    assert_eq!(world.approve("bob", &new).unwrap()["state"], "released");
}

#[test]
fn what_says_nothing_of_whose_it_is_is_whose_it_was_asked_of() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    world.thing("lamp", "ok");
    let calls = json!([{"method": "things.melt", "input": {"thing": "lamp", "tenant": "acme"}}]);
    let held = world.as_who("ada", "approvals.create", &json!({ "calls": calls })).unwrap();
    assert_eq!(held["state"], "held");
    let mixed = world.as_who("admin", "approvals.create", &json!({ "calls": calls })).unwrap_err();
    assert_eq!(mixed.code, Code::InvalidInput, "a thing of acme in a batch of the cluster");
}

#[test]
fn a_call_may_need_one_before_it() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    world.thing("box", "stuck");
    world.thing("box-lock", "ok");
    let unlock = json!({"method": "things.remove", "input": {"thing": "box-lock"}});
    let open = json!({"method": "things.open", "input": {"thing": "box"}});
    let ask = |calls: Value| world.as_who("ada", "approvals.create", &json!({ "calls": calls }));
    assert_eq!(
        ask(json!([open, unlock])).unwrap_err().detail,
        "call 1 (things.open): it is locked"
    );
    let id = ask(json!([unlock, open])).unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!(world.approve("bob", &id).unwrap()["state"], "released");
    assert!(!world.has("box") && !world.has("box-lock"));
}

#[test]
fn thresholds_rise_from_one() {
    let world = World::new();
    let at = |thresholds: Value| {
        let input = json!({"tenant": "acme", "mode": "on", "thresholds": thresholds});
        world.as_who("admin", "approvalPolicies.set", &input).unwrap_err().problems[0]
            .pointer
            .clone()
    };
    assert_eq!(at(json!([])), "/thresholds");
    assert_eq!(at(json!([{"size": 2, "required": 1}])), "/thresholds/0/size");
    assert_eq!(at(json!([{"size": 1, "required": 0}])), "/thresholds/0/required");
    let fewer = json!([{"size": 1, "required": 2}, {"size": 3, "required": 1}]);
    assert_eq!(at(fewer), "/thresholds/1/required");
    let never = json!([{"size": 1, "required": 1}, {"size": 101, "required": 2}]);
    assert_eq!(at(never), "/thresholds/1/size", "no batch is that large");
    let kinds = json!({"tenant": "acme", "mode": "on", "kinds": ["acme.wipe", "acme.wipe"]});
    let twice = world.as_who("admin", "approvalPolicies.set", &kinds).unwrap_err();
    assert_eq!(twice.problems[0].pointer, "/kinds/1");
    let falling = json!([{"size": 1, "required": 1}, {"size": 1, "required": 2}]);
    assert_eq!(at(falling), "/thresholds/1/size");
}

#[test]
fn a_policy_is_off_until_somebody_sets_it_and_is_its_tenants() {
    let world = World::new();
    let get = |tenant: &str| world.call("approvalPolicies.get", &json!({ "tenant": tenant }));
    assert_eq!(get("acme")["mode"], "off");
    world.policy(&[(1, 2)]);
    let shown = get("acme");
    assert_eq!((shown["mode"].clone(), shown["setBy"].clone()), (json!("on"), json!("user/admin")));
    assert_eq!(get("_")["mode"], "off", "the cluster's is another");
    let revision = shown["revision"].as_u64().unwrap();
    let off = json!({"tenant": "acme", "mode": "off"});
    let stale = world.if_match("admin", "approvalPolicies.set", &off, Some(revision - 1));
    assert_eq!(stale.unwrap_err().code, Code::PreconditionFailed);
    let operators = world.as_who("ada", "approvalPolicies.set", &off).unwrap_err();
    assert_eq!(operators.code, Code::AccessDenied, "an operator does not let himself off");
    world.person("tess", "tenant-admin");
    world.as_who("tess", "approvalPolicies.set", &off).unwrap();
}
