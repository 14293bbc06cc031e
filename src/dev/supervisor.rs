//! What runs in a directory of `dev`, seen from outside.

use serde::Serialize;

use super::{
    layout::Layout,
    lock::{Holder, Lock},
    orphans,
    process::ProcessId,
    run_state::RunState,
};

/// One child.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// `replica-1`, `agent-2`.
    pub name: String,
    /// Its process, if it runs.
    pub pid: Option<u32>,
    /// The file that holds what it says.
    pub log: String,
}

/// What runs.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The directory.
    pub dir: String,
    /// The supervisor's process, if it runs; 0 when it is too young to have said.
    pub supervisor: Option<u32>,
    /// `starting`, `ready`, `stopped`; `orphaned` when children run without their supervisor.
    pub phase: &'static str,
    /// The children.
    pub parts: Vec<Part>,
}

/// Looks at what runs.
#[must_use]
pub fn status(layout: &Layout) -> Status {
    let supervisor = match Lock::holder(layout) {
        Holder::Nobody => None,
        Holder::Somebody(who) => Some(who.map_or(0, |who| who.pid)),
    };
    let parts: Vec<Part> = orphans::names()
        .into_iter()
        .map(|name| {
            let process = ProcessId::read(&layout.pid_file(&name));
            let pid = process.filter(ProcessId::is_alive).map(|process| process.pid);
            Part { log: layout.log(&name).display().to_string(), name, pid }
        })
        .collect();
    let phase = match (supervisor, RunState::read(layout)) {
        (Some(_), Some(RunState::Ready { .. })) => "ready",
        (Some(_), _) => "starting",
        (None, _) if parts.iter().any(|part| part.pid.is_some()) => "orphaned",
        (None, _) => "stopped",
    };
    Status { dir: layout.root().display().to_string(), supervisor, phase, parts }
}
