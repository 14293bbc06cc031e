//! `workloads.apply`, and what all changes of a spec share.

use palisade_contract::{Code, Error, MethodContext, Problems, Result, WorkloadId};
use palisade_state::{Tx, Versioned};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::plan::{self, Plan};
use crate::{
    RECONCILE_KIND, invalidate_all,
    lookup::{self, instances_of},
    records::{BY_NAME, InstanceRow, VERSIONS, VersionRow, WORKLOADS, WorkloadRow, version_key},
    secrets,
    shown::{self, WorkloadRecord},
    spec::Spec,
    tenancy,
};

/// Specs of a workload that are kept beside those that instances still have.
const VERSIONS_MAX: usize = 50;

/// Bytes of one spec.
const SPEC_BYTES_MAX: usize = 128 * 1024;

/// What a call did to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// It is new.
    Created,
    /// It has a new spec, or is restarted or removed.
    Updated,
    /// It was like that already; nothing was written.
    Unchanged,
}

/// The answer of the methods that change a workload.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// The workload.
    #[serde(flatten)]
    pub workload: WorkloadRecord,
    /// What the call did to it.
    pub change: Change,
    /// What that does to its instances.
    pub plan: Plan,
}

pub(super) fn apply(cx: &MethodContext, tx: &mut Tx, mut spec: Spec) -> Result<Applied> {
    let mut problems = Problems::default();
    cx.context.ports.capacity.get()?.check(&spec.resources, "/resources", &mut problems);
    secrets::require(&cx.context, tx, &spec, &mut problems)?;
    let path = spec.workload.take();
    let found = find(tx, &spec)?;
    let is_named = |path: &String| {
        *path == spec.name || found.as_ref().is_some_and(|row| row.value.id.as_str() == path)
    };
    if path.is_some_and(|path| !is_named(&path)) {
        problems.add("/name", "must be the name in the path of the request");
    }
    let bytes = serde_json::to_vec(&spec).map_or(0, |bytes| bytes.len());
    if bytes > SPEC_BYTES_MAX {
        let message = format!("the spec has {bytes} bytes, the limit is {SPEC_BYTES_MAX}");
        problems.add("", message);
    }
    problems.into_result()?;
    match found {
        Some(found) => accept(cx, tx, &found, spec, "apply"),
        None => create(cx, tx, spec),
    }
}

fn find(tx: &mut Tx, spec: &Spec) -> Result<Option<Versioned<WorkloadRow>>> {
    // Read through the transaction, so that two who make one of the same name conflict.
    let ids: Vec<String> = tx
        .by_index(&WORKLOADS, BY_NAME, &spec.name)?
        .into_iter()
        .filter(|(_, row)| row.spec.tenant == spec.tenant)
        .map(|(id, _)| id)
        .collect();
    match ids.first() {
        Some(id) => Ok(tx.get_versioned(&WORKLOADS, id)?),
        None => Ok(None),
    }
}

fn create(cx: &MethodContext, tx: &mut Tx, spec: Spec) -> Result<Applied> {
    cx.check_if_match(0)?;
    let now_ms = tx.view().clock().wall_ms;
    let row = WorkloadRow {
        id: WorkloadId::mint(&*cx.context.rt),
        spec,
        version: 1,
        template_version: 1,
        restarts: 0,
        created_at_ms: now_ms,
        updated_at_ms: now_ms,
        removing: false,
    };
    tenancy::ask(&cx.context, tx, &row)?;
    write(cx, tx, &row, Change::Created, "apply")?;
    answer(cx, tx, None, &row, &[], (Change::Created, 0))
}

