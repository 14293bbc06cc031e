use palisade_proto::agent::{InstancePhase, RestartMode, RestartPolicy};

use super::*;
use crate::driver::{Cause, End, StopAsked};

const fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn fence(index: u64) -> Fence {
    Fence { epoch: 0, term: 1, index }
}

fn wanted(id: &str) -> InstanceSpec {
    let mut spec = InstanceSpec {
        id: id.into(),
        spec_version: 1,
        driver: "process".into(),
        fence: Some(fence(10).to_wire()),
        restart: Some(RestartPolicy {
            backoff_initial_ms: 100,
            backoff_max_ms: 10_000,
            crash_loop_threshold: 3,
            crash_loop_window_ms: 60_000,
            ..RestartPolicy::default()
        }),
        ..InstanceSpec::default()
    };
    spec.set_wanted(Wanted::Up);
    spec
}

fn node(instances: Vec<InstanceSpec>) -> NodeSpec {
    NodeSpec { generation: 1, instances, ..NodeSpec::default() }
}

fn instance(id: &str, process: Process) -> Instance {
    Instance {
        id: id.into(),
        run: 1,
        spec_version: 1,
        fence: fence(10),
        stop_signal: SignalName::Term,
        stop_grace: at(5000),
        process,
        ran_for: at(0),
        restarts: 0,
        stop_asked: None,
    }
}

fn running() -> Process {
    Process::Running { pid: 7, started_at_ms: 1 }
}

fn exited(code: i32) -> Process {
    Process::Ended(End {
        cause: Cause::Exited,
        code,
        signal: 0,
        at_ms: 1,
        out_of_memory: false,
        ran_for: at(10),
    })
}

fn seen(instance: Instance) -> Seen {
    let mut track = Track::default();
    track.follow(1);
    Seen { instance: Some(instance), track }
}

fn observed(list: Vec<Instance>) -> Observed {
    list.into_iter().map(|one| (one.id.clone(), seen(one))).collect()
}

/// Lets the track see what the driver saw, then plans.
fn plan_after(spec: &NodeSpec, observed: &mut Observed, now: Duration) -> Vec<Action> {
    for (id, seen) in observed.iter_mut() {
        if let (Some(instance), Some(spec)) = (&seen.instance, crate::spec::instance(spec, id)) {
            seen.track.saw(instance, &Policy::of(spec), now);
        }
    }
    plan(Some(spec), observed, now)
}

#[test]
fn without_a_spec_nothing_is_touched() {
    assert_eq!(plan(None, &observed(vec![instance("a", running())]), at(0)), vec![]);
}

#[test]
fn what_is_wanted_and_absent_is_started() {
    let actions = plan(Some(&node(vec![wanted("a")])), &Observed::new(), at(0));
    assert_eq!(actions, [Action::Start { id: "a".into(), run: 1 }]);
}

#[test]
fn what_runs_as_wanted_is_left_alone() {
    let spec = node(vec![wanted("a")]);
    assert_eq!(plan(Some(&spec), &observed(vec![instance("a", running())]), at(0)), vec![]);
}

#[test]
fn what_is_gone_from_the_spec_is_stopped_first_and_removed_once_ended() {
    let spec = node(vec![wanted("new")]);
    let actions = plan(Some(&spec), &observed(vec![instance("old", running())]), at(0));
    assert!(
        matches!(&actions[0], Action::Stop { id, reason: StopReason::Removed, .. } if id == "old")
    );
    assert_eq!(actions[1], Action::Start { id: "new".into(), run: 1 });
    let actions = plan(Some(&node(vec![])), &observed(vec![instance("old", exited(0))]), at(0));
    assert_eq!(actions, [Action::Remove { id: "old".into() }]);
}

#[test]
fn a_stop_waits_for_its_grace_and_then_kills() {
    let mut one = instance("a", running());
    one.stop_asked = Some(StopAsked { grace: at(5000) });
    let mut all = observed(vec![one]);
    all.get_mut("a").unwrap().track.kill_at = Some(at(5000));
    let spec = node(vec![]);
    assert_eq!(
        plan(Some(&spec), &all, at(4999)),
        [Action::Wait { id: "a".into(), until: at(5000) }]
    );
    assert_eq!(plan(Some(&spec), &all, at(5000)), [Action::Kill { id: "a".into() }]);
}

