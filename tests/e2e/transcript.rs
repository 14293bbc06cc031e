//! What an operator does in the first ten minutes, word by word.

use serde_json::Value;

use crate::support::{Dev, dev::Instance, example, list, number, probe::ask, text};

fn hello() -> String {
    example("hello.yaml").to_str().unwrap().to_owned()
}

#[track_caller]
fn all_healthy(instances: &[Instance], count: usize) {
    assert_eq!(instances.len(), count, "{instances:#?}");
    for instance in instances {
        assert_eq!((instance.phase.as_str(), instance.restarts), ("healthy", 0), "{instance:#?}");
        ask(instance).unwrap();
    }
}

#[test]
fn the_first_ten_minutes_go_as_the_readme_says() {
    let dev = Dev::start();
    nodes(&dev);
    let applied = dev.palisade(&["workload", "apply", "-f", &hello()]).ok();
    assert!(applied.stdout.contains("workload/hello created"), "{applied:#?}");
    applied.says(&["hello: 3 of 3 healthy"]);
    let first = dev.instances();
    all_healthy(&first, 3);
    assert!(first.iter().any(|one| one.node != first[0].node), "both nodes are used: {first:#?}");
    let again = dev.palisade(&["workload", "apply", "-f", &hello()]).ok();
    assert!(again.stdout.contains("unchanged"), "{again:#?}");
    assert_eq!(dev.instances(), first);
    shown(&dev, &first);
    logged(&dev, &first);
    scaled(&dev, &first);
    stopped_and_started(&dev);
    restarted(&dev);
    removed(&dev);
}

fn nodes(dev: &Dev) {
    let table = dev.palisade(&["node", "ls"]).ok().stdout;
    for word in ["NAME", "CPU", "MEMORY", "ADDRESS", "node-1", "node-2", "127.0.0.1"] {
        assert!(table.contains(word), "no {word} in\n{table}");
    }
    let nodes = dev.json(&["node", "ls"]);
    assert_eq!(list(&nodes, "").len(), 2);
    for node in list(&nodes, "") {
        assert_eq!(text(node, "/status/phase"), "ready", "{node}");
        assert_eq!(text(node, "/status/address"), "127.0.0.1", "{node}");
        assert_eq!(node["schedulable"], true, "{node}");
        assert!(text(node, "/id").starts_with("nd_") && number(node, "/revision") > 0, "{node}");
        assert!(!text(node, "/joinedAt").is_empty() && !text(node, "/agentVersion").is_empty());
        assert!(node.pointer("/capacity/cpumem").is_some_and(Value::is_object), "{node}");
        assert!(node.pointer("/used/cpumem").is_some_and(Value::is_object), "{node}");
    }
    let shown = dev.json(&["node", "show", "node-1"]);
    assert_eq!(text(&shown, "/name"), "node-1");
}

fn shown(dev: &Dev, instances: &[Instance]) {
    let table = dev.palisade(&["workload", "ls"]).ok().stdout;
    assert!(table.contains("hello") && table.contains("3/3"), "{table}");
    let page = dev.palisade(&["workload", "show", "hello"]).ok().stdout;
    for instance in instances {
        assert!(page.contains(&instance.name) && page.contains(&instance.addr), "{page}");
    }
    let all = dev.json(&["workload", "ls"]);
    let record = &list(&all, "")[0];
    assert_eq!(record, &dev.json(&["workload", "show", "hello"]));
    assert!(text(record, "/id").starts_with("wl_"), "{record}");
    assert_eq!((text(record, "/status/phase"), number(record, "/status/healthy")), ("running", 3));
    assert_eq!((number(record, "/count"), number(record, "/version")), (3, 1));
    assert_eq!(text(record, "/wanted"), "up");
    let one = dev.json(&["instance", "show", &instances[0].name]);
    assert_eq!(text(&one, "/id"), instances[0].id);
    assert!(text(&one, "/id").starts_with("in_") && text(&one, "/node").starts_with("nd_"));
}

fn logged(dev: &Dev, instances: &[Instance]) {
    let logs = dev.palisade(&["workload", "logs", "hello"]).ok().stdout;
    for instance in instances {
        assert!(
            logs.contains(&format!("{} | listening on {}", instance.name, instance.addr)),
            "{logs}"
        );
    }
    let logs = dev.palisade(&["instance", "logs", &instances[0].name]).ok().stdout;
    assert!(logs.starts_with(&format!("listening on {}\n", instances[0].addr)), "{logs}");
    assert!(logs.contains("GET /"), "{logs}");
}

