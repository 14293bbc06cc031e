//! The port `access`: whose a credential is, and what its principal may do.

use palisade_contract::{Code, Error, Principal, Resource, Result, ports::Credential};
use palisade_state::View;
use subtle::ConstantTimeEq;

use crate::{
    records::{API_TOKENS, PRINCIPALS, parse_token},
    roles::{Role, may},
};

/// The operator whose certificate `palisade init` makes.
const ADMIN: &str = "admin";

/// The one refusal (`IAM-1`).
fn refused() -> Error {
    Error::new(Code::Unauthenticated, "the credential is wrong, expired or revoked").hint(
        "`palisade context show` says which one is used; somebody who is in can make a new one \
         with `palisade api-token create`",
    )
}

/// See [`palisade_contract::ports::Access::authenticate`].
pub(crate) fn authenticate(view: &View, credential: &Credential) -> Result<Principal> {
    match credential {
        Credential::Token(text) => by_token(view, text),
        Credential::Certificate { uri, .. } => by_certificate(view, uri),
    }
}

fn by_token(view: &View, text: &str) -> Result<Principal> {
    let (id, presented) = parse_token(text).ok_or_else(refused)?;
    let row = API_TOKENS.get(view, &id)?.map(|found| found.value);
    // An unknown id takes the same comparison as a known one.
    let mut wanted = [0; 32];
    let readable = row
        .as_ref()
        .is_some_and(|row| hex::decode_to_slice(&row.secret_sha256, &mut wanted).is_ok());
    let equal: bool = presented.ct_eq(&wanted).into();
    let now_ms = view.clock().now_ms;
    let row = row.filter(|row| readable && equal && row.is_valid(now_ms)).ok_or_else(refused)?;
    Ok(Principal { name: format!("token/{}", row.id), roles: row.roles, tenant: row.tenant })
}

fn by_certificate(view: &View, uri: &str) -> Result<Principal> {
    let lineage =
        view.formation().map(|formation| formation.lineage.as_str()).ok_or_else(refused)?;
    let name = uri
        .strip_prefix("palisade://")
        .and_then(|rest| rest.strip_prefix(lineage))
        .and_then(|rest| rest.strip_prefix("/user/"))
        .filter(|name| palisade_contract::id::is_name(name))
        .ok_or_else(refused)?;
    let principal = |roles, tenant| Principal { name: format!("user/{name}"), roles, tenant };
    match PRINCIPALS.get(view, &name.to_owned())?.map(|found| found.value) {
        Some(row) if !row.disabled => Ok(principal(row.roles, row.tenant)),
        None if name == ADMIN => {
            Ok(principal(vec![Role::ClusterAdmin.word().to_owned()], String::new()))
        }
        _ => Err(refused()),
    }
}

/// See [`palisade_contract::ports::Access::authorize`].
pub(crate) fn authorize(principal: &Principal, action: &str, resource: &Resource) -> Result<()> {
    if may(&principal.roles, &principal.tenant, action, &resource.tenant) {
        return Ok(());
    }
    Err(Error::new(
        Code::AccessDenied,
        format!("{} may not {action} on {resource}", described(principal)),
    )
    .hint(hint(&principal.tenant, &resource.tenant)))
}

/// A principal by its name, with its roles and its tenant.
pub(crate) fn described(principal: &Principal) -> String {
    let roles =
        if principal.roles.is_empty() { "no role".to_owned() } else { principal.roles.join(", ") };
    let within = if principal.tenant.is_empty() {
        String::new()
    } else {
        format!(" within tenant {}", principal.tenant)
    };
    format!("{} ({roles}{within})", principal.name)
}

fn hint(bound: &str, owner: &str) -> String {
    if bound.is_empty() || bound == owner {
        "ask a cluster-admin for a token with a role that may".to_owned()
    } else if owner.is_empty() {
        format!("it is the cluster's: only who is bound to no tenant may, and you are to {bound}")
    } else {
        format!("you are bound to tenant {bound}: name that one, or none")
    }
}
