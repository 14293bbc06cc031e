//! The workloads module: what users want running, and the instances that run it.
//!
//! # Invariants
//! - `WL-1` An instance's record and allocation outlive it on its node.
//! - `WL-2` An instance on a lost node is replaced once; the old one stays out of its node's spec,
//!   so that an agent that comes back stops it before anything else.

mod contribution;
mod lookup;
mod methods;
mod nodes;
mod reconcile;
mod records;
mod report;
pub mod rollout;
mod secrets;
mod shown;
pub mod spec;
mod status;
mod tenancy;
#[cfg(test)]
mod tests;
mod told;

use std::{collections::BTreeSet, sync::Arc};

use palisade_contract::{
    Catalog, CommandKind, Context, Finding, Method, Module, Reconciler, Result, SecretRef,
    Severity, StatusHandler, Sweep,
    node::Node,
    node_spec::{NodeSpecPart, invalidate},
    secrets::SecretUsers,
};
use palisade_state::{Declared, Tx, View, past::Kept};

pub use methods::{Applied, Change, Plan, Start};
pub use shown::{ExitRecord, InstanceCondition, InstanceRecord, WorkloadRecord};
pub use status::{Phase, WorkloadStatus};

/// The reconciler that converges workloads; its keys are their ids.
pub const RECONCILE_KIND: &str = "workloads.reconcile";

/// The reconciler that looks at nodes that changed; its keys are node ids. Inventory wakes it.
pub const NODES_KIND: &str = "workloads.nodes";

/// The reconciler that wakes a workload's when a time has come; its keys are workload ids.
pub const TIMER_KIND: &str = "workloads.timer";

/// The module.
#[derive(Debug, Default)]
pub struct WorkloadsModule;

impl Module for WorkloadsModule {
    fn name(&self) -> &'static str {
        "workloads"
    }

    fn requires(&self) -> &[&'static str] {
        &["inventory", "capacity", "commands"]
    }

    fn tables(&self) -> Vec<Declared> {
        use records::{ANNOUNCED, INSTANCES, VERSIONS, WORKLOADS};
        vec![WORKLOADS.declared(), VERSIONS.declared(), INSTANCES.declared(), ANNOUNCED.declared()]
    }

    fn kept(&self) -> Vec<Kept> {
        use records::{INSTANCES, VERSIONS, WORKLOADS};
        vec![WORKLOADS.kept(), VERSIONS.kept(), INSTANCES.kept()]
    }

    fn methods(&self) -> Vec<Method> {
        methods::all()
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(reconcile::Reconcile), Arc::new(reconcile::Timer), Arc::new(nodes::NodeWatch)]
    }

    fn command_kinds(&self) -> Vec<CommandKind> {
        vec![methods::signal_kind()]
    }

    fn node_spec(&self, cx: &Context, view: &View, node: &Node) -> Result<NodeSpecPart> {
        contribution::of(cx, view, &node.id)
    }

    fn secret_users(&self, tx: &mut Tx, tenant: &str, secret: &SecretRef) -> Result<SecretUsers> {
        secrets::users(tx, tenant, secret)
    }

    fn status_handlers(&self) -> Vec<StatusHandler> {
        vec![StatusHandler { name: "workloads", handle: Arc::new(report::take_in) }]
    }

    fn self_check(&self, cx: &Context, view: &View) -> Result<Vec<Finding>> {
        let nodes = cx.ports.nodes.get()?.list(view)?;
        let left_out = contribution::left_out(cx, view, &nodes)?;
        if left_out.is_empty() {
            return Ok(vec![]);
        }
        Ok(vec![Finding {
            check: "workloads.node-spec".to_owned(),
            severity: Severity::Error,
            message: format!(
                "instances do not run because the specs of their nodes are full: {}",
                left_out.iter().take(10).cloned().collect::<Vec<_>>().join(", ")
            ),
            fix: "make task.files and task.env smaller, or spread the workload over more nodes"
                .to_owned(),
            count: u64::try_from(left_out.len()).ok(),
        }])
    }

    fn tenants_in_use(&self, view: &View) -> Result<BTreeSet<String>> {
        tenancy::in_use(view)
    }

    fn tenant_deleted(&self, _cx: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
        tenancy::removed(tx, tenant)
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec![
                "compute:workloads:read",
                "compute:workloads:write",
                "compute:workloads:scale",
                "compute:workloads:remove",
                "compute:instances:read",
                "compute:instances:logs",
                "compute:instances:signal",
            ],
            resource_types: vec!["workload", "instance"],
        }
    }
}

/// Has the specs of all nodes that hold instances of a workload merged anew.
fn invalidate_all(tx: &mut Tx, rows: &[records::InstanceRow]) -> Result<()> {
    rows.iter().filter_map(records::InstanceRow::node).try_for_each(|node| invalidate(tx, node))
}
