//! Who somebody is who called before: for what is done later on his behalf, and for whether two are of one hand.

use std::collections::BTreeSet;

use palisade_contract::{Code, Error, Principal, Resource, Result, ports::TOO_MANY_MAKERS};
use palisade_state::{Tx, View};

use crate::{
    access::{ADMIN, authorize},
    records::{API_TOKENS, CUSTOM_ROLES, PRINCIPALS, PrincipalRow, ROLE_BINDINGS, TokenRow},
    rights::{prefix, principal_of},
};

const TOKEN: &str = "token/";
const USER: &str = "user/";
/// Makers that are found of one, at most: chains are short, and this ends in any case.
pub(crate) const MAKERS_MAX: usize = 200;

fn gone(name: &str) -> Error {
    Error::new(Code::Unauthenticated, format!("{name} would not be let in any more"))
}

fn of_token(row: TokenRow) -> Principal {
    Principal { name: format!("{TOKEN}{}", row.id), roles: row.roles, tenant: row.tenant }
}

/// See [`palisade_contract::ports::Access::standing`].
pub(crate) fn standing(tx: &mut Tx, name: &str) -> Result<Principal> {
    if let Some(id) = name.strip_prefix(TOKEN) {
        let now_ms = tx.view().clock().now_ms;
        let row = tx.get(&API_TOKENS, &id.to_owned())?;
        let row = row.filter(|row| row.principal.is_empty() && row.is_valid(now_ms));
        return row.map(of_token).ok_or_else(|| gone(name));
    }
    let user = name.strip_prefix(USER).ok_or_else(|| gone(name))?;
    let row = match tx.get(&PRINCIPALS, &user.to_owned())? {
        None if user == ADMIN => PrincipalRow::admin(),
        row => row.filter(|row| !row.disabled).ok_or_else(|| gone(name))?,
    };
    // Read for the read set: what it may is looked up in the view.
    for (_, binding) in tx.scan(&ROLE_BINDINGS, prefix(user).as_bytes())? {
        tx.get(&CUSTOM_ROLES, &binding.role)?;
    }
    principal_of(tx.view(), row)
}

/// See [`palisade_contract::ports::Access::able`].
pub(crate) fn able(view: &View, action: &str, resource: &Resource) -> Result<Vec<String>> {
    let now_ms = view.clock().now_ms;
    let mut known = vec![];
    for (_, found) in API_TOKENS.all(view)? {
        if found.value.principal.is_empty() && found.value.is_valid(now_ms) {
            known.push(of_token(found.value));
        }
    }
    let people = PRINCIPALS.all(view)?;
    if !people.iter().any(|(name, _)| name == ADMIN) {
        known.push(principal_of(view, PrincipalRow::admin())?);
    }
    for (_, found) in people {
        if !found.value.disabled {
            known.push(principal_of(view, found.value)?);
        }
    }
    known.retain(|principal| authorize(view, principal, action, resource).is_ok());
    let mut names: Vec<String> = known.into_iter().map(|principal| principal.name).collect();
    names.sort_unstable();
    Ok(names)
}

/// See [`palisade_contract::ports::Access::makers`].
pub(crate) fn makers(tx: &mut Tx, name: &str) -> Result<BTreeSet<String>> {
    let (mut found, mut next) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(one) = next.pop() {
        for maker in made_by(tx, &one)? {
            if maker == name || found.contains(&maker) {
                continue;
            }
            if found.len() >= MAKERS_MAX {
                found.insert(TOO_MANY_MAKERS.to_owned());
                return Ok(found);
            }
            found.insert(maker.clone());
            next.push(maker);
        }
    }
    Ok(found)
}

/// Somebody and whoever made him, for what is kept of whatever he makes now.
pub(crate) fn hand_of(tx: &mut Tx, name: &str) -> Result<BTreeSet<String>> {
    let mut all = makers(tx, name)?;
    all.insert(name.to_owned());
    Ok(all)
}

/// Who made somebody, chose its keys, or made a token of its that is not revoked; and who had made those then.
fn made_by(tx: &mut Tx, name: &str) -> Result<BTreeSet<String>> {
    if let Some(id) = name.strip_prefix(TOKEN) {
        let row = tx.get(&API_TOKENS, &id.to_owned())?;
        return Ok(row.map(hand_of_token).unwrap_or_default());
    }
    let Some(user) = name.strip_prefix(USER) else { return Ok(BTreeSet::new()) };
    let mut all = BTreeSet::new();
    if let Some(row) = tx.get(&PRINCIPALS, &user.to_owned())? {
        all = row.makers;
        all.insert(row.created_by);
    }
    for (_, token) in tx.by_index(&API_TOKENS, "principal", user)? {
        all.append(&mut hand_of_token(token));
    }
    Ok(all)
}

fn hand_of_token(row: TokenRow) -> BTreeSet<String> {
    let mut all = row.makers;
    all.insert(row.created_by);
    all
}
