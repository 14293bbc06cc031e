//! Approvals, and what their number leads to.

use palisade_contract::Code;
use serde_json::json;

use super::world::World;

#[test]
fn what_is_held_is_done_once_as_many_as_are_required_have_approved() {
    let world = World::new();
    world.policy(&[(1, 2)]);
    let id = world.asked("ada", &["lamp", "chair"]);
    let shown = world.get(&id);
    assert_eq!(shown["state"], "held");
    assert_eq!((shown["required"].clone(), shown["approved"].clone()), (json!(2), json!(0)));
    assert_eq!(shown["scope"][0], json!({"subject": "thing/lamp", "kind": "things.remove"}));
    assert_eq!(world.approve("bob", &id).unwrap()["approved"], 1);
    assert_eq!(world.approve("bob", &id).unwrap()["approved"], 1, "QUO-1: once a head");
    assert!(world.has("lamp") && world.has("chair"), "QUO-1");
    let released = world.approve("carol", &id).unwrap();
    assert_eq!(released["state"], "released");
    assert!(!world.has("lamp") && !world.has("chair"));
    assert_eq!(world.approve("carol", &id).unwrap()["state"], "released", "it was she who did");
    let kinds = ["held", "approved", "approved", "released"].map(|kind| format!("approval.{kind}"));
    assert_eq!(world.events(&format!("approval/{id}")), kinds);
    assert_eq!(world.events("thing/lamp"), ["thing.removed"]);
}

#[test]
fn it_is_done_in_the_name_of_whoever_asked() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.asked("ada", &["lamp"]);
    world.approve("bob", &id).unwrap();
    let view = world.view();
    let (_, removed) = view.events(0).find(|(_, event)| &*event.kind == "thing.removed").unwrap();
    assert_eq!(removed.data, br#"{"by":"user/ada"}"#);
}

#[test]
fn whoever_asked_does_not_count() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.asked("ada", &["lamp"]);
    let refused = world.approve("ada", &id).unwrap_err();
    assert_eq!(refused.code, Code::AccessDenied, "QUO-1");
    assert!(refused.detail.contains("it asked for it"), "{refused}");
    assert!(world.has("lamp"));
}

#[test]
fn larger_batches_require_more() {
    let world = World::new();
    world.policy(&[(1, 1), (2, 2), (4, 3)]);
    let required = |things: &[&str]| world.get(&world.asked("ada", things))["required"].clone();
    assert_eq!(required(&["a"]), 1);
    assert_eq!(required(&["b", "c"]), 2);
    assert_eq!(required(&["d", "e", "f"]), 2);
    assert_eq!(required(&["g", "h", "i", "j"]), 3);
}

#[test]
fn no_policy_lowers_what_a_held_batch_requires() {
    let world = World::new();
    world.policy(&[(1, 2)]);
    let id = world.asked("ada", &["lamp"]);
    world.policy(&[(1, 1)]);
    world.approve("bob", &id).unwrap();
    assert_eq!(world.state(&id), "held", "QUO-4");
    world.call("approvalPolicies.set", &json!({"tenant": "acme", "mode": "off"}));
    world.approve("bob", &id).unwrap();
    assert_eq!(world.get(&id)["required"], 2, "QUO-4");
    assert!(world.has("lamp"), "QUO-4");
    world.approve("carol", &id).unwrap();
    assert!(!world.has("lamp"));
}

#[test]
fn without_a_policy_it_is_done_at_once_unless_somebody_is_asked_for() {
    let world = World::new();
    let id = world.asked("ada", &["lamp"]);
    assert_eq!(world.state(&id), "released");
    assert!(!world.has("lamp"));
    world.thing("chair", "ok");
    let calls = json!([{"method": "things.remove", "input": {"thing": "chair"}}]);
    let input = json!({"calls": calls, "required": 1});
    let asked = world.as_who("ada", "approvals.create", &input).unwrap();
    assert_eq!(asked["state"], "held");
    assert!(world.has("chair"));
}

#[test]
fn a_policy_is_about_the_kinds_that_it_names() {
    let world = World::new();
    let only = json!({"tenant": "acme", "mode": "on", "kinds": ["acme.reboot"]});
    world.call("approvalPolicies.set", &only);
    assert_eq!(world.state(&world.asked("ada", &["lamp"])), "released");
    assert!(world.batch(&["acme.reboot"]).unwrap().held);
    let unknown = json!({"tenant": "acme", "mode": "on", "kinds": ["things.remvoe"]});
    let refused = world.as_who("admin", "approvalPolicies.set", &unknown).unwrap_err();
    assert!(refused.problems[0].message.contains("\"things.remove\""), "{refused:?}");
}

