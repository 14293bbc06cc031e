//! What doctor finds.

use serde_json::json;

use super::world::World;

#[test]
fn what_cannot_be_approved_by_enough_is_found() {
    let world = World::new();
    world.policy(&[(1, 3)]);
    let id = world.asked("ada", &["lamp"]);
    assert!(world.found().is_empty(), "bob, carol, dave and the admin: {:?}", world.findings());
    world.unbind("bob");
    world.unbind("carol");
    let found = world.findings();
    let checks: Vec<&str> = found.iter().map(|one| one.check.as_str()).collect();
    assert_eq!(checks, ["quorum.unreachable", "quorum.too-few-approvers"]);
    // Whoever made him is of one hand with dave.
    assert!(found[0].message.contains(&format!("{id} (1 of 3)")), "{}", found[0].message);
    world.as_who("ada", "approvals.withdraw", &json!({ "approval": id })).unwrap();
    world.call("approvalPolicies.set", &json!({"tenant": "acme", "mode": "off"}));
    assert!(world.found().is_empty());
}

#[test]
fn what_is_about_to_expire_is_found() {
    let world = World::new();
    let short = json!({"tenant": "acme", "mode": "on", "lifeSeconds": 600});
    world.call("approvalPolicies.set", &short);
    let id = world.asked("ada", &["lamp"]);
    world.pass(537);
    assert!(world.found().is_empty());
    world.pass(3);
    assert!(world.found().contains("quorum.near-expiry"));
    world.approve("bob", &id).unwrap();
    assert!(world.found().is_empty());
}
