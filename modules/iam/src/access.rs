//! The port `access`: whose a credential is, and what its principal may do.

use palisade_contract::{Code, Error, Principal, Resource, Result, ports::Credential};
use palisade_state::View;
use subtle::ConstantTimeEq;

use crate::{
    records::{API_TOKENS, PRINCIPALS, PrincipalRow, parse_token},
    rights::{Rights, principal_of},
    uses::Uses,
};

/// Whom the CA's own holder can always certify, until it is disabled.
pub(crate) const ADMIN: &str = "admin";

/// The one refusal (`IAM-1`).
fn refused() -> Error {
    Error::new(Code::Unauthenticated, "the credential is wrong, expired or revoked").hint(
        "`palisade context show` says which one is used; somebody who is in can make a new one \
         with `palisade api-token create`",
    )
}

/// See [`palisade_contract::ports::Access::authenticate`].
pub(crate) fn authenticate(view: &View, uses: &Uses, credential: &Credential) -> Result<Principal> {
    match credential {
        Credential::Token(text) => by_token(view, uses, text),
        Credential::Certificate { uri, key } => by_certificate(view, uri, key),
    }
}

fn by_token(view: &View, uses: &Uses, text: &str) -> Result<Principal> {
    let (id, presented) = parse_token(text).ok_or_else(refused)?;
    let row = API_TOKENS.get(view, &id)?.map(|found| found.value);
    // An unknown id takes the same comparison as a known one.
    let mut wanted = [0; 32];
    let readable = row
        .as_ref()
        .is_some_and(|row| hex::decode_to_slice(&row.secret_sha256, &mut wanted).is_ok());
    let equal: bool = presented.ct_eq(&wanted).into();
    let clock = view.clock();
    let row =
        row.filter(|row| readable && equal && row.is_valid(clock.now_ms)).ok_or_else(refused)?;
    let principal = if row.principal.is_empty() {
        Principal { name: format!("token/{}", row.id), roles: row.roles, tenant: row.tenant }
    } else {
        let of = PRINCIPALS.get(view, &row.principal)?.map(|found| found.value);
        principal_of(view, of.filter(|of| !of.disabled).ok_or_else(refused)?)?
    };
    uses.note(&row.id, clock.wall_ms);
    Ok(principal)
}

fn by_certificate(view: &View, uri: &str, key: &str) -> Result<Principal> {
    let lineage =
        view.formation().map(|formation| formation.lineage.as_str()).ok_or_else(refused)?;
    let name = uri
        .strip_prefix("palisade://")
        .and_then(|rest| rest.strip_prefix(lineage))
        .and_then(|rest| rest.strip_prefix("/user/"))
        .filter(|name| palisade_contract::id::is_name(name))
        .ok_or_else(refused)?;
    match PRINCIPALS.get(view, &name.to_owned())?.map(|found| found.value) {
        Some(row) if !row.disabled && row.accepts(key) => principal_of(view, row),
        None if name == ADMIN => principal_of(view, PrincipalRow::admin()),
        _ => Err(refused()),
    }
}

/// See [`palisade_contract::ports::Access::authorize`].
pub(crate) fn authorize(
    view: &View,
    principal: &Principal,
    action: &str,
    resource: &Resource,
) -> Result<()> {
    decide(principal, &Rights::of(view, principal)?, action, resource)
}

/// Whether somebody with these rights may.
pub(crate) fn decide(
    principal: &Principal,
    rights: &Rights,
    action: &str,
    resource: &Resource,
) -> Result<()> {
    if rights.may(action, &resource.tenant) {
        return Ok(());
    }
    let who = described(principal, rights);
    Err(Error::new(Code::AccessDenied, format!("{who} may not {action} on {resource}")).hint(hint(
        principal,
        rights,
        &resource.tenant,
    )))
}

/// A principal by its name, with its roles and where it has them.
pub(crate) fn described(principal: &Principal, rights: &Rights) -> String {
    format!("{} ({})", principal.name, rights.words())
}

fn hint(principal: &Principal, rights: &Rights, owner: &str) -> String {
    let bound = principal.tenant.as_str();
    let tenants = rights.tenants();
    if rights.is_empty() {
        "it holds no role: somebody who may can give it one with `palisade binding create`"
            .to_owned()
    } else if bound.is_empty() && !tenants.contains(&"") {
        format!("you hold roles in the tenants {}: name one of them", tenants.join(", "))
    } else if bound.is_empty() || bound == owner {
        "ask a cluster-admin for a token with a role that may".to_owned()
    } else if owner.is_empty() {
        format!("it is the cluster's: only who is bound to no tenant may, and you are to {bound}")
    } else {
        format!("you are bound to tenant {bound}: name that one, or none")
    }
}
