//! Reading workloads.

use palisade_contract::{MethodContext, Result};
use palisade_state::View;

use super::{ListWorkloads, OneWorkload};
use crate::{
    lookup::{self, instances_of},
    records::WORKLOADS,
    shown::{self, WorkloadRecord},
};

pub(super) fn list(
    cx: &MethodContext,
    view: &View,
    input: ListWorkloads,
) -> Result<Vec<WorkloadRecord>> {
    let mut rows = WORKLOADS.all(view)?;
    rows.retain(|(_, row)| {
        let spec = &row.value.spec;
        input.tenant.as_ref().is_none_or(|tenant| *tenant == spec.tenant)
            && input.pool.as_ref().is_none_or(|pool| *pool == spec.pool)
    });
    rows.into_iter()
        .map(|(_, row)| {
            let instances = instances_of(view, &row.value.id)?;
            shown::workload(&cx.context, view, &row.value, &instances, row.stamp.modified_rev)
        })
        .collect()
}

pub(super) fn get(cx: &MethodContext, view: &View, input: OneWorkload) -> Result<WorkloadRecord> {
    let found = lookup::workload(view, &input.workload, input.tenant.as_ref())?;
    let instances = instances_of(view, &found.value.id)?;
    shown::workload(&cx.context, view, &found.value, &instances, found.stamp.modified_rev)
}
