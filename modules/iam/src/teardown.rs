//! Who is in a tenant: for the migration that makes tenants, and for the teardown of one.

use std::collections::BTreeSet;

use palisade_contract::{
    Result, Sweep,
    tenants::{rows_of, sweep},
};
use palisade_state::{Tx, View};

use crate::records::{API_TOKENS, PRINCIPALS, ROLE_BINDINGS, TOKEN_USES};

type Step = fn(&mut Tx, &str) -> Result<Sweep>;

/// One step for each table whose records are in a tenant. A table that is added has its line here: a test of the root
/// package finds what a torn-down tenant left.
const STEPS: [Step; 3] = [
    tokens,
    |tx, tenant| sweep(tx, &ROLE_BINDINGS, |row| row.tenant == tenant),
    |tx, tenant| sweep(tx, &PRINCIPALS, |row| row.tenant == tenant),
];

fn tokens(tx: &mut Tx, tenant: &str) -> Result<Sweep> {
    let (ids, left) = rows_of(tx.view(), &API_TOKENS, |row| row.tenant == tenant)?;
    for id in &ids {
        tx.delete(&API_TOKENS, id)?;
        tx.delete(&TOKEN_USES, id)?;
    }
    Ok(left)
}

/// Removes what there is of a deleted tenant. Principals of the cluster lose their roles in it and stay.
pub(crate) fn removed(tx: &mut Tx, tenant: &str) -> Result<Sweep> {
    STEPS.iter().try_fold(Sweep::Done, |left, step| Ok(left.and(step(tx, tenant)?)))
}

/// The tenants in which anybody is.
pub(crate) fn in_use(view: &View) -> Result<BTreeSet<String>> {
    let tokens = API_TOKENS.all(view)?.into_iter().map(|(_, row)| row.value.tenant);
    let bound = ROLE_BINDINGS.all(view)?.into_iter().map(|(_, row)| row.value.tenant);
    let people = PRINCIPALS.all(view)?.into_iter().map(|(_, row)| row.value.tenant);
    Ok(tokens.chain(bound).chain(people).filter(|tenant| !tenant.is_empty()).collect())
}
