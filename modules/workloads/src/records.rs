//! The tables.

use std::collections::{BTreeMap, BTreeSet};

use palisade_contract::{
    InstanceId, NodeId, WorkloadId,
    node::{Exit, InstancePhase, InstanceResources, InstanceStatus, Wanted},
};
use palisade_state::{Fence, Index, Table};
use serde::{Deserialize, Serialize};

use crate::spec::Spec;

/// A workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRow {
    /// Its id.
    pub id: WorkloadId,
    /// Its newest spec.
    pub spec: Spec,
    /// The number of that spec: 1, 2, 3 …
    pub version: u64,
    /// The version at which what an instance is last changed; instances of older ones are replaced.
    pub template_version: u64,
    /// How often a restart was asked for.
    #[serde(default)]
    pub restarts: u64,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
    /// Wall-clock milliseconds.
    pub updated_at_ms: u64,
    /// It is being removed.
    #[serde(default)]
    pub removing: bool,
}

impl WorkloadRow {
    /// Whether its instances are to run.
    pub fn is_up(&self) -> bool {
        self.spec.wanted == Wanted::Up && !self.removing
    }
}

/// One accepted spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionRow {
    /// The spec.
    pub spec: Spec,
    /// What made it: `apply`, `scale` …
    pub reason: String,
    /// Who made it.
    pub by: String,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
}

/// Why an instance is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    /// Nobody wants it any more.
    Removed,
    /// Its node was lost, and another instance took its place.
    Replaced,
}

/// Where an instance is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "is")]
pub enum Life {
    /// It counts.
    Live,
    /// It is out of its node's spec, and goes when the node's agent no longer has it.
    #[serde(rename_all = "camelCase")]
    Leaving {
        /// Why.
        why: Why,
        /// Its node's spec held it at that moment, so the agent may have been told of it.
        told: bool,
    },
}

/// What an instance's agent said of it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Seen {
    /// What it does.
    pub phase: InstancePhase,
    /// Its process; 0: none.
    pub pid: u32,
    /// Wall-clock milliseconds of the node.
    pub started_at_ms: u64,
    /// How often its process was started again.
    pub restarts: u32,
    /// How its process last ended.
    pub last_exit: Option<Exit>,
    /// What is wrong; empty: nothing.
    pub message: String,
    /// A word for what is wrong.
    pub code: String,
    /// The generation that its process was started from; 0: not said.
    pub generation: u64,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            phase: InstancePhase::Pending,
            pid: 0,
            started_at_ms: 0,
            restarts: 0,
            last_exit: None,
            message: String::new(),
            code: String::new(),
            generation: 0,
        }
    }
}

impl From<&InstanceStatus> for Seen {
    fn from(status: &InstanceStatus) -> Self {
        Self {
            phase: status.phase,
            pid: status.pid,
            started_at_ms: status.started_at_ms,
            restarts: status.restarts,
            last_exit: status.last_exit.clone(),
            message: status.message.clone(),
            code: status.code.clone(),
            generation: status.spec_version,
        }
    }
}

/// Where an instance is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// Its node.
    pub node: NodeId,
    /// The node's name when it was placed, for when the node is gone.
    pub node_name: String,
    /// Ports by name.
    #[serde(default)]
    pub ports: BTreeMap<String, u16>,
    /// Limits.
    #[serde(default)]
    pub limits: InstanceResources,
    /// The placer's fence.
    #[serde(default)]
    pub fence: Fence,
    /// The generation of the node's spec when it was placed.
    #[serde(default)]
    pub spec_generation: u64,
    /// Logical milliseconds since which it should become healthy.
    #[serde(default)]
    pub since_ms: u64,
}

/// An instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceRow {
    /// Its id.
    pub id: InstanceId,
    /// `<workload>-<number>`.
    pub name: String,
    /// Unique within its workload.
    pub number: u64,
    /// Its workload.
    pub workload: WorkloadId,
    /// The workload's name.
    pub workload_name: String,
    /// The workload's tenant.
    #[serde(default)]
    pub tenant: String,
    /// The spec version that it was made from.
    pub version: u64,
    /// Rises when its process must be replaced where it is; told to the agent.
    pub generation: u64,
    /// Restarts of the workload that it has seen.
    #[serde(default)]
    pub restarts: u64,
    /// Where it is in its life.
    pub life: Life,
    /// Where it is; absent: not placed yet.
    #[serde(default)]
    pub place: Option<Place>,
    /// What its agent said last.
    #[serde(default)]
    pub seen: Seen,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
}

impl InstanceRow {
    /// Whether it counts.
    pub fn is_live(&self) -> bool {
        self.life == Life::Live
    }

    /// Whether it runs what it should and is healthy. An agent that does not say from which
    /// generation a process was started is believed for the first one alone.
    pub fn is_ready(&self) -> bool {
        let told = self.seen.generation == self.generation
            || (self.seen.generation == 0 && self.generation == 1);
        self.is_live() && self.place.is_some() && self.seen.phase == InstancePhase::Healthy && told
    }

    /// Its node.
    pub fn node(&self) -> Option<&NodeId> {
        self.place.as_ref().map(|place| &place.node)
    }
}

/// The phase of a workload that was last announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Announced {
    /// The phase.
    pub phase: crate::status::Phase,
}

/// The index of workloads and instances by name.
pub const BY_NAME: &str = "name";
/// The index of instances by workload.
pub const BY_WORKLOAD: &str = "workload";
/// The index of versions by the secrets that they name.
pub const BY_SECRET: &str = "secret";
/// The index of instances by node.
pub const BY_NODE: &str = "node";

/// Workloads by id.
pub const WORKLOADS: Table<String, WorkloadRow> = Table::new(
    "workloads",
    &[Index { name: BY_NAME, keys: |row: &WorkloadRow| vec![row.spec.name.clone()] }],
);

/// Specs by `<workload id>/<version>`, the version in 12 digits.
pub const VERSIONS: Table<String, VersionRow> = Table::new(
    "workload_versions",
    &[Index { name: BY_SECRET, keys: |row: &VersionRow| secrets_of(&row.spec) }],
);

/// `<tenant>/<name>` of each secret that a spec names.
fn secrets_of(spec: &Spec) -> Vec<String> {
    let all = spec.task.secrets();
    let keys: BTreeSet<String> =
        all.map(|(_, secret)| secret_key(&spec.tenant, &secret.secret)).collect();
    keys.into_iter().collect()
}

/// What the index of secrets knows one by.
pub fn secret_key(tenant: &str, name: &str) -> String {
    format!("{tenant}/{name}")
}

/// Instances by id.
pub const INSTANCES: Table<String, InstanceRow> = Table::new(
    "workload_instances",
    &[
        Index { name: BY_NAME, keys: |row: &InstanceRow| vec![row.name.clone()] },
        Index { name: BY_WORKLOAD, keys: |row: &InstanceRow| vec![row.workload.key()] },
        Index {
            name: BY_NODE,
            keys: |row: &InstanceRow| row.node().map(NodeId::key).into_iter().collect(),
        },
    ],
);

/// Announced phases by workload id. Apart from the workload, whose revision is the users'.
pub const ANNOUNCED: Table<String, Announced> = Table::new("workload_phases", &[]);

/// The key of a version.
pub fn version_key(workload: &WorkloadId, version: u64) -> String {
    format!("{workload}/{version:012}")
}

pub use palisade_contract::time::rfc3339;
