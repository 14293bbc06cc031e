//! A tenant's life with all built-in modules: quotas, suspension, and a teardown after which nothing names it.

use palisade_contract::{Code, node::NodeStatus};
use serde_json::{Value, json};

use super::{
    Place, place,
    world::{INTRUDER, VICTIM, admin},
};

fn spec(name: &str, count: u32, cpu: f64) -> Value {
    json!({
        "workload": name, "name": name, "count": count, "task": {"command": ["/bin/true"]},
        "resources": {"cpumem": {"cpu-request": cpu, "memory-request": "64MB"}},
    })
}

/// A place whose tenants may have 4 instances and 3 threads; each has a workload of 2 instances.
fn limited() -> Place {
    let place = place();
    for tenant in [VICTIM, INTRUDER] {
        let quotas = json!({"tenant": tenant, "quotas": {"instances": 4, "cpu": 3}});
        place.world.done(&admin(), "tenants.update", &quotas);
    }
    place
}

/// What a tenant takes by its workloads' own records, and as it is kept.
fn counted(place: &Place, tenant: &str) -> (Value, Value) {
    let world = &place.world;
    let of_it = json!({ "tenant": tenant });
    let workloads = world.done(&admin(), "workloads.list", &of_it)["items"].clone();
    let workloads = workloads.as_array().unwrap();
    let (mut instances, mut threads, mut memory) = (0, 0.0, 0);
    for workload in workloads {
        let count = u32::try_from(workload["count"].as_u64().unwrap()).unwrap();
        let asked = &workload["spec"]["resources"]["cpumem"];
        instances += count;
        threads += asked["cpu-request"].as_f64().unwrap_or(0.0) * f64::from(count);
        memory += u64::from(count) * if asked["memory-request"] == "64MB" { 64 << 20 } else { 0 };
    }
    let naive = json!({
        "workloads": workloads.len(), "instances": instances, "cpu": threads, "memory": memory,
    });
    (naive, world.done(&admin(), "tenants.usage", &of_it)["used"].clone())
}

#[test]
fn people_apply_until_a_quota_says_stop_and_go_on_when_there_is_room() {
    let place = limited();
    let (world, operator) = (&place.world, &place.victim.credentials["operator"]);
    world.done(operator, "workloads.apply", &spec("a", 1, 1.0));
    world.done(operator, "workloads.apply", &spec("b", 1, 0.5));
    for dry_run in [true, false] {
        let refused = world.call(operator, "workloads.apply", &spec("c", 2, 1.0), dry_run);
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, Code::QuotaExceeded);
        assert_eq!(
            refused.detail,
            format!(
                "this exceeds quotas of tenant {VICTIM}: instances: 4 used, 2 more asked for, 4 allowed; \
                 cpu: 1.5 used, 2 more asked for, 3 allowed"
            )
        );
    }
    let scaled = json!({"workload": "b", "count": 2});
    let refused = world.call(operator, "workloads.scale", &scaled, false).unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    // What takes no more is never refused.
    world.done(operator, "workloads.restart", &json!({"workload": "b"}));
    world.done(operator, "workloads.stop", &json!({"workload": "b"}));
    world.done(operator, "workloads.scale", &json!({"workload": "ledger", "count": 1}));
    world.done(operator, "workloads.scale", &scaled);
    world.settle();
    let (naive, kept) = counted(&place, VICTIM);
    assert_eq!(naive, kept);
    // The others' quotas are their own.
    let other = &place.intruder.credentials["operator"];
    world.done(other, "workloads.apply", &spec("c", 2, 1.0));
    let more = json!({"tenant": VICTIM, "quotas": {"instances": null, "cpu": 8}});
    world.done(&admin(), "tenants.update", &more);
    world.done(operator, "workloads.apply", &spec("c", 2, 1.0));
    let (naive, kept) = counted(&place, VICTIM);
    assert_eq!(naive, kept);
}

