//! The instances of a node, as its agent is told of them.

use std::collections::BTreeMap;

use palisade_contract::{
    Result, WorkloadId,
    node::{InstanceSpec, Node, Wanted},
    node_spec::NodeSpecPart,
};
use palisade_state::View;

use crate::{
    records::{BY_NODE, INSTANCES, InstanceRow, VERSIONS, WORKLOADS, WorkloadRow, version_key},
    spec::Spec,
};

/// The part of a node's spec that holds its instances.
///
/// # Errors
/// A record cannot be read.
pub fn of(view: &View, node: &Node) -> Result<NodeSpecPart> {
    let mut part = NodeSpecPart::default();
    let mut workloads: BTreeMap<WorkloadId, Option<WorkloadRow>> = BTreeMap::new();
    for (_, row) in INSTANCES.by_index(view, BY_NODE, node.id.as_str())? {
        let row = row.value;
        if !row.is_live() {
            continue;
        }
        if !workloads.contains_key(&row.workload) {
            let found = WORKLOADS.get(view, &row.workload.key())?.map(|found| found.value);
            workloads.insert(row.workload.clone(), found);
        }
        let Some(workload) = workloads.get(&row.workload).and_then(Option::as_ref) else {
            continue;
        };
        let version = VERSIONS.get(view, &version_key(&workload.id, row.version))?;
        let spec = version.as_ref().map_or(&workload.spec, |version| &version.value.spec);
        if let Some(instance) = instance(workload, spec, &row) {
            part.instances.insert(row.id.clone(), instance);
        }
    }
    Ok(part)
}

fn instance(workload: &WorkloadRow, spec: &Spec, row: &InstanceRow) -> Option<InstanceSpec> {
    let place = row.place.as_ref()?;
    Some(InstanceSpec {
        id: row.id.clone(),
        name: row.name.clone(),
        workload: row.workload_name.clone(),
        spec_version: row.generation,
        wanted: if workload.is_up() { Wanted::Up } else { Wanted::Offline },
        driver: spec.driver.clone(),
        command: spec.argv(),
        env: spec.task.env.clone(),
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
