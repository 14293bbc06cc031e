use palisade_contract::{
    Code, Module,
    node::{InstancePhase, NodePhase, Probe},
    ports::Misfit,
};
use palisade_scheduler::placement::summarised;
use serde_json::json;

use super::{World, web, with};
use crate::{NODES_KIND, RECONCILE_KIND, status::sentence};

const NODES: [&str; 2] = ["a", "b"];

#[test]
fn three_instances_become_healthy_in_a_handful_of_transactions() {
    let world = World::new(&NODES);
    let before = world.bench.view().revision();
    let applied = world.apply(web(3));
    assert_eq!((&applied["change"], &applied["version"]), (&json!("created"), &json!(1)));
    for _ in 0..3 {
        world.bench.step();
    }
    assert_eq!(world.told("a").spec.instances.len() + world.told("b").spec.instances.len(), 0);
    world.bench.step();
    // apply; reconcile; place; fill; one merge for each node and one look at each.
    assert_eq!(world.bench.view().revision() - before, 8);
    assert_eq!(world.told("a").spec.instances.len(), 2);
    world.settle(&NODES);
    let shown = world.shown();
    assert_eq!(shown.keys().collect::<Vec<_>>(), ["web-1", "web-2", "web-3"]);
    assert!(shown.values().all(|(_, phase)| phase == "healthy"), "{shown:?}");
    let status = &world.workload("web")["status"];
    assert_eq!((&status["phase"], &status["healthy"]), (&json!("running"), &json!(3)));
    assert!(world.events().contains(&"workload.running".to_owned()));
    assert_eq!(world.instances()[0]["address"], "a.test");
    world.books_balance();
}

#[test]
fn an_instance_is_told_its_ports_limits_and_probe() {
    let world = World::new(&["a"]);
    world.apply(web(1));
    world.settle(&["a"]);
    let told = world.told("a");
    let spec = told.spec.instances.values().next().unwrap();
    assert_eq!(spec.command, ["server", "--port", "$PORT"]);
    assert_eq!(spec.ports["http"], 20_000);
    assert_eq!(spec.resources.cpu_request_milli, 500);
    let probe = &spec.health.as_ref().unwrap().probe;
    assert_eq!(*probe, Probe::Http { port: 20_000, path: "/health".to_owned() });
    assert!(spec.fence > palisade_state::Fence::NONE);
}

#[test]
fn applying_the_same_spec_again_writes_nothing() {
    let world = World::new(&NODES);
    world.apply(web(2));
    world.settle(&NODES);
    let before = (world.bench.view().revision(), world.workload("web")["revision"].clone());
    let again = world.apply(web(2));
    assert_eq!(again["change"], "unchanged");
    assert_eq!(again["plan"]["stay"], json!(["web-1", "web-2"]));
    assert_eq!((world.bench.view().revision(), again["revision"].clone()), before);
}

#[test]
fn a_report_that_says_nothing_new_is_not_written() {
    let world = World::new(&["a"]);
    world.apply(web(2));
    world.settle(&["a"]);
    assert!(!world.report("a"));
}

#[test]
fn scaling_down_takes_the_unhealthy_first_and_then_the_highest() {
    let world = World::new(&NODES);
    world.answer(|name| match name {
        "web-2" => InstancePhase::Unhealthy,
        _ => InstancePhase::Healthy,
    });
    world.apply(web(4));
    world.settle(&NODES);
    assert_eq!(world.phase("web"), "degraded");
    let scaled = world.call("workloads.scale", json!({"workload": "web", "count": 2})).unwrap();
    assert_eq!(scaled["plan"]["stop"], json!(["web-2", "web-4"]));
    world.settle(&NODES);
    assert_eq!(world.names(), ["web-1", "web-3"]);
    assert_eq!(world.phase("web"), "running");
    world.call("workloads.scale", json!({"workload": "web", "count": 3})).unwrap();
    world.settle(&NODES);
    assert_eq!(world.names(), ["web-1", "web-2", "web-3"]);
    world.books_balance();
}

#[test]
fn what_fits_nowhere_says_why_per_node_and_comes_when_there_is_room() {
    let world = World::new(&NODES);
    world.bench.change_node("b", &[], |node| node.schedulable = false);
    let big = json!({"resources": {"cpumem": {"cpu-request": 5}}});
    let applied = world.apply(with(web(1), &big));
    let misfits = json!([
        {"node": "a", "reason": "needs 5 CPUs, 4 free"},
        {"node": "b", "reason": "cordoned"},
    ]);
    assert_eq!(applied["plan"]["misfits"], misfits);
    assert_eq!(applied["plan"]["start"], json!([{"instance": "web-1", "node": null}]));
    world.settle(&NODES);
    let status = &world.workload("web")["status"];
    assert_eq!((&status["phase"], &status["misfits"]), (&json!("pending"), &misfits));
    assert_eq!(status["message"], "1 of 1 instances fit on no node");
    let instance = &world.instances()[0]["status"];
    assert_eq!(instance["misfits"], misfits);
    assert_eq!(instance["message"], "fits on no node: a: needs 5 CPUs, 4 free; b: cordoned");
    world.bench.change_node("a", &["capacity.nodes"], |n| n.facts.offered_cpu_milli = 8000);
    world.settle(&NODES);
    assert_eq!(world.phase("web"), "running");
    assert_eq!(world.instances()[0]["status"]["message"], "");
}

