//! How a workload is, computed from its instances whenever somebody asks.

use palisade_contract::{
    Result,
    node::{InstancePhase, Wanted},
    ports::{Allocation, Capacity, Misfit},
};
use palisade_scheduler::placement::summarised;
use palisade_state::View;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::records::{InstanceRow, WorkloadRow};

/// How a workload is, in a word.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No node has room for some of its instances, and none is healthy.
    Pending,
    /// On its way to what is wanted.
    Progressing,
    /// All that is wanted is there and healthy.
    Running,
    /// Something is wrong with some of its instances.
    Degraded,
    /// Wanted offline, and down; or all of its instances ended by themselves.
    Stopped,
    /// Its instances are being taken down for good.
    Removing,
}

/// How a workload is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadStatus {
    /// In a word.
    pub phase: Phase,
    /// Instances wanted.
    pub desired: u32,
    /// Instances there are, those on their way out among them.
    pub instances: u32,
    /// Healthy ones.
    pub healthy: u32,
    /// Those of the newest version.
    pub up_to_date: u32,
    /// What to know about the phase; empty: nothing.
    pub message: String,
    /// Why nodes do not take the instances that wait.
    pub misfits: Vec<Misfit>,
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Why nodes do not take an instance that waits; empty: it does not wait, or nobody has looked yet.
///
/// # Errors
/// A record cannot be read.
pub fn misfits(capacity: &dyn Capacity, view: &View, row: &InstanceRow) -> Result<Vec<Misfit>> {
    if row.place.is_some() || !row.is_live() {
        return Ok(vec![]);
    }
    match capacity.allocation(view, &row.id)? {
        Some(Allocation::Pending { misfits }) => Ok(misfits),
        _ => Ok(vec![]),
    }
}

/// Nodes that a sentence about misfits names.
const NAMED_MAX: usize = 3;

/// The misfits in a line; empty: there are none.
pub fn sentence(misfits: &[Misfit]) -> String {
    if misfits.is_empty() {
        return String::new();
    }
    let named: Vec<String> = misfits
        .iter()
        .take(NAMED_MAX)
        .map(|misfit| match misfit.node.as_str() {
            // It stands for no node in particular.
            "*" => misfit.reason.clone(),
            node => format!("{node}: {}", misfit.reason),
        })
        .collect();
    // The last one may stand for those that were counted instead of listed.
    let counted = misfits.last().and_then(|last| {
        last.reason.strip_prefix("and ")?.split_once(" more nodes: ")?.0.parse::<usize>().ok()
    });
    let all = counted.map_or(misfits.len(), |counted| misfits.len() - 1 + counted);
    let more = match all.saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    format!("fits on no node: {}{more}", named.join("; "))
}

/// How a workload is.
///
/// # Errors
/// A record cannot be read.
pub fn of(
    capacity: &dyn Capacity,
    view: &View,
    workload: &WorkloadRow,
    rows: &[InstanceRow],
) -> Result<WorkloadStatus> {
    let live: Vec<&InstanceRow> = rows.iter().filter(|row| row.is_live()).collect();
    let mut waiting = Vec::new();
    for row in &live {
        waiting.extend(misfits(capacity, view, row)?);
    }
    let waiting = summarised(waiting);
    let now_ms = view.clock().now_ms;
    let (phase, message) = judge(workload, rows, &live, &waiting, now_ms);
    let up_to_date = live.iter().filter(|row| row.version >= workload.template_version).count();
    Ok(WorkloadStatus {
        phase,
        desired: workload.spec.count,
        instances: count(rows.len()),
        healthy: count(live.iter().filter(|row| row.is_ready()).count()),
        up_to_date: count(up_to_date),
        message,
        misfits: waiting,
    })
}

fn judge(
    workload: &WorkloadRow,
    rows: &[InstanceRow],
    live: &[&InstanceRow],
    waiting: &[Misfit],
    now_ms: u64,
) -> (Phase, String) {
    let desired = usize::try_from(workload.spec.count).unwrap_or(usize::MAX);
    if workload.removing {
        return (Phase::Removing, format!("{} instances are not gone yet", rows.len()));
    }
    if workload.spec.wanted == Wanted::Offline {
        return offline(live);
    }
    let is_current = |row: &&&InstanceRow| row.version >= workload.template_version;
    let ready = live.iter().filter(|row| row.is_ready()).count();
    let ready_current = live.iter().filter(is_current).filter(|row| row.is_ready()).count();
    if ready_current == desired && live.len() == desired {
        return (Phase::Running, String::new());
    }
    if let Some(message) = trouble(live) {
        let ended = |row: &&InstanceRow| ended_well(row);
        if !live.is_empty() && live.iter().all(ended) {
            return (Phase::Stopped, "all instances ended by themselves".to_owned());
        }
        return (Phase::Degraded, message);
    }
    if !waiting.is_empty() {
        let phase = if ready > 0 { Phase::Degraded } else { Phase::Pending };
        let unplaced = live.iter().filter(|row| row.place.is_none()).count();
        return (phase, format!("{unplaced} of {desired} instances fit on no node"));
    }
    if let Some(late) = live.iter().find(|row| overdue_at(workload, row) <= now_ms) {
        return (
            Phase::Degraded,
            format!(
                "{} has not become healthy within update.healthDeadline; see its log",
                late.name
            ),
        );
    }
    let old = live.iter().filter(|row| row.version < workload.template_version).count();
    let message = if old > 0 {
        format!("{ready_current} of {desired} instances are up to date and healthy")
    } else {
        format!("{ready} of {desired} instances are healthy")
    };
    (Phase::Progressing, message)
}

fn offline(live: &[&InstanceRow]) -> (Phase, String) {
    let down = |row: &&&InstanceRow| {
        row.place.is_none()
            || matches!(row.seen.phase, InstancePhase::Stopped | InstancePhase::Exited)
    };
    let up = live.len() - live.iter().filter(down).count();
    if up == 0 {
        (Phase::Stopped, String::new())
    } else {
        (Phase::Progressing, format!("{up} of {} instances are not down yet", live.len()))
    }
}

fn ended_well(row: &InstanceRow) -> bool {
    row.seen.phase == InstancePhase::Exited
}

fn trouble(live: &[&InstanceRow]) -> Option<String> {
    let word = |phase: InstancePhase| match phase {
        InstancePhase::Failed => Some("has failed"),
        InstancePhase::CrashLoop => Some("ends again and again"),
        InstancePhase::Unhealthy => Some("fails its health check"),
        InstancePhase::Exited => Some("has ended"),
        InstancePhase::Lost => Some("is on a lost node"),
        _ => None,
    };
    let (row, word) = live.iter().find_map(|row| Some((row, word(row.seen.phase)?)))?;
    Some(match row.seen.message.as_str() {
        "" => format!("{} {word}", row.name),
        why => format!("{} {word}: {why}", row.name),
    })
}

/// Logical milliseconds at which an instance that is not ready counts as stuck.
pub fn overdue_at(workload: &WorkloadRow, row: &InstanceRow) -> u64 {
    match &row.place {
        Some(place) if row.is_live() && !row.is_ready() => {
            place.since_ms.saturating_add(workload.spec.update.health_deadline.ms())
        }
        _ => u64::MAX,
    }
}
