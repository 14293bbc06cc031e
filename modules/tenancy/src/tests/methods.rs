use palisade_contract::{Code, Module, Result};
use palisade_state::{Tx, Verdict};
use serde_json::{Value, json};

use super::world::{WIDGETS, World, amounts};

fn code(answered: Result<Value>) -> Code {
    answered.unwrap_err().code
}

fn names(world: &World, input: Value) -> Vec<String> {
    let all = world.call("tenants.list", input).unwrap();
    let all = all.as_array().unwrap().iter();
    all.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_tenant_is_made_once_with_its_quotas() {
    let world = World::new();
    let input = json!({"name": "acme", "quotas": {"workloads": 3, "cpu": 2.25, "memory": null}});
    let made = world.call("tenants.create", input.clone()).unwrap();
    let quotas = json!({"workloads": 3, "instances": null, "cpu": 2.25, "memory": null});
    assert_eq!(made["quotas"], quotas);
    assert_eq!((&made["state"], &made["createdBy"]), (&json!("active"), &json!("user/ada")));
    let again = world.call("tenants.create", input).unwrap_err();
    assert_eq!((again.code, again.retryable), (Code::Conflict, false));
}

#[test]
fn quotas_that_are_not_named_stay_and_null_takes_one_away() {
    let world = World::new();
    world.create("acme", json!({"workloads": 3, "instances": 9, "cpu": 4}));
    let quotas = json!({"instances": null, "cpu": 0.5});
    let after = world.call("tenants.update", json!({"tenant": "acme", "quotas": quotas})).unwrap();
    let quotas = json!({"workloads": 3, "instances": null, "cpu": 0.5, "memory": null});
    assert_eq!(after["quotas"], quotas);
    let revision = world.view().revision();
    let same = json!({"tenant": "acme", "quotas": {"cpu": 0.5}});
    let same = world.call("tenants.update", same).unwrap();
    assert!(same["revision"].as_u64().unwrap() <= revision, "nothing was written");
}

#[test]
fn what_is_no_quota_is_refused_with_its_place() {
    let world = World::new();
    for (quotas, pointer) in [
        (json!({"cpu": -1}), "/quotas/cpu"),
        (json!({"cpu": 1e300}), "/quotas/cpu"),
        (json!({"memory": u64::MAX}), "/quotas/memory"),
        (json!({"workloads": -1}), "/quotas/workloads"),
        (json!({"instances": "many"}), "/quotas/instances"),
        (json!({"gpus": 1}), "/quotas/gpus"),
    ] {
        let input = json!({"name": "acme", "quotas": quotas});
        let refused = world.call("tenants.create", input).unwrap_err();
        assert_eq!((refused.code, refused.problems.len()), (Code::InvalidInput, 1), "{refused:?}");
        assert_eq!(refused.problems[0].pointer, pointer);
    }
    for name in ["", "A", "a/b", "-a", &"x".repeat(64)] {
        assert_eq!(code(world.call("tenants.create", json!({"name": name}))), Code::InvalidInput);
    }
    let reason = json!({"tenant": "acme", "reason": "\u{7}"});
    assert_eq!(code(world.call("tenants.suspend", reason)), Code::InvalidInput);
}

/// `TEN-9`
#[test]
fn people_of_a_suspended_tenant_write_nothing_and_are_told_why() {
    let world = World::new();
    world.create("acme", json!({}));
    let writable = |tx: &mut Tx| world.cx.ports.tenant_writable(tx, "acme");
    world.commit(writable).unwrap();
    let mut before = Tx::new(world.view());
    writable(&mut before).unwrap();
    before.put(&WIDGETS, &"w".to_owned(), &"acme".to_owned()).unwrap();
    let why = json!({"tenant": "acme", "reason": "the bill of May"});
    let suspended = world.call("tenants.suspend", why.clone()).unwrap();
    assert_eq!(suspended["suspended"]["reason"], "the bill of May");
    let refused = world.commit(writable).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
    assert_eq!(refused.detail, "tenant acme is suspended: the bill of May");
    assert!(refused.hint.unwrap().contains("palisade tenant resume acme"));
    let outcome = world.store.apply(before.build().unwrap().into()).unwrap();
    assert!(
        matches!(outcome.verdict, Some(Verdict::Conflict(_))),
        "what was built before is not applied after: {outcome:?}"
    );
    // The cluster's people may still make things in it, and a second suspension changes nothing.
    world.commit(|tx| world.cx.ports.tenant_open(tx, "acme")).unwrap();
    let revision = world.view().revision();
    world.call("tenants.suspend", why).unwrap();
    assert!(world.get("acme")["revision"].as_u64().unwrap() <= revision);
    let resumed = world.call("tenants.resume", json!({"tenant": "acme"})).unwrap();
    assert_eq!((&resumed["state"], &resumed["suspended"]), (&json!("active"), &json!(null)));
    world.commit(writable).unwrap();
}

/// `TEN-3`
#[test]
fn nothing_is_made_in_a_tenant_that_is_being_deleted_was_or_never_was() {
    let world = World::new();
    world.create("acme", json!({}));
    let open = |tx: &mut Tx| world.cx.ports.tenant_open(tx, "acme");
    let mut before = Tx::new(world.view());
    open(&mut before).unwrap();
    before.put(&WIDGETS, &"w".to_owned(), &"acme".to_owned()).unwrap();
    world.remove("acme");
    let outcome = world.store.apply(before.build().unwrap().into()).unwrap();
    assert!(matches!(outcome.verdict, Some(Verdict::Conflict(_))), "{outcome:?}");
    let refused = world.commit(open).unwrap_err();
    assert_eq!(
        (refused.code, refused.detail.as_str()),
        (Code::InvalidState, "tenant acme is being deleted")
    );
    world.settle("acme");
    assert_eq!(world.commit(open).unwrap_err().code, Code::InvalidState);
    let never = world.commit(|tx| world.cx.ports.tenant_open(tx, "nobody")).unwrap_err();
    assert_eq!(never.code, Code::NotFound);
    assert!(never.hint.unwrap().contains("palisade tenant create nobody"));
}

/// `TEN-8`
#[test]
fn the_name_of_a_deleted_tenant_is_never_used_again() {
    let world = World::new();
    world.create("acme", json!({}));
    world.remove("acme");
    for state in ["deleting", "deleted"] {
        assert_eq!(world.state("acme"), state);
        let again = world.call("tenants.create", json!({"name": "acme"})).unwrap_err();
        assert_eq!((again.code, again.retryable), (Code::Conflict, false));
        assert!(again.hint.unwrap().contains("audit"));
        for (method, input) in [
            ("tenants.update", json!({"tenant": "acme", "quotas": {"cpu": 1}})),
            ("tenants.suspend", json!({"tenant": "acme"})),
            ("tenants.resume", json!({"tenant": "acme"})),
        ] {
            assert_eq!(code(world.call(method, input)), Code::InvalidState, "{method}");
        }
        let before = world.get("acme");
        let twice = json!({"tenant": "acme"});
        assert_eq!(world.call("tenants.remove", twice).unwrap(), before, "a second time nothing");
        world.settle("acme");
    }
}

#[test]
fn one_that_has_workloads_is_deleted_by_force_alone() {
    let world = World::new();
    world.create("acme", json!({}));
    let how = palisade_contract::tenants::Charging::Asked;
    world.charge("acme", "workload/a", amounts(2), how).unwrap();
    let refused = world.call("tenants.remove", json!({"tenant": "acme"})).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
    assert!(refused.detail.contains("1 workload with 2 instances"), "{refused}");
    assert_eq!(world.state("acme"), "active");
    let forced = json!({"tenant": "acme", "force": true});
    assert_eq!(world.call("tenants.remove", forced).unwrap()["state"], "deleting");
}

#[test]
fn lists_leave_out_what_is_no_more_unless_it_is_asked_for() {
    let world = World::new();
    for name in ["acme", "globex", "initech"] {
        world.create(name, json!({}));
    }
    world.remove("globex");
    world.settle("globex");
    world.call("tenants.suspend", json!({"tenant": "initech"})).unwrap();
    assert_eq!(names(&world, json!({})), ["acme", "initech"]);
    assert_eq!(names(&world, json!({"state": "deleted"})), ["globex"]);
    assert_eq!(names(&world, json!({"state": "suspended"})), ["initech"]);
    assert_eq!(names(&world, json!({"tenant": "acme"})), ["acme"]);
    assert_eq!(code(world.call("tenants.get", json!({"tenant": "nobody"}))), Code::NotFound);
}

#[test]
fn tenants_of_an_earlier_versions_records_are_made_by_the_migration() {
    let world = World::unmigrated();
    world.fill("acme", 3);
    assert_eq!(world.findings()[0].check, "tenancy.unknown");
    world.migrate();
    assert_eq!(names(&world, json!({})), ["acme"]);
    assert_eq!(world.get("acme")["createdBy"], "migration");
    assert!(world.findings().is_empty(), "{:?}", world.findings());
    world.fill("late", 1);
    let found = world.findings();
    assert!(found[0].message.ends_with("do not exist: late"), "{found:?}");
    assert_eq!(world.registry.modules().len(), 2);
}

#[test]
fn every_action_is_in_the_catalog() {
    let world = World::new();
    let actions = world.tenancy.catalog().actions;
    assert!(world.tenancy.methods().iter().all(|one| actions.contains(&one.action.as_str())));
}
