use palisade_contract::{Code, Error, Module};
use serde_json::{Value, json};

use super::{World, web, with};
use crate::WorkloadsModule;

fn refused(world: &World, changes: &Value) -> Vec<String> {
    let mut input = with(web(1), changes);
    input["workload"] = json!("web");
    let error: Error = world.call("workloads.apply", input).unwrap_err();
    assert_eq!(error.code, Code::InvalidInput, "{error:?}");
    error.problems.into_iter().map(|p| format!("{}: {}", p.pointer, p.message)).collect()
}

#[test]
fn counts_out_of_range_are_refused_clearly() {
    let world = World::new(&[]);
    for (count, why) in [
        (json!(0), "/count: must be at least 1, is 0"),
        (json!(-3), "/count: must be at least 1, is -3"),
        (json!(10_001), "/count: must be at most 10000, is 10001"),
        (json!(1e30), "/count: must be at most 10000, is 1e+30"),
        (json!(1.5), "/count: must be of type integer, is 1.5"),
        (json!("three"), "/count: must be of type integer, is \"three\""),
    ] {
        assert_eq!(refused(&world, &json!({ "count": count })), [why]);
    }
    let scale = world.call("workloads.scale", json!({"workload": "web", "count": 0}));
    assert_eq!(scale.unwrap_err().code, Code::InvalidInput);
    assert_eq!(world.count("workloads"), 0);
}

#[test]
fn unknown_fields_are_named_with_the_nearest_known_one() {
    let world = World::new(&[]);
    let found = refused(
        &world,
        &json!({
            "replicas": 3,
            "restrat": {"mode": "always"},
            "task": {"command": ["x"], "enviroment": {}},
        }),
    );
    assert!(found[0].starts_with("/replicas: unknown field \"replicas\""), "{found:?}");
    assert_eq!(found[1], "/restrat: unknown field \"restrat\"; did you mean \"restart\"?");
    assert!(found[2].starts_with("/task/enviroment: unknown field"), "{found:?}");
}

#[test]
fn fields_of_later_versions_are_refused_not_ignored() {
    let world = World::new(&[]);
    let found = refused(
        &world,
        &json!({
            "disconnect": {"replaceAfter": "60s"},
            "disruptionBudget": 1,
            "priority": 5,
            "task": {"command": ["x"], "image": "nginx", "mounts": [], "secrets": {}},
            "placement": {"affinity": {}, "constraints": [], "limit": 1, "spread": "zone"},
            "update": {"canary": 1, "autoRevert": true, "order": "startFirst", "manualPromote": true},
        }),
    );
    assert_eq!(found.len(), 14, "{found:#?}");
    assert!(found.iter().all(|problem| problem.ends_with("not supported yet")), "{found:#?}");
}

#[test]
fn every_problem_is_told_at_once_with_its_pointer() {
    let world = World::new(&[]);
    let found = refused(
        &world,
        &json!({
            "pool": "Not A Pool",
            "driver": "proces",
            "task": {"command": [], "files": {"../etc/passwd": "x"}},
            "ports": [{"name": "http", "port": 80}, {"name": "http", "port": 80}],
            "health": {"http": {"port": "htp"}, "tcp": {"port": 1}, "interval": "soon"},
            "update": {"maxSurge": 0, "maxUnavailable": 0},
            "placement": {"strategy": "atuo"},
            "stopSignal": "TERM",
            "stopGrace": "10",
            "restart": {"backoffInitial": "2s", "backoffMax": "1s"},
        }),
    );
    let pointers: Vec<&str> = found.iter().filter_map(|p| p.split(": ").next()).collect();
    assert_eq!(
        pointers,
        [
            "/pool",
            "/driver",
            "/task/command",
            "/task/files/..~1etc~1passwd",
            "/ports/1/name",
            "/ports/1/port",
            "/placement/strategy",
            "/health",
            "/health/interval",
            "/health/http/port",
            "/restart/backoffMax",
            "/update",
            "/stopSignal",
            "/stopGrace",
        ]
    );
    assert!(found[1].ends_with("did you mean \"process\"?"), "{}", found[1]);
    assert!(found[9].ends_with("did you mean \"http\"?"), "{}", found[9]);
}

