//! Tenants as REST shows them.

use std::collections::BTreeMap;

use palisade_contract::{Result, tenants::Amounts, time::rfc3339};
use palisade_state::View;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    quota,
    records::{Quotas, State, TEARDOWNS, TenantRow},
};

/// What a tenant may have; absent: as much as there is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaRecord {
    /// Workloads.
    pub workloads: Option<u64>,
    /// Instances, as workloads want them.
    pub instances: Option<u64>,
    /// Threads that their instances ask for.
    pub cpu: Option<f64>,
    /// Bytes of memory that their instances ask for.
    pub memory: Option<u64>,
}

/// What a tenant takes of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsedRecord {
    /// Workloads.
    pub workloads: u64,
    /// Instances, as workloads want them.
    pub instances: u64,
    /// Threads that their instances ask for.
    pub cpu: f64,
    /// Bytes of memory that their instances ask for.
    pub memory: u64,
}

/// Who suspended a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuspendedRecord {
    /// When.
    pub at: String,
    /// Who.
    pub by: String,
    /// Why; empty: it was not said.
    pub reason: String,
}

/// Who deleted a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeletedRecord {
    /// When.
    pub at: String,
    /// Who.
    pub by: String,
    /// When nothing was left of it; absent: something is.
    pub teardown_done_at: Option<String>,
    /// Modules that had something of it left when they were last asked.
    pub waiting: Vec<String>,
    /// What went wrong when they were, by module; shown to those who are bound to no tenant.
    pub failures: BTreeMap<String, String>,
}

/// A tenant as REST shows it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantRecord {
    /// Its name.
    pub name: String,
    /// `active`, `suspended`, `deleting` or `deleted`.
    pub state: State,
    /// What it may have.
    pub quotas: QuotaRecord,
    /// What it takes of it.
    pub used: UsedRecord,
    /// While it is suspended.
    pub suspended: Option<SuspendedRecord>,
    /// Once it was deleted.
    pub deleted: Option<DeletedRecord>,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: String,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision is the answer's. What it
    /// takes has no part in it.
    pub revision: u64,
}

/// What a tenant takes of each quota, and what is left.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageRecord {
    /// The tenant.
    pub tenant: String,
    /// Where it is in its life.
    pub state: State,
    /// What it takes.
    pub used: UsedRecord,
    /// What it may have.
    pub quotas: QuotaRecord,
    /// What it may still ask for; 0 also when it takes more than it may, as after a quota was lowered.
    pub left: QuotaRecord,
}

/// For people and other programs; nothing decides by it.
#[expect(clippy::cast_precision_loss, reason = "exact up to 9,000 billion threads")]
fn threads(milli: u64) -> f64 {
    milli as f64 / 1000.0
}

fn quotas(of: &Quotas) -> QuotaRecord {
    QuotaRecord {
        workloads: of.workloads,
        instances: of.instances,
        cpu: of.cpu_milli.map(threads),
        memory: of.memory_bytes,
    }
}

fn used(of: Amounts) -> UsedRecord {
    UsedRecord {
        workloads: of.workloads,
        instances: of.instances,
        cpu: threads(of.cpu_milli),
        memory: of.memory_bytes,
    }
}

/// A tenant with what it takes in a view. Failures of modules may tell of what is nobody's own.
pub(crate) fn tenant(
    view: &View,
    row: &TenantRow,
    with_failures: bool,
    revision: u64,
) -> Result<TenantRecord> {
    let teardown = TEARDOWNS.get(view, &row.name)?.map(|found| found.value).unwrap_or_default();
    let deleted = row.deleted.as_ref().map(|deleted| DeletedRecord {
        at: rfc3339(deleted.at_ms),
        by: deleted.by.clone(),
        teardown_done_at: row.teardown_done_at_ms.map(rfc3339),
        waiting: teardown.waiting,
        failures: if with_failures { teardown.failures } else { BTreeMap::new() },
    });
    Ok(TenantRecord {
        name: row.name.clone(),
        state: row.state,
        quotas: quotas(&row.quotas),
        used: used(quota::used(view, &row.name)?),
        suspended: row.suspended.as_ref().map(|suspended| SuspendedRecord {
            at: rfc3339(suspended.at_ms),
            by: suspended.by.clone(),
            reason: suspended.reason.clone(),
        }),
        deleted,
        created_by: row.created_by.clone(),
        created_at: rfc3339(row.created_at_ms),
        revision,
    })
}

/// What a tenant takes in a view, and what is left.
pub(crate) fn usage(view: &View, row: &TenantRow) -> Result<UsageRecord> {
    let takes = quota::used(view, &row.name)?;
    let left = |quota: Option<u64>, used: u64| quota.map(|quota| quota.saturating_sub(used));
    let Quotas { workloads, instances, cpu_milli, memory_bytes } = row.quotas;
    let left = Quotas {
        workloads: left(workloads, takes.workloads),
        instances: left(instances, takes.instances),
        cpu_milli: left(cpu_milli, takes.cpu_milli),
        memory_bytes: left(memory_bytes, takes.memory_bytes),
    };
    Ok(UsageRecord {
        tenant: row.name.clone(),
        state: row.state,
        used: used(takes),
        quotas: quotas(&row.quotas),
        left: quotas(&left),
    })
}
