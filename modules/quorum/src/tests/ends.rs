//! The other ends of a batch.

use palisade_contract::Code;
use palisade_contract::Module;
use serde_json::json;

use super::world::World;

#[test]
fn one_who_says_no_ends_it() {
    let world = World::new();
    world.policy(&[(1, 2)]);
    let id = world.asked("ada", &["lamp"]);
    world.approve("carol", &id).unwrap();
    let no = json!({"approval": id, "reason": "they are needed"});
    assert_eq!(world.as_who("ada", "approvals.reject", &no).unwrap_err().code, Code::AccessDenied);
    let rejected = world.as_who("bob", "approvals.reject", &no).unwrap();
    assert_eq!(rejected["state"], "rejected");
    assert_eq!(rejected["ended"]["by"], "user/bob");
    assert_eq!(world.why(&id), "they are needed");
    assert_eq!(world.approve("dave", &id).unwrap_err().code, Code::InvalidState, "QUO-3");
    assert!(world.has("lamp"));
}

#[test]
fn only_whoever_asked_takes_it_back() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.asked("ada", &["lamp"]);
    let back = json!({ "approval": id });
    let refused = world.as_who("bob", "approvals.withdraw", &back).unwrap_err();
    assert_eq!(refused.code, Code::AccessDenied);
    assert_eq!(world.as_who("ada", "approvals.withdraw", &back).unwrap()["state"], "withdrawn");
    let again = world.as_who("ada", "approvals.withdraw", &back).unwrap_err();
    assert_eq!(again.code, Code::InvalidState, "QUO-3");
    assert_eq!(world.approve("bob", &id).unwrap_err().code, Code::InvalidState, "QUO-3");
}

#[test]
fn it_ends_with_its_time() {
    let world = World::new();
    let short = json!({"tenant": "acme", "mode": "on", "lifeSeconds": 60});
    world.call("approvalPolicies.set", &short);
    let id = world.asked("ada", &["lamp"]);
    world.pass(57);
    assert_eq!(world.state(&id), "held");
    world.store.advance(3000);
    let late = world.approve("bob", &id).unwrap_err();
    assert!(late.detail.contains("has expired"), "QUO-3, although nobody has noted it yet: {late}");
    world.pass(1);
    assert_eq!(world.state(&id), "expired");
    assert_eq!(world.why(&id), "it was not approved within 60 s");
    assert!(world.has("lamp"));
    assert_eq!(world.events(&format!("approval/{id}")), ["approval.held", "approval.expired"]);
}

#[test]
fn what_has_ended_is_forgotten_after_a_month() {
    let world = World::new();
    let id = world.asked("ada", &["lamp"]);
    assert_eq!(world.state(&id), "released");
    world.store.advance(crate::expiry::KEPT_MS - 1000);
    world.pass(0);
    assert_eq!(world.batches(), 1);
    world.pass(3);
    assert_eq!(world.batches(), 0);
}

#[test]
fn what_has_ended_takes_bounded_room() {
    let world = World::new();
    let first = world.asked("ada", &["t0"]);
    let shown = world.get(&first);
    assert_eq!(shown["calls"][0]["input"], json!(null), "its input is not kept");
    assert_eq!(shown["scope"][0]["subject"], "thing/t0");
    for n in 1..crate::ENDED_MAX {
        world.asked("ada", &[&format!("t{n}")]);
    }
    assert_eq!(world.batches(), crate::ENDED_MAX);
    let last = world.asked("ada", &["lamp"]);
    assert_eq!(world.batches(), crate::ENDED_MAX);
    assert_eq!(world.state(&last), "released");
    let gone = world.as_who("admin", "approvals.get", &json!({ "approval": first })).unwrap_err();
    assert_eq!(gone.code, Code::NotFound, "the oldest goes first");
}

#[test]
fn a_tenant_that_is_deleted_leaves_nothing() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let things: Vec<String> = (0..120).map(|n| format!("t{n}")).collect();
    for (n, thing) in things.iter().enumerate() {
        world.asked(["ada", "bob", "carol"][n % 3], &[thing.as_str()]);
    }
    let used = world.quorum.tenants_in_use(&world.view()).unwrap();
    assert!(used.contains("acme"));
    let sweep = || world.commit(|tx| world.quorum.tenant_deleted(&world.cx, tx, "acme")).unwrap();
    assert_eq!(sweep(), palisade_contract::Sweep::Again);
    assert_eq!(sweep(), palisade_contract::Sweep::Done);
    assert!(world.quorum.tenants_in_use(&world.view()).unwrap().is_empty());
}
