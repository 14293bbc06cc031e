//! Stop and start again: the same cluster, unless it is told to start over.

use std::process::Stdio;

use crate::support::{Dev, Home, Out, dev::Instance, list, probe::ask, procs, text, until};

fn cluster(dev: &Dev) -> String {
    text(&dev.json(&["cluster", "status"]), "/cluster").to_owned()
}

#[track_caller]
fn all_answer(instances: &[Instance]) {
    for instance in instances {
        ask(instance).unwrap();
    }
}

#[test]
fn a_stop_that_keeps_instances_is_resumed_with_the_same_processes() {
    let dev = Dev::start();
    let instances = dev.hello(3);
    let (before, workload) = (cluster(&dev), dev.json(&["workload", "show", "hello"]));
    dev.dev("stop", &["--keep-instances"]).ok();
    all_answer(&instances);
    dev.palisade(&["--timeout", "2s", "node", "ls"]).ends(6);
    dev.up(&[]).ok();
    assert_eq!(cluster(&dev), before);
    let after = dev.json(&["workload", "show", "hello"]);
    for field in ["/id", "/version", "/spec", "/createdAt"] {
        assert_eq!(after.pointer(field), workload.pointer(field), "{field}");
    }
    until("the same healthy instances", || {
        let now = dev.instances();
        assert!(now.iter().all(|one| one.restarts == 0), "{now:#?}");
        (now == instances).then_some(())
    });
    all_answer(&instances);
}

#[test]
fn a_stop_ends_all_and_the_next_start_brings_back_the_same_workloads() {
    let dev = Dev::start();
    let instances = dev.hello(2);
    let before = cluster(&dev);
    dev.dev("stop", &[]).ok();
    dev.nothing_left();
    dev.up(&[]).ok();
    assert_eq!(cluster(&dev), before);
    until("two healthy instances of new processes", || {
        let now = dev.instances();
        let is_new = |one: &Instance| {
            one.phase == "healthy" && instances.iter().all(|old| old.pid != one.pid)
        };
        (now.len() == 2 && now.iter().all(is_new)).then_some(())
    });
    dev.up(&["--fresh"]).ok();
    assert_ne!(cluster(&dev), before, "--fresh starts over");
    assert!(list(&dev.json(&["workload", "ls"]), "").is_empty());
    assert!(dev.instances().is_empty());
    assert_eq!(list(&dev.json(&["node", "ls"]), "").len(), 2);
}

/// `palisade dev` in the foreground until it says that it is ready; answers its process.
fn foreground(dev: &Dev) -> std::process::Child {
    let dir = dev.dir();
    let said = std::fs::File::create(dev.home.path().join("said")).unwrap();
    let mut child = dev
        .home
        .command(&["dev", "--dir", dir.to_str().unwrap()])
        .stdout(said.try_clone().unwrap())
        .stderr(said)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    until("a ready cluster in the foreground", || {
        let said = std::fs::read_to_string(dev.home.path().join("said")).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "{said}");
        said.contains("two ready nodes").then_some(())
    });
    child
}

#[test]
fn ctrl_c_stops_all_in_order_and_the_next_start_resumes() {
    let dev = Dev::start();
    let before = cluster(&dev);
    let instances = dev.hello(2);
    dev.dev("stop", &["--keep-instances"]).ok();
    let mut child = foreground(&dev);
    assert_eq!(cluster(&dev), before);
    until("the same healthy instances", || (dev.instances() == instances).then_some(()));
    procs::interrupt(child.id().into());
    let status = until("its end", || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
    dev.nothing_left();
    dev.up(&[]).ok();
    assert_eq!(cluster(&dev), before);
}

#[test]
fn a_killed_supervisor_leaves_no_replica_and_no_agent_and_a_start_adopts_the_instances() {
    let dev = Dev::start();
    let (before, instances) = (cluster(&dev), dev.hello(2));
    let status = dev.dev("status", &["-o", "json"]).json();
    procs::kill(status["supervisor"].as_u64().expect("it runs"));
    until("the end of its children", || {
        let status = dev.dev("status", &["-o", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
        list(&status, "/parts").iter().all(|part| part["pid"].is_null()).then_some(())
    });
    all_answer(&instances);
    dev.up(&[]).ok();
    assert_eq!(cluster(&dev), before);
    until("the same healthy instances", || (dev.instances() == instances).then_some(()));
}

#[test]
fn a_second_dev_in_one_directory_is_told_who_holds_it() {
    let dev = Dev::start();
    let status = dev.dev("status", &["-o", "json"]).json();
    let holder = format!("process {}", status["supervisor"].as_u64().expect("it runs"));
    let dir = dev.dir();
    let foreground = dev.palisade(&["dev", "--dir", dir.to_str().unwrap()]);
    for refused in [foreground, dev.up(&[])] {
        refused.ends(4).says(&[&holder, "in use", "dev stop --dir"]);
    }
    dev.whole();
    elsewhere_is_refused(&dev.home);
}

fn elsewhere_is_refused(home: &Home) {
    let dir = home.path().join("thesis");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("chapter-1"), "precious").unwrap();
    let fresh = ["dev", "--detach", "--fresh", "--dir", dir.to_str().unwrap()];
    let refused: Out = home.palisade(&fresh);
    refused.ends(4).says(&["leads to another cluster", "--replace-context"]);
    let refused: Out = home.palisade(&[&fresh[..], &["--replace-context"]].concat());
    refused.ends(4).says(&["not of `palisade dev`"]);
    assert_eq!(std::fs::read_to_string(dir.join("chapter-1")).unwrap(), "precious");
}