#[test]
fn a_stop_that_an_earlier_agent_began_is_begun_again() {
    let mut one = instance("a", running());
    one.stop_asked = Some(StopAsked { grace: at(5000) });
    let actions = plan(Some(&node(vec![wanted("a")])), &observed(vec![one]), at(0));
    assert!(matches!(&actions[0], Action::Stop { reason: StopReason::Resumed, .. }));
}

#[test]
fn another_revision_is_stopped_and_then_started_at_once() {
    let mut newer = wanted("a");
    newer.spec_version = 2;
    let spec = node(vec![newer]);
    let actions = plan(Some(&spec), &observed(vec![instance("a", running())]), at(0));
    assert!(matches!(&actions[0], Action::Stop { reason: StopReason::Replaced, .. }));
    let mut all = observed(vec![instance("a", exited(1))]);
    all.get_mut("a").unwrap().track.follow(2);
    assert_eq!(plan_after(&spec, &mut all, at(0)), [Action::Start { id: "a".into(), run: 2 }]);
}

#[test]
fn a_superseded_fence_stops_and_a_lower_one_is_refused() {
    let mut granted = wanted("a");
    granted.fence = Some(fence(11).to_wire());
    let all = observed(vec![instance("a", running())]);
    let actions = plan(Some(&node(vec![granted.clone()])), &all, at(0));
    assert!(matches!(&actions[0], Action::Stop { reason: StopReason::Fenced, .. }));
    granted.fence = Some(fence(9).to_wire());
    for process in [running(), exited(1)] {
        let all = observed(vec![instance("a", process)]);
        let actions = plan(Some(&node(vec![granted.clone()])), &all, at(0));
        assert!(
            matches!(&actions[..], [Action::Refuse { problem, .. }] if problem.code == "FENCED")
        );
    }
}

#[test]
fn offline_stops_and_keeps_and_up_again_starts_under_every_policy() {
    for mode in [RestartMode::Always, RestartMode::OnFailure, RestartMode::Never] {
        let mut one = wanted("a");
        one.restart.as_mut().unwrap().set_mode(mode);
        one.set_wanted(Wanted::Offline);
        let spec = node(vec![one.clone()]);
        let actions = plan(Some(&spec), &observed(vec![instance("a", running())]), at(0));
        assert!(matches!(&actions[0], Action::Stop { reason: StopReason::Offline, .. }));
        let mut ended = instance("a", exited(143));
        ended.stop_asked = Some(StopAsked { grace: at(1) });
        let mut all = observed(vec![ended]);
        assert_eq!(plan_after(&spec, &mut all, at(0)), vec![]);
        one.set_wanted(Wanted::Up);
        let actions = plan_after(&node(vec![one]), &mut all, at(0));
        assert_eq!(actions, [Action::Start { id: "a".into(), run: 2 }]);
    }
}

#[test]
fn each_policy_decides_about_ends() {
    let cases = [
        (RestartMode::Always, 0, true),
        (RestartMode::Always, 1, true),
        (RestartMode::OnFailure, 0, false),
        (RestartMode::OnFailure, 1, true),
        (RestartMode::Never, 0, false),
        (RestartMode::Never, 1, false),
    ];
    for (mode, code, again) in cases {
        let mut one = wanted("a");
        one.restart.as_mut().unwrap().set_mode(mode);
        let mut all = observed(vec![instance("a", exited(code))]);
        let actions = plan_after(&node(vec![one]), &mut all, at(0));
        assert_eq!(!actions.is_empty(), again, "{mode:?} {code}");
    }
}

#[test]
fn a_reboot_brings_back_what_ran_under_every_policy_at_once() {
    let mut one = wanted("a");
    one.restart.as_mut().unwrap().set_mode(RestartMode::Never);
    let end = End {
        cause: Cause::Rebooted,
        code: -1,
        signal: 0,
        at_ms: 0,
        out_of_memory: false,
        ran_for: at(0),
    };
    let mut all = observed(vec![instance("a", Process::Ended(end))]);
    let actions = plan_after(&node(vec![one]), &mut all, at(0));
    assert_eq!(actions, [Action::Start { id: "a".into(), run: 2 }]);
}

