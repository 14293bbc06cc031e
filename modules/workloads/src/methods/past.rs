//! What became of workloads and instances.

use futures::future::BoxFuture;
use palisade_contract::{
    MethodContext, Result,
    changes::{Changes, Subject},
};
use palisade_state::View;

use super::{OneInstance, OneWorkload};
use crate::records::{INSTANCES, InstanceRow, WORKLOADS, WorkloadRow};

pub(super) fn workload(
    cx: MethodContext,
    _: View,
    input: OneWorkload,
) -> BoxFuture<'static, Result<Changes>> {
    let subject = Subject::<WorkloadRow> {
        kind: "workload",
        id: |row| row.id.key(),
        name: |row| row.spec.name.clone(),
        tenant: |row| row.spec.tenant.clone(),
    };
    Box::pin(async move { subject.changes(&cx, &WORKLOADS, &input.workload, input.tenant).await })
}

pub(super) fn instance(
    cx: MethodContext,
    _: View,
    input: OneInstance,
) -> BoxFuture<'static, Result<Changes>> {
    let subject = Subject::<InstanceRow> {
        kind: "instance",
        id: |row| row.id.key(),
        name: |row| row.name.clone(),
        tenant: |row| row.tenant.clone(),
    };
    Box::pin(async move { subject.changes(&cx, &INSTANCES, &input.instance, input.tenant).await })
}