/// Makes `spec` the newest of a workload, unless it is already.
pub(super) fn accept(
    cx: &MethodContext,
    tx: &mut Tx,
    found: &Versioned<WorkloadRow>,
    spec: Spec,
    reason: &str,
) -> Result<Applied> {
    let before = changeable(cx, found)?;
    let rows = instances_of(tx.view(), &before.id)?;
    if before.spec == spec {
        let revision = found.stamp.modified_rev;
        return answer(cx, tx, Some(before), before, &rows, (Change::Unchanged, revision));
    }
    let version = before.version + 1;
    let same = before.spec.same_template(&spec);
    let after = WorkloadRow {
        version,
        template_version: if same { before.template_version } else { version },
        updated_at_ms: tx.view().clock().wall_ms,
        spec,
        ..before.clone()
    };
    tenancy::ask(&cx.context, tx, &after)?;
    write(cx, tx, &after, Change::Updated, reason)?;
    trim(tx, &after, &rows)?;
    if before.is_up() != after.is_up() {
        invalidate_all(tx, &rows)?;
    }
    answer(cx, tx, Some(before), &after, &rows, (Change::Updated, 0))
}

/// The workload, when it may be changed at all and is at the revision that `If-Match` names.
pub(super) fn changeable<'a>(
    cx: &MethodContext,
    found: &'a Versioned<WorkloadRow>,
) -> Result<&'a WorkloadRow> {
    cx.check_if_match(found.stamp.modified_rev)?;
    if found.value.removing {
        return Err(Error::new(
            Code::InvalidState,
            format!("workload {} is being removed", found.value.spec.name),
        )
        .hint("wait until `palisade workload ls` no longer shows it, then apply it anew"));
    }
    Ok(&found.value)
}

/// Writes a workload and its newest version, and wakes its reconciler.
fn write(
    cx: &MethodContext,
    tx: &mut Tx,
    row: &WorkloadRow,
    change: Change,
    reason: &str,
) -> Result<()> {
    let version = VersionRow {
        spec: row.spec.clone(),
        reason: reason.to_owned(),
        by: cx.principal.name.clone(),
        at_ms: row.updated_at_ms,
    };
    tx.put(&VERSIONS, &version_key(&row.id, row.version), &version)?;
    store(tx, row, change, reason)
}

/// Writes a workload and wakes its reconciler.
pub(crate) fn store(tx: &mut Tx, row: &WorkloadRow, change: Change, reason: &str) -> Result<()> {
    tx.put(&WORKLOADS, &row.id.key(), row)?;
    tx.enqueue(RECONCILE_KIND, row.id.as_str())?;
    let data = json!({
        "workload": row.id, "name": row.spec.name, "version": row.version, "change": change,
        "reason": reason, "count": row.spec.count, "wanted": row.spec.wanted,
    });
    tx.publish("workload.applied", &row.spec.tenant, format!("workload/{}", row.id), &data);
    Ok(())
}

/// Forgets versions that are neither among the newest nor any instance's.
fn trim(tx: &mut Tx, row: &WorkloadRow, rows: &[InstanceRow]) -> Result<()> {
    let prefix = format!("{}/", row.id);
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in tx.scan(&VERSIONS, prefix.as_bytes())? {
        keys.push(key);
    }
    let extra = keys.len().saturating_sub(VERSIONS_MAX);
    for key in keys.iter().take(extra) {
        let is_used = |i: &InstanceRow| version_key(&row.id, i.version) == *key;
        if !rows.iter().any(is_used) {
            tx.delete(&VERSIONS, key)?;
        }
    }
    Ok(())
}

/// The answer to a change.
pub(super) fn answer(
    cx: &MethodContext,
    tx: &Tx,
    before: Option<&WorkloadRow>,
    after: &WorkloadRow,
    rows: &[InstanceRow],
    (change, revision): (Change, u64),
) -> Result<Applied> {
    let plan = plan::of(&cx.context, tx.view(), before, after, rows)?;
    let workload = shown::workload(&cx.context, tx.view(), after, rows, revision)?;
    Ok(Applied { workload, change, plan })
}

/// A workload by id or name, as part of what the transaction has read.
pub(super) fn named(
    tx: &mut Tx,
    workload: &str,
    tenant: Option<&String>,
) -> Result<Versioned<WorkloadRow>> {
    lookup::workload_in(tx, workload, tenant)
}
