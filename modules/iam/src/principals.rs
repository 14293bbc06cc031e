//! The methods `principals.*`: who there is beside tokens that stand for themselves.
//!
//! Principals are the cluster's to make, whomever they belong to, and their names are unique in it: a client certificate
//! names one. Whoever may read in a tenant sees those that belong to it.

use palisade_contract::{
    Check, Code, Error, Method, MethodContext, Problems, Resource, Result, Verb, Watched,
    id::{NAME_RULE, is_name},
    time::rfc3339,
};
use palisade_state::{Stamp, Tx, Versioned, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    access::ADMIN,
    methods::revoke_row,
    records::{API_TOKENS, PRINCIPALS, PrincipalRow, ROLE_BINDINGS, is_sha256_hex},
    rights::{Held, Rights, is_self, prefix},
    standing::hand_of,
    ways,
};

/// Keys that one principal has at most.
const KEYS_MAX: usize = 16;
/// Characters of a description.
pub(crate) const DESCRIPTION_MAX: usize = 256;

/// Input of `principals.create`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreatePrincipal {
    /// Its name, unique in the cluster.
    pub name: String,
    /// The tenant that it belongs to and in which alone it can hold roles; absent: the cluster.
    #[serde(default)]
    pub tenant: Option<String>,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// SHA-256 (hex) of the public keys (SPKI, DER) whose client certificates are accepted.
    #[serde(default)]
    pub keys: Vec<String>,
}

impl Check for CreatePrincipal {
    fn check(&self, at: &str, problems: &mut Problems) {
        check_name(&self.name, &format!("{at}/name"), problems);
        if self.name == ADMIN {
            problems.add(
                format!("{at}/name"),
                "admin is there already: whoever has a certificate of the CA for that name",
            );
        }
        if let Some(tenant) = &self.tenant {
            check_name(tenant, &format!("{at}/tenant"), problems);
        }
        check_description(&self.description, at, problems);
        check_keys(&self.keys, at, problems);
    }
}

pub(crate) fn check_name(name: &str, at: &str, problems: &mut Problems) {
    if !is_name(name) {
        problems.add(at, format!("must have {NAME_RULE}"));
    }
}

pub(crate) fn check_description(text: &str, at: &str, problems: &mut Problems) {
    if text.chars().count() > DESCRIPTION_MAX || text.chars().any(char::is_control) {
        problems.add(
            format!("{at}/description"),
            format!("must be one line of at most {DESCRIPTION_MAX} characters"),
        );
    }
}

fn check_keys(keys: &[String], at: &str, problems: &mut Problems) {
    if keys.len() > KEYS_MAX {
        problems.add(format!("{at}/keys"), format!("must be at most {KEYS_MAX} keys"));
    }
    for (position, key) in keys.iter().enumerate() {
        if !is_sha256_hex(key) {
            problems.add(
                format!("{at}/keys/{position}"),
                "must be 64 lower-case hexadecimal digits: the SHA-256 of the public key (SPKI, DER)",
            );
        }
    }
}

/// Input of `principals.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListPrincipals {
    /// Only those that belong to this tenant.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for ListPrincipals {}

/// Input of `principals.get`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetPrincipal {
    /// Its name.
    pub principal: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for GetPrincipal {}

/// Input of `principals.update`. What is absent stays as it is.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdatePrincipal {
    /// Its name.
    pub principal: String,
    /// Whether its certificates and tokens are refused.
    #[serde(default)]
    pub disabled: Option<bool>,
    /// What it is for.
    #[serde(default)]
    pub description: Option<String>,
    /// The keys whose client certificates are accepted, all of them.
    #[serde(default)]
    pub keys: Option<Vec<String>>,
}

impl Check for UpdatePrincipal {
    fn check(&self, at: &str, problems: &mut Problems) {
        if let Some(description) = &self.description {
            check_description(description, at, problems);
        }
        check_keys(self.keys.as_deref().unwrap_or_default(), at, problems);
    }
}

/// Input of `principals.remove`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovePrincipal {
    /// Its name.
    pub principal: String,
}

impl Check for RemovePrincipal {}

/// A principal as REST shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrincipalRecord {
    /// Its name.
    pub name: String,
    /// The tenant that it belongs to; empty: the cluster.
    pub tenant: String,
    /// `active` or `disabled`.
    pub status: String,
    /// What it is for.
    pub description: String,
    /// Which roles it holds, and where.
    pub roles: Vec<Held>,
    /// SHA-256 of the keys whose client certificates are accepted; absent: any that the CA certified for its name.
    pub keys: Option<Vec<String>>,
    /// Who made it.
    pub created_by: String,
    /// When; absent: with the cluster.
    pub created_at: Option<String>,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision
    /// is the answer's, and of `admin` until somebody changes it.
    pub revision: u64,
}