#[test]
fn what_a_removed_workload_took_is_free_once_it_is_gone() {
    let place = limited();
    let (world, operator) = (&place.world, &place.victim.credentials["operator"]);
    let used = |kind: &str| counted(&place, VICTIM).1[kind].clone();
    world.done(operator, "workloads.remove", &json!({"workload": "ledger"}));
    world.settle();
    assert_eq!(used("instances"), 2, "its instances still run");
    let refused = world.call(operator, "workloads.apply", &spec("c", 3, 0.5), false).unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    agents_let_go(&place);
    assert_eq!((used("workloads"), used("instances")), (json!(0), json!(0)));
    world.done(operator, "workloads.apply", &spec("c", 3, 0.5));
}

/// All agents follow their nodes' specs and have no instance.
fn agents_let_go(place: &Place) {
    let world = &place.world;
    for _ in 0..5 {
        for node in world.nodes() {
            let generation = world.generation(&node);
            world.report(&node, &NodeStatus { generation, instances: vec![], conditions: vec![] });
        }
        world.settle();
    }
}

#[test]
fn people_of_a_suspended_tenant_read_and_change_nothing() {
    let place = place();
    let (world, people) = (&place.world, &place.victim.credentials);
    let suspend = json!({"tenant": VICTIM, "reason": "the bill of May"});
    world.done(&admin(), "tenants.suspend", &suspend);
    let before = world.state();
    for role in ["operator", "tenant-admin", "principal"] {
        for (method, input) in [
            ("workloads.apply", spec("a", 1, 0.5)),
            ("workloads.scale", json!({"workload": "ledger", "count": 1})),
            ("workloads.remove", json!({"workload": "ledger"})),
            ("nodes.cordon", json!({"node": "vault-1"})),
        ] {
            for dry_run in [true, false] {
                let refused = world.call(&people[role], method, &input, dry_run).unwrap_err();
                assert_eq!(refused.code, Code::InvalidState, "{role} {method}");
                let detail = format!("tenant {VICTIM} is suspended: the bill of May");
                assert_eq!(refused.detail, detail, "{role} {method}");
            }
        }
    }
    assert_eq!(world.state(), before, "nothing was changed");
    let denied =
        world.call(&people["viewer"], "workloads.remove", &json!({"workload": "ledger"}), false);
    assert_eq!(denied.unwrap_err().code, Code::AccessDenied, "rights come first");
    for role in ["viewer", "operator", "tenant-admin"] {
        let own = world.done(&people[role], "tenants.get", &json!({"tenant": VICTIM}));
        assert_eq!(own["suspended"]["reason"], "the bill of May");
        let instances = world.done(&people[role], "instances.list", &json!({}));
        assert_eq!(instances["items"].as_array().unwrap().len(), 2, "they go on");
    }
    let audit = world.done(&people["viewer"], "audit.list", &json!({"from": 0}));
    let refused = |one: &&Value| one["outcome"] == "INVALID_STATE" && one["tenant"] == VICTIM;
    assert_eq!(audit["items"].as_array().unwrap().iter().filter(refused).count(), 12);
    // The cluster's people go on as well, and so does everybody else.
    let scale = json!({"workload": "ledger", "tenant": VICTIM, "count": 1});
    world.done(&admin(), "workloads.scale", &scale);
    let other = &place.intruder.credentials["operator"];
    world.done(other, "workloads.apply", &spec("a", 1, 0.5));
    world.done(&admin(), "tenants.resume", &json!({"tenant": VICTIM}));
    world.done(&people["operator"], "workloads.apply", &spec("a", 1, 0.5));
}

#[test]
fn who_holds_roles_in_several_tenants_is_refused_in_the_suspended_one_alone() {
    let mut place = place();
    let world = &mut place.world;
    world.done(&admin(), "principals.create", &json!({"name": "both"}));
    for tenant in [VICTIM, INTRUDER] {
        let bound = json!({"principal": "both", "role": "operator", "tenant": tenant});
        world.done(&admin(), "roleBindings.create", &bound);
    }
    let (both, _) = world.principals_token("both");
    world.done(&admin(), "tenants.suspend", &json!({"tenant": VICTIM}));
    let scale = |workload: &str, tenant: &str| {
        let input = json!({"workload": workload, "tenant": tenant, "count": 1});
        world.call(&both, "workloads.scale", &input, false)
    };
    assert_eq!(scale("ledger", VICTIM).unwrap_err().code, Code::InvalidState);
    scale("web", INTRUDER).unwrap();
}