#[test]
fn a_sentence_about_misfits_names_three_nodes_and_counts_the_others() {
    let misfit = |node: &str| Misfit { node: node.into(), reason: "port 18777 is taken".into() };
    let all: Vec<Misfit> = ["a", "b", "c", "d", "e"].map(misfit).into();
    let taken = "port 18777 is taken";
    assert_eq!(sentence(&all[..1]), format!("fits on no node: a: {taken}"));
    assert_eq!(
        sentence(&all),
        format!("fits on no node: a: {taken}; b: {taken}; c: {taken}; and 2 more")
    );
    assert_eq!(sentence(&[]), "");
    let many = summarised((0..100).map(|n| misfit(&format!("n{n:03}"))).collect());
    assert!(sentence(&many).ends_with("; and 97 more"), "{}", sentence(&many));
}

#[test]
fn a_dry_run_says_what_then_happens() {
    let world = World::new(&["a", "b", "c"]);
    world.bench.change_node("c", &[], |node| node.schedulable = false);
    let mut input = web(3);
    input["workload"] = json!("web");
    let planned = world.call_as("workloads.apply", input, true, None).unwrap();
    assert_eq!(world.count("workloads"), 0);
    world.apply(web(3));
    world.settle(&["a", "b", "c"]);
    let shown = world.shown();
    let starts = planned["plan"]["start"].as_array().unwrap();
    assert_eq!(starts.len(), 3);
    for start in starts {
        let name = start["instance"].as_str().unwrap();
        assert_eq!(start["node"], json!(shown[name].0), "{name}");
    }
    assert_eq!(planned["plan"]["misfits"], json!([{"node": "c", "reason": "cordoned"}]));
}

#[test]
fn removal_waits_for_the_agent() {
    let world = World::new(&["a"]);
    world.apply(web(2));
    world.settle(&["a"]);
    let stale = world.told("a");
    let removed = world.call("workloads.remove", json!({"workload": "web"})).unwrap();
    assert_eq!(removed["plan"]["stop"], json!(["web-1", "web-2"]));
    world.bench.settle();
    assert_eq!(world.phase("web"), "removing");
    assert!(world.told("a").spec.instances.is_empty());
    // An agent that has not seen the new spec, or still has the processes, confirms nothing.
    let status =
        palisade_contract::node::NodeStatus { generation: stale.generation, ..Default::default() };
    assert!(!world.report_as("a", &status));
    assert_eq!((world.count("workload_instances"), world.count("capacity_demands")), (2, 2));
    world.settle(&["a"]);
    for table in ["workloads", "workload_instances", "workload_versions", "workload_phases"] {
        assert_eq!(world.count(table), 0, "{table}");
    }
    assert_eq!(world.count("capacity_demands"), 0);
    assert_eq!(
        world.call("workloads.get", json!({"workload": "web"})).unwrap_err().code,
        Code::NotFound
    );
    world.books_balance();
}

#[test]
fn an_instance_of_which_no_agent_was_told_goes_without_one() {
    let world = World::new(&["a"]);
    let node = world.node_id("a");
    world.bench.commit(|tx| palisade_contract::node_spec::invalidate(tx, &node));
    world.settle(&["a"]);
    world.apply(web(1));
    // Placed and filled in, but the node's spec is not merged yet.
    for _ in 0..3 {
        world.bench.step();
    }
    assert!(world.told("a").spec.instances.is_empty());
    world.call("workloads.remove", json!({"workload": "web"})).unwrap();
    world.bench.step_only(RECONCILE_KIND);
    assert_eq!(world.count("workload_instances"), 1);
    world.bench.settle();
    world.bench.advance(1000);
    world.bench.settle();
    assert_eq!((world.count("workloads"), world.count("capacity_demands")), (0, 0));
}

#[test]
fn a_waiting_workload_is_removed_at_once() {
    let world = World::new(&[]);
    world.apply(web(2));
    world.bench.settle();
    assert_eq!(world.phase("web"), "pending");
    world.call("workloads.remove", json!({"workload": "web"})).unwrap();
    world.bench.settle();
    assert_eq!((world.count("workloads"), world.count("capacity_demands")), (0, 0));
}