fn scaled(dev: &Dev, first: &[Instance]) {
    dev.palisade(&["workload", "scale", "hello", "5"]).ok().says(&["5 of 5 healthy"]);
    let five = dev.instances();
    all_healthy(&five, 5);
    for old in first {
        assert!(five.contains(old), "scaling up touches nothing that runs: {old:?} in {five:#?}");
    }
    dev.palisade(&["workload", "scale", "hello", "2"]).ok();
    let two = dev.instances();
    all_healthy(&two, 2);
    for left in &two {
        assert!(five.contains(left), "scaling down starts nothing: {left:?} in {five:#?}");
    }
}

fn stopped_and_started(dev: &Dev) {
    let before = dev.instances();
    dev.palisade(&["workload", "stop", "hello"]).ok();
    let record = dev.json(&["workload", "show", "hello"]);
    assert_eq!((text(&record, "/wanted"), text(&record, "/status/phase")), ("offline", "stopped"));
    for instance in &before {
        assert!(ask(instance).is_err(), "{} still answers", instance.name);
    }
    dev.palisade(&["workload", "start", "hello"]).ok();
    all_healthy(&dev.instances(), 2);
}

fn restarted(dev: &Dev) {
    let before = dev.instances();
    let record = dev.json(&["workload", "restart", "hello"]);
    assert_eq!(text(&record, "/status/phase"), "running", "{record}");
    let after = dev.instances();
    assert_eq!(after.len(), 2);
    for instance in &after {
        assert_eq!(instance.phase, "healthy");
        assert!(before.iter().all(|old| old.pid != instance.pid), "{after:#?} after {before:#?}");
    }
}

fn removed(dev: &Dev) {
    dev.palisade(&["workload", "rm", "hello"]).ok().says(&["hello is gone"]);
    assert!(list(&dev.json(&["workload", "ls"]), "").is_empty());
    assert!(dev.instances().is_empty());
    dev.palisade(&["workload", "show", "hello"]).ends(3).says(&["no workload \"hello\""]);
    let events = dev.json(&["event", "ls"]);
    for kind in ["node.joined", "workload.applied", "instance.healthy", "workload.removed"] {
        assert!(events.to_string().contains(kind), "no {kind} in {events}");
    }
    let audit = dev.json(&["audit", "ls"]).to_string();
    for method in ["workloads.apply", "workloads.scale", "workloads.remove"] {
        assert!(audit.contains(method), "no {method} in {audit}");
    }
}

#[test]
fn the_status_of_the_cluster_names_members_leader_term_lag_and_all_256_shards() {
    let dev = Dev::start();
    dev.whole();
    let page = dev.palisade(&["cluster", "status"]).ok().stdout;
    for word in ["Leader", "Term", "Last index", "LAG", "SHARDS", "follower"] {
        assert!(page.contains(word), "no {word} in\n{page}");
    }
    let status = dev.json(&["cluster", "status"]);
    let leader = number(&status, "/leader");
    assert!((1..=3).contains(&leader) && number(&status, "/term") >= 1, "{status}");
    assert!(number(&status, "/lastIndex") > 0, "{status}");
    let members = list(&status, "/members");
    assert_eq!(members.len(), 3, "{status}");
    for member in members {
        assert!(member["lag"].is_u64() && !text(member, "/apiAddr").is_empty(), "{member}");
        assert_eq!(member["leader"], number(member, "/id") == leader, "{member}");
    }
    // Ownership moves towards even; at every moment nobody owns a shard twice.
    crate::support::until("an owner for each of the 256 shards", || {
        let status = dev.json(&["cluster", "status"]);
        assert_eq!(number(&status, "/shards/total"), 256);
        let owners = list(&status, "/shards/owners");
        let sum = |role: &str| -> u64 {
            let of_role = owners.iter().filter(|owner| text(owner, "/role") == role);
            of_role.map(|owner| number(owner, "/shards")).sum()
        };
        (sum("controllers") == 256 && sum("scheduler") == 256).then_some(())
    });
}