#[test]
fn in_a_tenant_that_nobody_made_nothing_is_made() {
    let place = place();
    let token =
        json!({"secretSha256": "0".repeat(64), "name": "x", "roles": ["viewer"], "tenant": "typo"});
    let mut wild = spec("a", 1, 0.5);
    wild["tenant"] = json!("typo");
    let join = json!({"secretSha256": "0".repeat(64), "tenant": "typo"});
    for (method, input) in [
        ("apiTokens.create", token),
        ("workloads.apply", wild),
        ("joinTokens.create", join),
        ("principals.create", json!({"name": "x", "tenant": "typo"})),
    ] {
        let refused = place.world.call(&admin(), method, &input, false).unwrap_err();
        assert_eq!(
            (refused.code, refused.detail.as_str()),
            (Code::NotFound, "there is no tenant \"typo\""),
            "{method}"
        );
    }
}

/// Rows of any table in which the tenant's name stands.
fn named(place: &Place, tenant: &str) -> Vec<String> {
    let mut rows = place.world.rows();
    rows.retain(|row| row.contains(tenant));
    rows
}

#[test]
fn after_a_teardown_nothing_names_the_tenant_but_its_tombstone() {
    let place = place();
    let world = &place.world;
    let operator = place.victim.credentials["operator"].clone();
    let others = named(&place, INTRUDER).len();
    assert!(named(&place, VICTIM).len() > 5);
    let refused = world.call(&admin(), "tenants.remove", &json!({"tenant": VICTIM}), false);
    assert_eq!(refused.unwrap_err().code, Code::InvalidState, "it has workloads");
    let join_token = json!({"secretSha256": "1".repeat(64), "tenant": VICTIM});
    world.done(&admin(), "joinTokens.create", &join_token);
    world.done(&admin(), "tenants.remove", &json!({"tenant": VICTIM, "force": true}));
    for (method, input) in [
        ("joinTokens.create", join_token),
        ("workloads.scale", json!({"workload": "ledger", "tenant": VICTIM, "count": 1})),
    ] {
        let late = world.call(&admin(), method, &input, false).unwrap_err();
        assert_eq!(
            (late.code, late.detail),
            (Code::InvalidState, format!("tenant {VICTIM} is being deleted"))
        );
    }
    let late = world.call(&operator, "workloads.apply", &spec("a", 1, 0.5), false).unwrap_err();
    assert_eq!(late.code, Code::InvalidState, "its people write nothing from that moment on");
    world.settle();
    let shown = world.done(&admin(), "tenants.get", &json!({"tenant": VICTIM}));
    assert_eq!(shown["state"], "deleting", "agents still have its instances");
    assert_eq!(shown["deleted"]["waiting"], json!(["inventory", "workloads"]));
    let nodes = world.done(&admin(), "nodes.list", &json!({"tenant": VICTIM}));
    assert_eq!(
        nodes["items"].as_array().unwrap().len(),
        1,
        "its node is there until they are gone"
    );
    let out = world.call(&operator, "workloads.list", &json!({}), false).unwrap_err();
    assert_eq!(out.code, Code::Unauthenticated, "its tokens went at once");
    agents_let_go(&place);
    world.pass(std::time::Duration::from_secs(60));
    world.settle();
    let shown = world.done(&admin(), "tenants.get", &json!({"tenant": VICTIM}));
    assert_eq!(shown["state"], "deleted", "{shown}");
    let left = named(&place, VICTIM);
    assert_eq!(left.len(), 1, "{left:#?}");
    assert!(left[0].starts_with("tenants "), "{left:#?}");
    assert_eq!(named(&place, INTRUDER).len(), others, "the others' things are all there");
    let report = world.done(&admin(), "system.selfCheck", &json!({}));
    let found = report["findings"].as_array().unwrap().iter();
    let found: Vec<&Value> = found
        .filter(|one| {
            let check = one["check"].as_str().unwrap();
            check.starts_with("tenancy") || check.starts_with("capacity")
        })
        .collect();
    assert!(found.is_empty(), "{found:?}");
}
