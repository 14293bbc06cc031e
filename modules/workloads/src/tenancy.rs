//! Workloads of tenants: what they take of the quotas, and how they go with their tenant.

use std::collections::BTreeSet;

use palisade_contract::{
    Context, Problems, Result, Sweep, WorkloadId,
    tenants::{Amounts, Charging, rows_of},
};
use palisade_scheduler::placement::cpumem;
use palisade_state::{Tx, View};

use crate::{
    invalidate_all,
    lookup::instances_of,
    methods::{Change, store},
    records::{WORKLOADS, WorkloadRow},
};

fn subject(workload: &WorkloadId) -> String {
    format!("workload/{workload}")
}

/// What a workload takes: itself, and as many instances as are wanted, whether they run or not. Instances above that
/// while an update lasts are not counted.
pub(crate) fn amounts(workload: &WorkloadRow) -> Amounts {
    // The resources were checked when they were applied.
    let need = cpumem::resources(&workload.spec.resources, "", &mut Problems::default()).need();
    let instances = u64::from(workload.spec.count);
    Amounts {
        workloads: 1,
        instances,
        cpu_milli: need.cpu_milli.saturating_mul(instances),
        memory_bytes: need.memory_bytes.saturating_mul(instances),
    }
}

/// Charges what somebody asks for, in a tenant in which something may be made.
pub(crate) fn ask(cx: &Context, tx: &mut Tx, workload: &WorkloadRow) -> Result<()> {
    let tenant = &workload.spec.tenant;
    cx.ports.tenant_open(tx, tenant)?;
    cx.ports.charge(tx, tenant, &subject(&workload.id), amounts(workload), Charging::Asked)
}

/// Charges what is there already: a replica of an earlier version charged nothing.
pub(crate) fn settle(cx: &Context, tx: &mut Tx, workload: &WorkloadRow) -> Result<()> {
    let (tenant, subject) = (&workload.spec.tenant, subject(&workload.id));
    cx.ports.charge(tx, tenant, &subject, amounts(workload), Charging::Settled)
}

/// Gives back what a workload took that is no more.
pub(crate) fn release(cx: &Context, tx: &mut Tx, workload: &WorkloadRow) -> Result<()> {
    let (tenant, subject) = (&workload.spec.tenant, subject(&workload.id));
    cx.ports.charge(tx, tenant, &subject, Amounts::default(), Charging::Settled)
}

/// The tenants of all workloads.
pub(crate) fn in_use(view: &View) -> Result<BTreeSet<String>> {
    let all = WORKLOADS.all(view)?.into_iter();
    Ok(all.map(|(_, row)| row.value.spec.tenant).filter(|tenant| !tenant.is_empty()).collect())
}

/// Removes workloads of a deleted tenant as their own people would: agents stop the instances, and only then the records go.
pub(crate) fn removed(tx: &mut Tx, tenant: &str) -> Result<Sweep> {
    let view = tx.view().clone();
    let is_to_go = |row: &WorkloadRow| row.spec.tenant == tenant && !row.removing;
    let (ids, _) = rows_of(&view, &WORKLOADS, is_to_go)?;
    for id in &ids {
        let Some(row) = tx.get(&WORKLOADS, id)? else { continue };
        invalidate_all(tx, &instances_of(&view, &row.id)?)?;
        let row = WorkloadRow { removing: true, ..row };
        store(tx, &row, Change::Updated, "tenant deleted")?;
    }
    let (left, _) = rows_of(&view, &WORKLOADS, |row| row.spec.tenant == tenant)?;
    Ok(if left.is_empty() { Sweep::Done } else { Sweep::Again })
}
