//! Finding workloads and instances by id or name.

use palisade_contract::{Code, Error, InstanceId, Result, WorkloadId};
use palisade_state::{Tx, Versioned, View};

use crate::records::{BY_NAME, BY_WORKLOAD, INSTANCES, InstanceRow, WORKLOADS, WorkloadRow};

fn one<V>(what: &str, name: &str, mut found: Vec<V>) -> Result<V> {
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(Error::not_found(what, name)
            .hint(format!("`palisade {what} ls` shows all {what}s that you may see"))),
        (Some(_), false) => Err(Error::new(
            Code::Conflict,
            format!("there is more than one {what} {name:?}, of several tenants"),
        )
        .hint("name the tenant, or use the id")),
    }
}

fn within(tenant: Option<&String>, of: &str) -> bool {
    tenant.is_none_or(|tenant| tenant == of)
}

/// A workload by id or name, of a tenant or of any.
///
/// # Errors
/// `NOT_FOUND`; `CONFLICT` when several tenants have one of this name.
pub fn workload(
    view: &View,
    id_or_name: &str,
    tenant: Option<&String>,
) -> Result<Versioned<WorkloadRow>> {
    let found = match WorkloadId::parse(id_or_name) {
        Some(id) => WORKLOADS.get(view, &id.key())?.into_iter().collect(),
        None => WORKLOADS.by_index(view, BY_NAME, id_or_name)?.into_iter().map(|f| f.1).collect(),
    };
    let found: Vec<Versioned<WorkloadRow>> = found;
    let found = found.into_iter().filter(|row| within(tenant, &row.value.spec.tenant)).collect();
    one("workload", id_or_name, found)
}

/// As [`workload`], as part of what a transaction has read.
///
/// # Errors
/// As [`workload`].
pub fn workload_in(
    tx: &mut Tx,
    id_or_name: &str,
    tenant: Option<&String>,
) -> Result<Versioned<WorkloadRow>> {
    let id = workload(tx.view(), id_or_name, tenant)?.value.id;
    tx.get_versioned(&WORKLOADS, &id.key())?.ok_or_else(|| Error::not_found("workload", id_or_name))
}

/// An instance by id or name, of a tenant or of any.
///
/// # Errors
/// `NOT_FOUND`; `CONFLICT` when several tenants have one of this name.
pub fn instance(
    view: &View,
    id_or_name: &str,
    tenant: Option<&String>,
) -> Result<Versioned<InstanceRow>> {
    let found: Vec<Versioned<InstanceRow>> = match InstanceId::parse(id_or_name) {
        Some(id) => INSTANCES.get(view, &id.key())?.into_iter().collect(),
        None => INSTANCES.by_index(view, BY_NAME, id_or_name)?.into_iter().map(|f| f.1).collect(),
    };
    let found = found.into_iter().filter(|row| within(tenant, &row.value.tenant)).collect();
    one("instance", id_or_name, found)
}

/// The instances of a workload by number. Not part of what a transaction has read: those that it
/// writes join it when they are written.
///
/// # Errors
/// A record cannot be read.
pub fn instances_of(view: &View, workload: &WorkloadId) -> Result<Vec<InstanceRow>> {
    let found = INSTANCES.by_index(view, BY_WORKLOAD, workload.as_str())?;
    let mut rows: Vec<InstanceRow> = found.into_iter().map(|(_, row)| row.value).collect();
    rows.sort_by(|a, b| a.number.cmp(&b.number).then(a.id.cmp(&b.id)));
    Ok(rows)
}