#[test]
fn resources_are_checked_when_they_are_applied() {
    let world = World::new(&[]);
    let found =
        refused(&world, &json!({"resources": {"cpumem": {"memory-limit": "hhhh"}, "gpu": {}}}));
    assert!(found[0].starts_with("/resources/cpumem/memory-limit: \"hhhh\" is not a size"));
    assert_eq!(found[1], "/resources/gpu: no resource plugin of this name; known: cpumem");
}

#[test]
fn the_name_must_be_the_one_in_the_path() {
    let world = World::new(&[]);
    let mut input = web(1);
    input["workload"] = json!("other");
    let error = world.call("workloads.apply", input).unwrap_err();
    assert_eq!(error.problems[0].pointer, "/name");
}

#[test]
fn if_match_guards_changes() {
    let world = World::new(&[]);
    let mut input = web(1);
    input["workload"] = json!("web");
    let new = world.call_as("workloads.apply", input.clone(), false, Some(7));
    assert_eq!(new.unwrap_err().code, Code::PreconditionFailed);
    world.apply(web(1));
    let revision = world.workload("web")["revision"].as_u64().unwrap();
    let scale = json!({"workload": "web", "count": 2});
    let stale = world.call_as("workloads.scale", scale.clone(), false, Some(revision - 1));
    assert_eq!(stale.unwrap_err().code, Code::PreconditionFailed);
    world.call_as("workloads.scale", scale, false, Some(revision)).unwrap();
    assert_eq!(world.workload("web")["count"], 2);
}

#[test]
fn names_and_ids_both_find_a_workload_and_its_instances() {
    let world = World::new(&["a"]);
    world.apply(web(1));
    world.settle(&["a"]);
    let id = world.workload("web")["id"].as_str().unwrap().to_owned();
    assert_eq!(world.workload(&id)["name"], "web");
    let by_id = world.call("instances.list", json!({"workload": id, "node": "a"})).unwrap();
    assert_eq!(by_id.as_array().unwrap().len(), 1);
    let one = world.call("instances.get", json!({"instance": "web-1"})).unwrap();
    assert_eq!(one["workloadId"], json!(id));
    let missing = world.call("instances.list", json!({"node": "nowhere"})).unwrap_err();
    assert_eq!(missing.code, Code::NotFound);
}

#[test]
fn a_workload_of_another_tenant_is_not_found() {
    let world = World::new(&["a"]);
    world.apply(with(web(1), &json!({"tenant": "acme"})));
    world.apply(web(1));
    world.bench.settle();
    let get =
        |tenant: &str| world.call("workloads.get", json!({"workload": "web", "tenant": tenant}));
    assert_eq!(get("acme").unwrap()["tenant"], "acme");
    assert_eq!(get("other").unwrap_err().code, Code::NotFound);
    let any = world.call("workloads.get", json!({"workload": "web"}));
    assert_eq!(any.unwrap_err().code, Code::Conflict);
    let list = world.call("instances.list", json!({"tenant": "acme"})).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 1);
}

#[test]
fn a_workload_being_removed_takes_no_changes() {
    let world = World::new(&["a"]);
    world.apply(web(1));
    world.settle(&["a"]);
    world.call("workloads.remove", json!({"workload": "web"})).unwrap();
    let scaled = world.call("workloads.scale", json!({"workload": "web", "count": 2}));
    assert_eq!(scaled.unwrap_err().code, Code::InvalidState);
    let again = world.call("workloads.remove", json!({"workload": "web"})).unwrap();
    assert_eq!(again["change"], "unchanged");
}

#[test]
fn every_action_is_in_the_catalog() {
    let actions = WorkloadsModule.catalog().actions;
    assert!(WorkloadsModule.methods().iter().all(|m| actions.contains(&m.action.as_str())));
}
