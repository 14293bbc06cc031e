//! Reading workloads.

use palisade_contract::{MethodContext, Result, method::Records};
use palisade_state::{Versioned, View};

use super::{ListWorkloads, OneWorkload};
use crate::{
    lookup::{self, instances_of},
    records::{WORKLOADS, WorkloadRow},
    shown::{self, WorkloadRecord},
    spec::Spec,
};

pub(super) fn list<'a>(
    cx: &'a MethodContext,
    view: &'a View,
    input: ListWorkloads,
    after: &str,
) -> Result<Records<'a, WorkloadRecord>> {
    let wanted = move |spec: &Spec| {
        input.tenant.as_ref().is_none_or(|tenant| *tenant == spec.tenant)
            && input.pool.as_ref().is_none_or(|pool| *pool == spec.pool)
    };
    let shown = |row: &Versioned<WorkloadRow>| {
        let instances = instances_of(view, &row.value.id)?;
        shown::workload(&cx.context, view, &row.value, &instances, row.stamp.modified_rev)
    };
    Ok(Box::new(WORKLOADS.behind(view, after).filter_map(move |row| match row {
        Ok((_, row)) => wanted(&row.value.spec).then(|| shown(&row)),
        Err(corrupt) => Some(Err(corrupt.into())),
    })))
}

pub(super) fn get(cx: &MethodContext, view: &View, input: OneWorkload) -> Result<WorkloadRecord> {
    let found = lookup::workload(view, &input.workload, input.tenant.as_ref())?;
    let instances = instances_of(view, &found.value.id)?;
    shown::workload(&cx.context, view, &found.value, &instances, found.stamp.modified_rev)
}
