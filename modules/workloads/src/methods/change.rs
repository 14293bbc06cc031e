//! The methods that change one thing about a workload.

use palisade_contract::{MethodContext, Result, node::Wanted};
use palisade_state::Tx;

use super::{
    OneWorkload, Scale,
    apply::{Applied, Change, accept, answer, changeable, named, store},
};
use crate::{invalidate_all, lookup::instances_of, records::WorkloadRow};

pub(super) fn scale(cx: &MethodContext, tx: &mut Tx, input: Scale) -> Result<Applied> {
    let found = named(tx, &input.workload, input.tenant.as_ref())?;
    let mut spec = found.value.spec.clone();
    spec.count = input.count;
    accept(cx, tx, &found, spec, "scale")
}

pub(super) fn start(cx: &MethodContext, tx: &mut Tx, input: OneWorkload) -> Result<Applied> {
    want(cx, tx, &input, Wanted::Up, "start")
}

pub(super) fn stop(cx: &MethodContext, tx: &mut Tx, input: OneWorkload) -> Result<Applied> {
    want(cx, tx, &input, Wanted::Offline, "stop")
}

fn want(
    cx: &MethodContext,
    tx: &mut Tx,
    input: &OneWorkload,
    wanted: Wanted,
    reason: &str,
) -> Result<Applied> {
    let found = named(tx, &input.workload, input.tenant.as_ref())?;
    let mut spec = found.value.spec.clone();
    spec.wanted = wanted;
    accept(cx, tx, &found, spec, reason)
}

pub(super) fn restart(cx: &MethodContext, tx: &mut Tx, input: OneWorkload) -> Result<Applied> {
    let found = named(tx, &input.workload, input.tenant.as_ref())?;
    let before = changeable(cx, &found)?;
    let rows = instances_of(tx.view(), &before.id)?;
    let after = WorkloadRow { restarts: before.restarts + 1, ..before.clone() };
    store(tx, &after, Change::Updated, "restart")?;
    answer(cx, tx, Some(before), &after, &rows, (Change::Updated, 0))
}

pub(super) fn remove(cx: &MethodContext, tx: &mut Tx, input: OneWorkload) -> Result<Applied> {
    let found = named(tx, &input.workload, input.tenant.as_ref())?;
    cx.check_if_match(found.stamp.modified_rev)?;
    let before = &found.value;
    let rows = instances_of(tx.view(), &before.id)?;
    if before.removing {
        let revision = found.stamp.modified_rev;
        return answer(cx, tx, Some(before), before, &rows, (Change::Unchanged, revision));
    }
    let after = WorkloadRow { removing: true, ..before.clone() };
    store(tx, &after, Change::Updated, "remove")?;
    invalidate_all(tx, &rows)?;
    answer(cx, tx, Some(before), &after, &rows, (Change::Updated, 0))
}