#[test]
fn stopping_keeps_instances_and_places() {
    let world = World::new(&NODES);
    world.apply(web(2));
    world.settle(&NODES);
    let before = world.instances();
    let stopped = world.call("workloads.stop", json!({"workload": "web"})).unwrap();
    assert_eq!(stopped["plan"]["halt"], json!(["web-1", "web-2"]));
    world.settle(&NODES);
    assert_eq!(world.phase("web"), "stopped");
    assert_eq!(world.count("capacity_demands"), 2);
    world.call("workloads.start", json!({"workload": "web"})).unwrap();
    world.settle(&NODES);
    assert_eq!(world.phase("web"), "running");
    let ids = |list: &[serde_json::Value]| {
        list.iter().map(|i| (i["id"].clone(), i["ports"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(ids(&world.instances()), ids(&before));
}

#[test]
fn instances_of_a_lost_node_are_replaced_once_and_stopped_on_its_return() {
    let world = World::new(&NODES);
    world.apply(web(2));
    world.settle(&NODES);
    let lost = world.bench.change_node("b", &[NODES_KIND], |node| node.phase = NodePhase::Lost);
    world.settle(&["a"]);
    let shown = world.shown();
    assert_eq!(shown["web-2"], ("b".to_owned(), "lost".to_owned()));
    assert_eq!(shown["web-3"], ("a".to_owned(), "healthy".to_owned()));
    assert_eq!(shown.len(), 3);
    assert_eq!(world.phase("web"), "running");
    // Woken again, nothing more happens.
    world.bench.commit(|tx| Ok(tx.enqueue(NODES_KIND, lost.as_str())?));
    world.settle(&["a"]);
    assert_eq!(world.names().len(), 3);
    assert_eq!(world.events().iter().filter(|kind| *kind == "instance.lost").count(), 1);
    // Back again: its spec is without the old one, which goes when the agent says so.
    assert!(world.told("b").spec.instances.is_empty());
    assert_eq!(world.count("capacity_demands"), 3);
    world.bench.change_node("b", &[NODES_KIND], |node| node.phase = NodePhase::Ready);
    world.settle(&NODES);
    assert_eq!(world.names(), ["web-1", "web-3"]);
    assert_eq!(world.count("capacity_demands"), 2);
    world.books_balance();
}

#[test]
fn a_retired_nodes_instances_are_forgotten_and_replaced() {
    let world = World::new(&NODES);
    world.apply(web(2));
    world.settle(&NODES);
    let kinds = [NODES_KIND, "capacity.nodes"];
    world.bench.change_node("b", &kinds, |node| node.phase = NodePhase::Retired);
    world.settle(&["a"]);
    let shown = world.shown();
    assert_eq!(shown.len(), 2);
    assert!(shown.values().all(|(node, phase)| node == "a" && phase == "healthy"), "{shown:?}");
    world.books_balance();
}

#[test]
fn a_node_lost_between_placing_and_filling_is_noticed() {
    let world = World::new(&["a"]);
    world.apply(web(1));
    for _ in 0..2 {
        world.bench.step();
    }
    // Lost, and looked at, before the instance has its place.
    world.bench.change_node("a", &[NODES_KIND], |node| node.phase = NodePhase::Lost);
    world.bench.settle();
    assert_eq!(world.shown()["web-1"], ("a".to_owned(), "lost".to_owned()));
    assert_eq!(world.phase("web"), "pending");
}

#[test]
fn a_workload_whose_node_is_lost_can_be_removed() {
    let world = World::new(&["a"]);
    world.apply(web(1));
    world.settle(&["a"]);
    world.bench.change_node("a", &[NODES_KIND], |node| node.phase = NodePhase::Lost);
    world.bench.settle();
    world.call("workloads.remove", json!({"workload": "web"})).unwrap();
    world.bench.settle();
    assert_eq!((world.count("workloads"), world.count("capacity_demands")), (0, 0));
}

#[test]
fn a_large_workload_is_made_and_removed_in_batches() {
    let nodes = ["a", "b", "c"];
    let world = World::new(&nodes);
    for node in nodes {
        world.bench.nodes.change(node, |node| node.facts.port_last = 40_000);
    }
    let small = json!({"resources": {"cpumem": {"memory-request": 1024}}});
    world.apply(with(web(1000), &small));
    world.settle(&nodes);
    assert_eq!((world.phase("web").as_str(), world.ready()), ("running", 1000));
    world.call("workloads.remove", json!({"workload": "web"})).unwrap();
    world.settle(&nodes);
    assert_eq!((world.count("workloads"), world.count("capacity_demands")), (0, 0));
}

#[test]
fn a_nodes_spec_is_never_too_large_to_be_stored() {
    let world = World::new(&["a"]);
    let file = "x".repeat(60 * 1024);
    let task = json!({"command": ["server"], "files": {"data": file}});
    let small = json!({"memory-request": 1024});
    world.apply(with(web(10), &json!({"task": task, "resources": {"cpumem": small}})));
    world.settle(&["a"]);
    assert_eq!(world.ready(), 7);
    let findings = world.module.self_check(&world.bench.context, &world.bench.view()).unwrap();
    assert_eq!((findings[0].check.as_str(), findings[0].count), ("workloads.node-spec", Some(3)));
}

#[test]
fn one_that_does_not_become_healthy_in_time_degrades_the_workload() {
    let world = World::new(&["a"]);
    world.answer(|_| InstancePhase::Starting);
    world.apply(with(web(1), &json!({"update": {"healthDeadline": "20s"}})));
    world.settle(&["a"]);
    assert_eq!(world.phase("web"), "progressing");
    world.bench.advance(21_000);
    world.settle(&["a"]);
    assert_eq!(world.phase("web"), "degraded");
    assert!(world.events().contains(&"workload.degraded".to_owned()));
}
