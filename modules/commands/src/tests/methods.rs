//! The methods, without the envelope.

use palisade_contract::{Code, Handler, MethodContext, Principal};

use super::*;

fn method_cx(world: &World) -> MethodContext {
    MethodContext {
        context: world.context().clone(),
        principal: Principal { name: "user/ada".into(), roles: vec![], tenant: String::new() },
        request_id: "r".into(),
        dry_run: false,
        if_match: None,
    }
}

pub(super) fn call(world: &World, name: &str, input: Value) -> Result<Value> {
    let method = world.module.methods().into_iter().find(|m| m.full_name() == name).unwrap();
    (method.validate)(&input)?;
    let cx = method_cx(world);
    match method.handler {
        Handler::Query(run) => run(&cx, &world.bench.view(), input),
        Handler::Mutation(run) => world.commit(|tx| run(&cx, tx, input.clone())),
        Handler::Read(_) | Handler::Stream(_) | Handler::Action(_) => unreachable!(),
    }
}

fn keys(listed: &Value) -> Vec<&str> {
    listed.as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap()).collect()
}

#[test]
fn a_list_is_by_age_and_narrowed_by_node_kind_state_and_tenant() {
    let world = World::new();
    let other = world.bench.node("node-2", 1000, 1 << 30);
    let a = world.enqueue(&paint(&world.node, "a"));
    world.enqueue(&look(&world.node, "b").of_tenant("acme"));
    world.enqueue(&paint(&other, "c"));
    world.send(&a, 1, 1).unwrap();
    let list = |input: Value| world.call("commands.list", input).unwrap();
    assert_eq!(keys(&list(json!({}))).len(), 3);
    assert_eq!(keys(&list(json!({"node": "node-1"}))), ["a", "b"]);
    assert_eq!(keys(&list(json!({"node": other.as_str()}))), ["c"]);
    assert_eq!(keys(&list(json!({"kind": "acme.look"}))), ["b"]);
    assert_eq!(keys(&list(json!({"state": "sent"}))), ["a"]);
    assert_eq!(keys(&list(json!({"tenant": "acme"}))), ["b"]);
    assert_eq!(keys(&list(json!({"tenant": "acme", "node": "node-1"}))), ["b"]);
    for node in ["node-2", "node-3"] {
        let refused = world.call("commands.list", json!({"tenant": "acme", "node": node}));
        assert_eq!(refused.unwrap_err().code, Code::NotFound, "{node}");
    }
}

#[test]
fn a_record_says_what_became_of_it() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a"));
    world.send(&id, 1, 1).unwrap();
    let result =
        CommandResult { code: "NO_PAINT".into(), message: "it is dry".into(), data: json!(null) };
    world.answer(&id, &Answer::Failed(result));
    let shown = world.call("commands.get", json!({"command": id.as_str()})).unwrap();
    assert_eq!(shown["state"], "failed");
    assert_eq!(shown["result"]["code"], "NO_PAINT");
    assert_eq!(shown["nodeName"], "node-1");
    assert_eq!(shown["sent"], 1);
    assert_eq!(shown["payload"], json!({"color": "red"}));
    assert!(shown["finishedAt"].is_string() && shown["notAfter"].is_string());
}

#[test]
fn another_tenants_command_is_not_there() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a").of_tenant("acme"));
    for method in ["commands.get", "commands.cancel"] {
        for input in [
            json!({"command": id.as_str(), "tenant": "other"}),
            json!({"command": id.as_str(), "tenant": ""}),
            json!({"command": "cm_none"}),
        ] {
            let refused = world.call(method, input.clone()).unwrap_err();
            assert_eq!(refused.code, Code::NotFound, "{method} {input}");
        }
    }
    assert_eq!(world.state(&id), CommandState::Pending);
}

#[test]
fn who_cancels_is_in_the_record() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a"));
    let shown = world.call("commands.cancel", json!({"command": id.as_str()})).unwrap();
    assert_eq!(shown["state"], "cancelled");
    assert_eq!(shown["result"]["message"], "user/ada took it back");
}

#[test]
fn each_ping_is_a_command_of_its_own_that_does_not_wait_for_long() {
    let world = World::new();
    let ping = |input: Value| world.call("nodes.ping", input);
    let first = ping(json!({"node": "node-1"})).unwrap();
    let second = ping(json!({"node": world.node.as_str()})).unwrap();
    assert_eq!((&first["kind"], &first["state"]), (&json!("agent.ping"), &json!("pending")));
    assert_eq!(first["createdBy"], "user/ada");
    assert_ne!(first["id"], second["id"]);
    for input in [json!({"node": "node-2"}), json!({"node": "node-1", "tenant": "acme"})] {
        assert_eq!(ping(input).unwrap_err().code, Code::NotFound);
    }
    world.pass(10_000);
    let id = CommandId::parse(first["id"].as_str().unwrap()).unwrap();
    assert_eq!(world.state(&id), CommandState::Expired);
}

#[test]
fn a_list_goes_on_behind_an_id_and_is_the_same_in_parts() {
    let world = World::new();
    for key in ["a", "b", "c", "d"] {
        world.enqueue(&paint(&world.node, key).of_tenant("acme"));
    }
    let ids = |input: Value, after: &str| -> Vec<String> {
        let methods = world.module.methods();
        let method = methods.into_iter().find(|m| m.full_name() == "commands.list").unwrap();
        let (cx, view) = (method_cx(&world), world.bench.view());
        let records = (method.records.unwrap())(&cx, &view, input, after).unwrap();
        records.map(|one| one.unwrap()["id"].as_str().unwrap().to_owned()).collect()
    };
    for input in [json!({}), json!({"node": "node-1"}), json!({"tenant": "acme"})] {
        let all = ids(input.clone(), "");
        assert!(all.len() == 4 && all.is_sorted(), "{all:?}");
        for (at, id) in all.iter().enumerate() {
            assert_eq!(ids(input.clone(), id), all[at + 1..], "{input} behind {id}");
        }
    }
    let tenants = world.module.tenants_in_use(&world.bench.view()).unwrap();
    assert_eq!(tenants.into_iter().collect::<Vec<_>>(), ["acme"]);
}

#[test]
fn a_command_that_nobody_ends_is_found() {
    let world = World::new();
    let id = world.enqueue(&paint(&world.node, "a"));
    let row = world.get(&id);
    let check = || world.module.self_check(&world.bench.context, &world.bench.view()).unwrap();
    world.bench.advance(row.not_after_ms + crate::check::SLOW_MS - 1);
    assert_eq!(check(), []);
    world.bench.advance(1);
    let found = check();
    assert_eq!((found[0].check.as_str(), found[0].count), ("commands.stuck", Some(1)));
    assert!(found[0].message.contains(id.as_str()), "{found:?}");
    world.bench.settle();
    assert_eq!(check(), []);
}