#[test]
fn back_off_doubles_and_becomes_a_crash_loop_that_is_visible() {
    let spec = node(vec![wanted("a")]);
    let mut all = observed(vec![]);
    let mut now = at(0);
    let mut delays = Vec::new();
    let mut track = Track::default();
    track.follow(1);
    for run in 1..=3 {
        let one = Instance { run, ..instance("a", exited(1)) };
        all.insert("a".into(), Seen { instance: Some(one), track: track.clone() });
        let actions = plan_after(&spec, &mut all, now);
        let [Action::Wait { until, .. }] = actions[..] else { panic!("{actions:?}") };
        delays.push(until - now);
        now = until;
        track = all["a"].track.clone();
    }
    assert_eq!(delays, [at(100), at(200), at(10_000)]);
    let (phase, code, _) = phase(Some(&wanted("a")), &all["a"], None, now);
    assert_eq!((phase, code.as_str()), (InstancePhase::CrashLoop, "EXIT_CODE"));
    assert_eq!(plan_after(&spec, &mut all, now), [Action::Start { id: "a".into(), run: 4 }]);
}

#[test]
fn a_crash_loop_does_not_put_its_removal_off() {
    let mut all = observed(vec![instance("a", exited(1))]);
    plan_after(&node(vec![wanted("a")]), &mut all, at(0));
    let track = &mut all.get_mut("a").unwrap().track;
    assert!(track.next_try.is_some());
    track.leave();
    assert_eq!(plan(Some(&node(vec![])), &all, at(1)), [Action::Remove { id: "a".into() }]);
    // A removal that failed is put off like anything else.
    let policy = Policy::of(&wanted("a"));
    let track = &mut all.get_mut("a").unwrap().track;
    track.failed(&policy, at(1));
    track.leave();
    assert!(matches!(plan(Some(&node(vec![])), &all, at(2))[..], [Action::Wait { .. }]));
}

#[test]
fn one_end_is_counted_once_however_often_it_is_seen() {
    let spec = node(vec![wanted("a")]);
    let mut all = observed(vec![instance("a", exited(1))]);
    for ms in [0, 10, 20] {
        let actions = plan_after(&spec, &mut all, at(ms));
        assert_eq!(actions, [Action::Wait { id: "a".into(), until: at(100) }]);
    }
}

#[test]
fn a_long_run_clears_the_count() {
    let mut track = Track::default();
    track.follow(1);
    let policy = Policy::of(&wanted("a"));
    track.failed(&policy, at(0));
    track.failed(&policy, at(1));
    let end = End {
        cause: Cause::Exited,
        code: 1,
        signal: 0,
        at_ms: 0,
        out_of_memory: false,
        ran_for: at(60_000),
    };
    track.saw(&instance("a", Process::Ended(end)), &policy, at(60_001));
    assert!(!track.crash_loop);
    assert_eq!(track.next_try, Some(at(60_101)));
}

#[test]
fn a_busy_instance_gets_no_second_action() {
    let mut all = observed(vec![instance("a", running())]);
    all.get_mut("a").unwrap().track.busy = true;
    assert_eq!(plan(Some(&node(vec![])), &all, at(0)), vec![]);
}

fn phase_after(one: &Instance, looks: &[u64], now: u64) -> InstancePhase {
    let mut track = Track::default();
    track.follow(1);
    for look in looks {
        track.saw(one, &Policy::of(&wanted("a")), at(*look));
    }
    phase(Some(&wanted("a")), &Seen { instance: Some(one.clone()), track }, None, at(now)).0
}

#[test]
fn without_a_health_check_it_is_healthy_once_it_has_run_for_a_second() {
    let one = instance("a", running());
    assert_eq!(phase_after(&one, &[5000, 5900], 5999), InstancePhase::Starting);
    assert_eq!(phase_after(&one, &[5000, 5900], 6000), InstancePhase::Healthy);
}

#[test]
fn an_adopted_process_brings_its_age() {
    let old = Instance { ran_for: at(60_000), ..instance("a", running()) };
    assert_eq!(phase_after(&old, &[3], 3), InstancePhase::Healthy);
    let young = Instance { ran_for: at(400), ..instance("a", running()) };
    assert_eq!(phase_after(&young, &[3], 602), InstancePhase::Starting);
    assert_eq!(phase_after(&young, &[3], 603), InstancePhase::Healthy);
}

#[test]
fn each_run_settles_anew() {
    let mut track = Track::default();
    track.follow(1);
    let policy = Policy::of(&wanted("a"));
    track.saw(&instance("a", running()), &policy, at(0));
    track.saw(&instance("a", exited(3)), &policy, at(2000));
    assert_eq!(track.settles_at(), None);
    track.saw(&Instance { run: 2, ..instance("a", running()) }, &policy, at(2100));
    assert_eq!(track.settles_at(), Some(at(2100) + SETTLES_AFTER));
}
