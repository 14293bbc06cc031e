//! What other modules and the envelope ask of tenants.
//!
//! # Invariants
//! - `TEN-9` Who acts by a right that he holds in a tenant writes nothing while it is not active, and
//! - `TEN-3` nothing is made in a tenant that is being deleted, was, or never was: the tenant's row is part of what the
//!   transaction has read, so that one which was built before the tenant changed is not applied after.

use palisade_contract::{
    Code, Error, Result,
    tenants::{Amounts, Charging, Tenants},
};
use palisade_state::Tx;

use crate::{
    quota,
    records::{State, TENANTS, TenantRow},
};

/// What fills `ports.tenants`.
pub(crate) struct Port;

impl Tenants for Port {
    fn open(&self, tx: &mut Tx, tenant: &str) -> Result<()> {
        is_open(&known(tx, tenant)?)
    }

    fn writable(&self, tx: &mut Tx, tenant: &str) -> Result<()> {
        let row = known(tx, tenant)?;
        is_open(&row)?;
        let Some(suspended) = row.suspended.filter(|_| row.state == State::Suspended) else {
            return Ok(());
        };
        let why = if suspended.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", suspended.reason)
        };
        Err(Error::new(Code::InvalidState, format!("tenant {tenant} is suspended{why}")).hint(
            format!(
                "what it has goes on, and can be read; a cluster-admin lets its people change it again: \
                 `palisade tenant resume {tenant}`"
            ),
        ))
    }

    fn charge(
        &self,
        tx: &mut Tx,
        tenant: &str,
        subject: &str,
        amounts: Amounts,
        how: Charging,
    ) -> Result<()> {
        quota::charge(tx, tenant, subject, amounts, how)
    }
}

fn known(tx: &mut Tx, tenant: &str) -> Result<TenantRow> {
    tx.get(&TENANTS, &tenant.to_owned())?.ok_or_else(|| unknown(tenant))
}

/// The refusal of a name that is no tenant's, to whoever would look at one or change it.
pub(crate) fn not_found(tenant: &str) -> Error {
    Error::not_found("tenant", tenant).hint("`palisade tenant ls` shows all that you may see")
}

/// The same, to whoever would make something in it.
pub(crate) fn unknown(tenant: &str) -> Error {
    Error::not_found("tenant", tenant).hint(format!(
        "`palisade tenant ls` shows all that you may see; a cluster-admin makes one: `palisade tenant create {tenant}`"
    ))
}

fn is_open(row: &TenantRow) -> Result<()> {
    let name = &row.name;
    match row.state {
        State::Active | State::Suspended => Ok(()),
        State::Deleting => Err(Error::new(
            Code::InvalidState,
            format!("tenant {name} is being deleted"),
        )
        .hint(format!(
            "nothing is made in it any more; `palisade tenant show {name}` says what is left of it"
        ))),
        State::Deleted => Err(Error::new(Code::InvalidState, format!("tenant {name} was deleted"))
            .hint("its name is not used again: make a tenant of another name")),
    }
}