/// The methods, in the order of their documentation.
pub(crate) fn methods() -> Vec<Method> {
    let text = |value: &Value, field: &str| {
        value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let read = "compute:principals:read";
    let write = "compute:principals:write";
    let of = move |value: &Value| {
        Resource::of_tenant("principal", &text(value, "principal"), &text(value, "tenant"))
    };
    vec![
        Method::mutation("principals", "create", write, create)
            .summary("Makes a principal: somebody who holds roles by bindings, and comes with tokens or certificates.")
            .rest(Verb::Post, "/principals")
            .on(move |value| Resource::cluster("principal", &text(value, "name"))),
        Method::query("principals", "list", read, list)
            .summary("Lists the principals, with the roles that they hold.")
            .rest(Verb::Get, "/principals")
            .list()
            .watched(Watched::Records)
            .on(of),
        Method::query("principals", "get", read, get)
            .summary("Shows a principal.")
            .rest(Verb::Get, "/principals/{principal}")
            .on(of),
        Method::mutation("principals", "update", write, update)
            .summary("Disables a principal or lets it in again, or changes its keys or description.")
            .rest(Verb::Patch, "/principals/{principal}")
            .on(move |value| Resource::cluster("principal", &text(value, "principal"))),
        Method::mutation("principals", "remove", write, remove)
            .summary("Removes a principal with its bindings, and revokes its tokens.")
            .rest(Verb::Delete, "/principals/{principal}")
            .on(move |value| Resource::cluster("principal", &text(value, "principal"))),
    ]
}

/// That there is none of this name, in the words that are said of another tenant's too.
pub(crate) fn not_found(name: &str) -> Error {
    Error::not_found("principal", name).hint("`palisade principal ls` shows all")
}

/// A principal as the transaction has left it, with the revision of its row; 0: it has none.
fn find(tx: &mut Tx, name: &str) -> Result<(PrincipalRow, u64)> {
    match tx.get_versioned(&PRINCIPALS, &name.to_owned())? {
        Some(Versioned { value, stamp }) => Ok((value, stamp.modified_rev)),
        None if name == ADMIN => Ok((PrincipalRow::admin(), 0)),
        None => Err(not_found(name)),
    }
}

fn create(cx: &MethodContext, tx: &mut Tx, input: CreatePrincipal) -> Result<PrincipalRecord> {
    if tx.get(&PRINCIPALS, &input.name)?.is_some() {
        let detail = format!("there is a principal {:?} already", input.name);
        let error = Error::new(Code::Conflict, detail).hint("choose another name");
        // The same request would find the same principal.
        return Err(Error { retryable: false, ..error });
    }
    cx.context.ports.tenant_open(tx, input.tenant.as_deref().unwrap_or_default())?;
    let row = PrincipalRow {
        name: input.name,
        tenant: input.tenant.unwrap_or_default(),
        keys: Some(sorted(input.keys)),
        description: input.description,
        created_by: cx.principal.name.clone(),
        makers: hand_of(tx, &cx.principal.name)?,
        created_at_ms: tx.view().clock().wall_ms,
        ..PrincipalRow::default()
    };
    tx.put(&PRINCIPALS, &row.name, &row)?;
    told(cx, tx, "principal.created", &row);
    record(tx.view(), &row, 0)
}

fn sorted(mut words: Vec<String>) -> Vec<String> {
    words.sort_unstable();
    words.dedup();
    words
}

fn told(cx: &MethodContext, tx: &mut Tx, kind: &str, row: &PrincipalRow) {
    let data = json!({"principal": row.name, "disabled": row.disabled, "by": cx.principal.name});
    tx.publish(kind, &row.tenant, format!("principal/{}", row.name), &data);
}

fn list(_cx: &MethodContext, view: &View, input: ListPrincipals) -> Result<Vec<PrincipalRecord>> {
    let mut all = PRINCIPALS.all(view)?;
    if !all.iter().any(|(name, _)| name == ADMIN) {
        let admin = Versioned { value: PrincipalRow::admin(), stamp: Stamp::default() };
        all.insert(0, (ADMIN.to_owned(), admin));
    }
    all.retain(|(_, found)| is_of(input.tenant.as_ref(), &found.value));
    let records = all.iter().map(|(_, found)| record(view, &found.value, found.stamp.modified_rev));
    records.collect()
}

fn is_of(tenant: Option<&String>, row: &PrincipalRow) -> bool {
    tenant.is_none_or(|tenant| *tenant == row.tenant)
}

fn get(_cx: &MethodContext, view: &View, input: GetPrincipal) -> Result<PrincipalRecord> {
    let found = PRINCIPALS.get(view, &input.principal)?;
    let (row, revision) = match found {
        Some(found) => (found.value, found.stamp.modified_rev),
        None if input.principal == ADMIN => (PrincipalRow::admin(), 0),
        None => return Err(not_found(&input.principal)),
    };
    if !is_of(input.tenant.as_ref(), &row) {
        return Err(not_found(&input.principal));
    }
    record(view, &row, revision)
}

fn update(cx: &MethodContext, tx: &mut Tx, input: UpdatePrincipal) -> Result<PrincipalRecord> {
    let (before, revision) = find(tx, &input.principal)?;
    cx.check_if_match(revision)?;
    let mut row = before.clone();
    row.disabled = input.disabled.unwrap_or(before.disabled);
    row.description = input.description.unwrap_or(row.description);
    if let Some(keys) = input.keys {
        row.keys = Some(sorted(keys));
    }
    if row == before {
        return record(tx.view(), &row, revision);
    }
    let opens = before.disabled && !row.disabled;
    if opens || row.keys != before.keys {
        // Whoever chooses its keys, or lets it in again, may come as it.
        let (own, its) = (Rights::of(tx.view(), &cx.principal)?, Rights::of_row(tx.view(), &row)?);
        own.give_all(&cx.principal, &its)?;
        row.makers.append(&mut hand_of(tx, &cx.principal.name)?);
    }
    if row.disabled && !before.disabled {
        take_all(cx, tx, &row)?;
    }
    tx.put(&PRINCIPALS, &row.name, &row)?;
    let closes = (row.disabled && !before.disabled) || row.keys != before.keys;
    if closes && ways::is_admin(tx, &row)? {
        ways::keep_one(tx, &format!("principal {}", row.name))?;
    }
    told(cx, tx, "principal.changed", &row);
    record(tx.view(), &row, 0)
}

fn remove(cx: &MethodContext, tx: &mut Tx, input: RemovePrincipal) -> Result<PrincipalRecord> {
    let (row, revision) = find(tx, &input.principal)?;
    cx.check_if_match(revision)?;
    if row.name == ADMIN {
        // Its certificate would be a cluster-admin's again.
        let detail = "admin cannot be removed: whoever has its certificate would be let in again";
        return Err(Error::new(Code::InvalidState, detail)
            .hint("disable it: `palisade principal disable admin`"));
    }
    take_all(cx, tx, &row)?;
    let gone = record(tx.view(), &row, 0)?;
    let was_admin = ways::is_admin(tx, &row)?;
    for (_, token) in tx.by_index(&API_TOKENS, "principal", &row.name)? {
        revoke_row(cx, tx, token)?;
    }
    for (id, _) in tx.scan(&ROLE_BINDINGS, prefix(&row.name).as_bytes())? {
        tx.delete(&ROLE_BINDINGS, &id)?;
    }
    tx.delete(&PRINCIPALS, &row.name)?;
    if was_admin {
        ways::keep_one(tx, &format!("principal {}", row.name))?;
    }
    told(cx, tx, "principal.removed", &row);
    Ok(gone)
}

/// Refuses that whoever calls takes away all that a principal holds. `IAM-7`
fn take_all(cx: &MethodContext, tx: &Tx, row: &PrincipalRow) -> Result<()> {
    if is_self(&cx.principal, &row.name) {
        return Ok(());
    }
    let (own, its) = (Rights::of(tx.view(), &cx.principal)?, Rights::of_row(tx.view(), row)?);
    own.take_all(&cx.principal, &its)
}

fn record(view: &View, row: &PrincipalRow, revision: u64) -> Result<PrincipalRecord> {
    Ok(PrincipalRecord {
        name: row.name.clone(),
        tenant: row.tenant.clone(),
        status: if row.disabled { "disabled" } else { "active" }.to_owned(),
        description: row.description.clone(),
        roles: Rights::of_row(view, row)?.held(),
        keys: row.keys.clone(),
        created_by: row.created_by.clone(),
        created_at: (row.created_at_ms > 0).then(|| rfc3339(row.created_at_ms)),
        revision,
    })
}
