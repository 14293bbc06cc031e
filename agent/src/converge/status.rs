//! What the agent tells about its instances.

use std::{collections::BTreeMap, time::Duration};

use palisade_proto::agent::{Exit, InstancePhase, InstanceSpec, InstanceStatus, NodeSpec, Wanted};

use super::{Observed, Policy, Seen};
use crate::{
    driver::{Cause, End, Process},
    health::Health,
};

/// The status of every instance that is wanted or seen, by id.
#[must_use]
pub fn node_instances(
    spec: Option<&NodeSpec>,
    observed: &Observed,
    health: &BTreeMap<String, Health>,
    now: Duration,
) -> Vec<InstanceStatus> {
    let wanted: BTreeMap<&str, &InstanceSpec> = spec
        .into_iter()
        .flat_map(|spec| &spec.instances)
        .map(|instance| (instance.id.as_str(), instance))
        .collect();
    let mut ids: Vec<&str> =
        wanted.keys().copied().chain(observed.keys().map(String::as_str)).collect();
    ids.sort_unstable();
    ids.dedup();
    let nothing = Seen::default();
    ids.into_iter()
        .filter_map(|id| {
            let seen = observed.get(id).unwrap_or(&nothing);
            let spec = wanted.get(id).copied();
            // Forgotten and not wanted: nothing to tell.
            if spec.is_none() && seen.instance.is_none() {
                return None;
            }
            Some(one(id, spec, seen, health.get(id), now))
        })
        .collect()
}

fn one(
    id: &str,
    spec: Option<&InstanceSpec>,
    seen: &Seen,
    health: Option<&Health>,
    now: Duration,
) -> InstanceStatus {
    let (phase, code, message) = phase(spec, seen, health, now);
    let mut status = InstanceStatus {
        id: id.to_owned(),
        phase: phase.into(),
        code,
        message,
        ..InstanceStatus::default()
    };
    let waits =
        matches!(phase, InstancePhase::Pending | InstancePhase::Failed | InstancePhase::CrashLoop);
    if waits && let Some(until) = seen.track.next_try {
        let left = until.saturating_sub(now).as_millis();
        status.next_try_in_ms = u64::try_from(left).unwrap_or(u64::MAX);
    }
    if let Some(instance) = &seen.instance {
        status.spec_version = instance.spec_version;
        status.restarts = instance.restarts;
        match &instance.process {
            Process::Prepared => {}
            Process::Running { pid, started_at_ms } => {
                status.pid = *pid;
                status.started_at_ms = *started_at_ms;
            }
            Process::Ended(end) => {
                status.last_exit = Some(Exit {
                    code: end.code,
                    signal: end.signal,
                    at_ms: end.at_ms,
                    out_of_memory: end.out_of_memory,
                });
            }
        }
    }
    status
}

/// The phase, the code and the sentence.
#[must_use]
pub fn phase(
    spec: Option<&InstanceSpec>,
    seen: &Seen,
    health: Option<&Health>,
    now: Duration,
) -> (InstancePhase, String, String) {
    let plain = |phase| (phase, String::new(), String::new());
    let up = spec.is_some_and(|spec| spec.wanted() != Wanted::Offline);
    let settled = seen.track.settles_at().is_some_and(|at| at <= now);
    let problem = seen.track.problem.as_ref();
    let Some(instance) = &seen.instance else {
        return match (problem, up) {
            (Some(problem), true) => {
                (InstancePhase::Failed, problem.code.clone(), problem.message.clone())
            }
            (_, true) => plain(InstancePhase::Pending),
            (_, false) => plain(InstancePhase::Stopped),
        };
    };
    if let (Some(problem), false) =
        (problem, matches!(instance.process, Process::Running { .. }) && !up)
    {
        let phase = match instance.process {
            Process::Running { .. } => running(health, settled).0,
            _ => InstancePhase::Failed,
        };
        return (phase, problem.code.clone(), problem.message.clone());
    }
    match (&instance.process, spec) {
        (Process::Running { .. }, Some(_)) if up && instance.stop_asked.is_none() => {
            running(health, settled)
        }
        (Process::Running { .. }, _) => plain(InstancePhase::Stopping),
        (_, None) => plain(InstancePhase::Stopping),
        (_, Some(_)) if !up => plain(InstancePhase::Stopped),
        (Process::Prepared, _) => plain(InstancePhase::Pending),
        (Process::Ended(end), Some(spec)) => ended(spec, seen, end, instance.stop_asked.is_some()),
    }
}

/// Without a health check, that it goes on running is all that can be known of its health.
fn running(health: Option<&Health>, settled: bool) -> (InstancePhase, String, String) {
    match health {
        None if !settled => (InstancePhase::Starting, String::new(), String::new()),
        None | Some(Health::Healthy) => (InstancePhase::Healthy, String::new(), String::new()),
        Some(Health::Unknown { last_error }) => {
            (InstancePhase::Starting, String::new(), last_error.clone())
        }
        Some(Health::Unhealthy { last_error }) => {
            (InstancePhase::Unhealthy, "HEALTH_CHECK_FAILED".to_owned(), last_error.clone())
        }
    }
}

fn ended(
    spec: &InstanceSpec,
    seen: &Seen,
    end: &End,
    stopped: bool,
) -> (InstancePhase, String, String) {
    let (code, message) = describe(end);
    if stopped || end.cause == Cause::Rebooted {
        return (InstancePhase::Pending, String::new(), String::new());
    }
    let again = Policy::of(spec).restarts(end);
    // A program that cannot even be started is told by its reason, however often it is tried.
    if matches!(end.cause, Cause::NotStarted(_)) {
        return (InstancePhase::Failed, code, message);
    }
    match (again, end.success()) {
        (true, _) if seen.track.crash_loop => (InstancePhase::CrashLoop, code, message),
        (true, true) => (InstancePhase::Pending, String::new(), message),
        (false, true) => (InstancePhase::Exited, String::new(), String::new()),
        (_, false) => (InstancePhase::Failed, code, message),
    }
}

fn describe(end: &End) -> (String, String) {
    let (code, message) = match &end.cause {
        Cause::NotStarted(problem) => (problem.code.as_str(), problem.message.clone()),
        Cause::Rebooted => ("REBOOTED", "the machine was restarted".to_owned()),
        Cause::Unknown => (
            "EXIT_UNKNOWN",
            "it has ended, but its shim was killed before and could not see how".to_owned(),
        ),
        Cause::Exited if end.out_of_memory => {
            ("OUT_OF_MEMORY", "the kernel ended it: it used more memory than its limit".to_owned())
        }
        Cause::Exited if end.signal != 0 => {
            ("SIGNALED", format!("it was ended by signal {}", end.signal))
        }
        Cause::Exited if end.code == 0 => ("", "it has ended with success".to_owned()),
        Cause::Exited => ("EXIT_CODE", format!("it has ended with exit code {}", end.code)),
    };
    (code.to_owned(), message)
}
