//! The instances of a node, as its agent is told of them.
//!
//! # Invariants
//! - `WL-3` The part stays below what the kernel stores in one record, so that one large instance
//!   cannot keep a node from being told anything: the newest are left out, and a finding says so.

use std::collections::BTreeMap;

use palisade_contract::{
    Context, Error, NodeId, Result, WorkloadId,
    node::{InstanceSpec, Node, Wanted},
    node_spec::NodeSpecPart,
};
use palisade_state::View;

use crate::{
    records::{BY_NODE, INSTANCES, InstanceRow, VERSIONS, WORKLOADS, WorkloadRow, version_key},
    secrets,
    spec::Spec,
};

/// Bytes of a node's instances, encoded; the kernel stores 512 KiB in a record.
const PART_BYTES_MAX: usize = 448 * 1024;

/// The part of a node's spec that holds its instances.
///
/// # Errors
/// A record cannot be read.
pub fn of(cx: &Context, view: &View, node: &NodeId) -> Result<NodeSpecPart> {
    Ok(fitting(cx, view, node)?.0)
}

/// The instances that had to be left out of their nodes' specs.
///
/// # Errors
/// A record cannot be read.
pub fn left_out(cx: &Context, view: &View, nodes: &[Node]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for node in nodes {
        names.extend(fitting(cx, view, &node.id)?.1);
    }
    Ok(names)
}

fn fitting(cx: &Context, view: &View, node: &NodeId) -> Result<(NodeSpecPart, Vec<String>)> {
    let mut part = NodeSpecPart::default();
    let mut left_out = Vec::new();
    let mut bytes = 0;
    let mut workloads: BTreeMap<WorkloadId, Option<WorkloadRow>> = BTreeMap::new();
    let found = INSTANCES.by_index(view, BY_NODE, node.as_str())?;
    let mut rows: Vec<InstanceRow> =
        found.into_iter().map(|(_, row)| row.value).filter(InstanceRow::is_live).collect();
    // Those that the agent was told of before come first: none of them may be crowded out.
    rows.sort_by_key(|row| row.place.as_ref().map(|place| place.spec_generation));
    for row in rows {
        if !workloads.contains_key(&row.workload) {
            let found = WORKLOADS.get(view, &row.workload.key())?.map(|found| found.value);
            workloads.insert(row.workload.clone(), found);
        }
        let Some(workload) = workloads.get(&row.workload).and_then(Option::as_ref) else {
            continue;
        };
        let version = VERSIONS.get(view, &version_key(&workload.id, row.version))?;
        let spec = version.as_ref().map_or(&workload.spec, |version| &version.value.spec);
        let Some(mut instance) = instance(workload, spec, &row) else { continue };
        instance.secret_env = secrets::uses(cx, view, spec)?;
        let size = serde_json::to_vec(&instance).map_err(Error::internal)?.len();
        if bytes + size > PART_BYTES_MAX {
            left_out.push(row.name);
            continue;
        }
        bytes += size;
        part.instances.insert(row.id, instance);
    }
    Ok((part, left_out))
}

fn instance(workload: &WorkloadRow, spec: &Spec, row: &InstanceRow) -> Option<InstanceSpec> {
    let place = row.place.as_ref()?;
    Some(InstanceSpec {
        id: row.id.clone(),
        name: row.name.clone(),
        workload: row.workload_name.clone(),
        spec_version: row.generation,
        wanted: if workload.is_up() { Wanted::Up } else { Wanted::Offline },
        driver: spec.wanted_driver(),
        command: spec.argv(),
        env: spec.task.texts(),
        secret_env: BTreeMap::new(),
        working_dir: spec.task.working_dir.clone(),
        user: spec.task.user.clone(),
        resources: place.limits.clone(),
        ports: place.ports.clone(),
        health: spec.health_check(&place.ports),
        restart: spec.restart_policy(),
        stop_signal: spec.stop_signal.clone(),
        stop_grace_ms: spec.stop_grace.ms(),
        labels: spec.labels.clone(),
        files: spec.task.files.clone(),
        fence: place.fence,
    })
}
