//! The leader dies; nobody who uses the cluster is told.

use serde_json::Value;

use crate::support::{Dev, list, number, probe::Probe, procs, until};

#[test]
fn a_killed_leader_is_followed_by_another_while_instances_answer_and_a_write_succeeds() {
    let dev = Dev::start();
    let instances = dev.hello(3);
    dev.whole();
    let before = dev.json(&["cluster", "status"]);
    let probe = Probe::start(&instances);
    let killed = dev.dev("kill-leader", &["-o", "json"]).json();
    let dead = number(&killed, "/replica");
    assert_eq!(dead, number(&before, "/leader"), "{killed}");
    assert!(number(&killed, "/newTerm") > number(&before, "/term"), "{killed}");
    assert!(killed["writeAfterMs"].as_f64().is_some_and(|ms| ms > 0.0), "{killed}");
    // Its supervisor brings it back, and it catches up.
    dev.replaced(&format!("replica-{dead}"), number(&killed, "/pid"));
    dev.whole();
    caught_up(&dev);
    assert_eq!(dev.instances(), instances);
    assert!(probe.end() > 0);
}

#[test]
fn a_write_begun_right_after_the_leaders_death_succeeds() {
    let dev = Dev::start();
    let instances = dev.hello(2);
    let probe = Probe::start(&instances);
    for count in [3, 2] {
        dev.whole();
        let leader = number(&dev.json(&["cluster", "status"]), "/leader");
        let name = format!("replica-{leader}");
        let pid = dev.pid(&name).expect("the leader runs");
        procs::kill(pid);
        dev.palisade(&["workload", "scale", "hello", &count.to_string()]).ok();
        assert_eq!(dev.instances().len(), count);
        dev.replaced(&name, pid);
    }
    dev.whole();
    assert_eq!(dev.instances(), instances, "the first two were never touched");
    assert!(probe.end() > 0);
}

fn caught_up(dev: &Dev) {
    until("three members without a lag", || {
        let status = dev.json(&["cluster", "status"]);
        let is_even = |member: &Value| member["lag"].as_u64() == Some(0);
        list(&status, "/members").iter().all(is_even).then_some(())
    });
}
