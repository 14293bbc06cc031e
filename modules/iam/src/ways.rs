//! The ways in which the cluster can be administrated, and that one is left (`IAM-3`).
//!
//! Only tokens count: nobody knows whether a certificate that was made is still there.

use palisade_contract::{Code, Error, Result};
use palisade_state::{Tx, View};

use crate::{
    records::{API_TOKENS, PRINCIPALS, PrincipalRow, ROLE_BINDINGS, TokenRow, binding_id},
    roles::Role,
};

/// Logical milliseconds for which a token must still be valid to count as a way in that is left: in less nobody makes another.
const LIFE_MS_MIN: u64 = 60 * 60 * 1000;

/// The binding that makes a principal a cluster-admin.
fn admin_binding(principal: &str) -> String {
    binding_id(principal, Role::ClusterAdmin.word(), "")
}

/// The valid tokens whose holders may everything.
pub(crate) fn all(view: &View) -> Result<Vec<TokenRow>> {
    let now_ms = view.clock().now_ms;
    let mut found = vec![];
    for (_, token) in API_TOKENS.all(view)? {
        let token = token.value;
        let principal = PRINCIPALS.get(view, &token.principal)?.map(|of| of.value);
        let is_bound = ROLE_BINDINGS.get(view, &admin_binding(&token.principal))?.is_some();
        if token.is_valid(now_ms) && administrates(&token, principal, is_bound) {
            found.push(token);
        }
    }
    Ok(found)
}

fn administrates(token: &TokenRow, of: Option<PrincipalRow>, is_bound: bool) -> bool {
    if token.principal.is_empty() {
        return token.is_cluster_admin();
    }
    of.is_some_and(|of| !of.disabled && (is_bound || of.is_cluster_admin()))
}

/// Whether a principal may everything, whether it is let in or not, as the transaction has left it.
pub(crate) fn is_admin(tx: &mut Tx, row: &PrincipalRow) -> Result<bool> {
    Ok(row.is_cluster_admin() || tx.get(&ROLE_BINDINGS, &admin_binding(&row.name))?.is_some())
}

/// Whether a token is a way in, and still is one after so many logical milliseconds, as the transaction has left everything.
pub(crate) fn is_one(tx: &mut Tx, token: &TokenRow, life_ms: u64) -> Result<bool> {
    if !token.is_valid(tx.view().clock().now_ms.saturating_add(life_ms)) {
        return Ok(false);
    }
    let (mut of, mut is_bound) = (None, false);
    if !token.principal.is_empty() {
        of = tx.get(&PRINCIPALS, &token.principal)?;
        is_bound = tx.get(&ROLE_BINDINGS, &admin_binding(&token.principal))?.is_some();
    }
    Ok(administrates(token, of, is_bound))
}

/// Refuses a transaction that has taken the last way in. `what` is what it takes. Everything that is looked at is part of
/// what the kernel checks, so that two changes at once cannot each count on what the other takes.
pub(crate) fn keep_one(tx: &mut Tx, what: &str) -> Result<()> {
    for (_, token) in tx.scan(&API_TOKENS, &[])? {
        if is_one(tx, &token, LIFE_MS_MIN)? {
            return Ok(());
        }
    }
    let detail = format!(
        "{what} is the last way in for whoever administrates the cluster: without it nobody could make another"
    );
    Err(Error::new(Code::InvalidState, detail)
        .hint(
            "make a new one first: `palisade api-token create NAME --role cluster-admin`; one that ends within an hour does not count",
        ))
}
