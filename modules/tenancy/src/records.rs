//! What is stored of tenants: who they are, what they may have, what they take, and how far a teardown is.

use std::collections::BTreeMap;

use palisade_contract::tenants::Amounts;
use palisade_state::Table;
use serde::{Deserialize, Serialize};

/// Where a tenant is in its life.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its people act in it.
    Active,
    /// Its people only read; what it has goes on.
    Suspended,
    /// What it has is being removed.
    Deleting,
    /// Nothing is left of it but its name, which is never used again.
    Deleted,
}

/// What a tenant may have; absent: as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Quotas {
    /// Workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads: Option<u64>,
    /// Instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instances: Option<u64>,
    /// Thousandths of a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_milli: Option<u64>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// Who suspended a tenant, when and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Suspension {
    /// Who.
    pub by: String,
    /// Why, in their words.
    #[serde(default)]
    pub reason: String,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
}

/// Who deleted a tenant, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Deletion {
    /// Who.
    pub by: String,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
    /// Logical milliseconds.
    pub at_logical_ms: u64,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TenantRow {
    /// Its name.
    pub name: String,
    /// Where it is in its life.
    pub state: State,
    /// What it may have.
    #[serde(default)]
    pub quotas: Quotas,
    /// Who made it.
    #[serde(default)]
    pub created_by: String,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
    /// While it is suspended.
    #[serde(default)]
    pub suspended: Option<Suspension>,
    /// Since it is being deleted.
    #[serde(default)]
    pub deleted: Option<Deletion>,
    /// Wall-clock milliseconds at which nothing was left of it.
    #[serde(default)]
    pub teardown_done_at_ms: Option<u64>,
}

impl TenantRow {
    /// One that is active and may have as much as there is.
    pub fn new(name: &str, by: &str, at_ms: u64) -> Self {
        Self {
            name: name.to_owned(),
            state: State::Active,
            quotas: Quotas::default(),
            created_by: by.to_owned(),
            created_at_ms: at_ms,
            suspended: None,
            deleted: None,
            teardown_done_at_ms: None,
        }
    }
}

/// What a tenant takes of its quotas in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct UsageRow {
    /// The sum of its charges.
    pub used: Amounts,
}

/// What one thing takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ChargeRow {
    /// So much.
    pub amounts: Amounts,
}

/// How far a teardown is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TeardownRow {
    /// Modules that had something left when they were last asked.
    pub waiting: Vec<String>,
    /// What went wrong, by module, when they were last asked.
    pub failures: BTreeMap<String, String>,
}

/// Tenants by name.
pub(crate) const TENANTS: Table<String, TenantRow> = Table::new("tenants", &[]);

/// What each tenant takes, by its name. Apart from the tenant, whose revision is the operators'.
pub(crate) const USAGE: Table<String, UsageRow> = Table::new("tenant_usage", &[]);

/// What each thing takes, by [`charge_key`].
pub(crate) const CHARGES: Table<String, ChargeRow> = Table::new("tenant_charges", &[]);

/// Teardowns that are not done, by tenant.
pub(crate) const TEARDOWNS: Table<String, TeardownRow> = Table::new("tenant_teardowns", &[]);

/// The key of what a thing of a tenant takes. No tenant's name has a slash in it.
pub(crate) fn charge_key(tenant: &str, subject: &str) -> String {
    format!("{tenant}/{subject}")
}
