//! What the replicas report of themselves, and the format that all of them read.
//!
//! # Invariants
//! - `FORMAT-1` The active format never goes down, and is raised only while every member has
//!   reported that it reads it.

use crate::{
    change::Changes,
    command::{ForgetReplica, RaiseFormat, ReplicaReport, Verdict},
    state::{Position, State},
};

/// What a replica reported last.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaRow {
    /// The newest format that its build reads.
    pub format_max: u32,
    /// Its build's version.
    pub version: String,
    /// The last event that is durable in its history.
    pub events_durable: u64,
    /// The last audit record that is durable in its history.
    pub audit_durable: u64,
    /// The revision of the report.
    pub reported_rev: u64,
    /// Logical milliseconds of the report.
    pub reported_ms: u64,
}

/// Keeps a report.
pub(crate) fn report(
    state: &mut State,
    at: Position,
    report: ReplicaReport,
    changes: &mut Changes,
) -> Verdict {
    let ReplicaReport { replica, format_max, version, events_durable, audit_durable } = report;
    let row = ReplicaRow {
        format_max,
        version,
        events_durable,
        audit_durable,
        reported_rev: at.index,
        reported_ms: state.clock.now_ms,
    };
    state.replicas.insert(replica, row);
    changes.replicas += 1;
    Verdict::Applied(vec![])
}

/// Drops a report.
pub(crate) fn forget(state: &mut State, forget: ForgetReplica, changes: &mut Changes) -> Verdict {
    changes.replicas += usize::from(state.replicas.remove(&forget.replica).is_some());
    Verdict::Applied(vec![])
}

/// Whether the active format may be raised so far (`FORMAT-1`), and why not.
pub(crate) fn may_raise(state: &State, raise: &RaiseFormat) -> Result<(), String> {
    let (wanted, active) = (raise.format, state.format());
    if wanted < active {
        return Err(format!("the format is {active} already and never goes down"));
    }
    if raise.members.is_empty() {
        return Err("a format is raised for the members that are named, and none is".to_owned());
    }
    for member in &raise.members {
        match state.replicas.get(member).map_or(0, |row| row.format_max) {
            0 => return Err(format!("replica {member} has not reported which formats it reads")),
            reads if reads < wanted => {
                return Err(format!("replica {member} reads formats up to {reads}, not {wanted}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Raises the active format if it may be.
pub(crate) fn raise(state: &mut State, raise: &RaiseFormat, changes: &mut Changes) -> Verdict {
    if let Err(why) = may_raise(state, raise) {
        return Verdict::Invalid(why);
    }
    debug_assert!(
        state.format() <= raise.format
            && raise.members.iter().all(|member| {
                state.replicas.get(member).is_some_and(|row| row.format_max >= raise.format)
            }),
        "FORMAT-1: a member does not read format {}, or it goes down",
        raise.format
    );
    changes.replicas += usize::from(state.format() < raise.format);
    state.format_raised = raise.format;
    Verdict::Applied(vec![])
}
