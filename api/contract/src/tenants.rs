//! Tenants as modules see them: whether something may be made in one, what it takes of the quotas, and how what a deleted
//! one had is removed.

use palisade_state::{Table, Tx, View, key::Key};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    context::Principal,
    error::Result,
    method::Resource,
    module::Sweep,
    ports::{Access, Ports},
};

/// Rows of a kind that one call of [`crate::Module::tenant_deleted`] removes at most.
pub const SWEEP_MAX: usize = 100;

/// What something takes of a tenant's quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Amounts {
    /// Workloads.
    pub workloads: u64,
    /// Instances, as many as are wanted.
    pub instances: u64,
    /// Thousandths of a thread.
    pub cpu_milli: u64,
    /// Bytes.
    pub memory_bytes: u64,
}

/// Whether a charge may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charging {
    /// Somebody asks for it: refused when a quota that it takes more of than before would be exceeded.
    Asked,
    /// It is there already: noted whatever the quotas are.
    Settled,
}

/// Tenants, their states and their quotas. The empty name is the cluster, which is no tenant: nobody asks about it here.
pub trait Tenants: Send + Sync {
    /// Whether something may be made in a tenant, as part of what the transaction has read.
    ///
    /// # Errors
    /// `NOT_FOUND`: there is no such tenant. `INVALID_STATE`: it is being deleted, or was.
    fn open(&self, tx: &mut Tx, tenant: &str) -> Result<()>;

    /// Whether somebody who is bound to a tenant may write anything, as part of what the transaction has read.
    ///
    /// # Errors
    /// As [`Tenants::open`]; `INVALID_STATE` also while it is suspended.
    fn writable(&self, tx: &mut Tx, tenant: &str) -> Result<()>;

    /// Makes `amounts` what `subject` (`workload/<id>`) takes of a tenant's quotas; nothing: it takes no more.
    ///
    /// # Errors
    /// `QUOTA_EXCEEDED`, with each quota, what is used, asked for and allowed.
    fn charge(
        &self,
        tx: &mut Tx,
        tenant: &str,
        subject: &str,
        amounts: Amounts,
        how: Charging,
    ) -> Result<()>;
}

impl Ports {
    /// See [`Tenants::open`]. In the cluster itself something may always be made, and in any tenant where no module
    /// knows tenants.
    ///
    /// # Errors
    /// As there.
    pub fn tenant_open(&self, tx: &mut Tx, tenant: &str) -> Result<()> {
        self.knower(tenant).map_or(Ok(()), |tenants| tenants.open(tx, tenant))
    }

    /// See [`Tenants::writable`].
    ///
    /// # Errors
    /// As there.
    pub fn tenant_writable(&self, tx: &mut Tx, tenant: &str) -> Result<()> {
        self.knower(tenant).map_or(Ok(()), |tenants| tenants.writable(tx, tenant))
    }

    /// See [`Tenants::charge`].
    ///
    /// # Errors
    /// As there.
    pub fn charge(
        &self,
        tx: &mut Tx,
        tenant: &str,
        subject: &str,
        amounts: Amounts,
        how: Charging,
    ) -> Result<()> {
        let knower = self.knower(tenant);
        knower.map_or(Ok(()), |tenants| tenants.charge(tx, tenant, subject, amounts, how))
    }

    fn knower(&self, tenant: &str) -> Option<&dyn Tenants> {
        if tenant.is_empty() { None } else { self.tenants.filled().map(|tenants| &**tenants) }
    }
}

/// The tenant that must let somebody write for a call to be made; empty: none, for he acts by a right that he does not
/// hold in one. Whoever is bound to a tenant acts by that one's leave, and whoever holds roles in several by that of the one
/// whose thing it is about.
#[must_use]
pub fn whose_leave(
    access: &dyn Access,
    view: &View,
    principal: &Principal,
    action: &str,
    on: &Resource,
) -> String {
    if !principal.tenant.is_empty() || on.tenant.is_empty() {
        return principal.tenant.clone();
    }
    let anywhere = Resource::cluster(&on.kind, &on.id);
    let is_of_the_cluster = access.authorize(view, principal, action, &anywhere).is_ok();
    if is_of_the_cluster { String::new() } else { on.tenant.clone() }
}

/// Deletes at most [`SWEEP_MAX`] rows of a table that are a deleted tenant's: what [`crate::Module::tenant_deleted`] does for
/// a table of which nothing else hangs. The rows are found in the view: once a tenant is being deleted none is added.
///
/// # Errors
/// A row cannot be read.
pub fn sweep<K, V>(tx: &mut Tx, table: &Table<K, V>, is_its: impl Fn(&V) -> bool) -> Result<Sweep>
where
    K: Key,
    V: Serialize + DeserializeOwned,
{
    let (keys, left) = rows_of(tx.view(), table, is_its)?;
    for key in keys {
        tx.delete(table, &key)?;
    }
    Ok(left)
}

/// The keys of at most [`SWEEP_MAX`] rows of a table that are a deleted tenant's, and whether there are more.
///
/// # Errors
/// A row cannot be read.
pub fn rows_of<K, V>(
    view: &View,
    table: &Table<K, V>,
    is_its: impl Fn(&V) -> bool,
) -> Result<(Vec<K>, Sweep)>
where
    K: Key,
    V: Serialize + DeserializeOwned,
{
    let mut keys = vec![];
    for found in table.page(view, &[], None) {
        let (key, row) = found?;
        if !is_its(&row.value) {
            continue;
        }
        if keys.len() == SWEEP_MAX {
            return Ok((keys, Sweep::Again));
        }
        keys.push(key);
    }
    Ok((keys, Sweep::Done))
}
