//! Convergence decided: what is wanted, what is seen, what to do. No clock, no I/O, no task.
//!
//! # Invariants
//! - `I4` Nothing is planned for an instance whose fence is below the one that it runs under.
//! - `CONV-1` A run is started only when the run before it has ended.
//! - `CONV-2` Without a NodeSpec nothing is planned: what runs goes on.

use std::{collections::BTreeMap, fmt, time::Duration};

use palisade_proto::agent::{InstanceSpec, NodeSpec, Wanted};
use palisade_state::planted::{self, Defect};

use crate::{
    driver::{Instance, Problem, Process, SignalName},
    fence::Fence,
};

mod restart;
mod status;

pub use restart::{Policy, SETTLES_AFTER, Track};
pub use status::{node_instances, phase};

/// How long after a kill another one is sent.
pub const KILL_AGAIN: Duration = Duration::from_secs(1);

/// An instance as the agent knows it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// What its driver saw last; `None`: no trace of it.
    pub instance: Option<Instance>,
    /// What the agent remembers.
    pub track: Track,
}

/// All that the agent knows, by instance id.
pub type Observed = BTreeMap<String, Seen>;

/// Why an instance is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The NodeSpec does not have it any more.
    Removed,
    /// It is wanted offline.
    Offline,
    /// It is to be started from another revision.
    Replaced,
    /// It runs under a fence that was superseded.
    Fenced,
    /// A stop was begun before the agent was restarted.
    Resumed,
}

/// One step. Steps of different instances do not depend on each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask it to stop.
    Stop {
        /// The instance.
        id: String,
        /// With which signal.
        signal: SignalName,
        /// How long it may take.
        grace: Duration,
        /// Why.
        reason: StopReason,
    },
    /// End it: its grace is over.
    Kill {
        /// The instance.
        id: String,
    },
    /// Forget it and its files.
    Remove {
        /// The instance.
        id: String,
    },
    /// Start it.
    Start {
        /// The instance.
        id: String,
        /// The number of the run.
        run: u32,
    },
    /// Nothing before `until`.
    Wait {
        /// The instance.
        id: String,
        /// Monotonic time.
        until: Duration,
    },
    /// What is wanted cannot be done here.
    Refuse {
        /// The instance.
        id: String,
        /// Why.
        problem: Problem,
    },
}

impl Action {
    /// The instance that it is about.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Stop { id, .. }
            | Self::Kill { id }
            | Self::Remove { id }
            | Self::Start { id, .. }
            | Self::Wait { id, .. }
            | Self::Refuse { id, .. } => id,
        }
    }

    /// What holds resources is ended before anything takes them.
    fn rank(&self) -> u8 {
        match self {
            Self::Kill { .. } => 0,
            Self::Stop { .. } => 1,
            Self::Remove { .. } => 2,
            Self::Start { .. } => 3,
            Self::Wait { .. } => 4,
            Self::Refuse { .. } => 5,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop { id, signal, grace, reason } => write!(
                f,
                "stop    {id}  ({}; {signal:?}, then kill after {} ms)",
                match reason {
                    StopReason::Removed => "no longer wanted on this node",
                    StopReason::Offline => "wanted offline",
                    StopReason::Replaced => "another revision is wanted",
                    StopReason::Fenced => "its fence was superseded",
                    StopReason::Resumed => "its stop was begun before",
                },
                grace.as_millis()
            ),
            Self::Kill { id } => write!(f, "kill    {id}  (its grace is over)"),
            Self::Remove { id } => write!(f, "remove  {id}  (ended and no longer wanted)"),
            Self::Start { id, run } => write!(f, "start   {id}  (run {run})"),
            Self::Wait { id, .. } => write!(f, "wait    {id}  (back-off or grace)"),
            Self::Refuse { id, problem } => write!(f, "refuse  {id}  ({problem})"),
        }
    }
}

