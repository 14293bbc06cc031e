//! When waiting ends, and as what.

use serde_json::json;

use super::*;

fn workload(status: Value) -> Value {
    json!({"name": "hello", "version": 2, "count": 2, "wanted": "up", "status": status})
}

fn instance(name: &str, phase: &str, version: u64) -> Value {
    json!({"id": name, "name": name, "nodeName": "node-1", "version": version,
        "status": {"phase": phase, "code": "", "message": ""}})
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn healthy() -> Watch {
    Watch::new("hello", Goal::Healthy)
}

const FULL: fn() -> Value = || json!({"phase": "running", "healthy": 2, "upToDate": 2});

#[test]
fn a_version_that_was_superseded_is_no_success() {
    let both = [instance("a", "healthy", 2), instance("b", "healthy", 2)];
    let record = workload(FULL());
    let verdict = healthy().of_version(1).judge(Some((&record, &both)), seconds(0));
    let Verdict::Failed(failure) = verdict else { panic!("{verdict:?}") };
    assert_eq!(failure.exit, Exit::Conflict);
    let verdict = healthy().of_version(2).judge(Some((&record, &both)), seconds(0));
    assert!(matches!(verdict, Verdict::Done(_)), "{verdict:?}");
}

#[test]
fn instances_of_an_older_version_do_not_count() {
    let both = [instance("a", "healthy", 1), instance("b", "healthy", 2)];
    let half = workload(json!({"phase": "progressing", "healthy": 2, "upToDate": 1}));
    let verdict = healthy().judge(Some((&half, &both)), seconds(0));
    assert_eq!(verdict, Verdict::Going("hello: 2 of 2 healthy, 1 of the newest version".into()));
    let verdict = healthy().judge(Some((&workload(FULL()), &both)), seconds(0));
    assert_eq!(verdict, Verdict::Done("hello: 2 of 2 healthy".into()));
}

#[test]
fn a_restart_is_over_when_every_process_is_another_one() {
    let with_pid = |name: &str, pid: u64| {
        let mut one = instance(name, "healthy", 2);
        one["status"]["pid"] = json!(pid);
        one
    };
    let mut watch = Watch::restarted("hello", &[with_pid("a", 1), with_pid("b", 2)]);
    let seen = [with_pid("a", 7), with_pid("b", 2)];
    let verdict = watch.judge(Some((&workload(FULL()), &seen)), seconds(0));
    assert_eq!(verdict, Verdict::Going("hello: 1 of 2 healthy, 1 to be restarted".into()));
    let seen = [with_pid("a", 7), with_pid("b", 8)];
    let verdict = watch.judge(Some((&workload(FULL()), &seen)), seconds(0));
    assert!(matches!(verdict, Verdict::Done(_)));
}

#[test]
fn one_instance_too_many_is_waited_for() {
    let three = ["a", "b", "c"].map(|name| instance(name, "healthy", 2));
    let verdict = healthy().judge(Some((&workload(FULL()), &three)), seconds(0));
    assert!(matches!(verdict, Verdict::Going(_)));
}

#[test]
fn a_failed_instance_ends_the_wait_only_when_it_stays_so() {
    let mut watch = healthy();
    let record = workload(json!({"phase": "degraded", "healthy": 1, "upToDate": 2}));
    let mut failed = instance("b", "failed", 2);
    failed["status"]["code"] = json!("COMMAND_NOT_FOUND");
    failed["status"]["message"] = json!("the command \"x\" was not found");
    let seen = [instance("a", "healthy", 2), failed];
    let first = watch.judge(Some((&record, &seen)), seconds(0));
    assert_eq!(first, Verdict::Going("hello: 1 of 2 healthy, 1 failed".into()));
    let Verdict::Failed(failure) = watch.judge(Some((&record, &seen)), seconds(2)) else {
        panic!("it goes on")
    };
    assert_eq!(failure.exit, Exit::Error);
    insta::assert_snapshot!(failure, @r#"
    error: hello: 1 of 2 instances failed
      b on node-1: COMMAND_NOT_FOUND: the command "x" was not found
    hint: `palisade instance logs b` shows what it said; apply a corrected spec, or `palisade workload rm hello`
    "#);
}

#[test]
fn a_crash_loop_ends_the_wait_at_once() {
    let record = workload(json!({"phase": "degraded"}));
    let seen = [instance("a", "crashLoop", 2)];
    assert!(matches!(healthy().judge(Some((&record, &seen)), seconds(0)), Verdict::Failed(_)));
}

#[test]
fn no_room_says_why_for_each_node() {
    let mut watch = healthy();
    let record = workload(json!({"phase": "pending", "misfits": [
        {"node": "node-1", "reason": "cpu: 64 wanted, 4 free"},
        {"node": "node-2", "reason": "cordoned"}]}));
    let seen = [instance("a", "pending", 2), instance("b", "pending", 2)];
    assert!(matches!(watch.judge(Some((&record, &seen)), seconds(0)), Verdict::Going(_)));
    let Verdict::Failed(failure) = watch.judge(Some((&record, &seen)), seconds(2)) else {
        panic!("it goes on")
    };
    assert_eq!(failure.exit, Exit::NoRoom);
    insta::assert_snapshot!(failure, @r"
    error: hello: no node can take 2 of 2 instances (0 healthy)
      node-1: cpu: 64 wanted, 4 free
      node-2: cordoned
    hint: they stay pending and start when a node can take them; ask for less, or `palisade workload rm hello`
    ");
}

#[test]
fn a_log_adds_only_what_is_new() {
    let failure = Failure::new(Exit::Error, "x").note("a on n: COMMAND_NOT_FOUND: no `y`");
    let log = "shim: /d: COMMAND_NOT_FOUND: no `y`\nabout to fail\nabout to fail\n";
    let notes = log_notes(log, failure).notes;
    assert_eq!(notes, ["a on n: COMMAND_NOT_FOUND: no `y`", "| about to fail"]);
}

#[test]
fn gone_means_not_found() {
    let mut watch = Watch::new("hello", Goal::Gone);
    let record = workload(json!({"phase": "removing"}));
    assert!(matches!(watch.judge(Some((&record, &[])), seconds(0)), Verdict::Going(_)));
    assert_eq!(watch.judge(None, seconds(1)), Verdict::Done("hello is gone".into()));
    assert!(matches!(healthy().judge(None, seconds(0)), Verdict::Failed(_)));
}

#[test]
fn stopped_means_nothing_runs() {
    let mut watch = Watch::new("hello", Goal::Stopped);
    let mut record = workload(json!({"phase": "stopped"}));
    record["wanted"] = json!("offline");
    assert_eq!(Goal::of(&record), Goal::Stopped);
    let up = [instance("a", "stopping", 2)];
    assert!(matches!(watch.judge(Some((&record, &up)), seconds(0)), Verdict::Going(_)));
    let down = [instance("a", "stopped", 2)];
    assert!(matches!(watch.judge(Some((&record, &down)), seconds(0)), Verdict::Done(_)));
}