#[test]
fn nobody_approves_what_he_has_not_seen() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.asked("ada", &["lamp"]);
    let blind = world.as_who("bob", "approvals.approve", &json!({ "approval": id })).unwrap_err();
    assert_eq!((blind.code, blind.problems[0].pointer.as_str()), (Code::InvalidInput, "/digest"));
    let other = json!({"approval": id, "digest": "00"});
    let refused = world.as_who("bob", "approvals.approve", &other).unwrap_err();
    assert_eq!(refused.code, Code::PreconditionFailed);
    let revision = world.get(&id)["revision"].as_u64().unwrap();
    let by_revision = |revision| {
        world.if_match("bob", "approvals.approve", &json!({ "approval": id }), Some(revision))
    };
    assert_eq!(by_revision(revision - 1).unwrap_err().code, Code::PreconditionFailed);
    assert!(world.has("lamp"), "QUO-1");
    assert_eq!(by_revision(revision).unwrap()["state"], "released");
}

#[test]
fn whoever_may_not_approve_any_more_does_not_count() {
    let world = World::new();
    world.policy(&[(1, 2)]);
    let id = world.asked("ada", &["lamp"]);
    world.approve("bob", &id).unwrap();
    world.unbind("bob");
    let shown = world.approve("carol", &id).unwrap();
    assert_eq!((shown["state"].clone(), shown["approved"].clone()), (json!("held"), json!(1)));
    assert!(
        shown["approvals"][0]["why"].as_str().unwrap().contains("may not compute:quorum:approve")
    );
    assert!(world.has("lamp"), "QUO-1");
    world.call("principals.update", &json!({"principal": "carol", "disabled": true}));
    world.approve("dave", &id).unwrap();
    assert!(world.has("lamp"), "QUO-1: carol would not be let in");
    world.call("principals.update", &json!({"principal": "carol", "disabled": false}));
    assert_eq!(world.approve("dave", &id).unwrap()["state"], "released");
}

#[test]
fn whoever_asked_must_still_have_the_right() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let unbound = world.asked("ada", &["lamp"]);
    world.unbind("ada");
    assert_eq!(world.approve("bob", &unbound).unwrap()["state"], "failed");
    assert!(world.why(&unbound).starts_with("ACCESS_DENIED: user/ada (no role) may not"), "QUO-2");
    let disabled = world.asked("dave", &["chair"]);
    world.call("principals.update", &json!({"principal": "dave", "disabled": true}));
    world.approve("bob", &disabled).unwrap();
    assert_eq!(world.why(&disabled), "UNAUTHENTICATED: user/dave would not be let in any more");
    assert!(world.has("lamp") && world.has("chair"), "QUO-2");
    let again = world.approve("carol", &unbound).unwrap_err();
    assert_eq!(again.code, Code::InvalidState, "QUO-3");
}

#[test]
fn nothing_is_released_in_a_tenant_that_is_suspended() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.asked("ada", &["lamp"]);
    world.call("tenants.suspend", &json!({"tenant": "acme", "reason": "the bill"}));
    assert_eq!(world.approve("bob", &id).unwrap_err().code, Code::InvalidState, "his, too");
    // Somebody of the cluster can write there; ada cannot.
    world.call("principals.create", &json!({"name": "root"}));
    world.call("roleBindings.create", &json!({"principal": "root", "role": "operator"}));
    world.approve("root", &id).unwrap();
    assert_eq!(world.why(&id), "INVALID_STATE: tenant acme is suspended: the bill");
    assert!(world.has("lamp"), "QUO-2");
}

#[test]
fn of_what_cannot_be_done_nothing_is_done() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.asked("ada", &["lamp", "chair"]);
    world.thing("chair", "stuck");
    assert_eq!(world.approve("bob", &id).unwrap()["state"], "failed");
    assert_eq!(world.why(&id), "INVALID_STATE: it is stuck");
    assert!(world.has("lamp") && world.has("chair"), "QUO-2");
    assert_eq!(world.events("thing/lamp"), [""; 0], "QUO-2: nor is it told");
    let kinds = ["held", "approved", "failed"].map(|kind| format!("approval.{kind}"));
    assert_eq!(world.events(&format!("approval/{id}")), kinds);
}

#[test]
fn what_was_made_again_under_the_same_name_is_another() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.asked("ada", &["lamp"]);
    world.call("things.remove", &json!({"thing": "lamp", "tenant": "acme"}));
    world.thing("lamp", "ok");
    assert_eq!(world.approve("bob", &id).unwrap()["state"], "failed");
    assert!(world.why(&id).starts_with("PRECONDITION_FAILED"), "{}", world.why(&id));
    assert!(world.has("lamp"), "QUO-2");
}

#[test]
fn if_match_holds_at_the_release() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    world.thing("lamp", "ok");
    let revision = world.view().revision();
    let ask = |revision: u64| {
        let calls =
            json!([{"method": "things.remove", "input": {"thing": "lamp"}, "ifMatch": revision}]);
        world.as_who("ada", "approvals.create", &json!({ "calls": calls }))
    };
    assert_eq!(ask(revision - 1).unwrap_err().code, Code::PreconditionFailed);
    let id = ask(revision).unwrap()["id"].as_str().unwrap().to_owned();
    world.thing("lamp", "changed");
    assert_eq!(world.approve("bob", &id).unwrap()["state"], "failed");
    assert!(world.has("lamp"));
}