/// What to do now, in order. Instances with an action under way are left alone.
#[must_use]
pub fn plan(spec: Option<&NodeSpec>, observed: &Observed, now: Duration) -> Vec<Action> {
    let Some(spec) = spec else { return Vec::new() };
    let wanted: BTreeMap<&str, &InstanceSpec> =
        spec.instances.iter().map(|instance| (instance.id.as_str(), instance)).collect();
    let mut actions = Vec::new();
    for (id, seen) in observed {
        if !seen.track.busy && !wanted.contains_key(id.as_str()) {
            actions.extend(unwanted(id, seen, now));
        }
    }
    let nothing = Seen::default();
    for (id, instance) in wanted {
        let seen = observed.get(id).unwrap_or(&nothing);
        if !seen.track.busy {
            actions.extend(wanted_one(instance, seen, now));
        }
    }
    actions.sort_by_key(Action::rank);
    actions
}

fn unwanted(id: &str, seen: &Seen, now: Duration) -> Option<Action> {
    let instance = seen.instance.as_ref()?;
    match instance.process {
        Process::Running { .. } if planted::is(Defect::ReplacedKept) => None,
        Process::Running { .. } => Some(stop(instance, seen, StopReason::Removed, now)),
        Process::Prepared | Process::Ended(_) => match seen.track.next_try {
            // The last try to remove it failed.
            Some(until) if until > now => Some(Action::Wait { id: id.to_owned(), until }),
            _ => Some(Action::Remove { id: id.to_owned() }),
        },
    }
}

fn wanted_one(spec: &InstanceSpec, seen: &Seen, now: Duration) -> Option<Action> {
    let up = spec.wanted() != Wanted::Offline;
    let Some(instance) = &seen.instance else {
        return up.then(|| start(spec, seen, 1, now));
    };
    let (have, want) = (instance.fence, Fence::of(spec.fence.as_ref()));
    if want < have {
        let message = format!("its fence {want} is below {have}, under which it was started here");
        return Some(Action::Refuse {
            id: spec.id.clone(),
            problem: Problem::new("FENCED", message),
        });
    }
    let same = instance.spec_version == spec.spec_version;
    match &instance.process {
        Process::Running { .. } if !up => Some(stop(instance, seen, StopReason::Offline, now)),
        Process::Running { .. } if want > have => {
            Some(stop(instance, seen, StopReason::Fenced, now))
        }
        Process::Running { .. } if !same => Some(stop(instance, seen, StopReason::Replaced, now)),
        Process::Running { .. } => {
            // A stop cannot be taken back; its end leads to a new run.
            instance.stop_asked.map(|_| stop(instance, seen, StopReason::Resumed, now))
        }
        Process::Prepared | Process::Ended(_) if !up => None,
        Process::Prepared => Some(start(spec, seen, instance.run + 1, now)),
        Process::Ended(end) => {
            let again = !same
                || want > have
                || instance.stop_asked.is_some()
                || Policy::of(spec).restarts(end);
            again.then(|| start(spec, seen, instance.run + 1, now))
        }
    }
}

fn start(spec: &InstanceSpec, seen: &Seen, run: u32, now: Duration) -> Action {
    let id = spec.id.clone();
    match seen.track.next_try {
        Some(until) if until > now => Action::Wait { id, until },
        _ => Action::Start { id, run },
    }
}

fn stop(instance: &Instance, seen: &Seen, reason: StopReason, now: Duration) -> Action {
    let id = instance.id.clone();
    match (instance.stop_asked, seen.track.kill_at) {
        (Some(_), Some(at)) if now >= at => Action::Kill { id },
        (Some(_), Some(until)) => Action::Wait { id, until },
        // Not asked yet, or asked by an agent that was restarted since: the grace begins again.
        _ => match seen.track.next_try {
            Some(until) if until > now => Action::Wait { id, until },
            _ => Action::Stop {
                id,
                signal: instance.stop_signal,
                grace: instance.stop_grace,
                reason,
            },
        },
    }
}

#[cfg(test)]
mod tests;
