//! Workloads and instances as REST shows them.

use std::collections::BTreeMap;

use palisade_contract::{
    Context, InstanceId, NodeId, Result, WorkloadId,
    node::{Exit, InstancePhase, NodePhase, Wanted},
    ports::Misfit,
};
use palisade_state::View;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    records::{InstanceRow, Life, Why, WorkloadRow, rfc3339},
    spec::Spec,
    status::{self, WorkloadStatus},
};

/// A workload as REST shows it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRecord {
    /// Its id.
    pub id: WorkloadId,
    /// Its name, unique within its tenant.
    pub name: String,
    /// Its tenant; empty: the cluster.
    pub tenant: String,
    /// Its pool.
    pub pool: String,
    /// The number of its newest spec.
    pub version: u64,
    /// Whether it is to run.
    pub wanted: Wanted,
    /// How many instances are wanted.
    pub count: u32,
    /// Its newest spec.
    pub spec: Spec,
    /// When it was made.
    pub created_at: String,
    /// When its spec last changed.
    pub updated_at: String,
    /// How it is.
    pub status: WorkloadStatus,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision
    /// is the answer's.
    pub revision: u64,
}

/// An instance as REST shows it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceRecord {
    /// Its id.
    pub id: InstanceId,
    /// Its name.
    pub name: String,
    /// Its workload's name.
    pub workload: String,
    /// Its workload's id.
    pub workload_id: WorkloadId,
    /// Its tenant; empty: the cluster.
    pub tenant: String,
    /// Its node's id.
    pub node: Option<NodeId>,
    /// Its node's name; empty: it has none yet.
    pub node_name: String,
    /// Where it is reached; empty: it has no node yet.
    pub address: String,
    /// Ports by name.
    pub ports: BTreeMap<String, u16>,
    /// The spec version that it was made from.
    pub version: u64,
    /// When it was made.
    pub created_at: String,
    /// How it is.
    pub status: InstanceCondition,
    /// The revision of its record.
    pub revision: u64,
}

/// How an instance is.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceCondition {
    /// What it does.
    pub phase: InstancePhase,
    /// How often its process was started again.
    pub restarts: u32,
    /// What to know about the phase; empty: nothing.
    pub message: String,
    /// A word for what is wrong; empty: nothing.
    pub code: String,
    /// Its process; absent: none.
    pub pid: Option<u32>,
    /// When its process began, by its node's clock.
    pub started_at: Option<String>,
    /// How its process last ended.
    pub last_exit: Option<ExitRecord>,
    /// Why nodes do not take it while it waits.
    pub misfits: Vec<Misfit>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExitRecord {
    /// Exit code.
    pub code: i32,
    /// Signal, or 0.
    pub signal: i32,
    /// When, by its node's clock.
    pub at: String,
    /// It had more memory than it may.
    pub out_of_memory: bool,
}

impl From<&Exit> for ExitRecord {
    fn from(exit: &Exit) -> Self {
        Self {
            code: exit.code,
            signal: exit.signal,
            at: rfc3339(exit.at_ms),
            out_of_memory: exit.out_of_memory,
        }
    }
}

/// A workload as REST shows it.
///
/// # Errors
/// A record cannot be read.
pub fn workload(
    cx: &Context,
    view: &View,
    row: &WorkloadRow,
    rows: &[InstanceRow],
    revision: u64,
) -> Result<WorkloadRecord> {
    let status = status::of(&**cx.ports.capacity.get()?, view, row, rows)?;
    Ok(WorkloadRecord {
        id: row.id.clone(),
        name: row.spec.name.clone(),
        tenant: row.spec.tenant.clone(),
        pool: row.spec.pool.clone(),
        version: row.version,
        wanted: row.spec.wanted,
        count: row.spec.count,
        spec: row.spec.clone(),
        created_at: rfc3339(row.created_at_ms),
        updated_at: rfc3339(row.updated_at_ms),
        status,
        revision,
    })
}

/// An instance as REST shows it.
///
/// # Errors
/// A record cannot be read.
pub fn instance(
    cx: &Context,
    view: &View,
    row: &InstanceRow,
    revision: u64,
) -> Result<InstanceRecord> {
    let node = match row.node() {
        Some(id) => cx.ports.nodes.get()?.find(view, id.as_str())?,
        None => None,
    };
    let lost = node.as_ref().is_some_and(|node| node.phase == NodePhase::Lost);
    let (phase, message) = match row.life {
        Life::Leaving { why: Why::Replaced, .. } => (
            InstancePhase::Lost,
            "its node was lost and another instance took its place".to_owned(),
        ),
        Life::Leaving { why: Why::Removed, .. } => {
            (InstancePhase::Stopping, "waits for its agent to let go of it".to_owned())
        }
        Life::Live if lost => (InstancePhase::Lost, "its node is lost".to_owned()),
        Life::Live => (row.seen.phase, row.seen.message.clone()),
    };
    let misfits = status::misfits(&**cx.ports.capacity.get()?, view, row)?;
    let message = if message.is_empty() { status::sentence(&misfits) } else { message };
    let place = row.place.clone();
    let (node_name, ports) = place.map(|place| (place.node_name, place.ports)).unwrap_or_default();
    Ok(InstanceRecord {
        id: row.id.clone(),
        name: row.name.clone(),
        workload: row.workload_name.clone(),
        workload_id: row.workload.clone(),
        tenant: row.tenant.clone(),
        node: row.node().cloned(),
        node_name: node.as_ref().map_or(node_name, |node| node.name.clone()),
        address: node.map(|node| node.facts.address).unwrap_or_default(),
        ports,
        version: row.version,
        created_at: rfc3339(row.created_at_ms),
        status: InstanceCondition {
            phase,
            restarts: row.seen.restarts,
            message,
            code: row.seen.code.clone(),
            pid: Some(row.seen.pid).filter(|pid| *pid > 0),
            started_at: Some(row.seen.started_at_ms).filter(|ms| *ms > 0).map(rfc3339),
            last_exit: row.seen.last_exit.as_ref().map(ExitRecord::from),
            misfits,
        },
        revision,
    })
}
